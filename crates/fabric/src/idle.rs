//! What a poller does between two empty looks at its rings.
//!
//! Spinning is right while every spinner has a core for itself, and costs
//! milliseconds when it has not: the process that is waited for cannot run
//! before the spinner's time slice ends. So spinners yield, and one that finds
//! that a yield took long (somebody else ran meanwhile) yields at every empty
//! look from then on, until yields are short again.

use std::time::{Duration, Instant};

/// Looks between two yields while the core is not shared.
const LOOK_COUNT: u32 = 256;
/// Looks for each pause of the processor, which costs up to 50 ns and is
/// there for a sibling that shares the core's units.
const LOOKS_PER_PAUSE: u32 = 4;
/// A yield that takes longer gave the core to somebody.
const YIELD_SHORT: Duration = Duration::from_nanos(1500);
/// Short yields in a row until the core counts as not shared.
const CROWDED_ROUNDS: u32 = 64;

/// The state of one spinner.
#[derive(Debug, Default)]
pub struct Idle {
    looks: u32,
    crowded: u32,
}

impl Idle {
    /// Another wait begins. What is known of the core stays: where it is shared, the
    /// first empty look yields, and does not keep whoever is waited for from it.
    #[inline]
    pub fn begin(&mut self) {
        self.looks = 0;
    }

    /// To be called after an empty look. Returns the time if it looked at the
    /// clock, which it does now and then.
    #[inline]
    pub fn pause(&mut self) -> Option<Instant> {
        if self.crowded == 0 && self.looks < LOOK_COUNT {
            self.looks += 1;
            if self.looks.is_multiple_of(LOOKS_PER_PAUSE) {
                std::hint::spin_loop();
            }
            return None;
        }
        self.looks = 0;
        let before = Instant::now();
        rustix::thread::sched_yield();
        let after = Instant::now();
        self.crowded = if after - before > YIELD_SHORT {
            CROWDED_ROUNDS
        } else {
            self.crowded.saturating_sub(1)
        };
        Some(after)
    }
}
