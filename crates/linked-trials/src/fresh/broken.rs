//! Freshness that is not: each is told of by one line of the verdict, or the verdict is
//! worth nothing.

use super::key;
use bytes::Bytes;
use std::time::Duration;
use trefoil_freshness::{Gap, GapReason, Place, Progress, Scope, Sink};

/// A row that is read often.
const DEAF_ROW: usize = 0;
/// How much older than it is what is kept is said to be.
const OLDER: Duration = Duration::from_secs(4);

/// What is broken on purpose.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Nobody hears that one row has changed.
    DeafToOneRow,
    /// What is kept is dropped again at once.
    KeepsNothing,
    /// What is kept is said to be older than it is, by far.
    WideBound,
}

/// Tells a linklet what a relay tells, but for what is broken.
pub(super) struct Breaking<S> {
    sink: S,
    broken: Option<Broken>,
    deaf_to: Bytes,
    place: Option<Place>,
}

impl<S> Breaking<S> {
    pub(super) fn new(sink: S, broken: Option<Broken>) -> Self {
        Breaking {
            sink,
            broken,
            deaf_to: key(DEAF_ROW).into(),
            place: None,
        }
    }
}

impl<S: Sink> Sink for Breaking<S> {
    fn begun(&mut self, place: &Place) {
        self.place = Some(place.clone());
        self.sink.begun(place);
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        if self.broken != Some(Broken::DeafToOneRow) || *key != self.deaf_to {
            self.sink.invalidate(key, position);
        }
    }

    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64) {
        self.sink.refresh(key, value, position);
    }

    fn gap(&mut self, gap: &Gap) {
        self.sink.gap(gap);
    }

    fn progress(&mut self, mut progress: Progress) {
        if self.broken == Some(Broken::WideBound) {
            progress.as_of = progress.as_of.and_then(|as_of| as_of.checked_sub(OLDER));
        }
        self.sink.progress(progress);
        if self.broken == Some(Broken::KeepsNothing)
            && let Some(place) = &mut self.place
        {
            place.position = place.position.max(progress.position);
            let from = place.position;
            // Behind everything that may be kept by now.
            let mut to = place.clone();
            to.position += 1;
            self.sink.gap(&Gap {
                from,
                to,
                reason: GapReason::Overrun,
                tables: Vec::new(),
                scope: Scope::All,
            });
        }
    }

    fn taken(&self) -> u64 {
        self.sink.taken()
    }
}
