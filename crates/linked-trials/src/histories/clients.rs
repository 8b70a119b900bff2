//! Clients: each does one thing after the other and notes what it asked and was told.

use super::operation::{Answer, Asked, Operation};
use crate::pauses::Pauses;
use crate::server::{OUTCOME, SLACK};
use crate::v1::lists_client::ListsClient;
use crate::v1::{AppendRequest, Key, Way};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};
use trefoil_router::{CallError, Router};

/// Lists that are longer are taken away rather than read.
const LIST_LEN_MAX: usize = 40;
/// After a refusal.
const PAUSE: Duration = Duration::from_millis(20);
/// One request in so many is given up, if it is not answered before,
const GIVES_UP_EVERY: u32 = 12;
/// after at most so long.
const GIVES_UP_US_MAX: u64 = 6_000;

/// Which keys are in use at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// Of these, half of all requests go to the first.
    pub(crate) hot: u32,
    /// One request in ten goes to these: so that every server has some.
    pub(crate) cold: u32,
}

impl Keys {
    pub(crate) fn of_round(self, round: u32) -> std::ops::Range<u32> {
        let count = self.hot + self.cold;
        round * count..(round + 1) * count
    }

    fn draw(self, round: u32, rng: &mut SmallRng) -> u32 {
        let place = match rng.random_range(0..10) {
            0..5 => 0,
            5..9 => rng.random_range(0..self.hot),
            _ => rng.random_range(0..self.hot + self.cold),
        };
        self.of_round(round).start + place
    }
}

/// What clients and faults share.
pub(crate) struct Shared {
    pub(crate) began: Instant,
    pub(crate) is_over: AtomicBool,
    /// Keys are changed for others now and then, lest histories grow too long to check.
    pub(crate) round: AtomicU32,
    pub(crate) keys: Keys,
    pub(crate) deadline: Duration,
    /// Between two requests of one client, on average.
    pub(crate) pause: Duration,
    /// When a server stood still: who waits for it then is told nothing.
    pub(crate) stops: Mutex<Vec<(u64, u64)>>,
    pub(crate) pauses: Pauses,
}

impl Shared {
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn stops(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a client has noted.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) operations: Vec<Operation>,
    /// How many of each, by the linked store's own name, or the connection's.
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) unknown: BTreeMap<String, u64>,
    /// Answers of servers that are none of the linked store's.
    pub(crate) untyped: Vec<String>,
    /// What took longer than it may, or had no answer though no server stood still.
    pub(crate) long: Vec<String>,
    pub(crate) longest: Duration,
    /// Requests that the client gave up.
    pub(crate) cancelled: u64,
}

impl Notes {
    pub(crate) fn add(&mut self, other: Notes) {
        self.operations.extend(other.operations);
        for (from, to) in [
            (other.refused, &mut self.refused),
            (other.unknown, &mut self.unknown),
        ] {
            for (name, count) in from {
                *to.entry(name).or_default() += count;
            }
        }
        self.untyped.extend(other.untyped);
        self.long.extend(other.long);
        self.longest = self.longest.max(other.longest);
        self.cancelled += other.cancelled;
    }
}

/// The name of a key.
pub(crate) fn name(key: u32) -> String {
    format!("list {key}")
}

/// One client: it asks one thing after the other, and notes it.
pub(crate) struct Client {
    number: u32,
    next_id: u64,
    router: Router,
    shared: Arc<Shared>,
    pub(crate) notes: Notes,
}

impl Client {
    pub(crate) fn new(number: u32, router: Router, shared: Arc<Shared>) -> Self {
        Client {
            number,
            next_id: u64::from(number) << 32,
            router,
            shared,
            notes: Notes::default(),
        }
    }

    /// Works until it is told to stop.
    pub(crate) async fn work(mut self, seed: u64) -> Notes {
        let mut rng = SmallRng::seed_from_u64(seed ^ u64::from(self.number) << 32);
        let shared = Arc::clone(&self.shared);
        let mut last_len = 0;
        while !shared.is_over.load(Ordering::Relaxed) {
            let key = shared
                .keys
                .draw(shared.round.load(Ordering::Relaxed), &mut rng);
            let ways = [Way::Upsert, Way::Upsert, Way::Commit, Way::Async];
            let way = ways[rng.random_range(0..ways.len())];
            let asked = match rng.random_range(0..100) {
                _ if last_len > LIST_LEN_MAX => Asked::Remove,
                0..5 => Asked::Remove,
                5..60 => Asked::Append(self.id()),
                _ => Asked::Read,
            };
            let gives_up = (rng.random_range(0..GIVES_UP_EVERY) == 0)
                .then(|| Duration::from_micros(rng.random_range(0..GIVES_UP_US_MAX)));
            let answer = self.once(key, asked, way, gives_up).await;
            last_len = match &answer {
                Answer::List(ids) => ids.len(),
                _ => 0,
            };
            let pause = shared.pause.mul_f64(rng.random_range(0.0..2.0));
            let is_refused = answer == Answer::Refused;
            sleep(if is_refused { pause.max(PAUSE) } else { pause }).await;
        }
        self.notes
    }

