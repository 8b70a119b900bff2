//! How long a thread could run and did not, because another one had its core.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How long a thread has waited in its core's queue, as Linux counts it. What is missing
/// from a gap in the thread's own time beyond that, nobody on this machine has had.
#[derive(Debug)]
pub struct Waits(Option<File>);

impl Waits {
    /// Of the thread that calls.
    pub fn of_this_thread() -> Self {
        Waits(File::open("/proc/thread-self/schedstat").ok())
    }

    /// All of it so far, if the system tells.
    pub fn look(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        // Nanoseconds on the core, nanoseconds in its queue, how often.
        let text = std::str::from_utf8(&text[..len]).ok()?;
        let waited = text.split_ascii_whitespace().nth(1)?;
        Some(Duration::from_nanos(waited.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[test]
    fn who_shares_a_core_waits() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(0).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let waiter = scope.spawn(|| {
                pin(0).unwrap();
                let waits = Waits::of_this_thread();
                let (begin, before) = (Instant::now(), waits.look().unwrap());
                let mut waited = Duration::ZERO;
                while waited < Duration::from_millis(1) && begin.elapsed() < Duration::from_secs(30)
                {
                    waited = waits.look().unwrap() - before;
                }
                waited
            });
            let waited = waiter.join();
            stop.store(true, Ordering::Relaxed);
            assert!(waited.unwrap() >= Duration::from_millis(1));
        });
        assert!(Waits(None).look().is_none());
    }
}
