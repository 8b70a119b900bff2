//! Listing a cell, shard by shard: what a shard's backends hold, put together.
//!
//! A mutation is acknowledged by a majority, so the others may lack it for a
//! moment or, after a lost message, for long. A listing asks all backends of a
//! shard for the same range of places: what a majority holds is listed, an
//! erased item that one of three still holds is not. While a backend is down, or
//! does not answer, either of the other two is believed. One that refuses to list is
//! not absent: with fewer than two others the listing fails. Whatever befalls one
//! backend amid a page, the page is whole if two others answer: nothing of what one
//! has told of before it died is used.
//!
//! The first one that answers says how far a page goes. A replica that has lost its
//! memory comes far in one page; the page of the others is then the shorter one, and
//! the first is asked again for as much as that.

use crate::cell::Cell;
use crate::rpc::{is_nobody_there, is_of_the_way};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_cell::CellConfig;
use trefoil_rpc::v1;

/// Bits of a cursor that a backend uses; the shard's number stands above.
const POSITION_BITS: u32 = 48;
/// Patience with one page.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while other backends of the shard may do without this one.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// Pause before one whose connection broke is asked again: one that dies closes its
/// connections before nobody listens any more.
const PAUSE: Duration = Duration::from_millis(20);
/// Pages that a backend is asked for until it has come as far as the first one.
const PAGE_COUNT_MAX: usize = 8;
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
    /// Nobody listens there: it is certainly down.
    Down,
    /// It did not answer in time.
    Silent,
    /// Its connection broke: it may have died, and then is down in a moment.
    Broken(ListError),
    /// It runs, and does not list anything for us.
    Refused(ListError),
    Failed(ListError),
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

/// The part of a listing that a backend is asked for, and how.
struct Asked {
    request: v1::ListRequest,
    /// Pages that may be fetched for it.
    page_count_max: usize,
    /// With each page.
    patience: Duration,
}

/// What one backend holds of a range.
struct Collected {
    /// An item by its key: a backend may name one twice.
    own: HashMap<bytes::Bytes, v1::ListedItem>,
    partition_count: u32,
    /// How far it came; 0 is the end of all.
    end: u64,
}

/// What a backend has said.
type Answer = Result<Collected, NoPage>;

