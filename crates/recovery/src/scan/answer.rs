//! How a replica answers the questions of a scan.

use super::question::{Question, Reply};
use crate::page::{self, Data, Item};
use trefoil_layout::epoch;
use trefoil_layout::op::{Ack, Outcome, Rejection};
use trefoil_store::{Now, PLACES, Position, Store};

/// Ranges, keys, or parts of all ranges together, of one question.
pub const RANGE_COUNT_MAX: usize = 4096;
/// Keys in one answer.
const HELD_COUNT_MAX: usize = 8192;
/// Of these, looked at at a time.
const HELD_ROOM: usize = 256;

/// What a replica answers of `shard`. A question that makes no sense has an answer
/// without a vote. Takes as long as looking at the items in question; no partition is
/// kept locked for longer than a few hundred of them take.
pub fn answer<D: AsRef<[u8]>>(
    store: &Store,
    now: Now,
    shard: usize,
    question: &Question<D>,
) -> Reply<Vec<u8>> {
    match question {
        Question::Begin => Reply::Begin {
            epoch: vote(store, shard),
            items: store.item_count(shard),
        },
        Question::Digests { starts, len, parts } => {
            let count = *parts as usize;
            let is_sound = are_ranges(starts, *len)
                && count > 0
                && len.is_multiple_of(u64::from(*parts))
                && starts.len().saturating_mul(count) <= RANGE_COUNT_MAX;
            if !is_sound {
                let (epoch, sums) = (epoch::NONE, Vec::new());
                return Reply::Digests { epoch, sums };
            }
            let mut sums = vec![0; starts.len() * count];
            for (start, sums) in starts.iter().zip(sums.chunks_exact_mut(count)) {
                store.digest(now, shard, *start..start + len, sums);
            }
            let epoch = vote(store, shard);
            Reply::Digests { epoch, sums }
        }
        Question::Held { starts, len } => {
            let mut held = Vec::new();
            let mut is_cut = false;
            let is_sound = are_ranges(starts, *len);
            for start in starts.iter().filter(|_| is_sound) {
                let (mut from, end) = (*start, start + len);
                while from < end && !is_cut {
                    let before = held.len();
                    let next = store.export(now, shard, from..end, HELD_ROOM, &mut |exported| {
                        held.push((exported.hash, exported.item.version));
                        1
                    });
                    let Some(next) = next else {
                        // It gives no vote any more.
                        is_cut = true;
                        break;
                    };
                    // What lies behind is told again.
                    let mut at = 0;
                    held.retain(|(hash, _)| {
                        at += 1;
                        at <= before || Position::place_of(*hash) < next
                    });
                    from = next;
                    is_cut = held.len() > HELD_COUNT_MAX;
                }
            }
            Reply::Held {
                epoch: if is_sound {
                    vote(store, shard)
                } else {
                    epoch::NONE
                },
                is_cut,
                held,
            }
        }
        Question::States { keys } => {
            let known = keys.iter().take(RANGE_COUNT_MAX);
            let states = known.map_while(|hash| store.key_state(now, *hash));
            Reply::States {
                is_full: store.is_full(),
                states: states.collect(),
            }
        }
        Question::Item {
            hash,
            version,
            key_only,
        } => {
            let place = Position::place_of(*hash);
            let page = page::Copied::new(store, now, shard).items(place..place + 1, true);
            let items = page.map(|page| page.items).unwrap_or_default();
            let hasher = &store.config().hasher;
            let is_it =
                |item: &Item<Vec<u8>>| item.version == *version && item.hash(hasher) == Some(*hash);
            let found = items.into_iter().find(is_it);
            Reply::Item(found.and_then(|item| match item.data {
                Data::Whole(data) if *key_only => {
                    let key = trefoil_layout::data::DataEntry::decode(&data)?.key.to_vec();
                    Some(Data::Long { key })
                }
                data => Some(data),
            }))
        }
        Question::Mutate(order) => Reply::Ack(match order.mutation() {
            Some(mutation) => store.mutate(now, &mutation),
            None => Ack {
                epoch: epoch::NONE,
                outcome: Outcome::Rejected(Rejection::BadItem),
            },
        }),
    }
}

/// The epoch of a replica's votes, after what they say was looked at: one that was revoked
/// meanwhile has looked at nothing.
fn vote(store: &Store, shard: usize) -> u32 {
    match store.is_recovering(shard) || store.is_revoked() {
        true => epoch::NONE,
        false => store.epoch(shard),
    }
}

fn are_ranges(starts: &[u64], len: u64) -> bool {
    let is_range = |start: &u64| start.checked_add(len).is_some_and(|end| end <= PLACES.end);
    len > 0 && starts.len() <= RANGE_COUNT_MAX && starts.iter().all(is_range)
}
