//! Operations on a whole cell: calls to all backends, made by a worker.

use super::items::unknown;
use super::pages::Fetched;
use super::totals::{per_process, totals};
use super::workers::Job;
use std::collections::VecDeque;
use trefoil_client::{Cell, FlushError, ListedAt, UNREACHABLE};
use trefoil_gateway_core::deferred::{Operation, Outcome, OwnedListed};
use trefoil_gateway_core::keyspace::{Fault, ListedItem};
use trefoil_layout::op::Rejection;

/// What an operation came to.
#[derive(Debug)]
pub(super) enum Came {
    Outcome(Outcome),
    /// A page of a listing, to be handed out in slices.
    Page(Result<Fetched, Fault>),
}

/// Executes it.
pub(super) fn execute(cell: &Cell, job: &Job) -> Came {
    let came = attempt(cell, job);
    let fault = match &came {
        Came::Outcome(outcome) => fault_of(outcome),
        Came::Page(page) => page.as_ref().err(),
    };
    match fault {
        // The same words as for operations on keys.
        Some(Fault::Unavailable(_)) if cell.is_unreachable() => {
            failed(&job.operation, Fault::Unavailable(UNREACHABLE.to_owned()))
        }
        _ => came,
    }
}

fn fault_of(outcome: &Outcome) -> Option<&Fault> {
    match outcome {
        Outcome::Done(result) => result.as_ref().err(),
        Outcome::Totals(result) => result.as_ref().err(),
        _ => None,
    }
}

fn attempt(cell: &Cell, job: &Job) -> Came {
    Came::Outcome(match &job.operation {
        // One of the moment at which it was asked is one of this moment, however long it has
        // waited for its turn.
        Operation::Flush { at_ms } => {
            let waited_ms = job.begun.elapsed().as_millis() as u64;
            Outcome::Done(flush(cell, at_ms.saturating_add(waited_ms)))
        }
        Operation::List { cursor, count } => return Came::Page(list(cell, *cursor, *count)),
        Operation::Totals => Outcome::Totals(totals(cell, job.begun).map(Box::new)),
        Operation::SetMemoryLimit { bytes } => Outcome::Done(set_memory_limit(cell, *bytes)),
        of_a_key => return failed(of_a_key, Fault::Unsupported("this operation")),
    })
}

fn flush(cell: &Cell, at_ms: u64) -> Result<(), Fault> {
    match cell.flush(at_ms) {
        // Clients take the configuration that says so with their next operation.
        Ok(_) => Ok(()),
        Err(FlushError::Immutable) => Err(Fault::Rejected(Rejection::Immutable)),
        Err(FlushError::Incomplete { .. }) => Err(Fault::Indeterminate),
        Err(error) => Err(Fault::Unavailable(error.to_string())),
    }
}

fn list(cell: &Cell, cursor: u64, count: usize) -> Result<Fetched, Fault> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut items = VecDeque::new();
    let listed = cell.list(cursor, count, &mut |ListedAt { cursor, item }| {
        let version = item.version;
        let item = OwnedListed::of(&ListedItem {
            key: item.key,
            value_len: item.value_len as usize,
            entry_len: item.entry_len as usize,
            version,
            unique: item.unique,
            client_flags: item.client_flags,
            expiry_ms: item.expiry_ms,
            seen: unknown(version),
        });
        items.push_back((cursor, item));
    });
    match listed {
        Ok(next) => Ok(Fetched { items, next }),
        Err(error) => Err(Fault::Unavailable(error.to_string())),
    }
}

/// Sets what all processes of the cell may take together: what totals tell. Each gets the
/// same part of it, unless it is what they may take already. Nothing is set if one of them
/// does not answer.
fn set_memory_limit(cell: &Cell, bytes: u64) -> Result<(), Fault> {
    let mut answers = Vec::new();
    for backend in cell.stats() {
        let answer = backend
            .stats
            .map_err(|error| Fault::Unavailable(format!("backend {}: {error}", backend.number)))?;
        answers.push(answer);
    }
    let limits: Vec<u64> = per_process(&answers)
        .map(|stats| stats.process.as_ref().map_or(0, |of| of.memory_limit_bytes))
        .collect();
    let Some(each) = part_of(&limits, bytes) else {
        return Ok(());
    };
    for (number, result) in cell.set_memory_limit(each) {
        result.map_err(|error| Fault::Unavailable(format!("backend {number}: {error}")))?;
    }
    Ok(())
}

/// What each process gets of a limit for all of them, whose limits are these now; `None`: it
/// is what they have.
fn part_of(limits: &[u64], bytes: u64) -> Option<u64> {
    let now: u64 = limits.iter().sum();
    (now != bytes).then(|| bytes / limits.len().max(1) as u64)
}

/// The same of an operation that nobody will execute.
pub(super) fn failed(operation: &Operation, fault: Fault) -> Came {
    match operation {
        Operation::List { .. } => Came::Page(Err(fault)),
        other => Came::Outcome(outcome_failed(other, fault)),
    }
}

/// The outcome of an operation that nobody will execute.
pub(super) fn outcome_failed(operation: &Operation, fault: Fault) -> Outcome {
    match operation {
        Operation::Get { .. } => Outcome::Item(Err(fault)),
        Operation::GetMany { .. } => Outcome::Items(vec![Err(fault)]),
        Operation::Set { .. } => Outcome::Stored(Err(fault)),
        Operation::Change { .. } => Outcome::Changed(Err(fault)),
        Operation::Flush { .. } | Operation::SetMemoryLimit { .. } => Outcome::Done(Err(fault)),
        Operation::List { .. } => Outcome::Listed(Err(fault)),
        Operation::Totals => Outcome::Totals(Err(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn a_limit_is_that_of_all_processes() {
        for (limits, bytes, part) in [
            (&[96, 96, 96][..], 192, Some(64)),
            (&[96, 96, 96], 96, Some(32)),
            (&[64], 96, Some(96)),
            (&[64, 64, 64], 100, Some(33)),
            // Written back as it was read.
            (&[96, 96, 96], 288, None),
            (&[32, 64], 96, None),
            (&[33, 33, 33], 99, None),
        ] {
            assert_eq!(part_of(limits, bytes), part, "{limits:?} {bytes}");
        }
    }
}
