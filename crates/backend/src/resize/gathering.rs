//! The side of the processes that are to be.

use super::ResizeError;
use super::told::ToldPages;
use crate::background;
use crate::clock;
use crate::member::Member;
use crate::memory::MemoryError;
use crate::pace::{self, CopyPace};
use crate::recovery::{Memory, Missed, check_placed, decode_page, encode_places};
use crate::state::State;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use tonic::{Code, Response, Status};
use trefoil_cell::CellConfig;
use trefoil_layout::ShardMap;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::op::{Found, Rejection};
use trefoil_recovery::{Asked, Gathering, Moved, Page, Placed, Question, Reply, ShardState, What};
use trefoil_rpc::v1::{ResizeStep, lookup_response};
use trefoil_rpc::{Client, ContractError, Credentials, v1};

/// How long a call may take. Most take milliseconds.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// The same of a long value, which may wait for its turn there.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How often, and how long between, a long value is asked for under another configuration.
const CONFIG_LOOKS: u32 = 20;
const CONFIG_PAUSE: Duration = Duration::from_millis(20);
/// How often it is told how far it has come.
const TELL_PERIOD: Duration = Duration::from_millis(200);
/// How often those who are asked are told the same.
const ALIVE_PERIOD: Duration = Duration::from_secs(1);
/// How often what has changed is copied while others are waited for.
const ROUND_PERIOD: Duration = Duration::from_secs(1);

/// What a process is to be, and what it is to be told of.
#[derive(Debug)]
pub struct Gather {
    /// The cell as it is.
    pub old: CellConfig,
    /// As it is to be.
    pub new: CellConfig,
    /// What the resize is called; not 0.
    pub resize: u64,
    /// What it is told. Gone: it is given up.
    pub orders: mpsc::UnboundedReceiver<GatherOrder>,
    /// Where it says how far it has come.
    pub events: mpsc::UnboundedSender<GatherEvent>,
}

/// What a process that is to be a backend is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherOrder {
    /// To copy.
    Copy,
    /// To ask for nothing more for now.
    Pause,
    /// To go on.
    Continue,
    /// To copy what has changed, once more: everybody is about to freeze.
    Near {
        /// For the how manieth time, from 1.
        attempt: u32,
    },
    /// Everybody is frozen: to copy the last changes. All shards are in this epoch then.
    Last {
        /// That of the [`Near`](GatherOrder::Near) before.
        attempt: u32,
        /// It.
        epoch: u32,
    },
    /// Everybody goes on.
    Again,
    /// The configuration was changed and the old backends have gone: to serve.
    Begin,
}

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherEvent {
    /// How far the first copy has come.
    Progress(Gathered),
    /// It is near: little is left to copy.
    Near {
        /// That of the order that this answers: what comes late, of an attempt that is over,
        /// says nothing of the next one. 0: nobody has asked, the first copy is made.
        attempt: u32,
        /// How far.
        gathered: Gathered,
    },
    /// The answer to [`GatherOrder::Last`]: it knows everything.
    Done {
        /// That of the order.
        attempt: u32,
        /// All of it.
        gathered: Gathered,
    },
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Of the first walk, in thousandths.
    pub permille: u64,
    /// Values.
    pub items: u64,
    /// Bytes of their data entries.
    pub bytes: u64,
}

/// Copies what the member is to hold, until it is told to begin.
pub(crate) fn gather(
    runtime: &Handle,
    state: &Arc<State>,
    member: &Arc<Member>,
    gather: Gather,
    pace: CopyPace,
) -> Result<(), ResizeError> {
    for shard in 0..member.store.shard_count() {
        member.store.set_recovering(shard, true);
    }
    let mut work = {
        let _entered = runtime.enter();
        Work::new(state, member, gather, pace)?
    };
    // Before everybody waits for it the copy gives way to what the cell serves, and so does
    // what has changed while others copy. The locks that it takes are of a store that does not
    // serve yet.
    let copied = background::run("trefoil-gather", async {
        work.connect();
        work.run(Until::Haste).await
    });
    copied.map_err(|error| ResizeError::System(error.to_string()))??;
    runtime.block_on(async {
        work.connect();
        work.run(Until::Begin).await
    })?;
    let moved = work.machine.finish(&member.store);
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
        last = moved.last,
        "this process has what it is to serve"
    );
    Ok(())
}

