//! A backend stands still for a while, shorter or longer than its lease, and goes on.

use super::{Begun, Course, Ongoing, signal};
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A lease is half a second.
const STAY_MS: std::ops::Range<u64> = 50..1_500;

struct Stopped {
    backend: usize,
    pid: u32,
    /// The cell that it was a backend of.
    cell: u32,
    until: Instant,
    goes_on: bool,
}

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let stay = Duration::from_millis(round.rng.random_range(STAY_MS));
    let pid = round.pids[backend];
    signal(pid, Signal::STOP);
    Ok(Begun::Goes(Box::new(Stopped {
        backend,
        pid,
        cell: round.resized,
        until: Instant::now() + stay,
        goes_on: false,
    })))
}

impl Ongoing for Stopped {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        if Instant::now() < self.until {
            return Ok(Course::Goes);
        }
        if !self.goes_on {
            signal(self.pid, Signal::CONT);
            self.goes_on = true;
        }
        if round.resized != self.cell {
            // The cell has others now, and whoever hung at the change was killed.
            return Ok(Course::Done);
        }
        let standing = round.standing(self.backend);
        Ok(match standing {
            Some(standing) if standing.lease_left_ms > 0 => Course::Done,
            _ => Course::Goes,
        })
    }

    fn backend(&self) -> Option<usize> {
        Some(self.backend)
    }

    fn hangs(&self) -> bool {
        true
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.pid, Signal::CONT);
    }
}
