//! kill -9 of a backend. `cell up` starts it again, unless the round is without restarts;
//! it has forgotten everything.

use super::{Begun, Course, Ongoing};
use crate::check::Promise;
use crate::event::{Event, Kind, Outcome};
use crate::record::RecordError;
use crate::record::plan::Fault;
use crate::record::round::{NOBODY, Round};
use crate::record::worker::now_ns;

struct Killed {
    backend: usize,
    pid: u32,
    /// The cell that it was a backend of.
    cell: u32,
    is_for_good: bool,
    /// It is back when it has what was written meanwhile, too.
    waits_for_all: bool,
    /// If there is no other copy.
    loss: Option<Event>,
}

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    if !round.is_full() {
        return Ok(Begun::No);
    }
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let number = round.next_number();
    let is_only_copy = round.plan.mode == "R=1";
    let loss = is_only_copy.then(|| Event::begun(NOBODY, number, 0, Kind::Loss, now_ns()));
    let pid = round.pids[backend];
    round.kill(backend, pid);
    Ok(Begun::Goes(Box::new(Killed {
        backend,
        pid,
        cell: round.resized,
        is_for_good: !round.plan.faults.contains(&Fault::Restart),
        waits_for_all: round.plan.promise() == Promise::Kept,
        loss,
    })))
}

impl Ongoing for Killed {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        if self.is_for_good {
            return Ok(Course::Goes);
        }
        if round.resized != self.cell {
            // The cell has others now; it is none of them, and has not recovered.
            return Ok(Course::Done);
        }
        let Some(standing) = round.standing(self.backend) else {
            return Ok(Course::Goes);
        };
        if standing.pid == self.pid || standing.pid == 0 {
            return Ok(Course::Goes);
        }
        // The killed one has gone by now: it does not answer after this.
        if let Some(loss) = &mut self.loss {
            loss.end_ns = now_ns();
            loss.outcome = Outcome::Stored;
        } else if !standing.votes || self.waits_for_all && !standing.has_recovered {
            return Ok(Course::Goes);
        }
        if standing.shards_lost > 0 && round.plan.overlap == 1 {
            return Err(format!(
                "backend {} says that two of three replicas were lost, and one was killed",
                self.backend
            ));
        }
        round.note_pid(self.backend, standing.pid);
        Ok(match self.loss {
            Some(_) => Course::Done,
            None => Course::Recovered,
        })
    }

    fn backend(&self) -> Option<usize> {
        Some(self.backend)
    }

    fn is_for_good(&self) -> bool {
        self.is_for_good
    }

    fn loss(&self) -> Option<Event> {
        self.loss
    }
}
