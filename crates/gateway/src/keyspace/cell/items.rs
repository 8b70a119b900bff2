//! Items and faults of the client library in the keyspace's words.

use trefoil_client::{Hit, Lookup, OpError, SetOptions};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, NewItem, Seen, ValueSource};
use trefoil_layout::Version;
use trefoil_layout::copied;
use trefoil_layout::op::ItemUse;

/// Calls `with` once if there is a result. A key on which no two replicas agree
/// is a miss: full replicas evict by themselves, and while one is dead the other
/// two may differ. The client counts those.
#[inline]
pub(super) fn hand_out(
    found: Result<Lookup<'_>, OpError>,
    with: impl FnOnce(Option<&Item<'_>>),
) -> Result<(), Fault> {
    match found.map_err(fault)? {
        Lookup::Hit(hit) => with(Some(&HitValue(hit).item())),
        Lookup::Miss(_) => with(None),
    }
    Ok(())
}

pub(super) fn access_is_use(access: Access) -> bool {
    match access {
        Access::Use => true,
        Access::Peek => false,
    }
}

/// A value in the client's own memory.
pub(super) struct HitValue<'a>(pub(super) Hit<'a>);

impl HitValue<'_> {
    #[inline]
    pub(super) fn item(&self) -> Item<'_> {
        let hit = &self.0;
        Item {
            value: self,
            version: hit.version,
            client_flags: hit.client_flags,
            item_flags: hit.item_flags,
            expiry_ms: hit.expiry_ms,
            unique: hit.unique,
            seen: unknown(hit.version),
        }
    }
}

impl ValueSource for HitValue<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.value.len()
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        copied::append(out, self.0.value);
    }
}

/// Reads leave no trace that other readers could see without asking for it: an
/// item counts as never hit, and as idle since it was written.
pub(super) fn unknown(version: Version) -> Seen {
    seen_by(&[], version)
}

/// What replicas say of the use of an item, all together.
pub(super) fn seen_by(uses: &[Option<ItemUse>], version: Version) -> Seen {
    let of_version = |found: &&ItemUse| found.version == version;
    let uses = || uses.iter().flatten().filter(of_version);
    let written_s = version.time_ns / 1_000_000_000;
    let used_s = uses().map(|found| u64::from(found.last_use_s)).max();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_s = since.map_or(0, |since| since.as_secs());
    Seen {
        hit_before: uses().any(|found| found.hit_before),
        idle_s: now_s.saturating_sub(used_s.unwrap_or(0).max(written_s)) as u32,
    }
}

pub(super) fn options(item: &NewItem<'_>) -> SetOptions {
    SetOptions {
        ttl: None,
        expiry_ms: Some(item.expiry_ms),
        client_flags: item.client_flags,
        item_flags: item.item_flags,
        unique: item.unique,
    }
}

pub(super) fn fault(error: OpError) -> Fault {
    match error {
        OpError::Failed(reason) => Fault::Unavailable(reason),
        OpError::Rejected(rejection) => Fault::Rejected(rejection),
        OpError::NotCommittable(why) => Fault::Unavailable(why.to_string()),
        OpError::Indeterminate(_) => Fault::Indeterminate,
    }
}
