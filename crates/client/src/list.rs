//! Listing a cell, shard by shard: what a shard's backends hold, put together.
//!
//! A mutation is acknowledged by a majority, so the others may lack it for a
//! moment or, after a lost message, for long. A listing asks all backends of a
//! shard for the same range of places: what a majority holds is listed, an
//! erased item that one of three still holds is not. While a backend is down, or
//! does not answer, either of the other two is believed. One that refuses to list is
//! not absent: with fewer than two others the listing fails.

use crate::cell::Cell;
use crate::rpc::{certainly_not_sent, is_nobody_there};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::error::Elapsed;
use trefoil_cell::CellConfig;
use trefoil_rpc::v1;

/// Bits of a cursor that a backend uses; the shard's number stands above.
const POSITION_BITS: u32 = 48;
/// Patience with one page.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while other backends of the shard may do without this one.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// One that did not answer is asked last for so long.
const SILENT_FOR: Duration = Duration::from_secs(10);

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

/// Why a backend has nothing to add.
enum NoPage {
    /// It did not answer in time.
    Silent,
    /// It runs, and does not list anything for us.
    Refused(ListError),
    Failed(ListError),
}

/// Why a call for a page brought none.
struct NotListed {
    reason: String,
    /// The backend runs, and has said no.
    is_refusal: bool,
}

fn too_late(number: u32) -> ListError {
    let reason = format!("no answer within {} s", PATIENCE.as_secs());
    ListError::Backend { number, reason }
}

/// Backends that did not answer a listing lately: another page is not to wait for
/// them again.
#[derive(Default)]
pub(crate) struct Silent(Mutex<HashMap<u32, Instant>>);

impl Silent {
    fn note(&self, number: u32, period: Duration) {
        self.lock().insert(number, Instant::now() + period);
    }

