//! The side of the process that comes.

use super::HandoverError;
use super::departure::Departure;
use super::giving::{FROZEN_LONGER, SILENCE_MAX};
use crate::background;
use crate::clock;
use crate::member::Member;
use crate::memory::MemoryError;
use crate::pace::CopyPace;
use crate::recovery::{Memory, Missed, check_placed, decode_page, encode_places};
use crate::state::State;
use bytes::Bytes;
use prost::Message as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::{Code, Response, Status};
use trefoil_layout::op::{Found, Rejection};
use trefoil_layout::{KeyHasher, Version};
use trefoil_recovery::{Handover, Page, Placed, Question, Reply, ShardState};
use trefoil_rpc::v1::{HandOverStep, lookup_response};
use trefoil_rpc::{Client, ContractError, Credentials, v1};

/// How long a call may take. Most take milliseconds.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// The same of a long value, which may wait for its turn there.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long one is asked to go that says nothing.
const RELEASE_PATIENCE: Duration = Duration::from_secs(60);
/// How long a predecessor is waited for that may have gone, or is to hear that it goes on,
/// when this process is to end: longer than it takes no mutation.
const ENDING_PATIENCE: Duration = Duration::from_secs(1);
/// How often a long value is asked for while the configuration changes, and the pause.
const CONFIG_LOOKS: u32 = 20;
const CONFIG_PAUSE: Duration = Duration::from_millis(20);
/// How often the predecessor is told that this process is still at work.
const ALIVE_PERIOD: Duration = Duration::from_secs(5);

const _: () = assert!(
    3 * ALIVE_PERIOD.as_secs() + CALL_PATIENCE.as_secs() <= SILENCE_MAX.as_secs(),
    "one or two that come late give nobody up"
);
const _: () = assert!(ENDING_PATIENCE.as_millis() > FROZEN_LONGER.as_millis());
/// How often it is tried to copy the rest in time, and the pause after the first attempt.
const ATTEMPTS_MAX: u32 = 8;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// Of so many items at most, the store is made ready before the predecessor goes: three
/// milliseconds for a million.
const READY_ITEMS_MAX: u64 = 4_000_000;

/// What it took to take a backend over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeover {
    items: u64,
    bytes: u64,
    received_bytes: u64,
    took: Duration,
}

impl Takeover {
    pub(crate) fn stats(&self) -> v1::TakeoverStats {
        v1::TakeoverStats {
            items: self.items,
            bytes: self.bytes,
            received_bytes: self.received_bytes,
            took_ms: self.took.as_millis() as u64,
        }
    }
}

/// What is left to do once this process is the backend.
#[must_use]
pub(crate) struct Taken {
    handover: Handover<Bytes>,
    received_bytes: u64,
    begun: Instant,
    /// When the predecessor had gone, for all that is known here.
    released: Instant,
    /// What was copied with. To hang up and to unmap takes longer than all else that is left
    /// to do before this process serves.
    tools: Tools,
}

/// Only to be dropped.
pub(crate) struct Tools(
    #[expect(dead_code)] Arc<Predecessor>,
    #[expect(dead_code)] JoinSet<()>,
);

impl Taken {
    /// Nothing here was worth that clients wait for it. Returns what is to be dropped once
    /// clients reach this process.
    pub(crate) fn finish(self, member: &Member) -> Tools {
        let (gap, took) = (self.released.elapsed(), self.begun.elapsed());
        let moved = self.handover.finish(&member.store);
        let _ = member.takeover.set(Takeover {
            items: moved.items,
            bytes: moved.bytes,
            received_bytes: self.received_bytes,
            took,
        });
        tracing::info!(
            backend = member.number,
            items = moved.items,
            bytes = moved.bytes,
            damaged = moved.damaged,
            told = moved.told,
            known = moved.known,
            pages = moved.pages,
            missed = moved.missed,
            rounds = moved.rounds,
            took_ms = took.as_millis() as u64,
            gap_us = gap.as_micros() as u64,
            "this process has taken the backend over"
        );
        self.tools
    }
}

