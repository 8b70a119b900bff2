//! One operation on a cell, executed to its end by whoever may wait.
//!
//! An outcome that is not known is looked for once: if the version that we
//! nominated is there, it was applied; anything else stays unknown, because the
//! message may still be under way.

use super::VALUES_LEN_MAX;
use super::items::{HitValue, access_is_use, fault, hand_out, options, seen_by, unknown};
use std::time::{Duration, Instant};
use trefoil_client::{Basis, Cell, Client, FlushError, Lookup, Mutated, OpError, Options};
use trefoil_gateway_core::deferred::{Change, Changed, Operation, Outcome, OwnedItem, OwnedListed};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, ListedItem, NewItem};
use trefoil_layout::Version;
use trefoil_layout::data::EXPIRED_MS;
use trefoil_layout::op::{Expected, Rejection};

/// How long totals wait for replicas that lag behind.
const SETTLE_PATIENCE: Duration = Duration::from_millis(200);
/// How long a mutation on its way is waited for.
const UNSETTLED_PATIENCE: Duration = Duration::from_millis(400);
/// How long a read waits for what replicas know of an item's use.
const USES_PATIENCE: Duration = Duration::from_millis(100);

/// See the module. One belongs to each worker.
pub(super) struct CellOperations {
    cell: Cell,
    client: Client,
}

impl CellOperations {
    pub(super) fn new(cell: Cell, options: Options) -> Self {
        let client = cell.client(options);
        CellOperations { cell, client }
    }

