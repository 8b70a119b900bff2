//! Lookups for whoever writes on the strength of what they find: they tell
//! survivors that disagree from a mutation on its way.

use crate::client::Client;
use crate::error::OpError;
use crate::get::{Hit, Lookup, failed, hit};
use crate::time;
use trefoil_client_core::get::{GetFailure, GetOutcome, MissReason};
use trefoil_client_core::retry::{GiveUp, RetryCause};
use trefoil_driver::{Outcome, Owner, Purpose};

/// What a careful look found ([`Client::look`]).
#[derive(Debug)]
pub enum Basis<'a> {
    /// A value: a CAS may expect its version.
    Value(Hit<'a>),
    /// None: a CAS may expect [`trefoil_layout::op::Expected::Absent`].
    Nothing,
    /// Survivors of a dead replica disagree, and nothing is on its way. To a CAS
    /// this is nothing, too; but a replica that comes back may agree with one of
    /// them, so whoever says that the key is gone has to make it so: by a CAS that
    /// expects nothing. An ERASE would take what was stored since this look.
    Disagreeing,
    /// The replicas disagree, and what they hold is recent: most likely a
    /// mutation is on its way. Look again.
    Unsettled,
}

impl Client {
    /// Looks a key up to write on the strength of what is there: a CAS that
    /// expects what this finds succeeds unless somebody else comes first.
    /// Reports no use.
    pub fn look(&mut self, key: &[u8]) -> Result<Basis<'_>, OpError> {
        self.check_lookup(key)?;
        self.settle_topology();
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        match self
            .driver
            .get(key, now, limits, Purpose::Basis, Owner::Waiter)
        {
            Ok(inline) => {
                self.driver.counters_mut().add(&inline.outcome);
                match inline.outcome {
                    GetOutcome::Hit { version, .. } => {
                        basis(hit(self.driver.inline_bytes(&inline), version))
                    }
                    GetOutcome::Miss { reason } => Ok(missed(reason)),
                    GetOutcome::Failed { cause } => {
                        unfinished(cause, None).map_err(|error| self.explained(error))
                    }
                }
            }
            Err(at) => {
                self.wait_for(at);
                let mut held = std::mem::take(&mut self.held);
                let ended = self.driver.take_ended(at, &mut held);
                self.held = held;
                match ended {
                    Some((Outcome::Hit { version }, _)) => basis(hit(self.held.bytes(), version)),
                    Some((Outcome::Miss { reason, .. }, _)) => Ok(missed(reason)),
                    Some((Outcome::Failed { cause }, why)) => {
                        unfinished(cause, why.as_deref()).map_err(|error| self.explained(error))
                    }
                    other => Err(OpError::Failed(format!("a look ended as {other:?}"))),
                }
            }
        }
    }
}

pub(crate) fn basis(found: Result<Lookup<'_>, OpError>) -> Result<Basis<'_>, OpError> {
    Ok(match found? {
        Lookup::Hit(hit) => Basis::Value(hit),
        Lookup::Miss(miss) => missed(miss.reason),
    })
}

pub(crate) fn missed<'a>(reason: MissReason) -> Basis<'a> {
    match reason {
        MissReason::Inquorate => Basis::Disagreeing,
        _ => Basis::Nothing,
    }
}

/// It found no end because something is on its way, or failed.
pub(crate) fn unfinished<'a>(cause: GetFailure, why: Option<&str>) -> Result<Basis<'a>, OpError> {
    match cause {
        GetFailure::GaveUp(
            GiveUp::Budget {
                last: RetryCause::Inquorate,
            }
            | GiveUp::Deadline {
                last: Some(RetryCause::Inquorate),
            },
        ) => Ok(Basis::Unsettled),
        cause => Err(failed(cause, why)),
    }
}
