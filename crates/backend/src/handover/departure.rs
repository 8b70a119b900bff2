//! Whether the predecessor has let go, by its memory.
//!
//! It ends a moment after it has let go, so that its answer may be lost. A successor that
//! gave up then would leave nobody with what both have held. The memory of the predecessor
//! says it, too, whether it lives or not: the end of its lease is
//! [`LEASE_MOVED_NS`](trefoil_layout::control::LEASE_MOVED_NS) from the moment on from which
//! it acknowledges nothing any more. Nobody else writes that value, and it is never taken
//! back. It also says to whom it has let go: a process that was stopped for long may have
//! been replaced by another one. Its lock is free a moment later, and a successor serves only
//! once it has that.

use super::giving::{FROZEN_LONGER, LINGER};
use crate::ending::Ending;
use crate::lease::LEASE;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_cell::{BackendLock, CellConfig, ConfigStoreError};
use trefoil_fabric::RegionView;
use trefoil_fabric::shm::{ConnectOptions, Connection};

/// How long the greeting may take.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How long the memory is looked at. A predecessor that has been asked lets go before it
/// takes mutations again, or not at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);
/// While operations wait for it, and how long that is tried.
const PAUSE_SHORT: Duration = Duration::from_micros(30);
const SOON: Duration = Duration::from_millis(20);
/// How long the memory is looked at beside waiting for the answer. Not in tests of this crate,
/// which are about answers that are lost; those of the program have it.
const LOOKED_AT: Duration = match cfg!(test) {
    true => Duration::ZERO,
    false => SOON,
};

const _: () = assert!(
    PATIENCE.as_millis() > FROZEN_LONGER.as_millis() + LINGER.as_millis() + LEASE.as_millis()
);

/// See the module.
#[derive(Debug)]
pub(super) struct Departure {
    /// Nothing where the memory cannot be had: then only an answer tells.
    memory: Option<Arc<RegionView>>,
    /// What this process calls itself.
    token: u64,
}

impl Departure {
    /// Of the process with this incarnation, which is backend `number` of the cell, in favour
    /// of the successor that calls itself `token`.
    pub(super) fn of(config: &CellConfig, number: u32, incarnation: u64, token: u64) -> Self {
        let memory = connect(config, number, incarnation);
        if let Err(why) = &memory {
            tracing::debug!(backend = number, why, "its memory will not tell its end");
        }
        let memory = memory.ok();
        Departure { memory, token }
    }

    fn has_let_go(&self, memory: &RegionView) -> bool {
        memory.has_moved() && memory.successor() == self.token
    }

    /// Ends as soon as it has let go, if that is soon; else never. Its answer takes several
    /// threads' wake-ups to come, in which nobody is the backend. The thread is held up: call
    /// it only where that waits for nothing else.
    pub(super) async fn is_seen_soon(&self) {
        let begin = Instant::now();
        if let Some(memory) = &self.memory {
            let _precise = PreciseSleep::begin();
            while begin.elapsed() < LOOKED_AT {
                if self.has_let_go(memory) {
                    return;
                }
                std::thread::sleep(PAUSE_SHORT);
                tokio::task::yield_now().await;
            }
        }
        std::future::pending().await
    }

    /// Whether it has let go; waits for that.
    pub(super) async fn is_seen(&self) -> bool {
        let Some(memory) = &self.memory else {
            return false;
        };
        let by = Instant::now() + PATIENCE;
        while !self.has_let_go(memory) {
            if Instant::now() >= by {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }
}

/// Short sleeps of this thread are as short as they say, for as long as this lives: else they
/// take 50 us longer. Threads that it makes inherit that.
struct PreciseSleep(Option<NonZeroU64>);

impl PreciseSleep {
    fn begin() -> Self {
        let usual = rustix::thread::current_timer_slack().ok();
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        PreciseSleep(usual.and_then(NonZeroU64::new))
    }
}

impl Drop for PreciseSleep {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.0);
    }
}

/// Takes the lock of a predecessor that has let go, or is about to: its memory says so before
/// its lock is free. This process has the only copy by now, so it waits for whatever is in the
/// way, also for a predecessor that was stopped while it went. It ends only where somebody else
/// is the backend, or where it is told to.
pub(crate) fn await_lock(
    lock: impl Fn() -> Result<BackendLock, ConfigStoreError>,
    ending: &Ending,
) -> Result<BackendLock, ConfigStoreError> {
    let begin = Instant::now();
    let pause = || match begin.elapsed() < SOON {
        true => PAUSE_SHORT,
        false => PAUSE,
    };
    let take = || loop {
        match lock() {
            Err(ConfigStoreError::BackendLocked { .. } | ConfigStoreError::Registered { .. })
                if begin.elapsed() < PATIENCE && ending.pause(pause()) => {}
            result => return result,
        }
    };
    let tell = |error: &ConfigStoreError| {
        tracing::warn!(%error, "nothing is served before this has passed or is mended");
    };
    let may_pass = |error: &ConfigStoreError| {
        !matches!(
            error,
            ConfigStoreError::PlaceTaken { .. }
                | ConfigStoreError::Registered { .. }
                | ConfigStoreError::StartedAnew { .. }
        )
    };
    trefoil_cell::wait_out(take, may_pass, tell, |pause| ending.pause(pause))
}

fn connect(config: &CellConfig, number: u32, incarnation: u64) -> Result<Arc<RegionView>, String> {
    let backend = config.backend(number);
    let socket = backend.and_then(|backend| backend.fabric_socket.as_ref());
    let socket = socket.ok_or("it gives its memory to nobody")?;
    let options = ConnectOptions {
        timeout: CONNECT_PATIENCE,
        rings: false,
        ..ConnectOptions::default()
    };
    let connection = Connection::connect(socket, number, &options).map_err(|e| e.to_string())?;
    let (memory, _) = connection.into_parts();
    match memory.agreement().incarnation == incarnation {
        true => Ok(memory),
        false => Err("it is of another process".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_to_end_waits_for_no_lock() {
        let ending = Ending::default();
        let locked = || {
            Err(ConfigStoreError::BackendLocked {
                number: 0,
                pid: None,
                path: "backend-0.lock".into(),
            })
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| await_lock(locked, &ending));
            // Past the time in which it just looks again, or within.
            std::thread::sleep(2 * PAUSE);
            ending.end();
            assert!(waits.join().unwrap().is_err());
        });
    }
}
