//! Mutations whose clients were told that they are done before they are executed here: those
//! of an ordered queue in front of a store.

use crate::config::Now;
use crate::store::Store;
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};

/// Attempts at one mutation. Each is above everything that was known before, and few writers
/// come in between.
const ATTEMPTS_MAX: u32 = 64;

/// What says which of two mutations of a key is the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOrder {
    /// When they are executed here. For a store that is the only copy.
    Position,
    /// Their versions, as everywhere else: other stores execute the same ones, in other orders.
    /// Whoever nominates has asked before what is known ([`trefoil_layout::control::newest_ns`]).
    Version,
}

impl Store {
    /// Executes a SET or an ERASE that cannot be refused any more.
    ///
    /// By position it takes effect now, whatever its version says: where something at least as
    /// new is known, it is lifted above that; from too far in the future, it is of now. No
    /// other mutation has its origin, so no version is given twice. By version it has no effect
    /// where something newer is known: it was overwritten, or evicted, at once.
    ///
    /// What cannot be stored is erased: it was evicted at once, and what was there before is
    /// not hit. An error says that this failed, too. By version that is so, besides, of what
    /// nobody may have nominated: from too far in the future, or for a store that recovers.
    pub fn mutate_committed(
        &self,
        now: Now,
        mutation: &Mutation<'_>,
        order: CommitOrder,
    ) -> Result<(), Rejection> {
        let mut mutation = *mutation;
        if mutation.version.time_ns > now.unix_ns.saturating_add(CLOCK_AHEAD_NS_MAX) {
            match order {
                CommitOrder::Position => mutation.version.time_ns = now.unix_ns,
                CommitOrder::Version => return Err(Rejection::ClockAhead),
            }
        }
        let mut refused = Rejection::NoMemory;
        for _ in 0..ATTEMPTS_MAX {
            // What is known may be of a time that is still to come: its writer's clock was
            // ahead. Expiries are judged by the host's clock all the same.
            let ahead_ns = mutation.version.time_ns.saturating_sub(now.unix_ns);
            let at = Now {
                unix_ns: now.unix_ns + ahead_ns,
                set_back_ns: now.set_back_ns + ahead_ns,
            };
            match self.mutate(at, &mutation).outcome {
                Outcome::Applied => return Ok(()),
                Outcome::Superseded { .. } if order == CommitOrder::Version => return Ok(()),
                Outcome::Superseded { bound } => {
                    mutation.version.time_ns = bound.time_ns.saturating_add(1);
                }
                // It keeps what it must not acknowledge: an ERASE would take its place.
                Outcome::Rejected(why @ Rejection::Recovering) => return Err(why),
                Outcome::Rejected(why) if mutation.action != Action::Erase => {
                    refused = why;
                    mutation = Mutation {
                        action: Action::Erase,
                        entry: DataEntry {
                            key: mutation.entry.key,
                            ..DataEntry::default()
                        },
                        ..mutation
                    };
                }
                Outcome::Rejected(why) => return Err(why),
                Outcome::Mismatch { .. } => return Err(refused),
            }
        }
        Err(refused)
    }
}