    fn holds(&self, number: u32) -> bool {
        let until = self.lock().get(&number).copied();
        until.is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one backend holds of a range.
struct Collected {
    /// An item by its key: a backend may name one twice.
    own: HashMap<bytes::Bytes, v1::ListedItem>,
    partition_count: u32,
    /// Where its page ended; 0 at the end of all.
    end: u64,
}

/// What a backend has said, if it is not certainly down.
type Answer = Result<Option<Collected>, NoPage>;

/// What the backends of a shard that answered hold of a range.
#[derive(Default)]
struct Held {
    /// Copies, and the backends that hold them.
    copies: Vec<(u32, v1::ListedItem)>,
    /// Backends that answered.
    answered: usize,
    partition_count: u32,
    /// Where to go on; 0 at the end of all.
    next: u64,
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
        let held = self.held(cursor, count)?;
        let quorum = self.config().mode.quorum();
        let needed = if held.answered > quorum { quorum } else { 1 };
        // The newest copy of each, if there are enough.
        let mut copies: Vec<&v1::ListedItem> = held.copies.iter().map(|(_, item)| item).collect();
        copies.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        for copies in copies.chunk_by(|one, other| one.key == other.key) {
            let newest = copies.iter().max_by_key(|item| version_of(item));
            if let Some(item) = newest
                && copies.len() >= needed
            {
                each(item);
            }
        }
        Ok(held.next)
    }

    /// The same for each copy: what each backend holds of a range, whatever the
    /// others hold. `each` is told the backend's number. For those who look for
    /// copies that differ, while nobody writes.
    pub fn list_copies(
        &self,
        cursor: u64,
        count: u32,
        each: &mut dyn FnMut(u32, &v1::ListedItem),
    ) -> Result<u64, ListError> {
        let held = self.held(cursor, count)?;
        for (number, item) in &held.copies {
            each(*number, item);
        }
        Ok(held.next)
    }

    /// Asks the backends of a cursor's shard for the same range.
    fn held(&self, cursor: u64, count: u32) -> Result<Held, ListError> {
        let config = self.config();
        let placement = config.placement();
        let shard = (cursor >> POSITION_BITS) as u32;
        let from = cursor & ((1 << POSITION_BITS) - 1);
        let cohort = placement.cohort_of_shard(shard % placement.backend_count());
        let mut held = Held::default();
        let mut request = v1::ListRequest {
            backend: 0,
            cursor: from,
            count,
            until: 0,
            shard,
            life: config.life,
        };
        let mut order: Vec<u32> = cohort.as_slice().to_vec();
        let silent = &self.shared().silent;
        order.sort_by_key(|number| silent.holds(*number));
        let mut unanswered = Vec::new();
        let mut refused = None;
        let patience = match order.len() {
            1 => PATIENCE,
            _ => PATIENCE_FIRST,
        };
        let mut order = order.as_slice();
        while let [number, others @ ..] = order {
            let is_needed = |number: &u32, answered: usize| {
                answered < config.mode.quorum() || !silent.holds(*number)
            };
            if !is_needed(number, held.answered) {
                break;
            }
            // The first one says where the page ends; the others are asked together.
            let asked = match others {
                [other, ..] if held.answered > 0 && is_needed(other, held.answered + 1) => 2,
                _ => 1,
            };
            let (together, rest) = order.split_at(asked);
            order = rest;
            let answers = self.collect_all(&config, together, &request, patience);
            for (number, answer) in together.iter().zip(answers) {
                match answer.and_then(|answer| held.add(*number, &request, answer)) {
                    // The others are asked for as much as the first has told.
                    Ok(Some(end)) if held.answered == 1 => {
                        (request.until, request.count) = (end, u32::MAX);
                    }
                    Ok(_) => {}
                    Err(NoPage::Silent) => {
                        silent.note(*number, SILENT_FOR);
                        unanswered.push(*number);
                    }
                    Err(NoPage::Refused(error)) => refused = Some(error),
                    Err(NoPage::Failed(error)) => return Err(error),
                }
            }
        }
        // Too few have answered to do without the others.
        for number in unanswered {
            if held.answered >= config.mode.quorum() {
                break;
            }
            if cohort.as_slice().len() == 1 {
                return Err(too_late(number));
            }
            let mut answers = self.collect_all(&config, &[number], &request, PATIENCE);
            let answer = answers.pop().unwrap_or(Err(NoPage::Silent));
            match answer.and_then(|answer| held.add(number, &request, answer)) {
                Ok(Some(end)) if held.answered == 1 => {
                    (request.until, request.count) = (end, u32::MAX);
                }
                Ok(_) => {}
                Err(NoPage::Silent) => return Err(too_late(number)),
                Err(NoPage::Refused(error)) => refused = Some(error),
                Err(NoPage::Failed(error)) => return Err(error),
            }
        }
        // One that refuses holds items that nobody has told of.
        if held.answered < config.mode.quorum()
            && let Some(error) = refused
        {
            return Err(error);
        }
        if held.answered == 0 {
            return Err(ListError::Down(shard));
        }
        held.next = match request.until {
            0 if shard + 1 < placement.backend_count() => u64::from(shard + 1) << POSITION_BITS,
            0 => 0,
            next => u64::from(shard) << POSITION_BITS | next,
        };
        Ok(held)
    }

    /// What these backends, one or two, hold of the range: see [`Cell::collect`].
    fn collect_all(
        &self,
        config: &CellConfig,
        numbers: &[u32],
        request: &v1::ListRequest,
        patience: Duration,
    ) -> Vec<Answer> {
        let of = |number: &u32| {
            let request = v1::ListRequest {
                backend: *number,
                ..*request
            };
            self.collect(config, request, patience)
        };
        let rpc = &self.shared().rpc;
        let answers = match numbers {
            [first, second, ..] => rpc.block_on(async {
                let (first, second) = tokio::join!(of(first), of(second));
                vec![first, second]
            }),
            [one] => rpc.block_on(async { vec![of(one).await] }),
            [] => Ok(Vec::new()),
        };
        answers.unwrap_or_else(|reason| {
            let failed = |number: &u32| {
                Err(NoPage::Failed(ListError::Backend {
                    number: *number,
                    reason: reason.clone(),
                }))
            };
            numbers.iter().map(failed).collect()
        })
    }

    /// What one backend holds of the range. If the range has no end: one page. `None`
    /// if the backend is certainly down.
    async fn collect(
        &self,
        config: &CellConfig,
        mut request: v1::ListRequest,
        patience: Duration,
    ) -> Answer {
        let number = request.backend;
        let mut own = HashMap::new();
        loop {
            let page = match self.page(config, request, patience).await {
                Ok(Some(Ok(page))) => page,
                Ok(Some(Err(_))) => return Err(NoPage::Silent),
                Ok(None) => return Ok(None),
                Err(NotListed { reason, is_refusal }) => {
                    let error = ListError::Backend { number, reason };
                    return Err(match is_refusal {
                        true => NoPage::Refused(error),
                        false => NoPage::Failed(error),
                    });
                }
            };
            own.reserve(page.items.len());
            own.extend(page.items.into_iter().map(|item| (item.key.clone(), item)));
            request.cursor = page.cursor;
            if request.until == 0 || page.cursor == 0 {
                return Ok(Some(Collected {
                    own,
                    partition_count: page.partition_count,
                    end: page.cursor,
                }));
            }
        }
    }

    /// `None` if the backend is certainly down; [`Elapsed`] if it does not answer.
    async fn page(
        &self,
        config: &CellConfig,
        request: v1::ListRequest,
        patience: Duration,
    ) -> Result<Option<Result<v1::ListResponse, Elapsed>>, NotListed> {
        let failed = |reason| NotListed {
            reason,
            is_refusal: false,
        };
        let rpc = &self.shared().rpc;
        let mut client = rpc.backend(config, request.backend).map_err(failed)?;
        match tokio::time::timeout(patience, client.list(request)).await {
            Ok(Ok(page)) => Ok(Some(Ok(page.into_inner()))),
            Ok(Err(status)) if is_nobody_there(&status) => Ok(None),
            Ok(Err(status)) => Err(NotListed {
                reason: trefoil_rpc::failure_text(&status),
                is_refusal: certainly_not_sent(&status),
            }),
            Err(elapsed) => Ok(Some(Err(elapsed))),
        }
    }
}

impl Held {
    /// Adds what one backend holds; where its page ended, if it has answered.
    fn add(
        &mut self,
        number: u32,
        request: &v1::ListRequest,
        answer: Option<Collected>,
    ) -> Result<Option<u64>, NoPage> {
        let Some(collected) = answer else {
            return Ok(None);
        };
        if self.answered == 0 {
            self.partition_count = collected.partition_count;
        } else if self.partition_count != collected.partition_count {
            return Err(NoPage::Failed(ListError::Partitions {
                shard: request.shard,
                counts: (self.partition_count, collected.partition_count),
            }));
        }
        self.answered += 1;
        let copies = collected.own.into_values().map(|item| (number, item));
        self.copies.extend(copies);
        Ok(Some(collected.end))
    }
}

fn version_of(item: &v1::ListedItem) -> (u64, u64) {
    let version = item.version.unwrap_or_default();
    (version.time_ns, version.origin)
}
