//! What an operator changes: the memory limit; everything is flushed.

use super::Begun;
use crate::event::{Event, Kind, Outcome};
use crate::record::RecordError;
use crate::record::round::{NOBODY, Round};
use crate::record::worker::now_ns;
use rand::RngExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// No backend works with less.
const MEMORY_MIN: u64 = 32 << 20;

pub(super) fn memory(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    // It is asked of all, and one that hangs is waited for.
    if round.backends_away > 0 {
        return Ok(Begun::No);
    }
    let limit = round.plan.memory / 4 * round.rng.random_range(2..=6);
    let set = round.cell.set_memory_limit(limit.max(MEMORY_MIN));
    Ok(match set.iter().all(|(_, set)| set.is_ok()) {
        true => Begun::Done,
        false => Begun::Refused,
    })
}

pub(super) fn flush(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    // It needs an answer of every backend that lives, and what keeps the configuration.
    if round.is_any_stopped || round.store_is_away && round.etcd.is_some() {
        return Ok(Begun::No);
    }
    let number = round.next_number();
    let mut event = Event::begun(NOBODY, number, 0, Kind::Flush, now_ns());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    let flushed = round.cell.flush(now_ms);
    event.end_ns = now_ns();
    event.outcome = match flushed {
        Ok(_) => Outcome::Stored,
        Err(_) => Outcome::Unknown,
    };
    round.events.push(event);
    Ok(match event.outcome {
        Outcome::Stored => Begun::Done,
        _ => Begun::Refused,
    })
}
