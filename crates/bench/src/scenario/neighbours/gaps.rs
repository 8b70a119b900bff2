//! How long a core was somebody else's: a bare loop on it, ahead of everything else,
//! sleeps for half a millisecond at a time and looks how late it is.
//!
//! A virtual machine's host takes its cores away at random. Who looks at the slowest
//! answer has to know that; nothing is subtracted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::load::pin_current_thread;

const PERIOD: Duration = Duration::from_micros(500);

/// Loops on some cores, until they are asked.
pub(super) struct Gaps {
    is_over: Arc<AtomicBool>,
    loops: Vec<JoinHandle<Duration>>,
}

impl Gaps {
    /// A loop on each of these cores.
    pub(super) fn watch(cores: impl IntoIterator<Item = usize>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let of_core = |core| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || longest(core, &is_over))
        };
        Gaps {
            loops: cores.into_iter().map(of_core).collect(),
            is_over,
        }
    }

    /// The longest gap that one of them saw.
    pub(super) fn longest(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        let seen = self.loops.into_iter().filter_map(|of| of.join().ok());
        seen.max().unwrap_or_default()
    }
}

fn longest(core: usize, is_over: &AtomicBool) -> Duration {
    // Where the system has no such core the loop is on another one.
    let _ = pin_current_thread(core);
    go_ahead();
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        std::thread::sleep(PERIOD);
        longest = longest.max(begin.elapsed().saturating_sub(PERIOD));
    }
    longest
}

/// Puts the calling thread before all others, where that is allowed.
fn go_ahead() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads the structure that it is given.
    let errno = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) };
    if errno != 0 {
        // The next best. Without either, what others take of the core counts, too.
        let _ = rustix::process::setpriority_process(None, -20);
    }
}