/// Copies everything that the process knows which is this backend now, and has it go. When
/// this has returned, nobody is this backend, and this process knows all that it knew.
pub(crate) fn take(
    state: &Arc<State>,
    member: &Member,
    runtime: &Runtime,
) -> Result<Taken, HandoverError> {
    let common = Arc::new(Common {
        token: rand::random::<u64>() | 1,
        memory: Memory::new(member.number),
        incarnation: AtomicU64::new(0),
        knows_ranges: AtomicBool::new(false),
        received_bytes: AtomicU64::new(0),
        departure: OnceLock::new(),
    });
    let predecessor = || Predecessor::of(state, member, &common);
    let alive = runtime.block_on(async {
        let predecessor = predecessor()?;
        predecessor.unless_ended(predecessor.check_layout()).await?;
        Ok(predecessor)
    })?;
    let incarnation = common.incarnation.load(Ordering::Relaxed);
    let departure = Departure::of(&state.config(), member.number, incarnation, common.token);
    let _ = common.departure.set(departure);
    for shard in 0..member.store.shard_count() {
        member.store.set_recovering(shard, true);
    }
    let begun = Instant::now();
    let mut saying = JoinSet::new();
    saying.spawn_on(say_alive(alive), runtime.handle());
    // Most of it is copied while the predecessor serves, and gives way to that. The locks
    // that it takes are of a store that does not serve yet.
    let copied = background::run("trefoil-copy", async {
        let predecessor = Arc::new(predecessor()?);
        let copies = copy_most(&predecessor, member);
        predecessor.unless_ended(copies).await
    });
    let copied = copied.map_err(|error| system(member, &error)).flatten();
    let (predecessor, moved) = runtime.block_on(async {
        let predecessor = Arc::new(predecessor()?);
        let moved = match copied {
            Ok(handover) => copy_and_release(handover, &predecessor, member).await,
            Err(error) => Err(error),
        };
        if moved.is_err() {
            // If it does not hear this, it goes on by itself.
            let abandon = predecessor.step(HandOverStep::Abandon);
            let _ = state.ending.within(ENDING_PATIENCE, abandon).await;
        }
        Ok::<_, HandoverError>((predecessor, moved))
    })?;
    let (handover, released) = moved?;
    Ok(Taken {
        handover,
        received_bytes: common.received_bytes.load(Ordering::Relaxed),
        begun,
        released,
        tools: Tools(predecessor, saying),
    })
}

fn system(member: &Member, error: &std::io::Error) -> HandoverError {
    HandoverError::Unreachable {
        number: member.number,
        why: format!("no thread to copy with: {error}"),
    }
}

/// Until it is dropped. Between two steps pages and long values are copied, however long that
/// takes; each of them has a patience of its own.
async fn say_alive(predecessor: Predecessor) {
    loop {
        tokio::time::sleep(ALIVE_PERIOD).await;
        // If the predecessor does not take it, a step or a page says so.
        let _ = predecessor.step(HandOverStep::Alive).await;
    }
}

/// Everything but what is copied while the predecessor takes no mutation.
async fn copy_most(
    predecessor: &Arc<Predecessor>,
    member: &Member,
) -> Result<Handover<Bytes>, HandoverError> {
    let mut handover = Handover::new();
    if !predecessor.common.knows_ranges.load(Ordering::Relaxed) {
        handover = handover.one_range_at_a_time();
    }
    let pace = CopyPace::of_move(predecessor.state.recovery_rate);
    let is_enough = Handover::is_in_haste;
    copy(&mut handover, predecessor, member, is_enough, pace).await?;
    Ok(handover)
}

