//! Operations on a whole cell: calls to all backends, made by a worker.

use super::items::unknown;
use super::totals::totals;
use super::workers::Job;
use trefoil_client::{Cell, FlushError, UNREACHABLE};
use trefoil_gateway_core::deferred::{Operation, Outcome, OwnedListed};
use trefoil_gateway_core::keyspace::{Fault, ListedItem};
use trefoil_layout::Version;
use trefoil_layout::op::Rejection;

/// Executes it.
pub(super) fn execute(cell: &Cell, job: &Job) -> Outcome {
    let outcome = attempt(cell, job);
    match fault_of(&outcome) {
        // The same words as for operations on keys.
        Some(Fault::Unavailable(_)) if cell.is_unreachable() => {
            failed(&job.operation, Fault::Unavailable(UNREACHABLE.to_owned()))
        }
        _ => outcome,
    }
}

fn fault_of(outcome: &Outcome) -> Option<&Fault> {
    match outcome {
        Outcome::Done(result) => result.as_ref().err(),
        Outcome::Listed(result) => result.as_ref().err(),
        Outcome::Totals(result) => result.as_ref().err(),
        _ => None,
    }
}

fn attempt(cell: &Cell, job: &Job) -> Outcome {
    match &job.operation {
        Operation::Flush { at_ms } => Outcome::Done(flush(cell, *at_ms)),
        Operation::List { cursor, count } => Outcome::Listed(list(cell, *cursor, *count)),
        Operation::Totals => Outcome::Totals(totals(cell, job.begun).map(Box::new)),
        Operation::SetMemoryLimit { bytes } => Outcome::Done(set_memory_limit(cell, *bytes)),
        of_a_key => failed(of_a_key, Fault::Unsupported("this operation")),
    }
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

fn list(cell: &Cell, cursor: u64, count: usize) -> Result<(Vec<OwnedListed>, u64), Fault> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut items = Vec::new();
    let listed = cell.list(cursor, count, &mut |item| {
        let version = item.version.unwrap_or_default();
        let version = Version {
            time_ns: version.time_ns,
            origin: version.origin,
        };
        items.push(OwnedListed::of(&ListedItem {
            key: &item.key,
            value_len: item.value_len as usize,
            entry_len: item.entry_len as usize,
            version,
            unique: item.unique,
            client_flags: item.client_flags,
            expiry_ms: item.expiry_ms,
            seen: unknown(version),
        }));
    });
    match listed {
        Ok(next) => Ok((items, next)),
        Err(error) => Err(Fault::Unavailable(error.to_string())),
    }
}

fn set_memory_limit(cell: &Cell, bytes: u64) -> Result<(), Fault> {
    for (number, result) in cell.set_memory_limit(bytes) {
        result.map_err(|error| Fault::Unavailable(format!("backend {number}: {error}")))?;
    }
    Ok(())
}

/// The outcome of an operation that nobody will execute.
pub(super) fn failed(operation: &Operation, fault: Fault) -> Outcome {
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