struct Work {
    state: Arc<State>,
    member: Arc<Member>,
    machine: Gathering<Bytes>,
    peers: HashMap<u32, Arc<Peer>>,
    orders: mpsc::UnboundedReceiver<GatherOrder>,
    events: mpsc::UnboundedSender<GatherEvent>,
    /// The bound on the memory that was taken over last, or could not be.
    limit_tried: u64,
    paused: bool,
    begun: bool,
    /// All have their first copy, and what follows is waited for.
    is_hasty: bool,
    /// Everybody is frozen, and nobody has said that they go on.
    is_last: bool,
    /// What the others wait to hear.
    owes: Owes,
    told: Instant,
    told_peers: Instant,
    /// Peers that are being told how far it has come: one that hangs keeps nobody waiting.
    tells: JoinSet<(u32, Result<(), ResizeError>)>,
    telling: HashSet<u32>,
    /// Peers that have answered: they know of the resize. Before it begins there, it would
    /// be over there.
    answered: HashSet<u32>,
    /// First answers, until all have said what time it is there.
    first: Vec<(u64, u32, Reply<Bytes>)>,
    is_timed: bool,
    /// Of the first walk. What has changed since is copied as fast as it goes: at a lower
    /// pace than clients write, it would never be near.
    pace: CopyPace,
}

/// How long [`Work::run`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Until all have their first copy.
    Haste,
    /// Until it is to begin.
    Begin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owes {
    Nothing,
    /// Of this attempt.
    Near(u32),
    Done(u32),
}

impl Work {
    fn new(
        state: &Arc<State>,
        member: &Arc<Member>,
        gather: Gather,
        pace: CopyPace,
    ) -> Result<Self, ResizeError> {
        let machine = Gathering::new(gather.old.placement(), &member.store)
            .between_parts(background::leave_core);
        let peers = machine.sources().iter().map(|source| {
            let peer = Peer::new(member, &gather, source.backend)?;
            Ok((source.backend, Arc::new(peer)))
        });
        let peers: Result<_, ResizeError> = peers.collect();
        Ok(Work {
            state: Arc::clone(state),
            member: Arc::clone(member),
            peers: peers?,
            machine,
            orders: gather.orders,
            events: gather.events,
            limit_tried: 0,
            paused: false,
            begun: false,
            is_hasty: false,
            is_last: false,
            owes: Owes::Near(0),
            told: Instant::now(),
            told_peers: Instant::now(),
            tells: JoinSet::new(),
            telling: HashSet::new(),
            answered: HashSet::new(),
            first: Vec::new(),
            is_timed: false,
            pace,
        })
    }

    /// Connects to all peers anew, by the runtime that this is awaited in: a connection lives
    /// no longer than the one that it was made in.
    fn connect(&mut self) {
        self.tells = JoinSet::new();
        self.telling.clear();
        for peer in self.peers.values() {
            peer.connect();
        }
    }

    async fn run(&mut self, until: Until) -> Result<(), ResizeError> {
        let mut answers = JoinSet::new();
        let mut tick = tokio::time::interval(TELL_PERIOD);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut rounded = Instant::now();
        let ending = self.state.ending.clone();
        let mut ended = pin!(ending.said());
        loop {
            let owed = self.pace.owes();
            // What was asked by this runtime is answered to it.
            let leaves = until == Until::Haste && self.is_hasty;
            while self.begun
                && !leaves
                && !self.paused
                && owed.is_zero()
                && let Some((number, asked)) = self.machine.ask()
            {
                let peer = self.peers.get(&asked.backend);
                let peer = Arc::clone(peer.ok_or(ResizeError::GivenUp)?);
                answers.spawn(async move {
                    let backend = asked.backend;
                    (number, backend, peer.ask(asked).await)
                });
            }
            self.settle();
            if leaves && answers.is_empty() {
                return Ok(());
            }
            tokio::select! {
                () = &mut ended => return Err(ResizeError::GivenUp),
                order = self.orders.recv() => {
                    if self.obey(order.ok_or(ResizeError::GivenUp)?) {
                        return Ok(());
                    }
                }
                Some(answer) = answers.join_next() => {
                    let (number, backend, reply) = answer.map_err(|_| ResizeError::GivenUp)?;
                    self.take(number, backend, reply?)?;
                    rounded = Instant::now();
                }
                Some(told) = self.tells.join_next() => {
                    self.heed_peer(told.map_err(|_| ResizeError::GivenUp)?)?;
                }
                () = tokio::time::sleep(owed), if !owed.is_zero() => {}
                _ = tick.tick() => {
                    self.tell();
                    self.tell_peers();
                    if !self.paused && self.machine.is_near() && rounded.elapsed() >= ROUND_PERIOD {
                        self.machine.round();
                    }
                }
            }
        }
    }

