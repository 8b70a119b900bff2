//! One page of the listing of a shard.

use crate::clock;
use crate::member::Member;
use trefoil_rpc::v1;
use trefoil_store::Position;

/// Items of one page at most.
const COUNT_MAX: u32 = 1024;

/// The page that a request asks for. Keys have at most 64 KiB, so that a page of
/// the longest ones would not fit a message: long ones make a page shorter.
pub(super) fn page(member: &Member, request: &v1::ListRequest) -> v1::ListResponse {
    let sub_count = member.shape().sub_count() as u32;
    let Some(shard) = member.store.config().shards.local_of(request.shard) else {
        return v1::ListResponse {
            partition_count: sub_count,
            ..v1::ListResponse::default()
        };
    };
    let mut items = Vec::new();
    let count = request.count.clamp(1, COUNT_MAX) as usize;
    let from = Position::from_number(request.cursor);
    let until = (request.until != 0).then(|| Position::from_number(request.until));
    let range = (from, until);
    let next = member
        .store
        .list(clock::now(), shard, range, count, &mut |listed| {
            let item = &listed.item;
            items.push(v1::ListedItem {
                key: listed.key.to_vec().into(),
                version: Some(trefoil_rpc::encode_version(item.version)),
                value_len: item.value_len() as u32,
                entry_len: item.entry_len as u32,
                expiry_ms: item.expiry_ms,
                client_flags: item.client_flags,
                item_flags: u32::from(item.item_flags),
                unique: item.unique,
            });
        });
    v1::ListResponse {
        items,
        cursor: next.map_or(0, Position::to_number),
        partition_count: sub_count,
    }
}
