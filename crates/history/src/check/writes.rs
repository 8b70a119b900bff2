//! The writes of one key, by their marks.

use crate::event::{Event, Kind, Mark, NEVER, Outcome};
use std::collections::HashMap;
use trefoil_layout::Version;

/// What is known of one write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    /// The operation; for increments that nobody was told of, the counter's
    /// first `add`.
    pub event: &'a Event,
    /// No earlier than this.
    pub order_begin_ns: u64,
    /// No later than this, or [`NEVER`].
    pub order_end_ns: u64,
    /// Its version once it was acknowledged; zero if unknown. Repair may store a value anew,
    /// at a higher version: then the highest that anybody saw, for who is not told versions
    /// may have read that one.
    pub version: Version,
}

impl Write<'_> {
    /// When the value of this mark was stored at the latest, or [`NEVER`]: nobody
    /// was told, as with an increment that only its counter's values show.
    pub(super) fn stored_by_ns(&self, mark: Mark) -> u64 {
        let is_told = self.event.mark == mark && self.event.outcome == Outcome::Stored;
        if is_told { self.event.end_ns } else { NEVER }
    }
}

/// All writes of a key.
pub(super) struct Writes<'a> {
    by_mark: HashMap<Mark, Write<'a>>,
}

impl<'a> Writes<'a> {
    pub(super) fn of(events: &[&'a Event]) -> Self {
        let mut by_mark = HashMap::new();
        for event in events {
            let is_write = event.is_write()
                || event.kind == Kind::Increment && event.outcome == Outcome::Stored;
            if !is_write || event.mark == Mark::NONE {
                continue;
            }
            let write = Write {
                event,
                order_begin_ns: event.order_begin_ns(),
                order_end_ns: event.order_end_ns(),
                version: match event.outcome {
                    Outcome::Stored => event.version,
                    _ => Version::ZERO,
                },
            };
            by_mark.entry(event.mark).or_insert(write);
        }
        let mut writes = Writes { by_mark };
        writes.learn_versions(events);
        writes
    }

    /// A native client that reads a value after its write was acknowledged sees
    /// the version that was acknowledged, whoever wrote it, or a later one of repair.
    fn learn_versions(&mut self, events: &[&'a Event]) {
        for hit in events {
            if hit.kind != Kind::Get || hit.outcome != Outcome::Hit || hit.version.is_zero() {
                continue;
            }
            if let Some(write) = self.by_mark.get_mut(&hit.mark)
                && write.event.is_acknowledged()
                && write.event.end_ns < hit.begin_ns
            {
                write.version = write.version.max(hit.version);
            }
        }
    }

    /// The write of this mark. A counter's value that no acknowledged increment
    /// made is one of an increment whose answer was lost: it came some time
    /// after the counter began.
    pub(super) fn get(&self, mark: Mark) -> Option<Write<'a>> {
        if let Some(write) = self.by_mark.get(&mark) {
            return Some(*write);
        }
        if mark.count == 0 {
            return None;
        }
        let origin = self.by_mark.get(&mark.origin())?;
        Some(Write {
            order_end_ns: NEVER,
            version: Version::ZERO,
            ..*origin
        })
    }
}
