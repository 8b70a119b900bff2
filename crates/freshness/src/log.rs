//! A relay's memory: the last events, for subscribers who come back and for
//! those who are a little behind. Bounded in bytes; what does not fit is
//! forgotten, and whoever needed it gets a gap. No I/O.
//!
//! Events have numbers. A subscriber goes on after a [`Progress`]: there, and
//! only there, everything up to a position has been told. So the log is cut at
//! the end of a progress, too.
//!
//! What stands before a progress may lie behind its position: a change is told when
//! it is read, and progress once it is visible. Who holds nothing from before, or
//! comes from another relay, has not heard that. So it goes on after a progress
//! before which nothing later than its place was told.

use crate::event::{Event, GapReason, Progress};
use crate::position::{History, Place};
use std::collections::VecDeque;

/// What an event takes beyond its bytes.
const EVENT_BYTES: usize = 96;

/// Where a log starts in which less than a transaction fits, until the next
/// progress.
const UNKNOWN: u64 = u64::MAX;

/// The last events.
#[derive(Debug)]
pub(crate) struct Log {
    events: VecDeque<Event>,
    /// Number of the first one.
    first: u64,
    /// Everything after this place is here; none while that is not known: at
    /// the start, or when less than a transaction fits.
    start: Option<Place>,
    /// Every progress in the log.
    marks: VecDeque<Mark>,
    /// The latest change that was ever told, and that of those that are forgotten.
    told: u64,
    forgotten: u64,
    bytes: usize,
    bytes_max: usize,
    /// Why those who are not here any more have missed something.
    reason: GapReason,
}

/// A progress.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Its event's.
    number: u64,
    position: u64,
    /// The latest change that was told before it.
    told: u64,
}

/// Where a subscriber goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Number of the event that is next.
    pub(crate) next: u64,
    /// Everything up to here has been told.
    pub(crate) place: Place,
}

impl Log {
    /// An empty log of so many bytes at most (and one event).
    pub(crate) fn new(bytes_max: usize) -> Self {
        Log {
            events: VecDeque::new(),
            first: 0,
            start: None,
            marks: VecDeque::new(),
            told: 0,
            forgotten: 0,
            bytes: 0,
            bytes_max,
            reason: GapReason::Forgotten,
        }
    }

