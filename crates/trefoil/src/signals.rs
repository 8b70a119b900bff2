//! What ends a server: SIGTERM, SIGINT, or a client that may ask for it.

use crate::failure::Failure;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// Made before a server starts, so that no signal is lost.
pub(crate) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::doing("cannot start the runtime", e))?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
        drop(entered);
        Ok(Signals {
            runtime,
            terminate,
            interrupt,
        })
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self, stop: &Notify) {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = self.interrupt.recv() => tracing::info!("SIGINT: stopping"),
                _ = stop.notified() => tracing::info!("a client asked for it: stopping"),
            }
        });
    }
}