    /// `true`: to begin.
    fn obey(&mut self, order: GatherOrder) -> bool {
        match order {
            GatherOrder::Copy => self.begun = true,
            GatherOrder::Pause => self.paused = true,
            GatherOrder::Continue => self.paused = false,
            GatherOrder::Near { attempt } => {
                self.is_hasty = true;
                self.owes = Owes::Near(attempt);
                self.machine.round();
            }
            GatherOrder::Last { attempt, epoch } => {
                self.paused = false;
                self.is_last = true;
                self.owes = Owes::Done(attempt);
                self.machine.last(epoch);
            }
            GatherOrder::Again => {
                self.is_last = false;
                self.owes = Owes::Nothing;
                self.machine.again();
            }
            GatherOrder::Begin => return self.machine.is_done(),
        }
        false
    }

    fn take(&mut self, number: u64, backend: u32, reply: Reply<Bytes>) -> Result<(), ResizeError> {
        if self.is_timed {
            return self.take_timed(number, backend, reply);
        }
        // What they hold is judged by the time that is in force afterwards.
        self.first.push((number, backend, reply));
        if self.first.len() < self.peers.len() {
            return Ok(());
        }
        self.is_timed = true;
        let ahead = self
            .peers
            .values()
            .map(|peer| peer.ahead_ns.load(Ordering::Relaxed));
        clock::follow(believed_ns(ahead.collect()));
        for (number, backend, reply) in std::mem::take(&mut self.first) {
            self.take_timed(number, backend, reply)?;
        }
        Ok(())
    }

    fn take_timed(
        &mut self,
        number: u64,
        backend: u32,
        reply: Reply<Bytes>,
    ) -> Result<(), ResizeError> {
        // Before anything of it is stored.
        if matches!(reply, Reply::Shards(_)) {
            self.take_limit()?;
        }
        if self.machine.permille() < 1000 {
            self.pace.moved(match &reply {
                Reply::Items(page) => pace::page_len(page),
                Reply::Long(data) => data.as_ref().map_or(0, |data| data.len() as u64),
                Reply::Shards(_) => 0,
            });
        }
        let taken = self
            .machine
            .answer(number, reply, &self.member.store, clock::now());
        taken.map_err(|nonsense| ResizeError::Refused {
            number: backend,
            why: nonsense.to_string(),
        })?;
        self.answered.insert(backend);
        match self.machine.refused() {
            Some(why) => Err(ResizeError::NotTaken {
                number: backend,
                why,
            }),
            None => Ok(()),
        }
    }

    /// Has the largest limit of those that it copies from: one that was set by command since
    /// they began holds in the new cell, too. A larger one counts at once, a lower one when
    /// all have said theirs; a release that does not know this says none.
    fn take_limit(&mut self) -> Result<(), ResizeError> {
        let told = |peer: &Arc<Peer>| (peer.memory_limit.load(Ordering::Relaxed), peer.number);
        let told: Vec<(u64, u32)> = self.peers.values().map(told).collect();
        let Some(&(limit, number)) = told.iter().max() else {
            return Ok(());
        };
        let current = self.state.bound.limit();
        let all_say_lower = limit < current && told.iter().all(|(limit, _)| *limit > 0);
        if limit <= current && !all_say_lower || limit == self.limit_tried {
            return Ok(());
        }
        self.limit_tried = limit;
        match self.state.set_memory_limit(limit) {
            Ok(_) => Ok(()),
            // Another program, which needs more for itself. It has more, too.
            Err(error @ MemoryError::TooSmall { .. }) => {
                tracing::warn!(backend = self.member.number, %error, "a limit is not taken over");
                Ok(())
            }
            Err(why) => Err(ResizeError::Memory { number, why }),
        }
    }

