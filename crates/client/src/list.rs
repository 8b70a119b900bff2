//! Listing a cell, shard by shard: what a shard's backends hold, put together.
//!
//! A mutation is acknowledged by a majority, so the others may lack it for a
//! moment or, after a lost message, for long. A listing asks all backends of a
//! shard at the same time for a page from the same place: what a majority holds is
//! listed, an erased item that one of three still holds is not. While a backend is
//! down, or does not answer, either of the other two is believed. One that refuses to
//! list is not absent: with fewer than two others the listing fails. Whatever befalls
//! one backend amid a page, the page is whole if two others answer.
//!
//! A page ends where the first of those ends that answered: what the others have told
//! beyond is left to the next one. Where an item stands is computed from its key
//! ([`trefoil_layout::KeyHash::listed_at`]), so items come in the order of their places,
//! and a listing may go on at any of them.

use crate::cell::Cell;
use crate::rpc::{is_nobody_there, is_of_the_way};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_cell::CellConfig;
use trefoil_rpc::{ContractError, Listed, decode_listed, v1};

/// Bits of a cursor that a backend uses; the shard's number stands above.
const POSITION_BITS: u32 = 48;
/// Patience with one page.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while other backends of the shard may do without this one.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// Pause before one whose connection broke is asked again: one that dies closes its
/// connections before nobody listens any more.
const PAUSE: Duration = Duration::from_millis(20);
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

/// What a backend has said.
type Answer = Result<v1::ListResponse, NoPage>;

/// A page of one backend.
struct Page {
    number: u32,
    /// How far it came: the place behind its last one.
    end: u64,
    packed: Bytes,
    /// From a backend of an earlier release.
    items: Vec<v1::ListedItem>,
}

impl Page {
    fn items(&self) -> impl Iterator<Item = Result<Listed<'_>, ContractError>> {
        decode_listed(&self.packed).chain(self.items.iter().map(|item| Ok(Listed::from(item))))
    }
}

/// A copy of an item.
struct Copy<'a> {
    /// See [`trefoil_layout::KeyHash::listed_at`].
    at: u64,
    number: u32,
    item: Listed<'a>,
}

/// An item, and the cursor at which a listing goes on with it.
pub struct ListedAt<'a> {
    /// Several items may have the same one.
    pub cursor: u64,
    /// The item.
    pub item: Listed<'a>,
}

/// What the backends of a shard that answered hold of a range.
#[derive(Default)]
struct Held {
    shard: u32,
    pages: Vec<Page>,
    partition_count: u32,
    /// Why one that is there lists nothing.
    refused: Option<ListError>,
    /// Those who did not answer.
    unanswered: Vec<u32>,
}

impl Cell {
    /// Lists about `count` items, in the order of their places. `cursor` 0 begins; the
    /// cursor that is returned goes on, 0 means that all were listed.
    pub fn list(
        &self,
        cursor: u64,
        count: u32,
        each: &mut dyn FnMut(ListedAt<'_>),
    ) -> Result<u64, ListError> {
        let config = self.config();
        let held = self.held(&config, cursor, count)?;
        let quorum = config.mode.quorum();
        let needed = match held.pages.len() > quorum {
            true => quorum,
            false => 1,
        };
        let shard = u64::from(held.shard) << POSITION_BITS;
        held.each_key(&config, &mut |copies| {
            // The newest copy of each, if there are enough.
            let newest = copies.iter().max_by_key(|copy| copy.item.version);
            if let Some(copy) = newest
                && copies.len() >= needed
            {
                each(ListedAt {
                    cursor: shard | copy.at,
                    item: copy.item,
                });
            }
        })?;
        Ok(held.next(&config))
    }

    /// The same for each copy: what each backend holds of a range, whatever the
    /// others hold. `each` is told the backend's number. For those who look for
    /// copies that differ, while nobody writes.
    pub fn list_copies(
        &self,
        cursor: u64,
        count: u32,
        each: &mut dyn FnMut(u32, &Listed<'_>),
    ) -> Result<u64, ListError> {
        let config = self.config();
        let held = self.held(&config, cursor, count)?;
        held.each_key(&config, &mut |copies| {
            copies.iter().for_each(|copy| each(copy.number, &copy.item));
        })?;
        Ok(held.next(&config))
    }

    /// What the backends of a cursor's shard hold from there on.
    fn held(&self, config: &CellConfig, cursor: u64, count: u32) -> Result<Held, ListError> {
        let placement = config.placement();
        let shard = (cursor >> POSITION_BITS) as u32;
        let request = v1::ListRequest {
            backend: 0,
            cursor: cursor & ((1 << POSITION_BITS) - 1),
            count,
            until: 0,
            shard,
            life: config.life,
            takes_packed: true,
        };
        let quorum = config.mode.quorum();
        let cohort = placement.cohort_of_shard(shard % placement.backend_count());
        let silent = &self.shared().silent;
        // Those that did not answer lately are not waited for if the others do.
        let (likely, unlikely): (Vec<u32>, Vec<u32>) = cohort
            .as_slice()
            .iter()
            .partition(|number| !silent.holds(**number));
        let is_alone = cohort.as_slice().len() == 1;
        let patience = match is_alone {
            true => PATIENCE,
            false => PATIENCE_FIRST,
        };
        let mut held = Held {
            shard,
            ..Held::default()
        };
        for numbers in [likely, unlikely] {
            if held.pages.len() >= quorum {
                break;
            }
            let answers = self.ask_together(config, &numbers, request, patience);
            for (number, answer) in numbers.into_iter().zip(answers) {
                if matches!(answer, Err(NoPage::Silent)) {
                    silent.note(number, SILENT_FOR);
                    if is_alone {
                        return Err(too_late(number));
                    }
                }
                held.take(number, answer)?;
            }
        }
        // Too few have answered to do without the others.
        let mut late = None;
        for number in std::mem::take(&mut held.unanswered) {
            if held.pages.len() >= quorum {
                break;
            }
            let begin = Instant::now();
            loop {
                let mut answers = self.ask_together(config, &[number], request, PATIENCE);
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
                        held.take(number, answer)?;
                        break;
                    }
                }
            }
        }
        // One that refuses holds items that nobody has told of.
        if held.pages.len() < quorum
            && let Some(error) = held.refused.take()
        {
            return Err(error);
        }
        if held.pages.len() < quorum
            && let Some(number) = late
        {
            return Err(too_late(number));
        }
        if held.pages.is_empty() {
            return Err(ListError::Down(shard));
        }
        Ok(held)
    }

