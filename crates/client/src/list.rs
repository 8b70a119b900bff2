//! Listing a cell, shard by shard: what a shard's backends hold, put together.
//!
//! A mutation is acknowledged by a majority, so the others may lack it for a
//! moment or, after a lost message, for long. A listing asks all backends of a
//! shard for the same range of places: what a majority holds is listed, an
//! erased item that one of three still holds is not. While a backend is down,
//! either of the other two is believed.

use crate::cell::Cell;
use crate::rpc::certainly_not_sent;
use std::collections::HashMap;
use std::time::Duration;
use trefoil_cell::CellConfig;
use trefoil_rpc::v1;

/// Bits of a cursor that a backend uses; the shard's number stands above.
const POSITION_BITS: u32 = 48;
/// Patience with one page.
const PATIENCE: Duration = Duration::from_secs(5);

const _: () = {
    assert!(trefoil_cell::BACKEND_COUNT_MAX < 1 << (u64::BITS - POSITION_BITS));
};

/// Why a page could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Nobody is left who holds the shard.
    #[error("cannot list shard {0}: every backend that holds it is down")]
    Down(u32),
    /// Cursors of these two do not mean the same place.
    #[error(
        "cannot list shard {shard}: its backends have {counts:?} partitions; \
         start them with equal --partitions"
    )]
    Partitions {
        /// The shard.
        shard: u32,
        /// What two of its backends have.
        counts: (u32, u32),
    },
    /// A backend answered with an error, or not in time.
    #[error("cannot list backend {number}: {reason}")]
    Backend {
        /// Which backend.
        number: u32,
        /// What went wrong.
        reason: String,
    },
}

/// What the backends of a shard that answered hold of a range.
#[derive(Default)]
struct Merged {
    /// The newest copy of each, and how many there are.
    items: HashMap<bytes::Bytes, (v1::ListedItem, usize)>,
    /// Backends that answered.
    answered: usize,
    partition_count: u32,
}

impl Cell {
    /// Lists about `count` items. `cursor` 0 begins; the cursor that is returned
    /// goes on, 0 means that all were listed.
    pub fn list(
        &self,
        cursor: u64,
        count: u32,
        each: &mut dyn FnMut(&v1::ListedItem),
    ) -> Result<u64, ListError> {
        let config = self.config();
        let placement = config.placement();
        let shard = (cursor >> POSITION_BITS) as u32;
        let from = cursor & ((1 << POSITION_BITS) - 1);
        let cohort = placement.cohort_of_shard(shard % placement.backend_count());
        let mut merged = Merged::default();
        let mut request = v1::ListRequest {
            backend: 0,
            cursor: from,
            count,
            until: 0,
            shard,
            life: config.life,
        };
        for number in cohort.as_slice() {
            request.backend = *number;
            if let Some(end) = self.collect(&config, &request, &mut merged)?
                && merged.answered == 1
            {
                // The others are asked for as much as the first has told.
                (request.until, request.count) = (end, u32::MAX);
            }
        }
        if merged.answered == 0 {
            return Err(ListError::Down(shard));
        }
        let needed = if merged.answered > config.mode.quorum() {
            config.mode.quorum()
        } else {
            1
        };
        for (item, copies) in merged.items.values() {
            if *copies >= needed {
                each(item);
            }
        }
        Ok(match request.until {
            0 if shard + 1 < placement.backend_count() => u64::from(shard + 1) << POSITION_BITS,
            0 => 0,
            next => u64::from(shard) << POSITION_BITS | next,
        })
    }

    /// Adds what one backend holds of the range. If the range has no end: one
    /// page; where that ended, 0 at the end of all. `None` if the backend is
    /// certainly down.
    fn collect(
        &self,
        config: &CellConfig,
        request: &v1::ListRequest,
        merged: &mut Merged,
    ) -> Result<Option<u64>, ListError> {
        let mut request = *request;
        let number = request.backend;
        let mut held = HashMap::new();
        loop {
            let page = self
                .page(config, request)
                .map_err(|reason| ListError::Backend { number, reason })?;
            let Some(page) = page else {
                return Ok(None);
            };
            if merged.answered == 0 {
                merged.partition_count = page.partition_count;
            } else if merged.partition_count != page.partition_count {
                return Err(ListError::Partitions {
                    shard: request.shard,
                    counts: (merged.partition_count, page.partition_count),
                });
            }
            // A backend may name an item twice.
            held.extend(page.items.into_iter().map(|item| (item.key.clone(), item)));
            request.cursor = page.cursor;
            if request.until == 0 || page.cursor == 0 {
                break;
            }
        }
        merged.answered += 1;
        for (key, item) in held {
            let (newest, copies) = merged.items.entry(key).or_insert((item.clone(), 0));
            *copies += 1;
            if version_of(&item) > version_of(newest) {
                *newest = item;
            }
        }
        Ok(Some(request.cursor))
    }

    /// `None` if the backend is certainly down.
    fn page(
        &self,
        config: &CellConfig,
        request: v1::ListRequest,
    ) -> Result<Option<v1::ListResponse>, String> {
        let mut client = self.shared().rpc.backend(config, request.backend)?;
        let call = async { tokio::time::timeout(PATIENCE, client.list(request)).await };
        let answer = self.shared().rpc.block_on(call)?;
        match answer {
            Ok(Ok(page)) => Ok(Some(page.into_inner())),
            Ok(Err(status)) if certainly_not_sent(&status) => Ok(None),
            Ok(Err(status)) => Err(crate::rpc::status_text(&status)),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
}

fn version_of(item: &v1::ListedItem) -> (u64, u64) {
    let version = item.version.unwrap_or_default();
    (version.time_ns, version.origin)
}
