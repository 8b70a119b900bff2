//! The load of a cache's ordinary life: more data than memory, skewed lookups,
//! a miss is filled, some keys are deleted.
//!
//! Each key belongs to one client, so that "older" is defined without a lock:
//! what a client finds may not be older than what it wrote or deleted last.

use std::time::Duration;

use rand::RngExt as _;
use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::{ScenarioError, ScenarioOptions};
use crate::load::{
    Bound, KeyChooser, KeyCodec, LoadError, Operation, Popularity, Request, RequestSource,
    RunOptions, RunResult, RunShared, Share, Summary, ValueLen, preload, run_clients,
};
use crate::peer::{Endpoint, Memcached, Waiting};
use crate::server::{Door, Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, Item, SetOutcome, Target, TargetError};
use crate::workload::{OLTP, Trace, TraceReader, TraceSource};

/// Of each backend.
pub(super) const MEMORY: u64 = 64 << 20;
/// Values of all keys together, in the memory of a backend: as in life, not
/// everything fits.
const CORPUS: f64 = 2.3;
const VALUE_LEN: usize = 1000;
const KEY_LEN: usize = 16;
const THETA: f64 = 0.99;
const ERASES: f64 = 0.05;
/// Clients at a time.
const CLIENTS: u64 = 4;

/// How the cell is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// memcached's protocol, through `trefoil gateway`.
    Gateway,
    /// The native client.
    Native,
}

impl Reach {
    /// Both.
    pub const ALL: [Reach; 2] = [Reach::Gateway, Reach::Native];
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requests {
    /// Zipf 0.99, and 5 % deletes.
    Zipf,
    /// The trace OLTP.
    Oltp,
}

impl Requests {
    /// Both.
    pub const ALL: [Requests; 2] = [Requests::Zipf, Requests::Oltp];
}

/// What one stretch of load came to.
#[derive(Debug, Clone, Serialize)]
pub struct Stretch {
    /// Operations, fills among them.
    pub ops: u64,
    /// Lookups that found a value.
    pub hits: u64,
    /// Operations per second, fills among them.
    pub ops_per_s: f64,
    /// Median of all operations.
    pub p50_ns: u64,
    /// 99th percentile of all operations; closed loop: whoever waits asks nothing.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The slowest.
    pub max_ns: u64,
    /// Share of lookups that found a value.
    pub hit_ratio: f64,
    /// Errors, writes of unknown fate among them.
    pub errors: u64,
    /// Values older than what their reader had written or deleted.
    pub stale: u64,
    /// Bytes that were never written for the key.
    pub wrong: u64,
    /// Misses for want of a quorum (known to native clients only).
    pub inquorate: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
}

impl Stretch {
    fn of(run: &RunResult, inquorate: u64) -> Self {
        let summary = Summary::of(run);
        Stretch {
            ops: summary.ops,
            hits: summary.hits,
            ops_per_s: summary.ops_per_s,
            p50_ns: summary.p50_ns,
            p99_ns: summary.p99_ns,
            p999_ns: summary.p999_ns,
            max_ns: summary.get.max_ns.max(summary.set.max_ns),
            hit_ratio: summary.hit_ratio(),
            errors: summary.failed + summary.indeterminate,
            stale: summary.stale,
            wrong: summary.wrong,
            inquorate,
            first_error: summary.first_error,
        }
    }

    /// Nothing that never may be.
    pub fn is_clean(&self) -> bool {
        self.errors + self.stale + self.wrong == 0
    }
}

/// One client, by either way.
enum Client {
    Gateway(Memcached),
    Native(Box<Trefoil>),
}

impl Target for Client {
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        match self {
            Client::Gateway(target) => target.get(key),
            Client::Native(target) => target.get(key),
        }
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        match self {
            Client::Gateway(target) => target.set(key, value, ttl),
            Client::Native(target) => target.set(key, value, ttl),
        }
    }

    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        match self {
            Client::Gateway(target) => target.set_many(items),
            Client::Native(target) => target.set_many(items),
        }
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        match self {
            Client::Gateway(target) => target.erase(key),
            Client::Native(target) => target.erase(key),
        }
    }
}

