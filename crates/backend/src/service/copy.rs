//! What a member of the same cohort asks for that has lost its memory: the shard's
//! epoch raised, and what this replica knows of the shard, a page at a time.

use crate::admission::LEN_MIN;
use crate::clock;
use crate::member::Member;
use tonic::Status;
use trefoil_layout::epoch;
use trefoil_rpc::v1;
use trefoil_store::{BoundsCursor, Exported, PLACES, Position, StoredItem};

/// Bytes of data entries in one page, about. Half as many are copied under one hold of
/// a partition's lock, or fewer.
const ENTRIES_LEN: usize = 512 << 10;
/// Keys in one page of versions, about; and bounds in one of bounds.
const BOUNDS_COUNT: usize = 8192;

/// The backend's own number of the shard that a request names.
pub(super) fn shard(member: &Member, name: Option<&v1::ShardName>) -> Result<usize, Status> {
    let name = name.ok_or_else(|| Status::invalid_argument("the field \"shard\" is missing"))?;
    super::check_life(member, name.life)?;
    if name.incarnation != 0 && name.incarnation != member.shape().incarnation {
        return Err(Status::aborted(format!(
            "backend {} was restarted meanwhile",
            member.number
        )));
    }
    let shards = &member.store.config().shards;
    shards.local_of(name.shard).ok_or_else(|| {
        Status::not_found(format!(
            "backend {} does not hold shard {}",
            member.number, name.shard
        ))
    })
}

/// Raises the shard's epoch, if `epoch` is not 0. Takes as long as rewriting the headers
/// of all of the shard's buckets.
pub(super) fn raise_epoch(
    member: &Member,
    shard: usize,
    epoch: u32,
) -> Result<v1::RaiseEpochResponse, Status> {
    let store = &member.store;
    let current = store.epoch(shard);
    if epoch > current {
        if !epoch::may_follow(current, epoch) {
            return Err(Status::invalid_argument(format!(
                "no epoch {epoch} follows {current}"
            )));
        }
        store.raise_epoch(shard, epoch);
    }
    Ok(v1::RaiseEpochResponse {
        epoch: store.epoch(shard),
        recovering: store.is_recovering(shard),
        incarnation: member.shape().incarnation,
        newest: Some(trefoil_rpc::encode_version(store.newest())),
    })
}

/// One page of what stands in the index.
pub(super) fn items(
    member: &Member,
    shard: usize,
    request: &v1::CopyItemsRequest,
) -> v1::CopyItemsResponse {
    let store = &member.store;
    let before = store.epoch(shard);
    let places = request.from.min(PLACES.end)..request.until.min(PLACES.end);
    let mut items = Vec::new();
    let (mut held, mut dead) = (Vec::new(), Vec::new());
    let now = clock::now();
    let next = match request.values {
        true => store.export(now, shard, places, ENTRIES_LEN, &mut |exported| {
            match exported {
                Exported::Value { hash, item } => {
                    let copied = copied(&item);
                    let len = copied.data.len() + copied.key.len();
                    items.push((Position::place_of(hash), copied));
                    return len;
                }
                Exported::Bound { hash, version } => dead.push((hash, version)),
                Exported::Floor(_) => {}
            }
            0
        }),
        false => store.export(now, shard, places, BOUNDS_COUNT, &mut |exported| {
            match exported {
                Exported::Value { hash, item } => held.push((hash, item.version)),
                Exported::Bound { hash, version } => dead.push((hash, version)),
                Exported::Floor(_) => {}
            }
            1
        }),
    };
    // What lies behind comes with the next page.
    items.retain(|(place, _)| *place < next);
    held.retain(|(hash, _)| Position::place_of(*hash) < next);
    dead.retain(|(hash, _)| Position::place_of(*hash) < next);
    let mut bounds = Vec::with_capacity(4 * (held.len() + dead.len()));
    for (hash, version) in held.iter().chain(&dead) {
        trefoil_rpc::encode_bound(&mut bounds, *hash, *version);
    }
    let votes = store.epoch(shard) == before && !store.is_recovering(shard);
    v1::CopyItemsResponse {
        next,
        epoch: if votes { before } else { epoch::NONE },
        items: items.into_iter().map(|(_, item)| item).collect(),
        bounds,
        held: held.len() as u32,
    }
}

fn copied(item: &StoredItem<'_>) -> v1::CopiedItem {
    let version = Some(trefoil_rpc::encode_version(item.version));
    let (mut data, mut key) = (Vec::new(), Vec::new());
    match item.entry_len > LEN_MIN {
        true => item.append_key(&mut key),
        false => {
            data.reserve_exact(item.entry_len);
            item.append_entry(&mut data);
        }
    }
    v1::CopiedItem {
        version,
        data: data.into(),
        key: key.into(),
    }
}

/// One page of the other bounds.
pub(super) fn bounds(
    member: &Member,
    shard: usize,
    request: &v1::CopyBoundsRequest,
) -> v1::CopyBoundsResponse {
    let mut bounds = Vec::new();
    let mut floor = None;
    let cursor = BoundsCursor {
        partition: request.partition,
        tombstone: request.tombstone,
    };
    let store = &member.store;
    let next = store.export_bounds(
        shard,
        cursor,
        BOUNDS_COUNT,
        &mut |exported| match exported {
            Exported::Bound { hash, version } => {
                trefoil_rpc::encode_bound(&mut bounds, hash, version)
            }
            Exported::Floor(version) => floor = floor.max(Some(version)),
            Exported::Value { .. } => {}
        },
    );
    let cursor = next.unwrap_or_default();
    v1::CopyBoundsResponse {
        bounds,
        floor: floor.map(trefoil_rpc::encode_version),
        done: next.is_none(),
        partition: cursor.partition,
        tombstone: cursor.tombstone,
    }
}
