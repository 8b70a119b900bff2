//! When this process stood still: the host took its cores, others of this machine did,
//! or somebody stopped it. What waits meanwhile does so for no fault of the store's.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const PERIOD: Duration = Duration::from_millis(5);
/// Who is later than this was not let.
const LATE: Duration = Duration::from_millis(20);

/// A thread that looks at the clock until the value is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Pauses(Arc<Mutex<Vec<(Instant, Instant)>>>);

impl Pauses {
    pub(crate) fn watch() -> Self {
        let pauses = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::downgrade(&pauses);
        std::thread::spawn(move || look(&noted));
        Pauses(pauses)
    }

    /// How much of this time the process stood still.
    pub(crate) fn within(&self, begin: Instant, end: Instant) -> Duration {
        let pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = pauses.partition_point(|(_, pause_end)| *pause_end <= begin);
        let within = pauses[from..].iter().take_while(|(pause, _)| *pause < end);
        within
            .map(|(pause, pause_end)| {
                (*pause_end)
                    .min(end)
                    .saturating_duration_since((*pause).max(begin))
            })
            .sum()
    }

    /// Altogether, and the longest.
    pub(crate) fn all(&self) -> (Duration, Duration) {
        let pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lengths = pauses.iter().map(|(begin, end)| *end - *begin);
        (lengths.clone().sum(), lengths.max().unwrap_or_default())
    }
}

fn look(noted: &Weak<Mutex<Vec<(Instant, Instant)>>>) {
    let mut last = Instant::now();
    loop {
        std::thread::sleep(PERIOD);
        let now = Instant::now();
        let Some(pauses) = noted.upgrade() else {
            return;
        };
        if now - last > PERIOD + LATE {
            pauses
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((last + PERIOD, now));
        }
        last = now;
    }
}
