//! Commits that have been told but may not be visible yet: what turns the end
//! of a transaction into progress. No I/O.

use crate::event::Progress;
use crate::snapshot::Snapshot;
use std::collections::VecDeque;
use std::time::Instant;

/// Commits in the order of the log, until a snapshot sees them.
#[derive(Debug, Default)]
pub struct Pending {
    queue: VecDeque<Entry>,
    /// Transactions below this number have to be finished first.
    gate: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    end: u64,
    xid: Option<u32>,
    as_of: Option<Instant>,
}

impl Pending {
    /// Holds back everything until all transactions that this snapshot knows
    /// of are finished: where nobody has followed the log before, one of them
    /// may have committed before the start without being visible yet.
    pub fn gate(&mut self, snapshot: &Snapshot) {
        self.gate = Some(snapshot.next());
    }

    /// Likewise for a stream that goes on where another one ended: what that one
    /// held back is held back still.
    pub fn gate_again(&mut self, gate: Option<u64>) {
        self.gate = self.gate.max(gate);
    }

    /// What has to be finished first, if anything.
    pub fn gated(&self) -> Option<u64> {
        self.gate
    }

    /// A transaction has been told up to its end. `as_of`: it is a heartbeat
    /// that was begun at this moment.
    pub fn committed(&mut self, end: u64, xid: u32, as_of: Option<Instant>) {
        self.queue.push_back(Entry {
            end,
            xid: Some(xid),
            as_of,
        });
    }

    /// The log has been read up to here, and nothing more was to be told.
    pub fn idle(&mut self, end: u64) {
        if let Some(last) = self.queue.back_mut()
            && last.xid.is_none()
        {
            last.end = last.end.max(end);
            return;
        }
        self.queue.push_back(Entry {
            end,
            xid: None,
            as_of: None,
        });
    }

    /// Commits that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes out what this snapshot sees, and all before it.
    pub fn seen(&mut self, snapshot: &Snapshot) -> Option<Progress> {
        if self.gate.is_some_and(|gate| !snapshot.finished(gate)) {
            return None;
        }
        self.gate = None;
        let mut progress: Option<Progress> = None;
        while let Some(first) = self.queue.front() {
            if first.xid.is_some_and(|xid| !snapshot.sees(xid)) {
                break;
            }
            progress = Some(Progress {
                position: progress.map_or(first.end, |p| p.position.max(first.end)),
                as_of: first.as_of.max(progress.and_then(|p| p.as_of)),
            });
            self.queue.pop_front();
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect(text)
    }

    #[test]
    fn progress_waits_for_visibility_in_the_order_of_the_log() {
        let beat = Instant::now();
        let mut pending = Pending::default();
        pending.committed(100, 7, None);
        pending.committed(200, 5, Some(beat));
        pending.idle(250);
        pending.idle(300);
        assert_eq!(pending.len(), 3);
        let told = |position, as_of| Some(Progress { position, as_of });
        assert_eq!(pending.seen(&snapshot("7:8:7")), None);
        assert_eq!(pending.seen(&snapshot("5:8:5")), told(100, None));
        assert_eq!(pending.seen(&snapshot("8:8:")), told(300, Some(beat)));
        assert!(pending.is_empty());
        assert_eq!(pending.seen(&snapshot("8:8:")), None);
    }

    #[test]
    fn a_gate_waits_for_all_that_was_running() {
        let mut pending = Pending::default();
        pending.gate(&snapshot("4:9:4,6"));
        pending.idle(100);
        assert_eq!(pending.seen(&snapshot("6:12:6")), None);
        let told = pending.seen(&snapshot("9:12:10"));
        assert_eq!(told.map(|progress| progress.position), Some(100));
        assert_eq!(pending.gated(), None);
    }

    #[test]
    fn a_gate_outlives_its_stream() {
        let mut first = Pending::default();
        first.gate(&snapshot("4:9:4,6"));
        let mut second = Pending::default();
        second.gate_again(first.gated());
        second.idle(100);
        assert_eq!(second.seen(&snapshot("6:12:6")), None);
        assert!(second.seen(&snapshot("9:12:")).is_some());
    }
}
