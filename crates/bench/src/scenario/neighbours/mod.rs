//! One client's GETs through the front door, alone and beside another client that asks
//! for much: nobody is to wait for a neighbour.
//!
//! ```text
//!  foreground: GETs at fixed times ──┐
//!                                    ├─► one event loop ─► the store of its process (serve)
//!  neighbour: one case, in a loop  ──┘                 └─► three backends, R=3.2 (gateway)
//! ```
//!
//! Both are served by the same event loop, the worst case. The neighbour's thread stands
//! behind the foreground's on the load's core, so that what is measured is the server.
//! How long the host took the cores away meanwhile is told beside the slowest answer.

mod cases;
mod foreground;
mod gaps;
mod random;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::gateway::Dialect;
use crate::report::Table;
use crate::server::{Door, Server, ServerOptions};
use cases::{Case, Extent, On, Round, Trouble};
use foreground::Foreground;
use gaps::Gaps;
use wire::{Said, Wire};

pub use foreground::GetFigures;

const MEMORY: u64 = 1000 << 20;
/// GETs a second.
const RATE: f64 = 1000.0;
/// Must be shown: p50 beside by p50 alone, the slowest answer, all items listed.
const P50_MAX: f64 = 2.0;
const MAX_MS: f64 = 20.0;
const ENUMERATION_S_MAX: f64 = 0.5;
/// Patience with one round of the neighbour after the time is over.
const ROUND_WITHIN: Duration = Duration::from_secs(60);
/// Backends of a cell of which two are killed, and which: cohorts that hold both have
/// no quorum.
const BACKENDS: u32 = 6;
const VICTIMS: [usize; 2] = [2, 3];
/// The backend that stands still.
const STOPPED: usize = 1;
/// Keys among which those without a quorum are looked for.
const PROBED: usize = 300;
/// How long it may take until a killed backend is known to be dead.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);
/// Lists of all items: told as medians of so many.
const ENUMERATIONS: usize = 3;

/// All items, listed once.
#[derive(Debug, Clone, Serialize)]
pub struct Enumeration {
    /// By which commands.
    pub name: String,
    /// How many were told.
    pub items: u64,
    /// In this time.
    pub seconds: f64,
}

/// GETs beside a neighbour of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct NeighbourFigures {
    /// What the neighbour does.
    pub name: String,
    /// GETs just before.
    pub alone: GetFigures,
    /// GETs meanwhile.
    pub beside: GetFigures,
    /// p50 beside by p50 alone.
    pub p50_ratio: f64,
    /// The longest time for which a bare loop on the same cores was kept from them
    /// meanwhile, in milliseconds.
    pub bare_gap_ms: f64,
    /// Requests of the neighbour that were answered.
    pub rounds: u64,
    /// Of each, on average.
    pub round_ms: f64,
    /// Answers to it that were errors.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// Whether errors are what it is to be told.
    pub may_fail: bool,
    /// Whether the foreground's keys may be gone.
    pub empties: bool,
}

impl NeighbourFigures {
    /// Everybody was answered as they should.
    pub fn is_right(&self) -> bool {
        let is_right = |gets: &GetFigures, may_miss: bool| {
            gets.count > 0 && gets.failed == 0 && (may_miss || gets.misses == 0)
        };
        is_right(&self.alone, false)
            && is_right(&self.beside, self.empties)
            && self.rounds > 0
            && (self.may_fail || self.errors == 0)
    }

    /// The foreground was as fast as it has to be.
    pub fn is_fast(&self) -> bool {
        self.p50_ratio <= P50_MAX && self.beside.max_ms <= MAX_MS
    }
}

/// One kind of front door.
#[derive(Debug, Clone, Serialize)]
pub struct DoorFigures {
    /// Which.
    pub door: String,
    /// All items, by several commands, with nobody else there.
    pub enumerations: Vec<Enumeration>,
    /// Each kind of neighbour.
    pub cases: Vec<NeighbourFigures>,
}

/// Both.
#[derive(Debug, Clone, Serialize)]
pub struct NeighboursReport {
    /// Items in each cell.
    pub items: usize,
    /// GETs a second.
    pub rate: f64,
    /// `serve`, then a gateway.
    pub doors: Vec<DoorFigures>,
}

