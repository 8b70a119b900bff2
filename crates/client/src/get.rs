//! GET: in place by one-sided reads, or waited for.

use crate::client::Client;
use crate::error::OpError;
use crate::time;
use trefoil_client_core::fill::{FillTicket, Stamps};
use trefoil_client_core::get::{GetFailure, GetOutcome, MissReason};
use trefoil_client_core::retry::Limits;
use trefoil_driver::{Outcome, Owner, Purpose};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;

/// What a lookup found.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// A value.
    Hit(Hit<'a>),
    /// None, and why.
    Miss(Miss),
}

/// A value and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The value's bytes, in the client's own memory.
    pub value: &'a [u8],
    /// The mutation that wrote it: what a CAS expects.
    pub version: Version,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
}

/// No value.
#[derive(Debug)]
pub struct Miss {
    /// Why.
    pub reason: MissReason,
    /// For [`Client::fill`]: a value computed after this miss does not replace what
    /// was written since. Good for one fill of this key.
    pub fill: FillTicket,
}

impl Miss {
    #[inline]
    pub(crate) fn new(reason: MissReason, stamps: Stamps) -> Self {
        Miss {
            reason,
            fill: FillTicket::new(stamps),
        }
    }
}

impl<'a> Hit<'a> {
    #[inline(always)]
    pub(crate) fn new(entry: DataEntry<'a>, version: Version) -> Self {
        Hit {
            value: entry.value,
            version,
            client_flags: entry.client_flags,
            expiry_ms: entry.expiry_ms,
            item_flags: entry.item_flags,
            unique: entry.unique,
        }
    }
}

impl Client {
    /// Looks a key up.
    pub fn get(&mut self, key: &[u8]) -> Result<Lookup<'_>, OpError> {
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        self.look_up(key, now, limits, Purpose::Use)
    }

    /// Looks a key up without telling the backends that it is in use.
    pub fn peek(&mut self, key: &[u8]) -> Result<Lookup<'_>, OpError> {
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        self.look_up(key, now, limits, Purpose::Peek)
    }

    #[inline(always)]
    pub(crate) fn look_up(
        &mut self,
        key: &[u8],
        now_ns: u64,
        limits: Limits,
        purpose: Purpose,
    ) -> Result<Lookup<'_>, OpError> {
        self.check_lookup(key)?;
        self.settle_topology();
        match self.driver.get(key, now_ns, limits, purpose, Owner::Waiter) {
            Ok(inline) => {
                self.driver.counters_mut().add(&inline.outcome);
                match inline.outcome {
                    GetOutcome::Hit { version, .. } => {
                        hit(self.driver.inline_bytes(&inline), version)
                    }
                    GetOutcome::Miss { reason } => {
                        Ok(Lookup::Miss(Miss::new(reason, self.driver.missed(&inline))))
                    }
                    GetOutcome::Failed { cause } => Err(self.explained(failed(cause, None))),
                }
            }
            Err(at) => self.waited_lookup(at),
        }
    }

    /// A lookup that could not end in place.
    #[cold]
    pub(crate) fn waited_lookup(&mut self, at: u32) -> Result<Lookup<'_>, OpError> {
        self.wait_for(at);
        let mut held = std::mem::take(&mut self.held);
        let ended = self.driver.take_ended(at, &mut held);
        self.held = held;
        match ended {
            Some((Outcome::Hit { version }, _)) => hit(self.held.bytes(), version),
            Some((Outcome::Miss { reason, stamps }, _)) => {
                Ok(Lookup::Miss(Miss::new(reason, stamps)))
            }
            Some((Outcome::Failed { cause }, why)) => {
                Err(self.explained(failed(cause, why.as_deref())))
            }
            other => Err(OpError::Failed(format!("a lookup ended as {other:?}"))),
        }
    }
}

#[inline(always)]
pub(crate) fn hit(bytes: &[u8], version: Version) -> Result<Lookup<'_>, OpError> {
    match DataEntry::decode(bytes) {
        Some(entry) => Ok(Lookup::Hit(Hit::new(entry, version))),
        None => Err(OpError::Failed("a validated entry does not decode".into())),
    }
}

#[cold]
pub(crate) fn failed(cause: GetFailure, why: Option<&str>) -> OpError {
    match (OpError::from(cause), why) {
        (OpError::Failed(text), Some(why)) => OpError::Failed(format!("{text}: {why}")),
        (error, _) => error,
    }
}
