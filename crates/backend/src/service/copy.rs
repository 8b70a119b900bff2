//! What a member of the same cohort asks for that has lost its memory, as messages
//! ([`trefoil_recovery`] says what it does with the answers).

use crate::background;
use crate::clock;
use crate::member::Member;
use crate::recovery::encode_placed;
use prost::Message as _;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tonic::Status;
use trefoil_cell::BACKEND_COUNT_MAX;
use trefoil_layout::Placement;
use trefoil_recovery::{Copied, Data, Item, Page, Placed, Standing};
use trefoil_rpc::{EntryForm, v1};
use trefoil_store::{PLACES, Store};

/// Ranges of places in one request, at most.
const RANGES_MAX: usize = 4096;

/// Whether data entries are told plain to who asks; refused if that is of another layout
/// and does not take them so.
pub(crate) fn is_plain(asked: u32, takes_plain: bool, own: u32) -> Result<bool, Status> {
    let form = trefoil_rpc::entry_form(asked, takes_plain, own);
    match form {
        Ok(form) => Ok(form == EntryForm::Plain),
        Err(other) => Err(Status::failed_precondition(other.to_string())),
    }
}

/// Whether the corpus of that configuration is served here, whole, if one is named. If the
/// answer is the same before and after something was read, that was of this corpus.
pub(super) fn check_corpus(member: &Member, config_id: u32) -> Result<Option<u64>, Status> {
    if config_id == 0 {
        return Ok(None);
    }
    let whole = member
        .standing
        .as_ref()
        .and_then(|standing| standing.whole());
    if config_id == member.config_id() && whole.is_some() {
        return Ok(whole);
    }
    Err(not_served(member, config_id))
}

pub(super) fn not_served(member: &Member, config_id: u32) -> Status {
    Status::failed_precondition(format!(
        "backend {} does not serve the corpus of config id {config_id}",
        member.number
    ))
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
    let standing = |store: &Store| trefoil_recovery::standing(store, shard, epoch);
    if member.queue.get().is_some() {
        // What was committed under the former epoch counts: it is to be there before anything
        // is copied, and before it is told how far versions go.
        raise_epoch_by(member, shard, epoch, standing)?;
        if !member.settle_all() {
            return Err(Status::unavailable(format!(
                "the queue of backend {} is hindered: try again",
                member.number
            )));
        }
    }
    raise_epoch_by(member, shard, epoch, standing)
}

/// The same, by what `raise` does: while it does, the process may be frozen.
pub(super) fn raise_epoch_by(
    member: &Member,
    shard: usize,
    epoch: u32,
    raise: impl FnOnce(&Store) -> Option<Standing>,
) -> Result<v1::RaiseEpochResponse, Status> {
    let check = || match member.giving.is_frozen() || member.resizing.is_frozen() {
        // Its successor would not learn of it.
        true => Err(Status::aborted(format!(
            "backend {} is moving to another process: try again",
            member.number
        ))),
        false => Ok(()),
    };
    check()?;
    let standing = raise(&member.store);
    // It may have been frozen before all of the epoch was raised, and have told its successor
    // the former one. Who is not told of a raised epoch asks again; to have raised it is safe.
    check()?;
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
        unix_ns: clock::now().unix_ns,
    })
}

/// A page. Values are plain for one whose data entries have another layout than
/// `own_layout`.
pub(crate) fn items(
    member: &Member,
    shard: usize,
    request: &v1::CopyItemsRequest,
    own_layout: u32,
) -> Result<v1::CopyItemsResponse, Status> {
    let is_plain =
        request.values && is_plain(request.layout_version, request.takes_plain, own_layout)?;
    let hasher = &member.store.config().hasher;
    let places = request.from.min(PLACES.end)..request.until.min(PLACES.end);
    let source = Copied::new(&member.store, clock::now(), shard);
    let is_chosen = request.of_backends != 0 || !request.ranges.is_empty();
    let names = request.values && request.placed && !is_plain;
    let (page, placed) = if is_chosen {
        chosen(member, source, request, (places, names))?
    } else if names {
        source.placed(places).ok_or_else(|| ends(member))?
    } else {
        let page = source.items(places, request.values);
        (page.ok_or_else(|| ends(member))?, Vec::new())
    };
    let item = |item: Item<Vec<u8>>| {
        let (data, key) = match item.data {
            Data::Whole(data) => (data, Vec::new()),
            Data::Long { key } => (Vec::new(), key),
        };
        let mut copied = v1::CopiedItem {
            version: Some(trefoil_rpc::encode_version(item.version)),
            data: data.into(),
            key: key.into(),
            recency: item.recency.bits().into(),
            plain: None,
        };
        if is_plain {
            trefoil_rpc::make_item_plain(&mut copied, hasher);
        }
        copied
    };
    let response = v1::CopyItemsResponse {
        next: page.next,
        epoch: page.epoch,
        items: page.items.into_iter().map(item).collect(),
        held: trefoil_rpc::encode_held(&page.held),
        placed: encode_placed(&placed),
    };
    let read = placed.iter().map(|placed| placed.pointer.len() as u64);
    let len = response.encoded_len() as u64 + read.sum::<u64>();
    member.copied_bytes.fetch_add(len, Ordering::Relaxed);
    Ok(response)
}

/// A page of the keys that a new backend of a cell of another size will hold, at the places
/// that it names: values, or where they stand, if it can read this memory (`names`).
fn chosen(
    member: &Member,
    source: Copied<'_>,
    request: &v1::CopyItemsRequest,
    (places, names): (Range<u64>, bool),
) -> Result<(Page<Vec<u8>>, Vec<Placed>), Status> {
    let copies = member.store.config().shards.placement().copy_count();
    let count = request.of_backends;
    let is_cell = (copies..=BACKEND_COUNT_MAX).contains(&(count as usize));
    if request.ranges.len() > RANGES_MAX || count != 0 && !is_cell {
        return Err(Status::invalid_argument("no such cell, or too many ranges"));
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
    let values = request.values;
    // Many more are looked at than are told, and nobody waits for the end of a resize. One
    // that recovers, on the other hand, has lost what others have one copy fewer of.
    let source = Copied {
        between: &background::leave_core_after_part,
        ..source
    };
    let page = match names {
        true => source.placed_at(&ranges, &is_wanted),
        false => {
            let page = source.items_at(&ranges, values, &is_wanted);
            page.map(|page| (page, Vec::new()))
        }
    };
    page.ok_or_else(|| ends(member))
}

/// Its store was revoked: what it tells now is not what it holds.
fn ends(member: &Member) -> Status {
    Status::unavailable(format!("backend {} is ending", member.number))
}