impl NeighboursReport {
    /// Nobody was told anything wrong.
    pub fn is_right(&self) -> bool {
        let mut cases = self.doors.iter().flat_map(|door| &door.cases);
        cases.all(NeighbourFigures::is_right)
    }

    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        let is_fast = |door: &DoorFigures| {
            let mut listed = door.enumerations.iter();
            door.cases.iter().all(NeighbourFigures::is_fast)
                && listed.all(|listed| listed.seconds <= ENUMERATION_S_MAX)
        };
        self.is_right() && self.doors.iter().all(is_fast)
    }

    /// As a person reads it.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for door in &self.doors {
            let title = format!("{}: {} items, {} GETs/s", door.door, self.items, self.rate);
            let heads = [
                "beside",
                "p50 alone",
                "p50",
                "ratio",
                "p99",
                "max alone",
                "max",
                "bare loop",
                "rounds",
                "each",
                "verdict",
            ];
            let mut table = Table::new(&title, &heads);
            for case in &door.cases {
                let verdict = match (case.is_right(), case.is_fast()) {
                    (false, _) => "wrong",
                    (_, false) => "slow",
                    _ => "ok",
                };
                table.row([
                    case.name.clone(),
                    format!("{:.0} µs", case.alone.p50_us),
                    format!("{:.0} µs", case.beside.p50_us),
                    format!("{:.2}", case.p50_ratio),
                    format!("{:.0} µs", case.beside.p99_us),
                    format!("{:.1} ms", case.alone.max_ms),
                    format!("{:.1} ms", case.beside.max_ms),
                    format!("{:.1} ms", case.bare_gap_ms),
                    case.rounds.to_string(),
                    format!("{:.2} ms", case.round_ms),
                    verdict.to_owned(),
                ]);
            }
            text += &format!("{table}\n");
            let mut table = Table::new("", &["all items", "told", "time", "each", "verdict"]);
            for listed in &door.enumerations {
                let each_us = listed.seconds * 1e6 / listed.items.max(1) as f64;
                let is_fast = listed.seconds <= ENUMERATION_S_MAX;
                table.row([
                    listed.name.clone(),
                    listed.items.to_string(),
                    format!("{:.3} s", listed.seconds),
                    format!("{each_us:.2} µs"),
                    if is_fast { "ok" } else { "slow" }.to_owned(),
                ]);
            }
            text += &format!("{table}\n");
        }
        for case in self.doors.iter().flat_map(|door| &door.cases) {
            let said = [
                &case.first_error,
                &case.alone.first_error,
                &case.beside.first_error,
            ];
            for error in said.into_iter().flatten() {
                text += &format!("{}: {error}\n", case.name);
            }
        }
        text + &format!(
            "to be shown: p50 at most {P50_MAX} times alone, no answer after {MAX_MS} ms, \
             all items listed within {ENUMERATION_S_MAX} s"
        )
    }
}

/// Where the front door is, and what is behind it.
struct Running {
    memcached: SocketAddr,
    redis: SocketAddr,
    /// Before its cell, which it needs until it ends.
    _door: Option<Door>,
    server: Server,
}

impl Running {
    fn serve(options: &ScenarioOptions) -> Result<Self, ScenarioError> {
        let server = Server::start(&ServerOptions {
            doors: true,
            more: vec!["--threads".to_owned(), "1".to_owned()],
            ..options.server("R=1", MEMORY)
        })?;
        let (memcached, redis) = both(server.memcached, server.redis)?;
        Ok(Running {
            memcached,
            redis,
            _door: None,
            server,
        })
    }

    fn gateway(options: &ScenarioOptions, backends: u32) -> Result<Self, ScenarioError> {
        let server = Server::start(&ServerOptions {
            processes: true,
            is_silent: true,
            more: vec!["--backends".to_owned(), backends.to_string()],
            ..options.server("R=3.2", MEMORY)
        })?;
        let door =
            Door::start_with_threads(&options.program, &server.address, options.server_core, 1)?;
        let (memcached, redis) = both(door.memcached, door.redis)?;
        Ok(Running {
            memcached,
            redis,
            _door: Some(door),
            server,
        })
    }

    fn wire(&self, dialect: Dialect) -> Result<Wire, ScenarioError> {
        let address = match dialect {
            Dialect::Memcached => self.memcached,
            Dialect::Redis => self.redis,
        };
        Wire::connect(address, dialect).map_err(io_error)
    }

    /// Stores items, and the foreground's.
    fn fill(&self, items: usize) -> Result<(), ScenarioError> {
        let mut wire = self.wire(Dialect::Memcached)?;
        let own = (0..foreground::KEY_COUNT).map(foreground::key);
        let own = own.map(|key| (key, foreground::VALUE_LEN));
        let items = (0..items).map(|number| (cases::key(number), cases::VALUE_LEN));
        let mut all = own.chain(items).peekable();
        let (mut requests, mut count) = (Vec::new(), 0);
        while let Some((key, len)) = all.next() {
            let value = "v".repeat(len);
            requests.extend_from_slice(format!("set {key} 0 0 {len}\r\n{value}\r\n").as_bytes());
            count += 1;
            if count == 64 || all.peek().is_none() {
                let said = wire.ask_many(&requests, count).map_err(io_error)?;
                if let Some(error) = said.first_error {
                    return Err(course(format!("filling: {error}")));
                }
                requests.clear();
                count = 0;
            }
        }
        Ok(())
    }
}