    /// Says what the others wait for, once it is so.
    fn settle(&mut self) {
        let event = match self.owes {
            Owes::Near(attempt) if self.machine.is_near() => GatherEvent::Near {
                attempt,
                gathered: self.gathered(),
            },
            Owes::Done(attempt) if self.machine.is_done() => GatherEvent::Done {
                attempt,
                gathered: self.gathered(),
            },
            _ => return,
        };
        self.owes = Owes::Nothing;
        let _ = self.events.send(event);
    }

    fn gathered(&self) -> Gathered {
        let moved: Moved = self.machine.moved();
        Gathered {
            permille: self.machine.permille(),
            items: moved.items,
            bytes: moved.bytes,
        }
    }

    fn tell(&mut self) {
        if self.begun && self.told.elapsed() >= TELL_PERIOD {
            self.told = Instant::now();
            let _ = self.events.send(GatherEvent::Progress(self.gathered()));
        }
    }

    /// Whether it needs its peers to go on as they are. Since everybody froze it does not:
    /// it has asked them what there is to ask, or finds out by what it asks. Once the
    /// configuration is changed they go, one after the other, or hang; whoever changes the
    /// cell sees to that.
    fn needs_peers(&self) -> bool {
        self.begun && !self.is_last
    }

    /// Nothing else is asked of them while it pauses, or waits for others.
    fn tell_peers(&mut self) {
        if !self.needs_peers() || self.told_peers.elapsed() < ALIVE_PERIOD {
            return;
        }
        self.told_peers = Instant::now();
        let gathered = self.gathered();
        let progress = v1::ResizeTaker {
            backend: self.member.number,
            permille: gathered.permille as u32,
            items: gathered.items,
            bytes: gathered.bytes,
            paused: self.paused,
        };
        for (number, peer) in &self.peers {
            if self.answered.contains(number) && self.telling.insert(*number) {
                let (number, peer) = (*number, Arc::clone(peer));
                self.tells
                    .spawn(async move { (number, peer.tell(progress).await) });
            }
        }
    }

    /// A peer has heard of it, or cannot.
    fn heed_peer(&mut self, told: (u32, Result<(), ResizeError>)) -> Result<(), ResizeError> {
        let (number, told) = told;
        self.telling.remove(&number);
        match self.needs_peers() {
            true => told,
            false => Ok(()),
        }
    }
}

/// A backend of the cell that is.
struct Peer {
    number: u32,
    /// The number that this process is to have.
    taker: u32,
    resize: u64,
    life: u64,
    /// That requests name; a flush changes it.
    config_id: AtomicU32,
    /// The old cell's backends.
    old_count: u32,
    new: ShardMap,
    old: ShardMap,
    endpoint: Endpoint,
    client: Mutex<Client>,
    /// Of the cell that is.
    config: CellConfig,
    /// From which values are read, if it gives it.
    memory: Memory,
    hasher: trefoil_layout::KeyHasher,
    /// Of data entries.
    layout_version: u32,
    /// The bound on its memory, once it has said it; 0: not yet, or never.
    memory_limit: AtomicU64,
    /// How far its time is ahead of the host's clock, once it has said it.
    ahead_ns: AtomicU64,
    /// What it has told beside what has changed last, by shard.
    told: ToldPages,
}

/// How far ahead the time of the cell is, of what each has said. One that is alone with it may
/// be wrong, and would have the new cell wrong, too: then what it holds is refused.
fn believed_ns(mut ahead_ns: Vec<u64>) -> u64 {
    ahead_ns.sort_unstable();
    match ahead_ns[..] {
        [.., second, _] => second,
        [only] => only,
        [] => 0,
    }
}

fn client(endpoint: &Endpoint) -> Client {
    trefoil_rpc::client(endpoint.connect_lazy(), Credentials::none())
}

