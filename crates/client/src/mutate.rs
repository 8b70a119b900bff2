//! SET, fill, ERASE, CAS: begun in the driver, and waited for.

use crate::client::{Client, check_key};
use crate::error::{Mutated, OpError};
use crate::time;
use std::time::Duration;
use trefoil_client_core::fill::FillTicket;
use trefoil_client_core::outcome::MutationOutcome;
use trefoil_driver::{Item, Outcome, Owner};
use trefoil_layout::data::{EXPIRY_MS_MAX, ITEM_FLAGS_ALLOWED};
use trefoil_layout::op::{Expected, Rejection};

/// What a value is stored with.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetOptions {
    /// Expires after; `None` never. Whole milliseconds, at least one.
    pub ttl: Option<Duration>,
    /// Expires at this time, in milliseconds since the Unix epoch; goes before
    /// `ttl`. A time in the past is stored, and expired at once.
    pub expiry_ms: Option<u64>,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// A CAS unique of the caller's.
    pub unique: Option<u64>,
}

impl Client {
    /// Stores a value, above whatever is there. On success a quorum holds it, or it is
    /// committed ([`Client::set_commit`]).
    pub fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        self.set_by(key, value, options, self.commit)
    }

    pub(crate) fn set_executed(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let at = self.begin_set(key, value, options, Owner::Waiter)?;
        self.waited_mutation(at)
    }

    /// Stores a value that was computed after a miss, unless the key was written since,
    /// whatever anybody's clock says: then it is [`Mutated::Superseded`]. So is one
    /// that met a mutation of a key that shares its count, or another configuration of
    /// the cell. A ticket of another key's miss is an error, and nothing is sent.
    pub fn fill(
        &mut self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let at = self.begin_fill(ticket, key, value, options, Owner::Waiter)?;
        self.waited_mutation(at)
    }

    /// Removes a value; its version is remembered, so that older mutations
    /// that arrive late do not bring it back.
    pub fn erase(&mut self, key: &[u8]) -> Result<Mutated, OpError> {
        self.erase_by(key, self.commit)
    }

    pub(crate) fn erase_executed(&mut self, key: &[u8]) -> Result<Mutated, OpError> {
        let at = self.begin_erase(key, Owner::Waiter)?;
        self.waited_mutation(at)
    }

    /// Stores a value iff exactly `expected` is there.
    pub fn cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let at = self.begin_cas(key, expected, value, options, Owner::Waiter)?;
        self.waited_mutation(at)
    }

    pub(crate) fn begin_set(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        owner: Owner,
    ) -> Result<u32, OpError> {
        let item = self.check(key, value, options)?;
        Ok(self.driver.begin_set(key, value, item, owner))
    }

    pub(crate) fn begin_fill(
        &mut self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        owner: Owner,
    ) -> Result<u32, OpError> {
        let item = self.check(key, value, options)?;
        self.driver
            .begin_fill(ticket, key, value, item, owner)
            .map_err(|error| OpError::Failed(error.to_string()))
    }

    pub(crate) fn begin_erase(&mut self, key: &[u8], owner: Owner) -> Result<u32, OpError> {
        check_key(key)?;
        self.check_process()?;
        self.settle_topology();
        Ok(self.driver.begin_erase(key, owner))
    }

    pub(crate) fn begin_cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
        owner: Owner,
    ) -> Result<u32, OpError> {
        let item = self.check(key, value, options)?;
        Ok(self.driver.begin_cas(expected, key, value, item, owner))
    }

    /// Refuses what no backend takes.
    pub(crate) fn check(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Item, OpError> {
        check_key(key)?;
        self.check_process()?;
        self.settle_topology();
        if value.len() as u64 > self.config().value_len_max {
            return Err(OpError::Rejected(Rejection::ValueTooLong));
        }
        if options.item_flags & !ITEM_FLAGS_ALLOWED != 0 {
            return Err(OpError::Rejected(Rejection::BadItem));
        }
        Ok(Item {
            expiry_ms: expiry_ms(options)?,
            client_flags: options.client_flags,
            item_flags: options.item_flags,
            unique: options.unique,
        })
    }

    pub(crate) fn waited_mutation(&mut self, at: u32) -> Result<Mutated, OpError> {
        self.wait_for(at);
        let mut unused = std::mem::take(&mut self.held);
        let ended = self.driver.take_ended(at, &mut unused);
        self.held = unused;
        match ended {
            Some((Outcome::Mutated(outcome), why)) => {
                concluded(outcome, why.as_deref()).map_err(|error| self.explained(error))
            }
            other => Err(OpError::Indeterminate(format!(
                "a mutation ended as {other:?}"
            ))),
        }
    }
}

/// The machine's outcome in the caller's words.
pub(crate) fn concluded(outcome: MutationOutcome, why: Option<&str>) -> Result<Mutated, OpError> {
    let because = |cause: String| match why {
        Some(why) => format!("{cause}: {why}"),
        None => cause,
    };
    match outcome {
        MutationOutcome::Stored { version } => Ok(Mutated::Stored { version }),
        MutationOutcome::Superseded { bound } => Ok(Mutated::Superseded { bound }),
        MutationOutcome::Exists { present } => Ok(Mutated::Exists { present }),
        MutationOutcome::Rejected(rejection) => Err(OpError::Rejected(rejection)),
        MutationOutcome::Indeterminate => Err(OpError::Indeterminate(because(
            "no quorum answered before deadline and retries ended".into(),
        ))),
        MutationOutcome::Failed { cause } => Err(OpError::Failed(because(cause.to_string()))),
    }
}

fn expiry_ms(options: SetOptions) -> Result<u64, OpError> {
    let expiry_ms = match (options.expiry_ms, options.ttl) {
        (Some(at), _) => Some(at),
        (None, None) => Some(0),
        (None, Some(ttl)) => {
            let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
            (time::unix_ns() / 1_000_000).checked_add(ttl_ms)
        }
    };
    expiry_ms
        .filter(|at| *at <= EXPIRY_MS_MAX)
        .ok_or(OpError::Rejected(Rejection::BadItem))
}
