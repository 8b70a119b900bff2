//! A thread for what is asynchronous.

use std::io;
use std::sync::mpsc;
use tokio::runtime::{Builder, Handle, Runtime};

/// One thread that polls tasks; ended with this, without waiting for them.
#[derive(Debug)]
pub(super) struct OwnRuntime {
    /// Taken when it ends.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl OwnRuntime {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_name("trefoil-etcd")
            .enable_all()
            .build()?;
        Ok(OwnRuntime {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What comes of `work`, on that thread; `None` if it ends before. A thread that
    /// polls tasks of another runtime may call this, too: it waits like any other.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.recv().ok()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