    /// Appends to a key until it is acknowledged.
    pub(crate) async fn append(&mut self, key: u32) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let asked = Asked::Append(self.id());
            if let Answer::List(_) = self.once(key, asked, Way::Upsert, None).await {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Asks once, and gives the request up after so long, if it is to.
    async fn once(
        &mut self,
        key: u32,
        asked: Asked,
        way: Way,
        gives_up: Option<Duration>,
    ) -> Answer {
        let shared = &self.shared;
        let number = self.number;
        let limit = gives_up.unwrap_or(shared.deadline);
        let begin_ns = shared.now_ns();
        let begin = Instant::now();
        let done = timeout(limit, ask(&self.router, key, asked, way)).await;
        let end = Instant::now();
        let end_ns = shared.now_ns();
        let notes = &mut self.notes;
        let answer = match done {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => told(&error, notes),
            Err(_) if gives_up.is_some() => {
                notes.cancelled += 1;
                Answer::Unknown
            }
            Err(_) => {
                *notes.unknown.entry("no answer".to_owned()).or_default() += 1;
                let stops = shared.stops();
                if !stops
                    .iter()
                    .any(|(from, to)| *from < end_ns && *to > begin_ns)
                {
                    notes.long.push(format!(
                        "client {number}: {asked:?} of {} had no answer in {limit:?}, and no server stood still",
                        name(key)
                    ));
                }
                Answer::Unknown
            }
        };
        let took = end - begin;
        notes.longest = notes.longest.max(took);
        let stood = shared.pauses.within(begin, end);
        if took > shared.deadline + stood + SLACK {
            notes.long.push(format!(
                "client {number}: {asked:?} of {} took {took:.2?}",
                name(key)
            ));
        }
        notes.operations.push(Operation {
            client: number,
            key,
            asked,
            answer: answer.clone(),
            begin_ns,
            end_ns,
        });
        answer
    }
}

fn with<T>(message: T, metadata: MetadataMap) -> Request<T> {
    Request::from_parts(metadata, tonic::Extensions::default(), message)
}

/// Asks once, through the router.
pub(crate) async fn ask(
    router: &Router,
    key: u32,
    asked: Asked,
    way: Way,
) -> Result<Answer, CallError> {
    let key = name(key);
    let list = |list: crate::v1::List| match list.there {
        true => Answer::List(list.ids),
        false => Answer::Absent,
    };
    match asked {
        Asked::Append(id) => {
            let send = |channel: Channel, metadata| {
                let key = key.clone();
                let request = with(
                    AppendRequest {
                        key,
                        id,
                        way: way.into(),
                    },
                    metadata,
                );
                async move { ListsClient::new(channel).append(request).await }
            };
            let answer = router.call(key.as_bytes(), send).await?;
            Ok(list(answer.into_inner()))
        }
        Asked::Read => {
            let send = |channel: Channel, metadata| {
                let request = with(Key { key: key.clone() }, metadata);
                async move { ListsClient::new(channel).read(request).await }
            };
            let answer = router.call(key.as_bytes(), send).await?;
            Ok(list(answer.into_inner()))
        }
        Asked::Remove => {
            let send = |channel: Channel, metadata| {
                let request = with(Key { key: key.clone() }, metadata);
                async move { ListsClient::new(channel).remove(request).await }
            };
            let answer = router.call(key.as_bytes(), send).await?;
            Ok(match answer.into_inner().was_there {
                true => Answer::Removed,
                false => Answer::Absent,
            })
        }
    }
}

/// What an error says: that nothing was done, or that nobody knows.
fn told(error: &CallError, notes: &mut Notes) -> Answer {
    let refused = |notes: &mut Notes, name: &str| {
        *notes.refused.entry(name.to_owned()).or_default() += 1;
        Answer::Refused
    };
    let status = match error {
        CallError::Route(_) => return refused(notes, "nobody-serves"),
        CallError::RedirectedTwice { .. } => return refused(notes, "redirected-twice"),
        CallError::Status { status, .. } => status,
    };
    let outcome = status.metadata().get(OUTCOME);
    let name = match outcome.and_then(|name| name.to_str().ok()) {
        Some(name) => match name.strip_prefix('?') {
            Some(name) => name.to_owned(),
            None => return refused(notes, name),
        },
        None => {
            if !is_connections(status) {
                notes.untyped.push(format!("{status}"));
            }
            format!("connection: {:?}", status.code())
        }
    };
    *notes.unknown.entry(name).or_default() += 1;
    Answer::Unknown
}

/// Whether the connection has failed, rather than a server answered.
fn is_connections(status: &Status) -> bool {
    status.source().is_some()
}