/// What the backends of a shard that answered hold of a range.
#[derive(Default)]
struct Held {
    /// Copies, and the backends that hold them.
    copies: Vec<(u32, v1::ListedItem)>,
    /// Backends that answered.
    answered: usize,
    partition_count: u32,
    /// How far the first one came; 0 is the end of all.
    end: u64,
    /// How far another one came that did not come so far.
    shorter: Option<u64>,
    /// Why one that is there lists nothing.
    refused: Option<ListError>,
    /// Those who did not answer.
    unanswered: Vec<u32>,
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
        let (held, next) = self.held(cursor, count)?;
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
        Ok(next)
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
        let (held, next) = self.held(cursor, count)?;
        for (number, item) in &held.copies {
            each(*number, item);
        }
        Ok(next)
    }

    /// What the backends of a cursor's shard hold of the same range, and the cursor
    /// that goes on.
    fn held(&self, cursor: u64, count: u32) -> Result<(Held, u64), ListError> {
        let config = self.config();
        let backend_count = config.placement().backend_count();
        let shard = (cursor >> POSITION_BITS) as u32;
        let mut request = v1::ListRequest {
            backend: 0,
            cursor: cursor & ((1 << POSITION_BITS) - 1),
            count,
            until: 0,
            shard,
            life: config.life,
        };
        loop {
            let held = self.held_of(&config, request)?;
            // The range ends earlier with each turn, and the turn's pages with it.
            if let Some(end) = held.shorter {
                request.until = end;
                continue;
            }
            let next = match held.end {
                0 if shard + 1 < backend_count => u64::from(shard + 1) << POSITION_BITS,
                0 => 0,
                next => u64::from(shard) << POSITION_BITS | next,
            };
            return Ok((held, next));
        }
    }

    /// Asks the backends of a shard for the same range: as much of what `first` asks for
    /// as the first one tells in a page.
    fn held_of(&self, config: &CellConfig, first: v1::ListRequest) -> Result<Held, ListError> {
        let placement = config.placement();
        let shard = first.shard;
        let quorum = config.mode.quorum();
        let cohort = placement.cohort_of_shard(shard % placement.backend_count());
        let mut order: Vec<u32> = cohort.as_slice().to_vec();
        let silent = &self.shared().silent;
        order.sort_by_key(|number| silent.holds(*number));
        let is_alone = order.len() == 1;
        let patience = match is_alone {
            true => PATIENCE,
            false => PATIENCE_FIRST,
        };
        let mut held = Held::default();
        let mut order = order.as_slice();
        while let [number, others @ ..] = order {
            let is_needed =
                |number: &u32, answered: usize| answered < quorum || !silent.holds(*number);
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
            let asked = held.asked(first, patience);
            let answers = self.collect_all(config, together, &asked);
            for (number, answer) in together.iter().zip(answers) {
                if matches!(answer, Err(NoPage::Silent)) {
                    silent.note(*number, SILENT_FOR);
                    if is_alone {
                        return Err(too_late(*number));
                    }
                }
                held.take(*number, shard, answer)?;
            }
        }
        // Too few have answered to do without the others.
        let mut late = None;
        for number in std::mem::take(&mut held.unanswered) {
            if held.answered >= quorum {
                break;
            }
            let begin = Instant::now();
            loop {
                let asked = held.asked(first, PATIENCE);
                let mut answers = self.collect_all(config, &[number], &asked);
                match answers.pop().unwrap_or(Err(NoPage::Silent)) {
                    // Another one may answer yet.
                    Err(NoPage::Silent) => {
                        late = late.or(Some(number));
                        break;
                    }
                    Err(NoPage::Broken(_)) if begin.elapsed() < PATIENCE => {
                        std::thread::sleep(PAUSE);
                    }
                    // It answers connections, but no call.
                    Err(NoPage::Broken(error)) => {
                        held.refused = Some(error);
                        break;
                    }
                    answer => {
                        held.take(number, shard, answer)?;
                        break;
                    }
                }
            }
        }
        // One that refuses holds items that nobody has told of.
        if held.answered < quorum
            && let Some(error) = held.refused.take()
        {
            return Err(error);
        }
        if held.answered < quorum
            && let Some(number) = late
        {
            return Err(too_late(number));
        }
        if held.answered == 0 {
            return Err(ListError::Down(shard));
        }
        Ok(held)
    }

    /// What these backends, one or two, hold of the range: see [`Cell::collect`].
    fn collect_all(&self, config: &CellConfig, numbers: &[u32], asked: &Asked) -> Vec<Answer> {
        let of = |number: &u32| self.collect(config, *number, asked);
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

    /// What one backend holds of the range, or of its beginning if that takes more pages
    /// than are asked for.
    async fn collect(&self, config: &CellConfig, number: u32, asked: &Asked) -> Answer {
        let mut request = v1::ListRequest {
            backend: number,
            ..asked.request
        };
        let mut own = HashMap::new();
        let mut page_count = 0;
        loop {
            let page = self.page(config, request, asked.patience).await?;
            page_count += 1;
            own.reserve(page.items.len());
            own.extend(page.items.into_iter().map(|item| (item.key.clone(), item)));
            let is_whole = page.cursor == 0;
            if is_whole || page_count == asked.page_count_max {
                return Ok(Collected {
                    own,
                    partition_count: page.partition_count,
                    end: if is_whole { request.until } else { page.cursor },
                });
            }
            request.cursor = page.cursor;
        }
    }

    async fn page(
        &self,
        config: &CellConfig,
        request: v1::ListRequest,
        patience: Duration,
    ) -> Result<v1::ListResponse, NoPage> {
        let number = request.backend;
        let error = |reason| ListError::Backend { number, reason };
        let rpc = &self.shared().rpc;
        let client = rpc.backend(config, number);
        let mut client = client.map_err(|reason| NoPage::Refused(error(reason)))?;
        let Ok(listed) = tokio::time::timeout(patience, client.list(request)).await else {
            return Err(NoPage::Silent);
        };
        listed.map(tonic::Response::into_inner).map_err(|status| {
            let error = error(trefoil_rpc::failure_text(&status));
            match () {
                () if is_nobody_there(&status) => NoPage::Down,
                () if is_of_the_way(&status) => NoPage::Broken(error),
                () => NoPage::Refused(error),
            }
        })
    }
}

impl Held {
    /// What the next backend is to be asked: for a page if it is the first one, and then
    /// for as much as the first has told.
    fn asked(&self, first: v1::ListRequest, patience: Duration) -> Asked {
        if self.answered == 0 {
            return Asked {
                request: first,
                page_count_max: 1,
                patience,
            };
        }
        Asked {
            request: v1::ListRequest {
                until: self.end,
                count: u32::MAX,
                ..first
            },
            page_count_max: PAGE_COUNT_MAX,
            patience,
        }
    }

    /// Adds what a backend has said.
    fn take(&mut self, number: u32, shard: u32, answer: Answer) -> Result<(), ListError> {
        match answer {
            Ok(collected) => return self.add(number, shard, collected),
            Err(NoPage::Down) => {}
            Err(NoPage::Silent | NoPage::Broken(_)) => self.unanswered.push(number),
            Err(NoPage::Refused(error)) => self.refused = Some(error),
            Err(NoPage::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn add(&mut self, number: u32, shard: u32, collected: Collected) -> Result<(), ListError> {
        if self.answered == 0 {
            self.partition_count = collected.partition_count;
            self.end = collected.end;
        } else if self.partition_count != collected.partition_count {
            return Err(ListError::Partitions {
                shard,
                counts: (self.partition_count, collected.partition_count),
            });
        }
        if collected.end != self.end {
            let shorter = self.shorter.unwrap_or(collected.end);
            self.shorter = Some(shorter.min(collected.end));
        }
        self.answered += 1;
        let copies = collected.own.into_values().map(|item| (number, item));
        self.copies.extend(copies);
        Ok(())
    }
}

fn version_of(item: &v1::ListedItem) -> (u64, u64) {
    let version = item.version.unwrap_or_default();
    (version.time_ns, version.origin)
}
