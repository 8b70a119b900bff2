//! What a member of the same cohort asks for that has lost its memory, as messages
//! ([`trefoil_recovery`] says what it does with the answers).

use crate::clock;
use crate::member::Member;
use tonic::Status;
use trefoil_cell::BACKEND_COUNT_MAX;
use trefoil_layout::Placement;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_recovery::{Data, Item};
use trefoil_rpc::v1;
use trefoil_store::PLACES;

/// Ranges of places in one request, at most.
const RANGES_MAX: usize = 4096;

/// Whether data entries of another process can be taken as they lie: it may be of another
/// release.
pub(crate) fn check_layout(theirs: u32) -> Result<(), Status> {
    match theirs == u32::from(LAYOUT_VERSION) {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "its data entries are of layout {LAYOUT_VERSION}, those of the process that asks of layout {theirs}: they cannot be copied between these releases"
        ))),
    }
}

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
    let count = shards.placement().backend_count();
    if name.backends != 0 && name.backends != count {
        return Err(Status::aborted(format!(
            "the cell has {count} backends, not {}: it was resized",
            name.backends
        )));
    }
    shards.local_of(name.shard).ok_or_else(|| {
        Status::not_found(format!(
            "backend {} does not hold shard {}",
            member.number, name.shard
        ))
    })
}

pub(super) fn raise_epoch(
    member: &Member,
    shard: usize,
    epoch: u32,
) -> Result<v1::RaiseEpochResponse, Status> {
    if member.giving.is_frozen() || member.resizing.is_frozen() {
        // Its successor would not learn of it.
        return Err(Status::aborted(format!(
            "backend {} is moving to another process: try again",
            member.number
        )));
    }
    let standing = trefoil_recovery::standing(&member.store, shard, epoch);
    let standing = standing.ok_or_else(|| {
        let current = member.store.epoch(shard);
        Status::invalid_argument(format!("no epoch {epoch} follows {current}"))
    })?;
    Ok(v1::RaiseEpochResponse {
        epoch: standing.epoch,
        recovering: standing.is_lost,
        incarnation: standing.incarnation,
        bound_max: Some(trefoil_rpc::encode_version(standing.bound_max)),
        bucket_count: standing.bucket_count,
    })
}

/// A page. `None` if a request names a shard of a cell that cannot be, or more ranges than
/// anybody asks for.
pub(super) fn items(
    member: &Member,
    shard: usize,
    request: &v1::CopyItemsRequest,
) -> Option<v1::CopyItemsResponse> {
    let places = request.from.min(PLACES.end)..request.until.min(PLACES.end);
    let (now, store) = (clock::now(), &member.store);
    let page = if request.of_backends == 0 && request.ranges.is_empty() {
        trefoil_recovery::items(store, now, shard, places, request.values)
    } else {
        let copies = store.config().shards.placement().copy_count();
        let count = request.of_backends;
        let is_cell = (copies..=BACKEND_COUNT_MAX).contains(&(count as usize));
        if request.ranges.len() > RANGES_MAX || count != 0 && !is_cell {
            return None;
        }
        let placement = (count != 0).then(|| Placement::new(copies, count));
        let is_wanted = |hash| placement.is_none_or(|p| p.first(hash) == request.of_shard);
        let ranges = request.ranges.iter();
        let mut ranges: Vec<_> = ranges
            .map(|range| range.from.min(PLACES.end)..range.until.min(PLACES.end))
            .collect();
        if ranges.is_empty() {
            ranges.push(places);
        }
        trefoil_recovery::items_at(store, now, shard, &ranges, request.values, &is_wanted)
    };
    let item = |item: Item<Vec<u8>>| {
        let (data, key) = match item.data {
            Data::Whole(data) => (data, Vec::new()),
            Data::Long { key } => (Vec::new(), key),
        };
        v1::CopiedItem {
            version: Some(trefoil_rpc::encode_version(item.version)),
            data: data.into(),
            key: key.into(),
            recency: item.recency.bits().into(),
        }
    };
    Some(v1::CopyItemsResponse {
        next: page.next,
        epoch: page.epoch,
        items: page.items.into_iter().map(item).collect(),
        held: trefoil_rpc::encode_held(&page.held),
    })
}