    /// Asks these backends, at most as many as a cohort has, at the same time.
    fn ask_together(
        &self,
        config: &CellConfig,
        numbers: &[u32],
        request: v1::ListRequest,
        patience: Duration,
    ) -> Vec<Answer> {
        let of = |at: usize| async move {
            let backend = *numbers.get(at)?;
            let request = v1::ListRequest { backend, ..request };
            Some(self.page(config, request, patience).await)
        };
        let answers = self.shared().rpc.block_on(async {
            let (first, second, third) = tokio::join!(of(0), of(1), of(2));
            [first, second, third].into_iter().flatten().collect()
        });
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
    /// Adds what a backend has said.
    fn take(&mut self, number: u32, answer: Answer) -> Result<(), ListError> {
        match answer {
            Ok(page) => return self.add(number, page),
            Err(NoPage::Down) => {}
            Err(NoPage::Silent | NoPage::Broken(_)) => self.unanswered.push(number),
            Err(NoPage::Refused(error)) => self.refused = Some(error),
            Err(NoPage::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn add(&mut self, number: u32, page: v1::ListResponse) -> Result<(), ListError> {
        let count = page.partition_count;
        if self.pages.is_empty() {
            self.partition_count = count;
        } else if self.partition_count != count {
            return Err(ListError::Partitions {
                shard: self.shard,
                counts: (self.partition_count, count),
            });
        }
        self.pages.push(Page {
            number,
            end: match page.cursor {
                0 => u64::MAX,
                end => end,
            },
            packed: page.packed,
            items: page.items,
        });
        Ok(())
    }

    /// Where the page ends.
    fn end(&self) -> u64 {
        let ends = self.pages.iter().map(|page| page.end);
        ends.min().unwrap_or(u64::MAX)
    }

    /// The cursor that goes on behind the page.
    fn next(&self, config: &CellConfig) -> u64 {
        let shard = self.shard;
        match self.end() {
            u64::MAX if shard + 1 < config.placement().backend_count() => {
                u64::from(shard + 1) << POSITION_BITS
            }
            u64::MAX => 0,
            end => u64::from(shard) << POSITION_BITS | end,
        }
    }

    /// Tells of the copies of each key, one of a backend, in the order of their places.
    fn each_key(
        &self,
        config: &CellConfig,
        each: &mut dyn FnMut(&[Copy<'_>]),
    ) -> Result<(), ListError> {
        let end = self.end();
        let sub_count = self.partition_count.max(1) as usize;
        let mut found = Vec::new();
        for page in &self.pages {
            let number = page.number;
            for item in page.items() {
                let item = item.map_err(|error| ListError::Backend {
                    number,
                    reason: error.to_string(),
                })?;
                let at = config.hash.hash(item.key).listed_at(sub_count);
                if at < end {
                    found.push((at, number, item));
                }
            }
        }
        // Places first, without moving what stands there.
        let mut order: Vec<(u64, u32)> = (0..).zip(&found).map(|(i, of)| (of.0, i)).collect();
        order.sort_unstable();
        let mut copies: Vec<Copy<'_>> = Vec::new();
        for of_place in order.chunk_by(|one, other| one.0 == other.0) {
            copies.clear();
            copies.extend(of_place.iter().map(|&(at, index)| {
                let (_, number, item) = found[index as usize];
                Copy { at, number, item }
            }));
            // A backend may name an item twice, while it moves: the newer one counts.
            copies.sort_unstable_by(|one, other| {
                let of = |copy: &Copy<'_>| (copy.number, std::cmp::Reverse(copy.item.version));
                (one.item.key, of(one)).cmp(&(other.item.key, of(other)))
            });
            copies.dedup_by(|one, other| {
                (one.number, one.item.key) == (other.number, other.item.key)
            });
            copies
                .chunk_by(|one, other| one.item.key == other.item.key)
                .for_each(&mut *each);
        }
        Ok(())
    }
}
