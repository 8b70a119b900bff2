//! etcd, which keeps the cell's configuration, dies or hangs, and comes back.

use super::{Begun, Course, Ongoing, signal};
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const AWAY_MS: std::ops::Range<u64> = 300..4_000;

/// Dead, or it hangs.
enum How {
    Dead,
    Hangs(u32),
}

struct EtcdAway {
    how: How,
    until: Instant,
}

pub(super) fn begin_kill(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(etcd) = &mut round.etcd else {
        return Ok(Begun::No);
    };
    etcd.kill();
    Ok(away(round, How::Dead))
}

pub(super) fn begin_stop(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(pid) = round.etcd.as_ref().and_then(|etcd| etcd.pid()) else {
        return Ok(Begun::No);
    };
    signal(pid, Signal::STOP);
    Ok(away(round, How::Hangs(pid)))
}

fn away(round: &mut Round<'_>, how: How) -> Begun {
    let stay = Duration::from_millis(round.rng.random_range(AWAY_MS));
    Begun::Goes(Box::new(EtcdAway {
        how,
        until: Instant::now() + stay,
    }))
}

impl Ongoing for EtcdAway {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        if Instant::now() < self.until {
            return Ok(Course::Goes);
        }
        match self.how {
            How::Hangs(pid) => signal(pid, Signal::CONT),
            How::Dead => {
                let etcd = round.etcd.as_mut().ok_or("there is no etcd")?;
                etcd.run().map_err(|error| error.to_string())?;
            }
        }
        Ok(Course::Done)
    }
}

impl Drop for EtcdAway {
    fn drop(&mut self) {
        if let How::Hangs(pid) = self.how {
            signal(pid, Signal::CONT);
        }
    }
}
