//! A process's end, where it comes before the process serves.
//!
//! A server that starts waits for others: for whoever it takes a backend over from, for a
//! lock, for sockets, for a store on other machines. Whoever is told to end the process says
//! so here, and every such wait is over.

use crate::stop::Stop;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// See the module. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// For threads.
    stop: Stop,
    /// For tasks.
    is_said: watch::Sender<bool>,
}

impl Ending {
    /// The process is to end: what waits stops waiting, now and later.
    pub fn end(&self) {
        self.inner.is_said.send_replace(true);
        self.inner.stop.stop();
    }

    /// Whether it is to end.
    pub fn is_said(&self) -> bool {
        *self.inner.is_said.borrow()
    }

    /// Waits for so long; `false` if the process is to end.
    pub fn pause(&self, pause: Duration) -> bool {
        !self.inner.stop.wait(pause)
    }

    /// Waits for it.
    pub(crate) async fn said(&self) {
        let mut receiver = self.inner.is_said.subscribe();
        // It cannot be gone: it is held here.
        let _ = receiver.wait_for(|is_said| *is_said).await;
    }

    /// Has `work` end so long after it was said at the latest: then there is no result.
    pub(crate) async fn within<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let is_over = async {
            self.said().await;
            tokio::time::sleep(patience).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = is_over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn threads_and_tasks_that_wait_hear_it() {
        let ending = Ending::default();
        assert!(ending.pause(Duration::ZERO) && !ending.is_said());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| ending.pause(FOR_EVER));
            let task = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let done = ending.within(FOR_EVER, async { 1 }).await;
                    let late = ending.within(Duration::ZERO, std::future::pending::<()>());
                    (done, late.await)
                })
            });
            ending.clone().end();
            assert!(!thread.join().unwrap());
            assert_eq!(task.join().unwrap(), (Some(1), None));
        });
        assert!(ending.is_said() && !ending.pause(FOR_EVER));
    }
}