/// Lookups and deletes of one client's keys.
struct ZipfSource {
    codec: KeyCodec,
    chooser: KeyChooser,
    keys_count: u64,
    share: Share,
}

impl ZipfSource {
    fn next_request(&mut self) -> Request {
        let key = self.share.own(self.chooser.next_key(), self.keys_count);
        let is_erase = self.chooser.rng().random::<f64>() < ERASES;
        Request {
            operation: match is_erase {
                true => Operation::Erase,
                false => Operation::Get,
            },
            key,
            value_len: VALUE_LEN,
            ttl: None,
        }
    }
}

/// What one client asks for.
enum Source<'a> {
    Zipf(Box<ZipfSource>),
    Oltp(TraceSource<'a>),
}

impl<'a> Source<'a> {
    /// Client `index`'s part of a stretch.
    fn new(
        trace: Option<&'a Trace>,
        keys_count: u64,
        value_len: usize,
        stretch: u64,
        index: u64,
    ) -> Result<Self, LoadError> {
        let share = Share {
            index,
            count: CLIENTS,
        };
        if let Some(trace) = trace {
            let source = TraceSource::new(trace, KEY_LEN, value_len, share)?;
            return Ok(Source::Oltp(source));
        }
        let popularity = Popularity::Zipf { theta: THETA };
        Ok(Source::Zipf(Box::new(ZipfSource {
            codec: KeyCodec::new(KEY_LEN, keys_count)?,
            chooser: KeyChooser::new(popularity, keys_count, stretch * CLIENTS + index)?,
            keys_count,
            share,
        })))
    }
}

impl RequestSource for Source<'_> {
    fn codec(&self) -> KeyCodec {
        match self {
            Source::Zipf(source) => source.codec,
            Source::Oltp(source) => source.codec(),
        }
    }

    fn keys_count(&self) -> u64 {
        match self {
            Source::Zipf(source) => source.keys_count,
            Source::Oltp(source) => source.keys_count(),
        }
    }

    fn is_finite(&self) -> bool {
        matches!(self, Source::Oltp(_))
    }

    fn next_request(&mut self) -> Option<Request> {
        match self {
            Source::Zipf(source) => Some(source.next_request()),
            Source::Oltp(source) => source.next_request(),
        }
    }
}

/// A full cell and its clients.
pub(super) struct LookAsideLoad {
    pub(super) server: Server,
    reach: Reach,
    clients: Vec<Client>,
    core: Option<usize>,
    keys_count: u64,
    value_len: usize,
    /// What is asked for, unless it is drawn.
    trace: Option<Trace>,
    stretches: u64,
    _door: Option<Door>,
}

impl LookAsideLoad {
    /// Starts a cell of three copies and fills it beyond its memory.
    pub(super) fn start(options: &ScenarioOptions, reach: Reach) -> Result<Self, ScenarioError> {
        let memory = options.scaled(MEMORY, MEMORY / 2);
        let server = Self::cell(options, "R=3.2", memory);
        Self::of(options, &server, memory, reach, Requests::Zipf)
    }

    /// A cell of a process for each backend, each with as much memory.
    pub(super) fn cell(
        options: &ScenarioOptions,
        mode: &'static str,
        memory: u64,
    ) -> ServerOptions {
        ServerOptions {
            processes: true,
            is_silent: true,
            ..options.server(mode, memory)
        }
    }

    /// Starts a cell with so much memory for each copy. What is drawn fills it beyond
    /// its memory before it begins; a trace begins with an empty one.
    pub(super) fn of(
        options: &ScenarioOptions,
        server: &ServerOptions,
        memory: u64,
        reach: Reach,
        requests: Requests,
    ) -> Result<Self, ScenarioError> {
        let server = Server::start(server)?;
        let trace = match requests {
            Requests::Zipf => None,
            Requests::Oltp => Some(oltp()?),
        };
        let corpus = memory as f64 * CORPUS;
        let (keys_count, value_len) = match &trace {
            Some(trace) => {
                let keys_count = trace.objects_count();
                (keys_count, (corpus / keys_count as f64) as usize)
            }
            None => ((corpus / VALUE_LEN as f64) as u64, VALUE_LEN),
        };
        let mut load = LookAsideLoad {
            reach,
            clients: Vec::new(),
            core: options.client_core,
            keys_count,
            value_len,
            trace,
            stretches: 0,
            _door: match reach {
                Reach::Gateway => {
                    let core = options.server_core;
                    Some(Door::start(&options.program, &server.address, core)?)
                }
                Reach::Native => None,
            },
            server,
        };
        for _ in 0..CLIENTS {
            let client = load.client()?;
            load.clients.push(client);
        }
        let codec = load.codec()?;
        let shared = RunShared::reading();
        let len = ValueLen::Fixed(VALUE_LEN);
        if load.trace.is_none() {
            // Whoever reads it afterwards: natively, for that is faster.
            let client = &mut Trefoil::new(load.connect()?.client(Options::default()));
            preload(client, codec, 0..load.keys_count, len, &shared, &mut |_| {})?;
        }
        Ok(load)
    }