    /// Number that the next event will have.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Everything after this position is here.
    pub(crate) fn start(&self) -> u64 {
        let start = self.start.as_ref();
        start.map_or(UNKNOWN, |start| start.position)
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream begins at this place. If that is not where the log ends,
    /// what was kept is of no use.
    pub(crate) fn begun(&mut self, place: &Place) {
        let last = self.marks.back().map(|mark| mark.position);
        let history = self.start.as_ref().map(|start| &start.history);
        let here = last.or(self.start.as_ref().map(|start| start.position));
        if history == Some(&place.history) && here >= Some(place.position) {
            // What was told of an unfinished transaction will be told again.
            return;
        }
        if self.start.is_some() {
            self.cut(GapReason::Forgotten);
        }
        self.start = Some(place.clone());
    }

    /// Forgets everything: all who are in the middle of it have missed
    /// something, those at its end included.
    pub(crate) fn cut(&mut self, reason: GapReason) {
        self.first = self.end() + 1;
        self.events.clear();
        self.marks.clear();
        // The stream that begins next tells all of it again, or is another one.
        (self.told, self.forgotten) = (0, 0);
        self.bytes = 0;
        self.start = None;
        self.reason = reason;
    }

    /// Why those whose next event is not here have missed something.
    pub(crate) fn reason(&self) -> GapReason {
        self.reason
    }

    /// Appends an event. Forgets the oldest ones where there is no room.
    pub(crate) fn push(&mut self, event: Event) {
        if let Event::Progress(Progress { position, .. }) = event {
            self.marks.push_back(Mark {
                number: self.end(),
                position,
                told: self.told,
            });
            if let Some(start) = self
                .start
                .as_mut()
                .filter(|start| start.position == UNKNOWN)
            {
                start.position = position;
            }
        }
        self.told = self.told.max(changed(&event));
        self.bytes += size(&event);
        self.events.push_back(event);
        if self.bytes <= self.bytes_max {
            return;
        }
        let history = self.history();
        self.start = None;
        self.reason = GapReason::Overrun;
        while let Some(event) = self.events.front() {
            if self.bytes <= self.bytes_max && self.start.is_some() {
                break;
            }
            self.start = None;
            self.bytes -= size(event);
            self.forgotten = self.forgotten.max(changed(event));
            self.first += 1;
            if let Some(Event::Progress(Progress { position, .. })) = self.events.pop_front() {
                self.marks.pop_front();
                self.start = Some(Place {
                    history: history.clone(),
                    position,
                });
            }
        }
        if self.start.is_none() {
            // Less than a transaction fits. The next progress is where somebody
            // can go on; the history is kept for it.
            self.start = Some(Place {
                history,
                position: UNKNOWN,
            });
        }
    }

    fn history(&self) -> History {
        let start = self.start.as_ref();
        start.map(|start| start.history.clone()).unwrap_or_default()
    }

    /// Where somebody goes on who is at this place; none if what came after is
    /// not here.
    pub(crate) fn resume(&self, place: &Place) -> Option<Cursor> {
        let start = self.start.as_ref()?;
        if start.history != place.history || start.position > place.position {
            return None;
        }
        self.after(place.clone())
    }

    /// The first event that somebody needs who was told everything up to a place, and of
    /// what is behind it perhaps nothing.
    fn after(&self, place: Place) -> Option<Cursor> {
        if self.forgotten > place.position {
            return None;
        }
        // Both grow with the number.
        let is_told = |mark: &Mark| mark.position.max(mark.told) <= place.position;
        let told = self.marks.partition_point(is_told);
        let next = match told.checked_sub(1) {
            Some(last) => self.marks[last].number + 1,
            None => self.first,
        };
        Some(Cursor { next, place })
    }

    /// Where somebody goes on who holds nothing, or has missed something: at
    /// the last progress. None while there is none.
    pub(crate) fn newest(&self) -> Option<Cursor> {
        let start = self.start.as_ref()?;
        let position = self
            .marks
            .back()
            .map_or(start.position, |mark| mark.position);
        if position == UNKNOWN {
            return None;
        }
        self.after(Place {
            history: start.history.clone(),
            position,
        })
    }

    /// The events from a number on; none if the first of them is forgotten.
    pub(crate) fn from(&self, next: u64) -> Option<impl Iterator<Item = &Event>> {
        let skip = next.checked_sub(self.first)?;
        Some(self.events.range((skip as usize).min(self.events.len())..))
    }
}

/// The position of a change; 0 if it is none.
fn changed(event: &Event) -> u64 {
    match event {
        Event::Invalidate { position, .. } | Event::Refresh { position, .. } => *position,
        Event::Gap(gap) => gap.to.position,
        Event::Begun(_) | Event::Progress(_) => 0,
    }
}

/// What an event takes.
pub(crate) fn size(event: &Event) -> usize {
    EVENT_BYTES
        + match event {
            Event::Begun(_) | Event::Progress(_) => 0,
            Event::Invalidate { key, .. } => key.len(),
            Event::Refresh { key, value, .. } => key.len() + value.len(),
            Event::Gap(gap) => {
                let tables: usize = gap.tables.iter().map(String::len).sum();
                let prefixes = match &gap.scope {
                    crate::event::Scope::All => 0,
                    crate::event::Scope::Prefixes(prefixes) => {
                        prefixes.iter().map(|prefix| prefix.len()).sum()
                    }
                };
                tables + prefixes
            }
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn place(position: u64) -> Place {
        Place {
            history: History("h".into()),
            position,
        }
    }

    fn change(position: u64) -> Event {
        let key = Bytes::from_static(b"k");
        Event::Invalidate { key, position }
    }

    fn progress(position: u64) -> Event {
        Event::Progress(Progress {
            position,
            as_of: None,
        })
    }

    fn positions(log: &Log, next: u64) -> Option<Vec<u64>> {
        let changes = log.from(next)?.filter_map(|event| match event {
            Event::Invalidate { position, .. } => Some(*position),
            Event::Gap(gap) => Some(gap.to.position),
            _ => None,
        });
        Some(changes.collect())
    }

    #[test]
    fn resumes_after_the_progress_before() {
        let mut log = Log::new(1 << 20);
        assert_eq!(log.newest(), None);
        log.begun(&place(10));
        for event in [
            change(11),
            change(21),
            progress(20),
            change(31),
            progress(30),
        ] {
            log.push(event);
        }
        let resumed = |position| {
            let cursor = log.resume(&place(position))?;
            positions(&log, cursor.next)
        };
        assert_eq!(resumed(9), None);
        assert_eq!(resumed(10), Some(vec![11, 21, 31]));
        // What was told before it, and is behind it.
        assert_eq!(resumed(20), Some(vec![11, 21, 31]));
        assert_eq!(resumed(25), Some(vec![31]));
        assert_eq!(resumed(30), Some(vec![31]));
        assert_eq!(log.newest().map(|cursor| cursor.place), Some(place(30)));
        let other = Place {
            history: History("other".into()),
            position: 30,
        };
        assert_eq!(log.resume(&other), None);
    }

    /// A change is read before it is visible, and progress told of what is before it.
    #[test]
    fn who_begins_anew_hears_what_was_told_before_and_is_behind() {
        let mut log = Log::new(1 << 20);
        log.begun(&place(10));
        for event in [change(90), change(110), progress(95)] {
            log.push(event);
        }
        let newest = log.newest().expect("there is progress");
        assert_eq!(newest.place, place(95));
        let told = positions(&log, newest.next).expect("it is there");
        assert!(told.contains(&110), "{told:?}");
        log.push(progress(110));
        let newest = log.newest().expect("there is progress");
        assert_eq!(positions(&log, newest.next), Some(vec![]));
        // Forgotten, it is nothing to go on after.
        let mut small = Log::new(EVENT_BYTES + 1);
        small.begun(&place(10));
        for event in [change(90), change(110), progress(95)] {
            small.push(event);
        }
        assert_eq!(small.newest(), None);
        small.push(progress(110));
        assert_eq!(small.newest().map(|cursor| cursor.place), Some(place(110)));
    }

    #[test]
    fn a_transaction_larger_than_the_log() {
        let mut log = Log::new(1000);
        log.begun(&place(10));
        (0..100).for_each(|_| log.push(change(11)));
        assert!(log.resume(&place(10)).is_none() && log.newest().is_none());
        log.push(progress(20));
        assert!(log.resume(&place(10)).is_none());
        assert_eq!(log.newest().map(|cursor| cursor.place), Some(place(20)));
        log.push(change(21));
        let cursor = log.resume(&place(20)).expect("it is there again");
        assert_eq!(positions(&log, cursor.next), Some(vec![21]));
    }

    #[test]
    fn a_stream_that_begins_elsewhere() {
        let mut log = Log::new(1 << 20);
        log.begun(&place(10));
        log.push(progress(20));
        log.begun(&place(20));
        assert!(log.resume(&place(10)).is_some());
        let end = log.end();
        assert!(log.from(end).is_some());
        log.begun(&place(21));
        assert!(log.from(end).is_none() && log.reason() == GapReason::Forgotten);
        assert!(log.resume(&place(20)).is_none());
        assert!(log.resume(&place(21)).is_some());
    }

    fn gap(position: u64) -> Event {
        Event::Gap(crate::event::Gap {
            from: 0,
            to: place(position),
            reason: GapReason::Truncated,
            tables: vec!["public.item".into()],
            scope: crate::event::Scope::Prefixes(vec![Bytes::from_static(b"k")]),
        })
    }

    /// A TRUNCATE is read before it is visible, like any change.
    #[test]
    fn a_gap_that_is_not_visible_yet_is_told_to_who_comes_from_before() {
        let mut log = Log::new(1 << 20);
        log.begun(&place(10));
        for event in [gap(110), progress(95)] {
            log.push(event);
        }
        let cursor = log.resume(&place(95)).expect("it is there");
        assert_eq!(positions(&log, cursor.next), Some(vec![110]));
    }

    proptest! {
        /// Whoever is let go on gets everything after its place, in order.
        #[test]
        fn nothing_is_missed_silently(
            steps in prop::collection::vec(0..6_u64, 1..200),
            at in 0..200_u64,
            bytes in 300..3000_usize,
        ) {
            let mut log = Log::new(bytes);
            log.begun(&place(0));
            let mut all = Vec::new();
            let (mut position, mut visible) = (0_u64, 0);
            for step in steps {
                match step {
                    0..=2 => {
                        position += 1;
                        all.push(position);
                        log.push(match step {
                            0 => gap(position),
                            _ => change(position),
                        });
                    }
                    // Of what is visible.
                    _ => {
                        visible = visible.max(position.saturating_sub(step - 3));
                        log.push(progress(visible));
                    }
                }
                prop_assert!(log.bytes() <= bytes.max(2 * size(&gap(0))));
            }
            for cursor in [log.resume(&place(at)), log.newest()].into_iter().flatten() {
                let told = positions(&log, cursor.next).expect("it was there just now");
                let at = cursor.place.position;
                let wanted: Vec<u64> = all.iter().copied().filter(|change| *change > at).collect();
                prop_assert!(told.ends_with(&wanted), "{told:?} {wanted:?}");
            }
        }
    }
}
