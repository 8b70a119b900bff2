//! Threads whose work nobody waits for.
//!
//! **A thread that takes locks of a store that serves keeps its usual priority**, and gives
//! its core away of itself, when it holds none ([`leave_core`]). At a lower one it may be
//! stopped while it holds a partition's lock, and gets its next turn long after: whoever
//! wants the lock waits as if its own priority were the lower one. Measured with a thread that
//! takes a lock for 2 of 5 µs, another that wants it each 500 µs, and one or two more that
//! keep the core busy (one core, Linux 6.18):
//!
//! | the first one | wait for the lock, p99 | p99.9 | longest | its turns with the lock in 12 s |
//! |---|---|---|---|---|
//! | nice 10 | 14 to 22 ms | 264 to 296 ms | 743 ms | 69,000 to 86,000 |
//! | usual | 8 to 13 ms | 16 to 37 ms | 102 ms | 538,000 to 694,000 |
//! | usual, leaves the core each 500 µs | 1.3 to 1.9 ms | 7 to 16 ms | 354 ms | 302,000 to 558,000 |
//! | usual, leaves the core each 100 µs | under 1 µs | 9 to 169 µs | 16 ms | 48,000 to 199,000 |
//!
//! Those who want the core itself have it a turn later. Where nobody does, nothing is lost.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Nice level: a tenth of the share of a thread that is waited for, and no turn while one
/// has work. More would stop it for good where a core is never idle.
const NICE: i32 = 10;

/// How long a thread keeps its core while it has work, about: short beside a time slice, so
/// that it is seldom stopped amid something. See the module.
const TURN: Duration = Duration::from_micros(100);

/// The clock is looked at each so many calls: a look costs as much as a tenth of what is
/// done between two calls.
const CALLS_BETWEEN: u32 = 8;

thread_local! {
    /// When the calling thread's turn began.
    static TURN_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Calls since the last look at the clock.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread gives way to others from now on. There is no way back without
/// privilege, so it should be a thread of its own, and none that takes locks of a store that
/// serves.
pub(crate) fn give_way() {
    // On Linux this is about the thread, not its process. Without it, it works as fast as it can.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Whoever wants this core has it, if the calling thread's turn is over. It must hold no lock
/// that others may want. For what takes a microsecond between two calls, about.
pub(crate) fn leave_core() {
    let calls = CALLS.get() + 1;
    CALLS.set(calls % CALLS_BETWEEN);
    if calls >= CALLS_BETWEEN {
        leave_core_after_part();
    }
}

/// The same for what takes ten of them, or more: it looks at the clock each time.
pub(crate) fn leave_core_after_part() {
    let now = Instant::now();
    let is_over = |began: Instant| now.saturating_duration_since(began) >= TURN;
    if TURN_BEGAN.get().is_none_or(is_over) {
        std::thread::yield_now();
        TURN_BEGAN.set(Some(Instant::now()));
    }
}

/// Runs what is awaited in the calling thread alone: messages are packed and unpacked here,
/// too, not by the threads that serve.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