async fn copy_and_release(
    mut handover: Handover<Bytes>,
    predecessor: &Arc<Predecessor>,
    member: &Member,
) -> Result<(Handover<Bytes>, Instant), HandoverError> {
    handover.once_more();
    let (pace, is_enough) = (CopyPace::new(None), Handover::is_in_haste);
    let copies = copy(&mut handover, predecessor, member, is_enough, pace);
    predecessor.unless_ended(copies).await?;
    let mut attempt = 1;
    loop {
        // The predecessor stands still.
        let pace = CopyPace::new(None);
        let copies = copy(&mut handover, predecessor, member, Handover::is_done, pace);
        predecessor.unless_ended(copies).await?;
        // Of more items it would take too long of the time in which nothing is stored.
        let is_ready = handover.moved().items <= READY_ITEMS_MAX;
        if is_ready {
            handover.make_ready(&member.store);
        }
        // From then on this process may be the only one that has everything.
        predecessor.unless_ended(async { Ok(()) }).await?;
        match predecessor.release().await {
            Ok(()) => {
                let released = Instant::now();
                if !is_ready {
                    handover.make_ready(&member.store);
                }
                return Ok((handover, released));
            }
            // A busy machine.
            Err(HandoverError::Late { .. }) if attempt < ATTEMPTS_MAX => {
                handover.again(&member.store);
            }
            Err(error) => return Err(error),
        }
        let pause = tokio::time::sleep(ATTEMPT_PAUSE * attempt);
        predecessor
            .unless_ended(async {
                pause.await;
                Ok(())
            })
            .await?;
        attempt += 1;
    }
}

/// The pace is that of the first walk. What has changed since is copied as fast as it goes:
/// at a lower pace than clients write, no end would come.
async fn copy(
    handover: &mut Handover<Bytes>,
    predecessor: &Arc<Predecessor>,
    member: &Member,
    is_enough: fn(&Handover<Bytes>) -> bool,
    mut pace: CopyPace,
) -> Result<(), HandoverError> {
    let mut answers = JoinSet::new();
    let received_bytes = &predecessor.common.received_bytes;
    let mut counted = received_bytes.load(Ordering::Relaxed);
    loop {
        if is_enough(handover) {
            return Ok(());
        }
        if answers.is_empty() {
            // Whoever has this process end ends all of this.
            let goes_on = || Ok::<(), HandoverError>(());
            pace.wait(goes_on).await?;
        }
        while pace.owes().is_zero()
            && let Some((number, question)) = handover.ask()
        {
            let predecessor = Arc::clone(predecessor);
            answers.spawn(async move { (number, predecessor.ask(question).await) });
        }
        let answer = answers.join_next().await;
        let Some(Ok((number, reply))) = answer else {
            return Err(predecessor.refused("nothing is left to ask, and no end"));
        };
        let received = received_bytes.load(Ordering::Relaxed);
        if handover.permille() < 1000 {
            pace.moved(received - counted);
        }
        counted = received;
        handover
            .answer(number, reply?, &member.store, clock::now())
            .map_err(|nonsense| predecessor.refused(&nonsense.to_string()))?;
        if let Some(why) = handover.moved().refused {
            let number = member.number;
            return Err(HandoverError::NotTaken { number, why });
        }
    }
}

/// Whether this process, of layout `own`, can take what one holds that answers `hello`.
fn can_be_copied(own: u32, hello: v1::HelloResponse) -> Result<(), HandoverError> {
    let form = trefoil_rpc::entry_form(own, hello.tells_plain, hello.layout_version);
    match form {
        Ok(_) => Ok(()),
        Err(why) => Err(HandoverError::OtherLayout {
            number: hello.backend,
            release: hello.release,
            why,
        }),
    }
}

/// The process that is the backend.
struct Predecessor {
    number: u32,
    life: u64,
    /// The configuration that it serves.
    config_id: AtomicU32,
    /// The cell's numbers of the backend's shards.
    shards: Vec<u32>,
    client: Client,
    hasher: KeyHasher,
    common: Arc<Common>,
    state: Arc<State>,
}

/// What connections to it have in common.
struct Common {
    /// What this process calls itself.
    token: u64,
    memory: Memory,
    /// Of the predecessor's memory, which is read.
    incarnation: AtomicU64,
    /// One page of it may be of several ranges of places.
    knows_ranges: AtomicBool,
    /// Of answers that brought values, or said what is held, and of what was read.
    received_bytes: AtomicU64,
    /// Set before anything is copied.
    departure: OnceLock<Departure>,
}