    /// The clients go; the cell stays, and nothing is under way to it.
    pub(super) fn leave(&mut self) {
        self.clients.clear();
        self._door = None;
    }

    fn client(&self) -> Result<Client, ScenarioError> {
        let Some(door) = &self._door else {
            let cell = Cell::connect(&self.server.address)?;
            let client = Trefoil::new(cell.client(Options::default()));
            return Ok(Client::Native(Box::new(client)));
        };
        let none = || ScenarioError::Course("the gateway has no memcached door".to_owned());
        let endpoint = Endpoint::Tcp(door.memcached.ok_or_else(none)?);
        let client = Memcached::connect(&endpoint, Waiting::Blocking)
            .map_err(|e| ScenarioError::Course(format!("connecting to the gateway: {e}")))?;
        Ok(Client::Gateway(client))
    }

    fn codec(&self) -> Result<KeyCodec, LoadError> {
        KeyCodec::new(KEY_LEN, self.keys_count)
    }

    fn inquorate(&mut self) -> u64 {
        let count = |client: &mut Client| match client {
            Client::Native(target) => target.client().counters().inquorate,
            Client::Gateway(_) => 0,
        };
        self.clients.iter_mut().map(count).sum()
    }

    /// A stretch of load, during which `meanwhile` may do things to the cell.
    pub(super) fn run(
        &mut self,
        length: Duration,
        meanwhile: impl FnOnce(&Server) + Send,
    ) -> Result<Stretch, ScenarioError> {
        self.run_until(Bound::Time(length), meanwhile)
    }

    /// The same until as many operations of each client are done, or a trace is.
    pub(super) fn run_until(
        &mut self,
        bound: Bound,
        meanwhile: impl FnOnce(&Server) + Send,
    ) -> Result<Stretch, ScenarioError> {
        self.stretches += 1;
        let before = self.inquorate();
        let shared = RunShared::writing(self.keys_count);
        let run_options = RunOptions {
            fill_on_miss: true,
            warm_up: Bound::Time(Duration::ZERO),
            bound,
            seed: self.stretches,
            ..RunOptions::default()
        };
        let mut sources = Vec::new();
        for index in 0..CLIENTS {
            sources.push(Source::new(
                self.trace.as_ref(),
                self.keys_count,
                self.value_len,
                self.stretches,
                index,
            )?);
        }
        let core = self.core;
        let clients = self.clients.iter_mut().zip(sources);
        let clients = clients
            .map(|(client, source)| (client, source, core))
            .collect();
        let server = &self.server;
        let result = std::thread::scope(|scope| {
            let disturber = scope.spawn(move || meanwhile(server));
            let result = run_clients(clients, &run_options, &shared);
            let _ = disturber.join();
            result
        })?;
        let inquorate = self.inquorate() - before;
        Ok(Stretch::of(&result, inquorate))
    }

    /// Connects to the cell.
    pub(super) fn connect(&self) -> Result<Cell, ScenarioError> {
        Ok(Cell::connect(&self.server.address)?)
    }

    /// How the cell is reached.
    pub(super) fn reach(&self) -> Reach {
        self.reach
    }
}

/// The trace that the repository carries.
fn oltp() -> Result<Trace, ScenarioError> {
    TraceReader::new(OLTP)
        .and_then(Trace::load)
        .map_err(|error| ScenarioError::Course(error.to_string()))
}