impl Peer {
    fn new(member: &Member, gather: &Gather, number: u32) -> Result<Self, ResizeError> {
        let config = &gather.old;
        let unreachable = |why: String| ResizeError::Unreachable { number, why };
        let address = config
            .backend(number)
            .and_then(|backend| backend.addresses.first())
            .ok_or_else(|| unreachable("it has no address".into()))?;
        let endpoint = trefoil_cell::endpoint(address).map_err(|e| unreachable(e.to_string()))?;
        let endpoint = endpoint.connect_timeout(CONNECT_PATIENCE);
        Ok(Peer {
            number,
            taker: member.number,
            resize: gather.resize,
            life: config.life,
            config_id: AtomicU32::new(config.config_id),
            old_count: config.backends.len() as u32,
            new: member.store.config().shards,
            old: ShardMap::new(config.placement(), number),
            client: Mutex::new(client(&endpoint)),
            endpoint,
            config: config.clone(),
            memory: Memory::new(number),
            hasher: config.hash,
            layout_version: LAYOUT_VERSION.into(),
            memory_limit: AtomicU64::new(0),
            ahead_ns: AtomicU64::new(0),
            told: ToldPages::default(),
        })
    }

    fn connect(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client(&self.endpoint);
    }

    fn client(&self) -> Client {
        let client = self.client.lock();
        client.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refused(&self, why: &str) -> ResizeError {
        ResizeError::Refused {
            number: self.number,
            why: why.to_owned(),
        }
    }

    fn malformed(&self, error: ContractError) -> ResizeError {
        self.refused(&format!("it answers nonsense: {error}"))
    }

    async fn ask(&self, asked: Asked) -> Result<Reply<Bytes>, ResizeError> {
        match asked.what {
            What::Question(Question::Begin) => {
                self.step(ResizeStep::Begin).await.map(Reply::Shards)
            }
            What::Question(Question::Changes) => {
                self.step(ResizeStep::Changes).await.map(Reply::Shards)
            }
            What::Question(Question::Long { key, version }) => {
                self.long(key, version).await.map(Reply::Long)
            }
            What::Question(_) => Err(self.refused("nobody asks this")),
            What::Items {
                local,
                ranges,
                values,
            } => {
                let page = self.items(local, &ranges, values).await?;
                Ok(Reply::Items(page))
            }
        }
    }

    /// A page. Values are read from its memory where that is to be had; it names them.
    async fn items(
        &self,
        local: usize,
        places: &[Range<u64>],
        values: bool,
    ) -> Result<Page<Bytes>, ResizeError> {
        let told = values.then(|| self.told.take(local, places)).flatten();
        let (mut page, named) = match told {
            Some(page) => self.decode(page, places)?,
            None => {
                let names = values && self.memory.is_open(&self.config, 0);
                self.page(local, places, values, names).await?
            }
        };
        let mut missing = match self.memory.read(named, &mut page) {
            Missed::Places(missing) => missing,
            Missed::All => return Ok(self.page(local, places, values, false).await?.0),
        };
        while let Some(places) = missing.places() {
            let (more, _) = self.page(local, places, values, false).await?;
            let taken = missing.take(more, &mut page);
            taken.map_err(|error| self.malformed(error))?;
        }
        Ok(page)
    }

    async fn page(
        &self,
        local: usize,
        places: &[Range<u64>],
        values: bool,
        placed: bool,
    ) -> Result<(Page<Bytes>, Vec<Placed>), ResizeError> {
        let (all, ranges) = encode_places(places);
        let request = v1::CopyItemsRequest {
            shard: Some(v1::ShardName {
                backend: self.number,
                shard: self.old.shard(local),
                life: self.life,
                incarnation: 0,
                backends: self.old_count,
            }),
            from: all.start,
            until: all.end,
            ranges,
            values,
            layout_version: self.layout_version,
            placed,
            of_backends: self.new.placement().backend_count(),
            of_shard: self.new.shard(local),
            ..v1::CopyItemsRequest::default()
        };
        let mut client = self.client();
        let page = self.call(CALL_PATIENCE, client.copy_items(request)).await?;
        self.decode(page, places)
    }

    fn decode(
        &self,
        page: v1::CopyItemsResponse,
        places: &[Range<u64>],
    ) -> Result<(Page<Bytes>, Vec<Placed>), ResizeError> {
        let (places, _) = encode_places(places);
        let malformed = |error| self.malformed(error);
        let (page, named) = decode_page(page, &self.hasher).map_err(malformed)?;
        check_placed(&named, &places, &page).map_err(malformed)?;
        Ok((page, named))
    }

    fn request(&self, step: ResizeStep) -> v1::ResizeRequest {
        v1::ResizeRequest {
            backend: self.number,
            life: self.life,
            resize: self.resize,
            step: step.into(),
            layout_version: self.layout_version,
            taker: self.taker,
            backends: self.new.placement().backend_count(),
            ..v1::ResizeRequest::default()
        }
    }

    async fn send(&self, request: v1::ResizeRequest) -> Result<v1::ResizeResponse, ResizeError> {
        let mut client = self.client();
        self.call(CALL_PATIENCE, client.resize(request)).await
    }

    async fn tell(&self, progress: v1::ResizeTaker) -> Result<(), ResizeError> {
        let request = v1::ResizeRequest {
            progress: Some(progress),
            ..self.request(ResizeStep::Alive)
        };
        self.send(request).await.map(drop)
    }

    async fn step(&self, step: ResizeStep) -> Result<Vec<ShardState>, ResizeError> {
        let changes = step == ResizeStep::Changes;
        let request = v1::ResizeRequest {
            values: changes,
            placed: changes && self.memory.is_open(&self.config, 0),
            ..self.request(step)
        };
        let answer = self.send(request).await?;
        if step == ResizeStep::Begin {
            let limit = answer.memory_limit_bytes;
            self.memory_limit.store(limit, Ordering::Relaxed);
            let ahead_ns = answer.unix_ns.saturating_sub(clock::host().unix_ns);
            self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        }
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
        let shards = shards.ok_or_else(|| self.malformed(ContractError::Missing("bound_max")))?;
        self.told.keep(&shards, answer.pages);
        Ok(shards)
    }

    async fn long(
        &self,
        key: Vec<u8>,
        version: trefoil_layout::Version,
    ) -> Result<Option<Bytes>, ResizeError> {
        for _ in 0..CONFIG_LOOKS {
            let config_id = self.config_id.load(Ordering::Relaxed);
            let request = v1::LookupRequest {
                backend: self.number,
                config_id,
                key: key.clone().into(),
                life: self.life,
                layout_version: self.layout_version,
                takes_plain: false,
            };
            let mut client = self.client();
            let answer = self.call(LONG_PATIENCE, client.peek(request)).await?;
            let found = trefoil_rpc::decode_lookup_answer(&answer)
                .map_err(|error| self.malformed(error))?;
            let is_this = match found.found {
                Found::Present { version: found, .. } => found == version,
                Found::Absent => false,
                // It was flushed meanwhile, or an attempt was broken off.
                Found::Rejected(Rejection::StaleConfig | Rejection::UnknownConfig) => {
                    let config = self.call(CALL_PATIENCE, client.config(v1::ConfigRequest {}));
                    let config = config.await?.config.unwrap_or_default();
                    self.config_id.store(config.config_id, Ordering::Relaxed);
                    tokio::time::sleep(CONFIG_PAUSE).await;
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

    async fn call<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ResizeError> {
        let number = self.number;
        match tokio::time::timeout(patience, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(match status.code() {
                Code::Unimplemented => ResizeError::Unknown { number },
                Code::Unavailable => ResizeError::Unreachable {
                    number,
                    why: status.message().to_owned(),
                },
                _ => self.refused(status.message()),
            }),
            Err(_) => Err(ResizeError::Unreachable {
                number,
                why: format!("no answer within {} s", patience.as_secs()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::believed_ns;

    #[test]
    fn one_clock_that_is_ahead_is_not_gone_by_where_there_are_others() {
        assert_eq!(believed_ns(vec![]), 0);
        assert_eq!(believed_ns(vec![7]), 7);
        assert_eq!(believed_ns(vec![0, 3600, 0]), 0);
        assert_eq!(believed_ns(vec![3600, 3601, 0]), 3600);
    }
}
