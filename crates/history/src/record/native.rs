//! The native client, by whatever carrier.

use super::RecordError;
use super::plan::CarrierKind;
use super::worker::{Counted, Expected, Found, Key, Path, Told, WorkerPlan};
use crate::event::Outcome;
use trefoil_client::{
    Carrier, Cell, Client, Commit, FillTicket, Lookup, MissReason, Mutated, OpError, Options,
    SetOptions,
};

pub(super) struct Native {
    client: Client,
}

impl Native {
    pub(super) fn connect(plan: &WorkerPlan) -> Result<Self, RecordError> {
        let options = Options {
            carrier: match plan.carrier {
                CarrierKind::Message => Carrier::Message,
                CarrierKind::Rpc => Carrier::Rpc,
                CarrierKind::Rings | CarrierKind::Queue | CarrierKind::Gateway => Carrier::Auto,
            },
            clock_offset_ms: plan.clock_offset_ms,
            ..Options::default()
        };
        let mut client = Cell::connect(&plan.cell)?.client(options);
        if plan.carrier == CarrierKind::Queue {
            client.set_commit(Commit::Acknowledged);
        }
        Ok(Native { client })
    }
}

fn found(key: Key, lookup: Result<Lookup<'_>, OpError>) -> Found {
    match lookup {
        Ok(Lookup::Hit(hit)) => Found::value(key, hit.value, hit.version, 0),
        Ok(Lookup::Miss(miss)) => Found {
            ticket: Some(miss.fill),
            ..Found::nothing(match miss.reason {
                MissReason::Absent => Outcome::Absent,
                MissReason::Expired => Outcome::Expired,
                MissReason::Flushed => Outcome::Flushed,
                MissReason::Inquorate => Outcome::Inquorate,
            })
        },
        Err(_) => Found::nothing(Outcome::Failed),
    }
}

fn told(result: Result<Mutated, OpError>) -> Option<Told> {
    Some(match result {
        Ok(Mutated::Stored { version }) => Told {
            outcome: Outcome::Stored,
            version,
        },
        // Its version is known when it is hit.
        Ok(Mutated::Committed) => Told::of(Outcome::Stored),
        Ok(Mutated::Superseded { .. }) => Told::of(Outcome::Superseded),
        Ok(Mutated::Exists { .. })
        | Err(OpError::Failed(_) | OpError::Rejected(_) | OpError::NotCommittable(_)) => {
            Told::of(Outcome::Denied)
        }
        Err(OpError::Indeterminate(_)) => Told::of(Outcome::Unknown),
    })
}

impl Path for Native {
    fn get(&mut self, key: Key) -> Option<Found> {
        Some(found(key, self.client.get(key.name().as_bytes())))
    }

    fn get_many(&mut self, keys: &[Key]) -> Option<Vec<Found>> {
        let names: Vec<String> = keys.iter().map(|key| key.name()).collect();
        let mut all: Vec<Option<Found>> = keys.iter().map(|_| None).collect();
        self.client.get_many(&names, |index, lookup| {
            all[index] = Some(found(keys[index], lookup));
        });
        let nothing = || Found::nothing(Outcome::Failed);
        Some(all.into_iter().map(|f| f.unwrap_or_else(nothing)).collect())
    }

    fn set(&mut self, key: Key, value: &[u8]) -> Option<Told> {
        told(
            self.client
                .set(key.name().as_bytes(), value, SetOptions::default()),
        )
    }

    fn erase(&mut self, key: Key) -> Option<Told> {
        told(self.client.erase(key.name().as_bytes()))
    }

    fn cas(&mut self, key: Key, expected: Option<&Expected>, value: &[u8]) -> Option<Told> {
        let expected = match expected {
            Some(expected) => trefoil_client::Expected::Version(expected.version),
            None => trefoil_client::Expected::Absent,
        };
        let name = key.name();
        told(
            self.client
                .cas(name.as_bytes(), expected, value, SetOptions::default()),
        )
    }

    fn fill(&mut self, key: Key, ticket: FillTicket, value: &[u8]) -> Option<Told> {
        let name = key.name();
        told(
            self.client
                .fill(ticket, name.as_bytes(), value, SetOptions::default()),
        )
    }

    fn increment(&mut self, _: Key) -> Option<Counted> {
        None
    }
}
