//! What an operation must not fall below: the newest of all that had ended
//! before it began, by version and by time.

use super::lives::Lives;
use super::writes::Writes;
use crate::event::{Event, Kind, Outcome};
use trefoil_layout::Version;

/// One operation that others must not fall below once it has ended.
#[derive(Clone, Copy, Debug)]
struct Ended<'a> {
    event: &'a Event,
    version: Version,
    /// In which the version counts, if that is certain.
    life: Option<usize>,
    order_begin_ns: u64,
}

/// The floor at a time.
#[derive(Clone, Debug)]
pub(super) struct Floor<'a> {
    /// Of each life.
    by_version: Vec<Option<(Version, &'a Event)>>,
    order_begin_ns: u64,
    by_time: Option<&'a Event>,
    flush_begin_ns: u64,
    by_flush: Option<&'a Event>,
}

impl<'a> Floor<'a> {
    /// What is newer than a value of this version that was stored in this life.
    pub(super) fn above_version(&self, life: Option<usize>, version: Version) -> Option<&'a Event> {
        let (newest, event) = self.by_version[life?]?;
        (!version.is_zero() && version < newest).then_some(event)
    }

    /// What began after a write that had ended at this time.
    pub(super) fn after(&self, order_end_ns: u64) -> Option<&'a Event> {
        (order_end_ns < self.order_begin_ns)
            .then_some(self.by_time)
            .flatten()
    }

    /// The flush that began after a write that had ended at this time.
    pub(super) fn flushed(&self, end_ns: u64) -> Option<&'a Event> {
        (end_ns < self.flush_begin_ns)
            .then_some(self.by_flush)
            .flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_version.iter().all(Option::is_none)
            && self.by_time.is_none()
            && self.by_flush.is_none()
    }

    fn raise(&mut self, one: &Ended<'a>) {
        if one.event.kind == Kind::Flush {
            if one.order_begin_ns > self.flush_begin_ns {
                self.flush_begin_ns = one.order_begin_ns;
                self.by_flush = Some(one.event);
            }
            return;
        }
        if let Some(life) = one.life
            && !one.version.is_zero()
            && self.by_version[life].is_none_or(|(newest, _)| one.version > newest)
        {
            self.by_version[life] = Some((one.version, one.event));
        }
        if self.by_time.is_none() || one.order_begin_ns > self.order_begin_ns {
            self.order_begin_ns = one.order_begin_ns;
            self.by_time = Some(one.event);
        }
    }
}

/// The floors of a key, as time goes on.
pub(super) struct Floors<'a> {
    /// By the time of their end.
    ended: Vec<Ended<'a>>,
    at: usize,
    floor: Floor<'a>,
}

impl<'a> Floors<'a> {
    pub(super) fn of(
        events: &[&'a Event],
        writes: &Writes<'a>,
        flushes: &[&'a Event],
        lives: &Lives,
    ) -> Self {
        let ended_as = |event: &'a Event| {
            let (version, life, order_begin_ns) = match (event.kind, event.outcome) {
                (Kind::Get, Outcome::Hit) => {
                    let write = writes.get(event.mark)?;
                    let life = lives.of_seen(&write, event);
                    (event.version, life, write.order_begin_ns)
                }
                (Kind::Get, _) => return None,
                (_, Outcome::Stored) => {
                    let life = lives.of_mutation(event);
                    (event.version, life, event.order_begin_ns())
                }
                _ => return None,
            };
            Some(Ended {
                event,
                version,
                life,
                order_begin_ns,
            })
        };
        let all = events.iter().chain(flushes);
        let mut ended: Vec<Ended<'a>> = all.filter_map(|event| ended_as(event)).collect();
        ended.sort_unstable_by_key(|one| one.event.end_ns);
        Floors {
            ended,
            at: 0,
            floor: Floor {
                by_version: vec![None; lives.count()],
                order_begin_ns: 0,
                by_time: None,
                flush_begin_ns: 0,
                by_flush: None,
            },
        }
    }

    /// The floor for what begins now; times may not fall from call to call.
    pub(super) fn at(&mut self, begin_ns: u64) -> &Floor<'a> {
        while let Some(one) = self.ended.get(self.at)
            && one.event.end_ns < begin_ns
        {
            self.floor.raise(one);
            self.at += 1;
        }
        &self.floor
    }
}
