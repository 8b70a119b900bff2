//! The demonstration's load: requests at a steady rate, whatever became of
//! those before. A hot key takes its share of them while it is on.

use super::caller::{Call, call, version};
use address_book_contract::v1::{ChangeRequest, LookupRequest};
use address_book_contract::{owner, sample_book};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_router::Router;

/// Users with a book.
pub(super) const BOOKS_COUNT: u64 = 3_000;
/// Bytes of each.
pub(super) const BOOK_LEN: usize = 2_000;
/// The one that everybody asks for while the hot key is on.
pub(super) const HOT: u64 = 7;
const HOT_SHARE: f64 = 0.5;
const LOOKUP_SHARE: f64 = 0.8;
const LATENCY_US_MAX: u64 = 60_000_000;

/// What has come of the load.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Requests sent beyond the first: redirects and tries again.
    pub(super) repeated: u64,
    pub(super) longest: Duration,
    /// Of the last second or so: emptied by who shows it.
    pub(super) recent_us: Histogram<u64>,
    /// Of everything.
    pub(super) all_us: Histogram<u64>,
    pub(super) first_error: Option<String>,
}

impl Tally {
    fn new() -> Self {
        let empty = || {
            let made = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
            made.unwrap_or_else(|_| unreachable!("constant bounds are valid"))
        };
        Tally {
            answered: 0,
            failed: 0,
            repeated: 0,
            longest: Duration::ZERO,
            recent_us: empty(),
            all_us: empty(),
            first_error: None,
        }
    }
}

/// A load that runs.
pub(super) struct Load {
    router: Router,
    tally: Mutex<Tally>,
    pub(super) is_hot: AtomicBool,
    is_over: AtomicBool,
}

impl Load {
    pub(super) fn new(router: Router) -> Arc<Self> {
        Arc::new(Load {
            router,
            tally: Mutex::new(Tally::new()),
            is_hot: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Stores every book.
    pub(super) async fn fill(self: &Arc<Self>) {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..BOOKS_COUNT {
            if tasks.len() >= 16 {
                tasks.join_next().await;
            }
            let load = self.clone();
            tasks.spawn(async move {
                let whole = Call::Change(ChangeRequest {
                    owner: owner(number),
                    whole: true,
                    contacts: sample_book(number, BOOK_LEN).contacts,
                    ..ChangeRequest::default()
                });
                // A new book comes into memory when it is asked for.
                for next in [
                    whole,
                    Call::Lookup(LookupRequest {
                        owner: owner(number),
                        ..LookupRequest::default()
                    }),
                ] {
                    let (result, _) = call(&load.router, &next).await;
                    if let Err(error) = result {
                        load.tally().first_error.get_or_insert(error);
                    }
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    }

    /// The version of a book that is served now.
    pub(super) async fn version(&self, owner: &str) -> Option<u64> {
        version(&self.router, owner).await
    }

    /// Sends `rate` requests a second until it is over. The runtime's clock is
    /// coarse, so those that are due together are sent together.
    pub(super) async fn run(self: Arc<Self>, rate: f64) {
        let mut rng = SmallRng::seed_from_u64(1);
        let begin = Instant::now();
        let mut sent = 0u64;
        while !self.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = (begin.elapsed().as_secs_f64() * rate) as u64;
            while sent < due {
                sent += 1;
                let next = self.next(&mut rng);
                tokio::spawn(self.clone().one(next));
            }
        }
    }

    async fn one(self: Arc<Self>, next: Call) {
        let begin = Instant::now();
        let (result, sent) = call(&self.router, &next).await;
        let took = begin.elapsed();
        let mut tally = self.tally();
        tally.repeated += sent.saturating_sub(1);
        match result {
            Ok(()) => {
                tally.answered += 1;
                tally.longest = tally.longest.max(took);
                let us = (took.as_micros() as u64).clamp(1, LATENCY_US_MAX);
                tally.recent_us.saturating_record(us);
                tally.all_us.saturating_record(us);
            }
            Err(error) => {
                tally.failed += 1;
                tally.first_error.get_or_insert(error);
            }
        }
    }

    fn next(&self, rng: &mut SmallRng) -> Call {
        let is_hot = self.is_hot.load(Ordering::Relaxed) && rng.random::<f64>() < HOT_SHARE;
        let number = match is_hot {
            true => HOT,
            // Some are asked for more than others.
            false => (BOOKS_COUNT as f64 * rng.random::<f64>().powi(2)) as u64,
        };
        let owner = owner(number);
        let first = rng.random_range(0..8);
        if rng.random::<f64>() < LOOKUP_SHARE || is_hot {
            let count = 4;
            return Call::Lookup(LookupRequest {
                owner,
                first,
                count,
            });
        }
        let contacts = sample_book(rng.random_range(0..BOOKS_COUNT), 200).contacts;
        Call::Change(ChangeRequest {
            owner,
            first,
            contacts,
            ..ChangeRequest::default()
        })
    }
}