fn both(
    memcached: Option<SocketAddr>,
    redis: Option<SocketAddr>,
) -> Result<(SocketAddr, SocketAddr), ScenarioError> {
    memcached
        .zip(redis)
        .ok_or_else(|| course("the server has not both doors".to_owned()))
}

fn course(what: String) -> ScenarioError {
    ScenarioError::Course(what)
}

fn io_error(error: io::Error) -> ScenarioError {
    course(format!("a client of the front door: {error}"))
}

/// Measures GETs beside each kind of neighbour, in front of both.
pub fn neighbours(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<NeighboursReport, ScenarioError> {
    options.pin()?;
    let extent = Extent {
        items: options.scaled(100_000, 2_000),
        many: options.scaled(10_000, 500),
        // More are refused: `serve` answers a transaction with 32 MB at most.
        big: options.scaled(24, 8),
    };
    let mut doors = Vec::new();
    for on in [On::Serve, On::Gateway] {
        doors.push(door(options, extent, on, progress)?);
    }
    doors[1].cases.extend(two_dead(options, progress)?);
    if let (Some(only), true) = (
        &options.only,
        doors.iter().all(|door| door.cases.is_empty()),
    ) {
        return Err(course(format!("no case's name contains {only:?}")));
    }
    Ok(NeighboursReport {
        items: extent.items,
        rate: RATE,
        doors,
    })
}

/// Whether a case was asked for: its name is shown after the one of what it is run against.
fn is_wanted(options: &ScenarioOptions, against: &str, case: &Case) -> bool {
    let only = options.only.as_deref().unwrap_or_default();
    let name = format!("{against}: {}", case.name);
    only.split('|').any(|part| name.contains(part))
}

/// All cases in front of one of both.
fn door(
    options: &ScenarioOptions,
    extent: Extent,
    on: On,
    progress: Progress<'_>,
) -> Result<DoorFigures, ScenarioError> {
    let (name, running) = match on {
        On::Gateway => ("gateway R=3.2", Running::gateway(options, 3)?),
        _ => ("serve R=1", Running::serve(options)?),
    };
    progress(&format!("{name}: filling"));
    running.fill(extent.items)?;
    running.server.settle()?;
    let mut figures = DoorFigures {
        door: name.to_owned(),
        enumerations: enumerations(options, &running)?,
        cases: Vec::new(),
    };
    let keys: Vec<String> = (0..foreground::KEY_COUNT).map(foreground::key).collect();
    for case in cases::cases(extent) {
        let is_here = case.on == On::Both || case.on == on;
        if is_here && is_wanted(options, name, &case) {
            progress(&format!("{name}: {}", case.name));
            figures.cases.push(beside(options, &running, case, &keys)?);
        }
    }
    Ok(figures)
}

/// How long it takes to be told of all items.
fn enumerations(
    options: &ScenarioOptions,
    running: &Running,
) -> Result<Vec<Enumeration>, ScenarioError> {
    type List = fn(&mut Wire) -> io::Result<Said>;
    let lists: [(&str, Dialect, List); 5] = [
        ("lru_crawler metadump", Dialect::Memcached, |wire| {
            wire.ask(b"lru_crawler metadump all\r\n")
        }),
        ("lru_crawler mgdump", Dialect::Memcached, |wire| {
            wire.ask(b"lru_crawler mgdump hash\r\n")
        }),
        ("stats cachedump", Dialect::Memcached, cases::all_classes),
        ("SCAN COUNT 1000", Dialect::Redis, |wire| {
            let mut all = Said::default();
            let mut cursor = "0".to_owned();
            loop {
                let mut request = Vec::new();
                let words: [&[u8]; 4] = [b"SCAN", cursor.as_bytes(), b"COUNT", b"1000"];
                wire::command(&words, &mut request);
                let mut said = wire.ask(&request)?;
                // The cursor is no item.
                said.items = said.items.saturating_sub(1);
                cursor = String::from_utf8_lossy(&said.first).into_owned();
                let is_over = cursor == "0" || said.errors > 0;
                all.add(said);
                if is_over {
                    return Ok(all);
                }
            }
        }),
        ("KEYS *", Dialect::Redis, |wire| {
            wire.ask(b"*2\r\n$4\r\nKEYS\r\n$1\r\n*\r\n")
        }),
    ];
    let mut all = Vec::new();
    for (name, dialect, list) in lists {
        let mut wire = running.wire(dialect)?;
        let mut runs = Vec::new();
        for _ in 0..options.scaled(ENUMERATIONS, 1) {
            let begin = Instant::now();
            let said = list(&mut wire).map_err(io_error)?;
            if let Some(error) = said.first_error {
                return Err(course(format!("{name}: {error}")));
            }
            runs.push((begin.elapsed().as_secs_f64(), said.items));
        }
        runs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (seconds, items) = runs[runs.len() / 2];
        all.push(Enumeration {
            name: name.to_owned(),
            items,
            seconds,
        });
    }
    Ok(all)
}

/// Cases before a cell of six backends of which two are dead.
fn two_dead(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<Vec<NeighbourFigures>, ScenarioError> {
    let name = "gateway R=3.2, two of six dead";
    let is_wanted = |case: &Case| is_wanted(options, name, case);
    if !cases::without_quorum(&[]).iter().any(is_wanted) {
        return Ok(Vec::new());
    }
    let running = Running::gateway(options, BACKENDS)?;
    progress(&format!("{name}: filling"));
    running.fill(PROBED)?;
    for victim in VICTIMS {
        running.server.kill(victim);
    }
    let mut wire = running.wire(Dialect::Memcached)?;
    let begin = Instant::now();
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    // Until leases have ended the dead are not known to be. Every key was stored: those
    // that are not found are those that no two replicas can tell of.
    let mut before = 0;
    while unreadable.is_empty() || unreadable.len() != before {
        if begin.elapsed() > KNOWN_WITHIN {
            return Err(course(format!(
                "{name}: {} of {PROBED} keys can be read, {} cannot: some of both are needed",
                readable.len(),
                unreadable.len()
            )));
        }
        before = unreadable.len();
        (readable, unreadable) = (Vec::new(), Vec::new());
        for number in 0..PROBED {
            let key = cases::key(number);
            let said = wire.ask(format!("get {key}\r\n").as_bytes());
            match said.map_err(io_error)?.items {
                0 => unreadable.push(key),
                _ => readable.push(key),
            }
        }
    }
    let mut figures = Vec::new();
    let all = cases::without_quorum(&unreadable);
    for case in all.into_iter().filter(is_wanted) {
        progress(&format!("{name}: {}", case.name));
        figures.push(beside(options, &running, case, &readable)?);
    }
    Ok(figures)
}

/// GETs alone, and beside one case.
fn beside(
    options: &ScenarioOptions,
    running: &Running,
    case: Case,
    keys: &[String],
) -> Result<NeighbourFigures, ScenarioError> {
    let time = Duration::from_millis(options.scaled(2_000, 100));
    let client = Foreground::connect(running.memcached, keys.to_owned(), RATE);
    let mut client = client.map_err(io_error)?;
    let alone = client
        .run(&mut |elapsed| elapsed >= time)
        .map_err(io_error)?;
    let wire = running.wire(case.dialect)?;
    let gaps = Gaps::watch(options.server_core.into_iter().chain(options.client_core));
    if case.trouble == Trouble::Stopped {
        running.server.signal(STOPPED, Signal::STOP);
    }
    let neighbour = Neighbour::default();
    let (beside, said) = std::thread::scope(|scope| {
        let heard = scope.spawn(|| neighbour.run(wire, case.round));
        let beside = client.run(&mut |elapsed| {
            let has_done = neighbour.rounds.load(Ordering::Relaxed) > 0;
            elapsed >= time && (has_done || heard.is_finished()) || elapsed >= ROUND_WITHIN
        });
        neighbour.is_over.store(true, Ordering::Relaxed);
        let said = heard.join();
        (beside, said)
    });
    if case.trouble == Trouble::Stopped {
        running.server.signal(STOPPED, Signal::CONT);
    }
    let bare_gap = gaps.longest();
    let beside = beside.map_err(io_error)?;
    let (said, elapsed) = said
        .map_err(|_| course(format!("{}: the neighbour panicked", case.name)))?
        .map_err(|error| course(format!("{}: the neighbour: {error}", case.name)))?;
    let rounds = neighbour.rounds.into_inner();
    Ok(NeighbourFigures {
        name: case.name.to_owned(),
        p50_ratio: beside.p50_us / alone.p50_us.max(1e-3),
        alone,
        beside,
        bare_gap_ms: bare_gap.as_secs_f64() * 1e3,
        rounds,
        round_ms: elapsed.as_secs_f64() * 1e3 / rounds.max(1) as f64,
        errors: said.errors,
        first_error: said.first_error,
        may_fail: case.may_fail,
        empties: case.empties,
    })
}

/// The other client.
#[derive(Default)]
struct Neighbour {
    is_over: AtomicBool,
    rounds: AtomicU64,
}

impl Neighbour {
    /// Asks until it is told to stop; what it heard, and how long it took.
    fn run(&self, mut wire: Wire, mut round: Round) -> io::Result<(Said, Duration)> {
        // Behind the foreground: the core that both use is not what is measured.
        let _ = rustix::process::setpriority_process(None, 10);
        trefoil_region::take_usual_turns();
        let mut all = Said::default();
        let begin = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            let said = round(&mut wire)?;
            all.add(said);
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok((all, begin.elapsed()))
    }
}