    /// Executes it.
    pub(super) fn execute(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Get {
                key,
                access,
                with_seen,
            } => Outcome::Item(match with_seen {
                true => self.get_seen(key, *access),
                false => self.get(key, *access),
            }),
            Operation::GetMany { keys, access } => Outcome::Items(self.get_many(keys, *access)),
            Operation::Set { key, item } => Outcome::Stored(self.set(key, &item.item())),
            Operation::Change {
                key,
                expected,
                change,
            } => Outcome::Changed(self.change(key, *expected, change)),
            Operation::Flush { at_ms } => Outcome::Done(self.flush(*at_ms)),
            Operation::List { cursor, count } => Outcome::Listed(self.list(*cursor, *count)),
            Operation::Totals => {
                Outcome::Totals(super::totals::totals(&self.cell, &self.client).map(Box::new))
            }
            Operation::SetMemoryLimit { bytes } => Outcome::Done(self.set_memory_limit(*bytes)),
        }
    }

    /// Waits a moment until all copies of what was stored here are where they
    /// belong, so that totals count them, whoever asks for those.
    pub(super) fn settle(&mut self) {
        self.client.settle(SETTLE_PATIENCE);
    }

    fn get(&mut self, key: &[u8], access: Access) -> Result<Option<OwnedItem>, Fault> {
        if !access_is_use(access) {
            return self.look(key);
        }
        let found = self.client.get(key);
        let mut owned = None;
        hand_out(found, |item| owned = item.map(OwnedItem::of))?;
        // The event loop reports what it reads; so does this, without delay.
        self.client.flush_touches();
        Ok(owned)
    }

    /// What somebody may write on the strength of it.
    fn look(&mut self, key: &[u8]) -> Result<Option<OwnedItem>, Fault> {
        let begin = Instant::now();
        loop {
            match self.client.look(key).map_err(fault)? {
                Basis::Value(hit) => return Ok(Some(OwnedItem::of(&HitValue(hit).item()))),
                Basis::Nothing => return Ok(None),
                // Nobody is told that it is gone while a replica that comes back
                // could bring it back: "not found" is what a delete may answer.
                Basis::Disagreeing => return self.client.erase(key).map(|_| None).map_err(fault),
                // Whoever is at it is through, or given up, within a tenth of a
                // second.
                Basis::Unsettled if begin.elapsed() > UNSETTLED_PATIENCE => return Ok(None),
                Basis::Unsettled => {}
            }
        }
    }

    fn get_seen(&mut self, key: &[u8], access: Access) -> Result<Option<OwnedItem>, Fault> {
        let uses = self.client.item_uses(key, USES_PATIENCE).map_err(fault)?;
        let found = match access_is_use(access) {
            true => self.client.get(key),
            false => self.client.peek(key),
        };
        let mut owned = None;
        hand_out(found, |item| {
            owned = item.map(|item| {
                OwnedItem::of(&Item {
                    seen: seen_by(&uses, item.version),
                    ..*item
                })
            });
        })?;
        self.client.flush_touches();
        Ok(owned)
    }

    fn get_many(
        &mut self,
        keys: &[Vec<u8>],
        access: Access,
    ) -> Vec<Result<Option<OwnedItem>, Fault>> {
        let mut items: Vec<Result<Option<OwnedItem>, Fault>> = Vec::new();
        if access == Access::Peek {
            for key in keys {
                items.push(self.get(key, access));
            }
            return items;
        }
        let mut len = 0;
        self.client.get_many(keys, |_, found| {
            if len >= VALUES_LEN_MAX {
                return;
            }
            let mut owned = None;
            let handed = hand_out(found, |item| owned = item.map(OwnedItem::of));
            len += owned.as_ref().map_or(0, OwnedItem::value_len);
            items.push(handed.map(|()| owned));
        });
        self.client.flush_touches();
        items
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Fault> {
        self.check_len(item)?;
        match self.client.set(key, item.value, options(item)) {
            Ok(Mutated::Stored { version }) => Ok(version),
            Ok(Mutated::Superseded { .. } | Mutated::Exists { .. }) => Err(Fault::Contended),
            Err(error) => Err(fault(error)),
        }
    }

    fn change(
        &mut self,
        key: &[u8],
        expected: Expected,
        change: &Change,
    ) -> Result<Changed, Fault> {
        let (item, changed): (_, fn(Version) -> Changed) = match change {
            Change::Store(item) => (item.item(), Changed::Stored),
            // A conditional erase is a CAS to an item whose time is over: every rule
            // of CAS and of expiry holds for it.
            Change::Erase => (
                NewItem {
                    expiry_ms: EXPIRED_MS,
                    ..NewItem::default()
                },
                |_| Changed::Erased,
            ),
        };
        let stored = self.cas(key, expected, &item)?;
        Ok(stored.map_or(Changed::Lost, changed))
    }

    /// One CAS; `None` if it certainly was not applied and another may be.
    fn cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        item: &NewItem<'_>,
    ) -> Result<Option<Version>, Fault> {
        if self.client.config().mode.is_immutable() {
            return Err(Fault::Rejected(Rejection::Immutable));
        }
        self.check_len(item)?;
        let result = self.client.cas(key, expected, item.value, options(item));
        let version = self.client.last_version();
        match result {
            Ok(Mutated::Stored { version }) => Ok(Some(version)),
            Ok(Mutated::Exists { .. } | Mutated::Superseded { .. }) => Ok(None),
            Err(OpError::Rejected(rejection)) if rejection.is_transient() => Ok(None),
            Err(OpError::Indeterminate(_)) => match self.is_there(key, item, version) {
                true => Ok(Some(version)),
                false => Err(Fault::Indeterminate),
            },
            Err(error) => Err(fault(error)),
        }
    }

    /// Whether a quorum holds what we have tried to store under `version`.
    fn is_there(&mut self, key: &[u8], item: &NewItem<'_>, version: Version) -> bool {
        // What has expired is not shown, whoever wrote it.
        item.expiry_ms != EXPIRED_MS
            && matches!(self.client.peek(key), Ok(Lookup::Hit(hit)) if hit.version == version)
    }

    fn check_len(&self, item: &NewItem<'_>) -> Result<(), Fault> {
        if item.value.len() as u64 > self.client.config().value_len_max {
            return Err(Fault::Rejected(Rejection::ValueTooLong));
        }
        Ok(())
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Fault> {
        self.cell.flush(at_ms).map_err(|error| match error {
            FlushError::Immutable => Fault::Rejected(Rejection::Immutable),
            FlushError::Incomplete { .. } => Fault::Indeterminate,
            error => Fault::Unavailable(error.to_string()),
        })?;
        self.client.refresh();
        Ok(())
    }

    fn list(&mut self, cursor: u64, count: usize) -> Result<(Vec<OwnedListed>, u64), Fault> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut items = Vec::new();
        let listed = self.cell.list(cursor, count, &mut |item| {
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

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Fault> {
        for (number, result) in self.cell.set_memory_limit(bytes) {
            result.map_err(|error| Fault::Unavailable(format!("backend {number}: {error}")))?;
        }
        Ok(())
    }
}