impl Predecessor {
    fn of(
        state: &Arc<State>,
        member: &Member,
        common: &Arc<Common>,
    ) -> Result<Self, HandoverError> {
        let (config, number) = (state.config(), member.number);
        let unreachable = |why: String| HandoverError::Unreachable { number, why };
        let configured = || config.backend(number)?.addresses.first();
        let local = state.local.as_ref();
        let address = local
            .or_else(configured)
            .ok_or_else(|| unreachable("it has no address".into()))?;
        let endpoint = trefoil_cell::endpoint(address).map_err(|e| unreachable(e.to_string()))?;
        let channel = endpoint.connect_timeout(CONNECT_PATIENCE).connect_lazy();
        let shards = &member.store.config().shards;
        Ok(Predecessor {
            number,
            life: config.life,
            config_id: AtomicU32::new(config.config_id),
            common: Arc::clone(common),
            shards: (0..member.store.shard_count())
                .map(|shard| shards.shard(shard))
                .collect(),
            client: trefoil_rpc::client(channel, Credentials::none()),
            hasher: config.hash,
            state: Arc::clone(state),
        })
    }

    /// Does `work` unless this process is to end. Only before the predecessor was asked to go.
    async fn unless_ended<T>(
        &self,
        work: impl Future<Output = Result<T, HandoverError>>,
    ) -> Result<T, HandoverError> {
        tokio::select! {
            biased;
            () = self.state.ending.said() => Err(HandoverError::Ended { number: self.number }),
            done = work => done,
        }
    }

    fn refused(&self, why: &str) -> HandoverError {
        HandoverError::Refused {
            number: self.number,
            why: why.to_owned(),
        }
    }

    fn malformed(&self, error: ContractError) -> HandoverError {
        self.refused(&format!("it answers nonsense: {error}"))
    }

    /// Refuses one of another layout that cannot tell what it holds in a form that both
    /// know, before anything begins.
    async fn check_layout(&self) -> Result<(), HandoverError> {
        let own = self.state.layout_version;
        let request = v1::HelloRequest {
            backend: self.number,
            layout_version: own,
        };
        let mut client = self.client.clone();
        let hello = self.call(CALL_PATIENCE, client.hello(request)).await?;
        let incarnation = &self.common.incarnation;
        incarnation.store(hello.incarnation, Ordering::Relaxed);
        let knows_ranges = &self.common.knows_ranges;
        knows_ranges.store(hello.knows_ranges, Ordering::Relaxed);
        can_be_copied(own, hello)
    }

    async fn ask(&self, question: Question) -> Result<Reply<Bytes>, HandoverError> {
        match question {
            Question::Begin => self.step(HandOverStep::Begin).await.map(Reply::Shards),
            Question::Changes => self.step(HandOverStep::Changes).await.map(Reply::Shards),
            Question::Freeze => self.step(HandOverStep::Freeze).await.map(Reply::Shards),
            Question::Items {
                shard,
                places,
                values,
            } => {
                let page = self.items(shard, &places, values).await;
                page.map(Reply::Items)
            }
            Question::Long { key, version } => self.long(key, version).await.map(Reply::Long),
        }
    }

    fn request(&self, step: HandOverStep) -> v1::HandOverRequest {
        v1::HandOverRequest {
            backend: self.number,
            life: self.life,
            successor: self.common.token,
            step: step.into(),
            layout_version: self.state.layout_version,
            takes_plain: true,
        }
    }

