//! Trefoil as a target: one client of a cell.

use std::collections::BTreeMap;
use std::time::Duration;

use trefoil_client::{Client, Lookup, Mutated, OpError, SetOptions};

use super::{GetOutcome, SetOutcome, Target, TargetError};

/// One client, for one thread.
pub struct Trefoil {
    client: Client,
}

impl Trefoil {
    /// Measures through `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client alone.
    pub fn into_client(self) -> Client {
        self.client
    }

    /// The client, for its counters.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

fn refused(error: OpError) -> TargetError {
    TargetError::Refused {
        system: "trefoil",
        message: error.to_string(),
    }
}

fn set_outcome(result: Result<Mutated, OpError>) -> Result<SetOutcome, TargetError> {
    match result {
        Ok(Mutated::Stored { .. } | Mutated::Committed) => Ok(SetOutcome::Stored),
        Ok(Mutated::Superseded { .. } | Mutated::Exists { .. }) => Ok(SetOutcome::Superseded),
        Err(OpError::Indeterminate(_)) => Ok(SetOutcome::Indeterminate),
        Err(error) => Err(refused(error)),
    }
}

impl Target for Trefoil {
    #[inline]
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        match self.client.get(key) {
            Ok(Lookup::Hit(hit)) => Ok(GetOutcome::Hit(hit.value)),
            Ok(Lookup::Miss(_)) => Ok(GetOutcome::Miss),
            Err(error) => Err(refused(error)),
        }
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, GetOutcome<'_>),
    ) -> Result<(), TargetError> {
        let mut failure = None;
        self.client.get_many(keys, |index, result| match result {
            Ok(Lookup::Hit(hit)) => each(index, GetOutcome::Hit(hit.value)),
            Ok(Lookup::Miss(_)) => each(index, GetOutcome::Miss),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(()), |error| Err(refused(error)))
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        let options = SetOptions {
            ttl,
            ..SetOptions::default()
        };
        set_outcome(self.client.set(key, value, options))
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        set_outcome(self.client.erase(key))
    }

    fn count_retries(&self, counts: &mut BTreeMap<String, u64>) {
        let counters = self.client.counters();
        for (cause, count) in counters.get_retries.iter() {
            *counts.entry(cause.name().to_owned()).or_default() += count;
        }
        for (cause, count) in counters.mutation_retries.iter() {
            let name = format!("mutation_{}", cause.name());
            *counts.entry(name).or_default() += count;
        }
    }
}
