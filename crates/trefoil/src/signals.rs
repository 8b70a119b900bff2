//! Signals to a server: SIGTERM and SIGINT end it, as a client may that is allowed
//! to; on SIGHUP it reads anew what it can take while it runs.

use crate::failure::Failure;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use trefoil_backend::Ending;

/// Made before a server starts, so that no signal is lost.
pub(crate) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
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
        let hangup = signal(SignalKind::hangup()).map_err(Failure::of)?;
        drop(entered);
        Ok(Signals {
            runtime,
            terminate,
            interrupt,
            hangup,
        })
    }

    /// Does `work`, which makes a server; who has the process end meanwhile is heard by what
    /// that waits for. `None` if it is to end: then nothing is to be served.
    pub(crate) fn heard_while<T>(
        &mut self,
        ending: &Ending,
        work: impl FnOnce() -> T,
    ) -> Option<T> {
        let (done, is_done) = oneshot::channel::<()>();
        let made = std::thread::scope(|scope| {
            let listen = || {
                self.runtime.block_on(async {
                    let signal = tokio::select! {
                        _ = self.terminate.recv() => "SIGTERM",
                        _ = self.interrupt.recv() => "SIGINT",
                        // Or the work has panicked.
                        _ = is_done => return,
                    };
                    tracing::info!("{signal}: ending before it serves");
                    ending.end();
                });
            };
            let thread = std::thread::Builder::new().name("trefoil-signals".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, listen) {
                tracing::warn!(%error, "no thread for signals: they are heard once it serves");
            }
            let made = work();
            drop(done);
            made
        });
        (!ending.is_said()).then_some(made)
    }

    /// Waits for so long; whether the process is to end.
    pub(crate) fn pause(&mut self, pause: Duration) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.terminate.recv() => true,
                _ = self.interrupt.recv() => true,
                () = tokio::time::sleep(pause) => false,
            }
        })
    }

    /// Waits for the end; calls `reload` on every SIGHUP.
    pub(crate) fn wait(mut self, stop: &Notify, mut reload: impl FnMut() -> Result<(), Failure>) {
        loop {
            let hung_up = self.runtime.block_on(async {
                tokio::select! {
                    _ = self.terminate.recv() => tracing::info!("SIGTERM: stopping"),
                    _ = self.interrupt.recv() => tracing::info!("SIGINT: stopping"),
                    _ = stop.notified() => tracing::info!("asked to stop: stopping"),
                    _ = self.hangup.recv() => return true,
                }
                false
            });
            if !hung_up {
                return;
            }
            tell(reload());
        }
    }
}

/// Tells how a reload went. A mistake in a file changes nothing, and ends nothing.
pub(crate) fn tell(reloaded: Result<(), Failure>) {
    match reloaded {
        Ok(()) => tracing::info!("SIGHUP: settings were read again"),
        Err(failure) => tracing::error!("SIGHUP: settings were not all taken: {failure}"),
    }
}
