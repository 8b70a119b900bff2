//! Which servers cannot store which keys: of another release, or without room. Owners say
//! so of who is to have copies. That the next owner cannot store a key says whoever has it:
//! its former owner, or the next one itself where nobody owns it. It is remembered when the
//! key has gone elsewhere, too, so that it does not come back at once.

use crate::assignment::Assignment;
use crate::key::{KeyPoint, Slice};
use crate::report::{ServerReport, Unstored};
use crate::server::ServerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Points remembered of one server.
const POINTS_MAX: usize = 10_000;

/// A replica that is to be elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) point: KeyPoint,
    pub(crate) server: ServerId,
}

/// See the page of this module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    /// What each server said last.
    said: BTreeMap<ServerId, Vec<Unstored>>,
    /// Of each server that refused: where, and until when that counts.
    known: BTreeMap<ServerId, BTreeMap<KeyPoint, Duration>>,
}

impl Refusals {
    /// Takes in what a server says: of its own keys, and of owners that cannot store what
    /// it has. Of servers that are not to have them it says nothing here.
    pub(crate) fn hear(&mut self, report: &ServerReport, map: &Assignment, until: Duration) {
        let is_its = |said: &&Unstored| {
            let servers = &map.slice_of(said.point).servers;
            let owner = servers.first();
            owner == Some(&said.server)
                || (owner == Some(&report.server) && servers.contains(&said.server))
        };
        let said: Vec<Unstored> = report.unstored.iter().filter(is_its).copied().collect();
        for Unstored { point, server } in &said {
            let known = self.known.entry(*server).or_default();
            if known.len() < POINTS_MAX || known.contains_key(point) {
                known.insert(*point, until);
            }
        }
        self.said.insert(report.server, said);
    }

    /// Whether a server has shown that it cannot store something of a slice.
    pub(crate) fn has(&self, server: ServerId, slice: Slice) -> bool {
        let known = self.known.get(&server);
        known.is_some_and(|known| {
            let mut within = known.range(slice.start()..=slice.last());
            within.next().is_some()
        })
    }

    /// What is refused by now, in order: as far as who says so was heard lately.
    pub(crate) fn current(&self, heard: impl Fn(ServerId) -> bool) -> Vec<Refusal> {
        let said = self.said.iter().filter(|(owner, _)| heard(**owner));
        let said = said.flat_map(|(_, said)| said);
        said.map(|&Unstored { point, server }| Refusal { point, server })
            .collect()
    }

    /// Forgets what nobody says any more, and who is gone.
    pub(crate) fn prune(&mut self, now: Duration, is_member: impl Fn(ServerId) -> bool) {
        self.said.retain(|&owner, _| is_member(owner));
        self.known.retain(|&server, known| {
            known.retain(|_, until| now < *until);
            is_member(server) && !known.is_empty()
        });
    }
}
