//! One page of the listing of a shard.

use crate::clock;
use crate::member::Member;
use std::sync::Arc;
use tonic::Status;
use trefoil_rpc::{Listed, encode_listed, v1};
use trefoil_store::{ListedItem, Position};

/// Items of one page at most, each as a message, and as bytes.
const COUNT_MAX: u32 = 1024;
const PACKED_COUNT_MAX: u32 = 8192;
/// Items that are listed while others wait for a partition, or for this thread.
const SLICE_COUNT: usize = 256;
/// A key that is longer counts as several items: see `Store::list`.
const KEY_LEN_USUAL: usize = 256;
/// Slices of one page at most: those of an almost empty index hold few items.
const SLICES_MAX: usize = 64;

/// The page that a request asks for. Keys have at most 64 KiB, so that a page of
/// the longest ones would not fit a message: long ones make a page shorter.
pub(super) async fn page(
    member: &Arc<Member>,
    request: &v1::ListRequest,
) -> Result<v1::ListResponse, Status> {
    let mut page = v1::ListResponse {
        partition_count: member.shape().sub_count() as u32,
        ..v1::ListResponse::default()
    };
    let Some(shard) = member.store.config().shards.local_of(request.shard) else {
        return Ok(page);
    };
    if !is_settled(member).await {
        let why = "the queue of this backend is hindered: what was committed may be missing";
        return Err(Status::unavailable(why));
    }
    let until = (request.until != 0).then(|| Position::from_number(request.until));
    let (mut from, mut packed) = (Position::from_number(request.cursor), Vec::new());
    let count_max = match request.takes_packed {
        true => PACKED_COUNT_MAX,
        false => COUNT_MAX,
    };
    let mut left = request.count.clamp(1, count_max) as usize;
    for _ in 0..SLICES_MAX {
        let count = left.min(SLICE_COUNT);
        let mut taken = 0;
        let mut each = |listed: &ListedItem<'_>| {
            taken += 1 + listed.key.len() / KEY_LEN_USUAL;
            let item = item(listed);
            match request.takes_packed {
                true => encode_listed(&item, &mut packed),
                false => page.items.push(message(&item)),
            }
        };
        let range = (from, until);
        let next = member
            .store
            .list(clock::now(), shard, range, count, &mut each);
        left = left.saturating_sub(taken);
        page.cursor = next.map_or(0, Position::to_number);
        match next {
            Some(next) if left > 0 => from = next,
            _ => break,
        }
        tokio::task::yield_now().await;
    }
    page.packed = packed.into();
    Ok(page)
}

/// Has executed what was committed by now; others go on meanwhile.
async fn is_settled(member: &Arc<Member>) -> bool {
    if member.queue.get().is_none() {
        return true;
    }
    let member = Arc::clone(member);
    let settled = tokio::task::spawn_blocking(move || member.settle_all());
    settled.await.unwrap_or(false)
}

fn item<'a>(listed: &ListedItem<'a>) -> Listed<'a> {
    let item = &listed.item;
    Listed {
        key: listed.key,
        version: item.version,
        value_len: item.value_len() as u32,
        entry_len: item.entry_len as u32,
        expiry_ms: item.expiry_ms,
        client_flags: item.client_flags,
        item_flags: item.item_flags,
        unique: item.unique,
    }
}

/// For those of an earlier release.
fn message(item: &Listed<'_>) -> v1::ListedItem {
    v1::ListedItem {
        key: item.key.to_vec().into(),
        version: Some(trefoil_rpc::encode_version(item.version)),
        value_len: item.value_len,
        entry_len: item.entry_len,
        expiry_ms: item.expiry_ms,
        client_flags: item.client_flags,
        item_flags: u32::from(item.item_flags),
        unique: item.unique,
    }
}
