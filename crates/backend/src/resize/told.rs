//! Pages that came with an answer about what has changed, before anybody asked for them: in
//! the moment in which no mutation is taken each call costs what everybody waits for.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use trefoil_recovery::ShardState;
use trefoil_rpc::v1::CopyItemsResponse;

/// By the shard's number there. Each is handed out once.
///
/// What an answer brings replaces all that the one before had brought: a page is of the moment
/// of its answer, and what has changed since is in the next one's places, not in the page.
#[derive(Debug, Default)]
pub(super) struct ToldPages(Mutex<HashMap<usize, Told>>);

/// What one would answer who is asked for these places.
#[derive(Debug)]
struct Told {
    places: Vec<Range<u64>>,
    page: CopyItemsResponse,
}

impl ToldPages {
    /// Keeps what was told of these shards. Of one that tells of nothing there is no page.
    pub(super) fn keep(&self, shards: &[ShardState], pages: Vec<CopyItemsResponse>) {
        let pages = shards.iter().zip(pages).enumerate();
        let told = pages.filter(|(_, (_, page))| page.next > 0);
        let told = told.map(|(local, (shard, page))| {
            let places = shard.changes.clone();
            (local, Told { places, page })
        });
        let told = told.collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// What was told of exactly these places of a shard, if it was.
    pub(super) fn take(&self, local: usize, places: &[Range<u64>]) -> Option<CopyItemsResponse> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.remove(&local).filter(|told| told.places == places);
        told.map(|told| told.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;
    use trefoil_layout::Version;

    fn shard(changes: &[Range<u64>]) -> ShardState {
        ShardState {
            epoch: 1,
            bound_max: Version::ZERO,
            bucket_count: 64,
            changes: changes.to_vec(),
        }
    }

    fn page(next: u64) -> CopyItemsResponse {
        CopyItemsResponse {
            next,
            ..CopyItemsResponse::default()
        }
    }

    #[test]
    fn a_page_is_handed_out_once_for_the_places_that_it_tells_of() {
        let told = ToldPages::default();
        let shards = [
            shard(from_ref(&(0..8))),
            shard(&[3..5, 9..10]),
            shard(from_ref(&(1..2))),
        ];
        told.keep(&shards, vec![page(8), page(10), page(0)]);
        assert_eq!(told.take(1, &[3..5, 9..10]), Some(page(10)));
        assert_eq!(told.take(1, &[3..5, 9..10]), None);
        assert_eq!(told.take(2, from_ref(&(1..2))), None, "it tells of nothing");
        // Asked for something else: it is out of date.
        assert_eq!(told.take(0, from_ref(&(0..4))), None);
        assert_eq!(told.take(0, from_ref(&(0..8))), None);
        assert_eq!(told.take(3, from_ref(&(0..8))), None, "no such shard");
    }

    #[test]
    fn a_later_answer_puts_an_end_to_what_an_earlier_one_told() {
        let told = ToldPages::default();
        let shards = [shard(from_ref(&(0..8))), shard(from_ref(&(0..8)))];
        told.keep(&shards, vec![page(8), page(7)]);
        told.keep(&shards, vec![page(6)]);
        assert_eq!(told.take(0, from_ref(&(0..8))), Some(page(6)));
        assert_eq!(told.take(1, from_ref(&(0..8))), None);
        // Of a release that tells no pages.
        told.keep(&shards, vec![page(8)]);
        told.keep(&shards, Vec::new());
        assert_eq!(told.take(0, from_ref(&(0..8))), None);
    }
}
