//! What really moved, found out from the published assignments alone.

use super::load::Keys;
use std::collections::HashMap;
use trefoil_sharder::{Assignment, AssignmentVersion, ServerId};

/// What one new assignment moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Part of the key space, a key counting once for each server that gets it.
    pub keys: f64,
    /// The same, without what takes the place of dead servers, and of replicas that are
    /// missing.
    pub unforced: f64,
    /// Pieces of slices that some server got.
    pub pieces: usize,
}

/// Follows every key from server to server.
#[derive(Debug, Default)]
pub struct Tracker {
    before: Option<Assignment>,
    /// When a server last gave up a key.
    left: HashMap<(usize, ServerId), f64>,
    /// Keys that a *move* (not one more replica) brought back to a server that
    /// had given them up less than the window before: A→B→A.
    pub returned_by_move: usize,
    /// Keys that came back as one more replica of a hot slice.
    pub returned_as_replica: usize,
    pub versions: Vec<AssignmentVersion>,
}

impl Tracker {
    pub fn new() -> Self {
        Tracker::default()
    }

    /// Sees an assignment come into force. `is_alive` tells forced changes
    /// from chosen ones, and so does how many replicas a slice has to have.
    pub fn see(
        &mut self,
        next: &Assignment,
        keys: &Keys,
        time: f64,
        (window, replicas_min): (f64, usize),
        is_alive: impl Fn(ServerId) -> bool,
    ) -> Moved {
        self.versions.push(next.version());
        let mut moved = Moved::default();
        let Some(before) = self.before.replace(next.clone()) else {
            return moved;
        };
        let mut first = 0;
        for after in next.slices() {
            while before.slices()[first].slice.last() < after.slice.start() {
                first += 1;
            }
            for old in &before.slices()[first..] {
                let Some(common) = old.slice.intersection(after.slice) else {
                    break;
                };
                let alive = old
                    .servers
                    .iter()
                    .filter(|server| is_alive(**server))
                    .count();
                let gained = after.servers.iter();
                let gained = gained
                    .filter(|server| !old.servers.contains(server))
                    .count();
                let forced = gained.min(replicas_min.saturating_sub(alive));
                moved.keys += gained as f64 * common.fraction();
                moved.pieces += gained;
                moved.unforced += (gained - forced) as f64 * common.fraction();
            }
        }
        for key in 0..keys.len() {
            let point = keys.point(key);
            let (old, new) = (
                &before.slice_of(point).servers,
                &next.slice_of(point).servers,
            );
            if old == new {
                continue;
            }
            let replica = old.iter().all(|server| new.contains(server));
            let forced = !old.iter().all(|&server| is_alive(server));
            for &server in new.iter().filter(|server| !old.contains(server)) {
                let back = self
                    .left
                    .get(&(key, server))
                    .is_some_and(|&at| time - at < window);
                if back && !forced {
                    if replica {
                        self.returned_as_replica += 1;
                    } else {
                        self.returned_by_move += 1;
                    }
                }
            }
            for &server in old.iter().filter(|server| !new.contains(server)) {
                self.left.insert((key, server), time);
            }
        }
        moved
    }
}