    /// Has it go. If no answer comes, its memory says whether it has; and it may be asked
    /// again, because it goes once. One that is silent may have been stopped while it went.
    async fn release(&self) -> Result<(), HandoverError> {
        let number = self.number;
        let by = Instant::now() + RELEASE_PATIENCE;
        loop {
            let mut client = self.client.clone();
            let call = client.hand_over(self.request(HandOverStep::Release));
            // By the time that is left to who is to end, it has gone or takes mutations again.
            let ending = &self.state.ending;
            let call = tokio::time::timeout(CALL_PATIENCE, call);
            let answer = ending.within(ENDING_PATIENCE, call);
            let seen = async {
                match self.common.departure.get() {
                    Some(departure) => departure.is_seen_soon().await,
                    None => std::future::pending().await,
                }
            };
            // Whichever comes first: its memory says so some wake-ups before its answer does.
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                () = seen => return Ok(()),
            };
            let (why, is_silent) = match answer {
                Some(Ok(Ok(_))) => return Ok(()),
                Some(Ok(Err(status))) if is_its_own(&status) => {
                    return Err(self.failure(&status));
                }
                Some(Ok(Err(status))) => (status.message().to_owned(), false),
                Some(Err(_)) => (no_answer(CALL_PATIENCE), true),
                None => (no_answer(ENDING_PATIENCE), true),
            };
            let has_gone = match self.common.departure.get() {
                Some(departure) => {
                    let seen = ending.within(ENDING_PATIENCE, departure.is_seen()).await;
                    seen.unwrap_or(false)
                }
                None => false,
            };
            if has_gone {
                tracing::warn!(
                    backend = number,
                    why,
                    "the former process has let go, and its answer was lost"
                );
                return Ok(());
            }
            if !is_silent || Instant::now() >= by || ending.is_said() {
                return Err(HandoverError::Undecided { number, why });
            }
        }
    }

    /// Has the limit of the predecessor, which may have been set by command since it began.
    fn take_limit(&self, bytes: u64) -> Result<(), HandoverError> {
        // A release that does not say.
        if bytes == 0 || bytes == self.state.bound.limit() {
            return Ok(());
        }
        let number = self.number;
        match self.state.set_memory_limit(bytes) {
            Ok(_) => Ok(()),
            // Another program, which needs more for itself. It has more, too.
            Err(error @ MemoryError::TooSmall { .. }) => {
                tracing::warn!(backend = number, %error, "its limit is not taken over");
                Ok(())
            }
            Err(why) => Err(HandoverError::Memory { number, why }),
        }
    }

    async fn step(&self, step: HandOverStep) -> Result<Vec<ShardState>, HandoverError> {
        let request = self.request(step);
        let mut client = self.client.clone();
        let answer = self.call(CALL_PATIENCE, client.hand_over(request)).await?;
        if step == HandOverStep::Begin {
            self.state.set_begun(self.number, answer.begun);
            clock::follow_predecessor(answer.unix_ns);
        }
        self.take_limit(answer.memory_limit_bytes)?;
        // Without its bound a shard would be taken over without its floor.
        let shard = |shard: v1::HandOverShard| {
            let bound_max = shard.bound_max.map(trefoil_rpc::decode_version)?;
            Some(ShardState {
                epoch: shard.epoch,
                bound_max,
                bucket_count: shard.bucket_count,
                changes: shard.changes.iter().map(|r| r.from..r.until).collect(),
            })
        };
        let shards: Option<Vec<_>> = answer.shards.into_iter().map(shard).collect();
        shards.ok_or_else(|| self.malformed(ContractError::Missing("bound_max")))
    }

    async fn items(
        &self,
        shard: usize,
        places: &[Range<u64>],
        values: bool,
    ) -> Result<Page<Bytes>, HandoverError> {
        let incarnation = self.common.incarnation.load(Ordering::Relaxed);
        let memory = &self.common.memory;
        let placed = values && memory.is_open(&self.state.config(), incarnation);
        let (mut page, named) = self.page(shard, places, values, placed).await?;
        let mut missing = match memory.read(named, &mut page) {
            Missed::Places(missing) => missing,
            Missed::All => return Ok(self.page(shard, places, values, false).await?.0),
        };
        while let Some(places) = missing.places() {
            let (more, _) = self.page(shard, places, values, false).await?;
            let taken = missing.take(more, &mut page);
            taken.map_err(|error| self.malformed(error))?;
        }
        Ok(page)
    }

    async fn page(
        &self,
        shard: usize,
        places: &[Range<u64>],
        values: bool,
        placed: bool,
    ) -> Result<(Page<Bytes>, Vec<Placed>), HandoverError> {
        let (places, ranges) = encode_places(places);
        let request = v1::CopyItemsRequest {
            shard: Some(v1::ShardName {
                backend: self.number,
                shard: self.shards[shard],
                life: self.life,
                incarnation: 0,
                backends: 0,
            }),
            from: places.start,
            until: places.end,
            ranges,
            values,
            layout_version: self.state.layout_version,
            takes_plain: true,
            placed,
            ..v1::CopyItemsRequest::default()
        };
        let mut client = self.client.clone();
        let page = self.call(CALL_PATIENCE, client.copy_items(request)).await?;
        let len = page.encoded_len() as u64;
        let malformed = |error| self.malformed(error);
        let (page, placed) = decode_page(page, &self.hasher).map_err(malformed)?;
        check_placed(&placed, &places, &page).map_err(malformed)?;
        let read = placed.iter().map(|placed| placed.pointer.len() as u64);
        let len = len + read.sum::<u64>();
        self.common.received_bytes.fetch_add(len, Ordering::Relaxed);
        Ok((page, placed))
    }

    async fn long(&self, key: Vec<u8>, version: Version) -> Result<Option<Bytes>, HandoverError> {
        let key = Bytes::from(key);
        for _ in 0..CONFIG_LOOKS {
            let request = v1::LookupRequest {
                backend: self.number,
                config_id: self.config_id.load(Ordering::Relaxed),
                key: key.clone(),
                life: self.life,
                layout_version: self.state.layout_version,
                takes_plain: true,
            };
            let mut client = self.client.clone();
            let mut answer = self.call(LONG_PATIENCE, client.peek(request)).await?;
            let len = answer.encoded_len() as u64;
            self.common.received_bytes.fetch_add(len, Ordering::Relaxed);
            trefoil_rpc::settle_answer(&mut answer, &self.hasher);
            let found = trefoil_rpc::decode_lookup_answer(&answer)
                .map_err(|error| self.malformed(error))?;
            let is_this = match found.found {
                Found::Present { version: found, .. } => found == version,
                Found::Absent => false,
                // It was flushed meanwhile, say.
                Found::Rejected(Rejection::StaleConfig | Rejection::UnknownConfig) => {
                    self.look_at_config().await?;
                    continue;
                }
                Found::Rejected(rejection) => return Err(self.refused(&rejection.to_string())),
            };
            return Ok(match answer.found {
                Some(lookup_response::Found::Present(present)) if is_this => Some(present.data),
                _ => None,
            });
        }
        Err(self.refused("its configuration changes again and again"))
    }

    /// Learns which configuration the predecessor serves by now.
    async fn look_at_config(&self) -> Result<(), HandoverError> {
        let mut client = self.client.clone();
        let config = self.call(CALL_PATIENCE, client.config(v1::ConfigRequest {}));
        let config = config.await?.config.unwrap_or_default();
        self.config_id.store(config.config_id, Ordering::Relaxed);
        tokio::time::sleep(CONFIG_PAUSE).await;
        Ok(())
    }

    async fn call<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, HandoverError> {
        let number = self.number;
        match tokio::time::timeout(patience, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failure(&status)),
            Err(_) => Err(HandoverError::Unreachable {
                number,
                why: no_answer(patience),
            }),
        }
    }

    fn failure(&self, status: &Status) -> HandoverError {
        let number = self.number;
        match status.code() {
            Code::Unimplemented => HandoverError::Unknown { number },
            Code::Aborted => HandoverError::Late { number },
            Code::Unavailable => HandoverError::Unreachable {
                number,
                why: status.message().to_owned(),
            },
            _ => self.refused(status.message()),
        }
    }
}

fn no_answer(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}

/// Whether the predecessor has answered this itself: then it has not gone. Anything else
/// comes of a connection, or of a process, that ends.
fn is_its_own(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Aborted
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_another_layout_that_tells_no_plain_entries_is_refused_with_what_to_do() {
        let hello = |layout_version, tells_plain| v1::HelloResponse {
            backend: 2,
            layout_version,
            tells_plain,
            release: "0.1.0".to_owned(),
            ..v1::HelloResponse::default()
        };
        assert!(can_be_copied(3, hello(3, false)).is_ok());
        assert!(can_be_copied(4, hello(3, true)).is_ok());
        let refused = can_be_copied(4, hello(3, false)).unwrap_err();
        assert!(matches!(
            refused,
            HandoverError::OtherLayout { number: 2, .. }
        ));
        let said = refused.to_string();
        for text in [
            "release 0.1.0",
            "layout 3",
            "layout 4",
            "a release in between",
        ] {
            assert!(said.contains(text), "{text}: {said}");
        }
    }
}
