//! One round: a fresh cell, clients at work, faults, and all that was logged.

use super::RecordError;
use super::cell_log;
use super::doctored::{self, Healthy};
use super::faults::{Faults, Network, Part, SmallDisk, Spares, part_of, signal};
use super::figures::FaultFigures;
use super::plan::{CarrierKind, Fault, RoundPlan};
use super::upgrade::{Programs, Release, Upgraded, Upgrades};
use super::worker::{WORKER_COMMAND, WorkerPlan, filled_file};
use crate::event::Event;
use crate::log::{LogFollower, LogReader};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_bench::server::{Door, Server, ServerOptions};
use trefoil_client::Cell;
use trefoil_ports::EtcdProcess;

/// Between two looks at how far the workers are.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// A carrier by which no operation succeeds for so long hangs. An only copy that was killed
/// again and again is started again after a pause of 30 s, and may be killed or stopped then.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(90);
/// How long a worker may take to end: its operation's deadline, and a busy machine.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// By when backends have found that what keeps the configuration is back: they look for it
/// once a second, and it takes a moment itself.
const STORE_FOUND: Duration = Duration::from_secs(5);
/// Clients that a counter's value can name.
const CLIENTS_MAX: u32 = 4_000;
/// Share of the operations after which a backend may be killed: memory is full by then.
const FULL_AFTER: f64 = 0.4;
/// Who flushes and loses, among the events: no client.
pub(super) const NOBODY: u32 = 0;
/// Lines of the cell's log that are shown with a trouble.
const LOG_LINES: usize = 12;

/// What a round has left.
pub(super) struct Recorded {
    pub events: Vec<Event>,
    /// How each client reached the cell.
    pub carriers: BTreeMap<u32, CarrierKind>,
    /// What went wrong on purpose, and how often.
    pub faults: BTreeMap<Fault, FaultFigures>,
    /// Most backends that were away at a time.
    pub away_max: usize,
    /// Backends that were killed and voted again.
    pub recoveries: u64,
    /// How often the cell got another number of backends.
    pub resized: u32,
    /// Orders and recoveries that were given up, a trouble each.
    pub unfinished: u64,
    /// Values that had to leave for others, at the backends that are there in the end.
    pub evictions: u64,
    /// Of a round with another release.
    pub upgraded: Option<Upgraded>,
    /// The doctor was asked in the end, and found nothing wrong.
    pub healthy: Option<Healthy>,
    /// What went wrong and should not have.
    pub troubles: Vec<String>,
    pub seconds: f64,
}

struct Worker {
    child: Child,
    client: u32,
    release: Release,
    log: LogFollower,
}

/// What a backend says of itself, of which this needs little.
pub(super) struct Standing {
    pub pid: u32,
    /// It votes for all of its shards, after it had lost its memory.
    pub votes: bool,
    /// And it has what was written meanwhile.
    pub has_recovered: bool,
    pub shards_lost: u32,
    pub lease_left_ms: u64,
    evictions: u64,
}

/// A round under way; also what faults are done to. The order of the fields is the one in
/// which they go: whatever uses a thing before it.
pub(super) struct Round<'a> {
    pub plan: &'a RoundPlan,
    pub cell: Cell,
    pub rng: SmallRng,
    /// The backends' processes, by number.
    pub pids: Vec<u32>,
    /// Flushes.
    pub events: Vec<Event>,
    /// Kills of each backend.
    kills: BTreeMap<usize, u64>,
    /// The program that backends run is the copy.
    pub is_upgraded: bool,
    /// What keeps the configuration is away.
    pub store_is_away: bool,
    /// When it was away last.
    pub store_was_away: Option<Instant>,
    /// Backends that are away, as far as they are one each.
    pub away: Vec<usize>,
    /// So many things that take a backend are under way.
    pub backends_away: usize,
    /// The cell is getting another number of backends.
    pub is_resizing: bool,
    /// And no backend goes away meanwhile.
    pub is_resizing_alone: bool,
    /// How often it has got one.
    pub resized: u32,
    /// A place is given to a spare, and etcd stays as it is meanwhile.
    pub is_replacing_alone: bool,
    /// One of the backends stands still.
    pub is_any_stopped: bool,
    is_full: bool,
    numbers: u32,
    programs: Programs<'a>,
    /// One of each release.
    gateways: Vec<(Release, Door)>,
    workers: Vec<Worker>,
    /// Logs of clients that have ended, and what they had done.
    ended: Vec<PathBuf>,
    ended_succeeded: BTreeMap<CarrierKind, u64>,
    ended_records: u64,
    carriers: BTreeMap<u32, CarrierKind>,
    next_client: u32,
    spares: Spares,
    server: Server,
    pub etcd: Option<EtcdProcess>,
    pub network: Option<Network>,
    disk: Option<SmallDisk>,
    dir: TempDir,
}

/// Runs a round.
pub(super) fn run(program: &Path, plan: &RoundPlan) -> Result<Recorded, RecordError> {
    let begin = Instant::now();
    let mut round = Round::start(program, plan)?;
    let first = Release::first(plan.seed);
    let mut upgrades = Upgrades::new(round.programs, first);
    let mut troubles = Vec::new();
    if plan.chaos {
        round.await_filled(&mut troubles);
    }
    let mut faults = Faults::new(plan);
    let began = Instant::now();
    let mut progress = Progress::new();
    loop {
        std::thread::sleep(LOOK_PERIOD);
        let succeeded = round.succeeded();
        let done = round.records();
        let share = match plan.seconds {
            Some(seconds) => began.elapsed().as_secs_f64() / seconds,
            None => done as f64 / plan.operations.max(1) as f64,
        };
        if let Some(trouble) = progress.trouble(&succeeded) {
            troubles.push(trouble);
            break;
        }
        round.is_full |= plan.chaos || share > FULL_AFTER;
        match share < 1.0 {
            true => faults.step(&mut round)?,
            // What is away comes back while clients work, or it never does.
            false => faults.go_on(&mut round),
        }
        if share >= 1.0 && faults.is_calm() {
            faults.make_up(&mut round)?;
        }
        if let Some(upgrades) = &mut upgrades {
            upgrades.step(&mut round, share)?;
        }
        // Each order is carried out while clients work, too.
        if share >= 1.0 && faults.is_calm() && upgrades.as_ref().is_none_or(Upgrades::is_over) {
            break;
        }
        round.look_after_workers(&mut troubles);
        round.look_after_spares()?;
    }
    round.check_servers(&faults, &mut troubles);
    troubles.extend_from_slice(faults.troubles());
    let upgrades = upgrades.as_ref();
    troubles.extend(upgrades.and_then(|upgrades| upgrades.trouble().cloned()));
    let upgraded = upgrades.and_then(Upgrades::done);
    let evictions = round.standings().into_iter().flatten();
    let evictions = evictions.map(|standing| standing.evictions).sum();
    if !troubles.is_empty() {
        troubles.extend(round.log_tail());
    }
    let losses = faults.losses();
    let resized = round.resized;
    let unfinished = faults.unfinished();
    let (figures, recoveries) = (faults.figures(), faults.recoveries());
    let away_max = faults.away_max();
    drop(faults);
    let events = round.end_clients(losses, &mut troubles)?;
    let healthy = match doctored::is_asked(plan) && troubles.is_empty() {
        true => doctored::examine(program, round.address(), plan)
            .map_err(|trouble| troubles.push(trouble))
            .ok(),
        false => None,
    };
    let carriers = std::mem::take(&mut round.carriers);
    Ok(Recorded {
        events,
        carriers,
        faults: figures,
        away_max,
        recoveries,
        resized,
        unfinished,
        evictions,
        upgraded,
        healthy,
        troubles,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

impl<'a> Round<'a> {
    fn start(program: &'a Path, plan: &'a RoundPlan) -> Result<Self, RecordError> {
        let dir = tempfile::Builder::new()
            .prefix("trefoil-histories-")
            .tempdir()
            .map_err(RecordError::doing("making a folder for the logs"))?;
        let has = |fault| plan.faults.contains(&fault);
        let cell_dir = dir.path().join("cell");
        let disk = match has(Fault::DiskFull) {
            true => Some(SmallDisk::mount(&cell_dir).map_err(RecordError::Course)?),
            false => None,
        };
        let network = match has(Fault::Network) {
            true => Some(Network::new().map_err(RecordError::Course)?),
            false => None,
        };
        let etcd = match plan.faults.iter().any(|fault| fault.is_of_etcd()) {
            true => Some(
                EtcdProcess::start(&dir.path().join("etcd"), None)
                    .map_err(RecordError::doing("starting etcd"))?,
            ),
            false => None,
        };
        let programs = Programs {
            present: program,
            previous: plan.previous.as_deref(),
        };
        let restart = match has(Fault::Restart) {
            true => "always",
            false => "never",
        };
        // As often as may be: what it does to keys is to be in the histories.
        let mut more = vec!["--repair-interval", "1s", "--restart", restart];
        if plan.previous.is_some() {
            more.extend(["--backends", "3"]);
        }
        if plan.previous.is_some() || has(Fault::Drain) {
            more.extend(["--spares", "1"]);
        }
        let store = etcd
            .as_ref()
            .map(|etcd| format!("etcd://{}/cell", etcd.host()));
        if plan.carriers.contains(&CarrierKind::Queue) {
            more.push("--queue");
        }
        if let Some(store) = &store {
            more.extend(["--store", store]);
        }
        let first = programs.of(Release::first(plan.seed));
        let server = Server::start(&ServerOptions {
            processes: true,
            log: Some(dir.path().join("log")),
            dir: Some(cell_dir),
            more: more.into_iter().map(str::to_owned).collect(),
            ..ServerOptions::new(first, plan.mode, plan.memory)
        })?;
        let cell = Cell::connect(&server.address)?;
        let mut round = Round {
            plan,
            cell,
            rng: SmallRng::seed_from_u64(plan.seed ^ 0x51D),
            pids: server.pids.clone(),
            events: Vec::new(),
            kills: BTreeMap::new(),
            is_upgraded: false,
            store_is_away: false,
            store_was_away: None,
            away: Vec::new(),
            backends_away: 0,
            is_resizing: false,
            is_resizing_alone: false,
            resized: 0,
            is_replacing_alone: false,
            is_any_stopped: false,
            is_full: false,
            numbers: 0,
            programs,
            gateways: Vec::new(),
            workers: Vec::new(),
            ended: Vec::new(),
            ended_succeeded: BTreeMap::new(),
            ended_records: 0,
            carriers: BTreeMap::new(),
            next_client: 1,
            spares: Spares::none(),
            server,
            etcd,
            network,
            disk,
            dir,
        };
        round.look_after_spares()?;
        if plan.carriers.contains(&CarrierKind::Gateway) {
            round.restart_gateway()?;
        }
        let count = plan.clients as u32;
        for at in 0..plan.clients {
            let carriers = plan.carriers.len();
            let release = match (plan.previous.is_some(), at / carriers % 2) {
                (true, 1) => Release::Previous,
                _ => Release::Present,
            };
            let fill = plan.chaos.then_some((at as u32, count));
            round.start_worker(plan.carriers[at % carriers], release, fill)?;
        }
        Ok(round)
    }

    pub(super) fn program(&self) -> &Path {
        self.programs.present
    }

    /// Where the cell is found.
    pub(super) fn address(&self) -> &str {
        &self.server.address
    }

    pub(super) fn cell_dir(&self) -> PathBuf {
        self.dir.path().join("cell")
    }

    /// The cell's configuration is on a small disk of its own.
    pub(super) fn has_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    pub(super) fn has_gateway(&self) -> bool {
        !self.gateways.is_empty()
    }

    /// Memory is full: a backend that is killed now loses what counts.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Of something that no client does.
    pub(super) fn next_number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// One that works.
    pub(super) fn draw_backend(&mut self) -> Option<usize> {
        let works = (0..self.pids.len()).filter(|number| !self.away.contains(number));
        let works: Vec<usize> = works.collect();
        works.choose(&mut self.rng).copied()
    }

    /// What each backend says of itself; nothing if it says nothing.
    fn standings(&self) -> Vec<Option<Standing>> {
        let standing = |stats: trefoil_client::BackendStats| {
            let stats = stats.stats.ok()?;
            let member = stats.members.first()?;
            let recovery = member.recovery.as_ref();
            Some(Standing {
                pid: stats.process.as_ref().map_or(0, |process| process.pid),
                votes: recovery.is_some_and(|recovery| recovery.shards_left == 0),
                has_recovered: recovery.is_some_and(|recovery| recovery.done),
                shards_lost: recovery.map_or(0, |recovery| recovery.shards_lost),
                lease_left_ms: member.lease_left_ms,
                evictions: member.evictions.map_or(0, |evictions| evictions.capacity),
            })
        };
        self.cell.stats().into_iter().map(standing).collect()
    }

    /// What a backend says of itself.
    pub(super) fn standing(&self, backend: usize) -> Option<Standing> {
        self.standings().into_iter().nth(backend).flatten()
    }

    /// This process is the backend now, by the plan.
    pub(super) fn note_pid(&mut self, backend: usize, pid: u32) {
        if let Some(known) = self.pids.get_mut(backend) {
            *known = pid;
        }
    }

    /// kill -9 of a backend's process.
    pub(super) fn kill(&mut self, backend: usize, pid: u32) {
        *self.kills.entry(backend).or_default() += 1;
        signal(pid, rustix::process::Signal::KILL);
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Bytes that the cell has logged.
    pub(super) fn logged(&self) -> u64 {
        std::fs::metadata(self.log()).map_or(0, |file| file.len())
    }

    /// What it has logged since there were so many.
    pub(super) fn log_since(&self, logged: u64) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = std::fs::File::open(self.log())
            && file.seek(SeekFrom::Start(logged)).is_ok()
        {
            // What was read before an error is there.
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The cell has been resized: all of its backends are others, and whoever was away is
    /// none of them. `false`: some do not answer yet.
    pub(super) fn note_resized(&mut self, backends: usize) -> bool {
        let standings = self.standings();
        let pids = standings.iter().flatten().map(|standing| standing.pid);
        let pids: Vec<u32> = pids.collect();
        let is_there = pids.len() == backends && standings.len() == backends;
        if is_there {
            self.pids = pids;
            self.resized += 1;
        }
        is_there
    }

    /// Backends that are other processes than they should be: they have died. Of those that
    /// are `spared` nothing is said.
    pub(super) fn deaths(&mut self, spared: impl Fn(usize) -> bool) -> Vec<String> {
        let mut deaths = Vec::new();
        for (number, standing) in self.standings().into_iter().enumerate() {
            if spared(number) {
                continue;
            }
            let (Some(standing), Some(pid)) = (standing, self.pids.get_mut(number)) else {
                continue;
            };
            if standing.pid != *pid {
                deaths.push(format!("backend {number} has died by itself"));
                *pid = standing.pid;
            }
        }
        deaths
    }

    fn gateway_file(&self, release: Release) -> PathBuf {
        self.dir.path().join(match release {
            Release::Present => "gateway",
            Release::Previous => "gateway-previous",
        })
    }

    /// Kills the gateways, if there are any, and starts one of each release, on another
    /// port.
    pub(super) fn restart_gateway(&mut self) -> Result<(), RecordError> {
        for (_, old) in self.gateways.drain(..) {
            signal(old.pid, rustix::process::Signal::KILL);
        }
        self.start_gateway(Release::Present)?;
        match self.programs.previous {
            Some(_) => self.start_gateway(Release::Previous),
            None => Ok(()),
        }
    }

    fn start_gateway(&mut self, release: Release) -> Result<(), RecordError> {
        let (program, address) = (self.programs.of(release), &self.server.address);
        // A gateway of the other release may not know the option.
        let commits = self.plan.carriers.contains(&CarrierKind::Queue);
        let options: &[&str] = match commits && self.programs.previous.is_none() {
            true => &["--commit", "acknowledged"],
            false => &[],
        };
        let door = match &self.network {
            Some(_) => Door::start_at(program, address, Network::HOST, options)?,
            None => Door::start_also(program, address, options)?,
        };
        let address = door
            .memcached
            .ok_or_else(|| RecordError::Course("the gateway has no memcached door".to_owned()))?;
        // A reader sees the old address or the new one.
        let fresh = self.dir.path().join("gateway.new");
        std::fs::write(&fresh, address.to_string())
            .and_then(|()| std::fs::rename(&fresh, self.gateway_file(release)))
            .map_err(RecordError::doing("writing down the gateway's address"))?;
        self.gateways.push((release, door));
        Ok(())
    }

    fn start_worker(
        &mut self,
        carrier: CarrierKind,
        release: Release,
        fill: Option<(u32, u32)>,
    ) -> Result<(), RecordError> {
        let client = self.next_client;
        self.next_client += 1;
        let log = self.dir.path().join(format!("client-{client}"));
        let plan = WorkerPlan {
            client,
            seed: self.rng.random(),
            carrier,
            cell: self.server.address.clone(),
            // A client of one release by a gateway of the other.
            gateway: self.gateway_file(match self.programs.previous {
                Some(_) => release.other(),
                None => release,
            }),
            log: log.clone(),
            keys: self.plan.keys,
            counters: self.plan.counters(),
            value_len: self.plan.value_len,
            clock_offset_ms: self.plan.clock_offset_ms(&mut self.rng),
            fill,
        };
        let text = serde_json::to_string(&plan)
            .map_err(|e| RecordError::Course(format!("a worker's plan: {e}")))?;
        let program = self.programs.of(release);
        let mut command = match &self.network {
            Some(network) if carrier == CarrierKind::Gateway => network.command(program),
            _ => Command::new(program),
        };
        let mut child = command
            .arg(WORKER_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(RecordError::doing("starting a worker"))?;
        if let Some(stdin) = &mut child.stdin {
            writeln!(stdin, "{text}").map_err(RecordError::doing("telling a worker its plan"))?;
        }
        self.carriers.insert(client, carrier);
        self.workers.push(Worker {
            child,
            client,
            release,
            log: LogFollower::new(&log),
        });
        Ok(())
    }

    /// Kills a client in the middle of what it does, and starts another.
    pub(super) fn replace_worker(&mut self) -> Result<bool, RecordError> {
        if self.next_client >= CLIENTS_MAX || self.workers.is_empty() {
            return Ok(false);
        }
        let at = self.rng.random_range(0..self.workers.len());
        let mut worker = self.workers.swap_remove(at);
        let _ = worker.child.kill();
        let _ = worker.child.wait();
        let (carrier, release) = (self.carriers[&worker.client], worker.release);
        self.note_ended(worker);
        self.start_worker(carrier, release, None)?;
        Ok(true)
    }

    /// Whether backends may not have found yet that what keeps the configuration is back:
    /// until then orders that change it are refused.
    pub(super) fn store_may_be_away(&self) -> bool {
        let is_recent = |at: Instant| at.elapsed() < STORE_FOUND;
        self.store_is_away || self.store_was_away.is_some_and(is_recent)
    }

    /// Waits until every client has written its share of the keys.
    fn await_filled(&mut self, troubles: &mut Vec<String>) {
        let mut progress = Progress::new();
        let has_filled = |worker: &Worker| filled_file(worker.log.path()).exists();
        while !self.workers.iter().all(has_filled) {
            std::thread::sleep(LOOK_PERIOD);
            if let Some(trouble) = progress.trouble(&self.succeeded()) {
                troubles.push(format!("the keys could not be written: {trouble}"));
                return;
            }
            self.look_after_workers(troubles);
        }
    }

    /// How many operations have succeeded by each carrier.
    fn succeeded(&mut self) -> BTreeMap<CarrierKind, u64> {
        let mut succeeded = self.ended_succeeded.clone();
        for worker in &mut self.workers {
            let carrier = self.carriers[&worker.client];
            *succeeded.entry(carrier).or_default() += worker.log.look();
        }
        succeeded
    }

    /// How much was recorded, of operations that failed, too: a round ends where nothing
    /// succeeds any more, as where the only copy is killed again and again.
    fn records(&self) -> u64 {
        let running = self.workers.iter().map(|worker| worker.log.records());
        self.ended_records + running.sum::<u64>()
    }

    /// What it has done stays done.
    fn note_ended(&mut self, mut worker: Worker) {
        let carrier = self.carriers[&worker.client];
        *self.ended_succeeded.entry(carrier).or_default() += worker.log.look();
        self.ended_records += worker.log.records();
        self.ended.push(worker.log.path().to_owned());
    }

    /// A worker that ended by itself has failed.
    fn look_after_workers(&mut self, troubles: &mut Vec<String>) {
        let mut at = 0;
        while at < self.workers.len() {
            match self.workers[at].child.try_wait() {
                Ok(None) => at += 1,
                ended => {
                    let worker = self.workers.swap_remove(at);
                    let carrier = self.carriers[&worker.client];
                    troubles.push(format!("a {carrier} client ended by itself: {ended:?}"));
                    self.note_ended(worker);
                }
            }
        }
    }

    /// One stands by, where they are needed; with etcd away none could begin.
    fn look_after_spares(&mut self) -> Result<(), RecordError> {
        if self.store_is_away || !self.plan.faults.contains(&Fault::Replace) {
            return Ok(());
        }
        let (dir, store) = (self.dir.path(), self.server.address.as_str());
        let (program, memory) = (self.programs.present, self.plan.memory);
        self.spares.look(program, (dir, store), memory, &self.pids)
    }

    fn check_servers(&mut self, faults: &Faults, troubles: &mut Vec<String>) {
        troubles.extend(self.deaths(|backend| faults.concerns(backend)));
        let silent = self.standings().into_iter().enumerate();
        let silent = silent.filter_map(|(number, s)| s.is_none().then_some(number));
        for number in silent.filter(|number| !faults.concerns(*number)) {
            troubles.push(format!("backend {number} does not answer in the end"));
        }
        let takes_store = |fault: &Fault| part_of(*fault) == Part::Store;
        let is_away = self.plan.faults.iter().any(takes_store);
        troubles.extend(cell_log::troubles(&self.log_since(0), &self.kills, is_away));
        for log in Spares::logs(self.dir.path()) {
            let log = std::fs::read(log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            troubles.extend(cell_log::troubles(&log, &BTreeMap::new(), false));
        }
        if self.gateways.iter().any(|(_, door)| !is_running(door.pid)) {
            troubles.push("a gateway has died by itself".to_owned());
        }
    }

    /// The end of what the cell has logged.
    fn log_tail(&self) -> Vec<String> {
        let text = self.log_since(0);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES);
        let line = |line: &&str| format!("the cell's log: {line}");
        lines[from..].iter().map(line).collect()
    }

    /// Ends the clients, and reads the logs.
    fn end_clients(
        &mut self,
        losses: Vec<Event>,
        troubles: &mut Vec<String>,
    ) -> Result<Vec<Event>, RecordError> {
        for worker in &mut self.workers {
            drop(worker.child.stdin.take());
        }
        let begin = Instant::now();
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) {
                if begin.elapsed() > END_PATIENCE {
                    let carrier = self.carriers[&worker.client];
                    troubles.push(format!("a {carrier} client hung in its last operation"));
                    let _ = worker.child.kill();
                    let _ = worker.child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let mut events = std::mem::take(&mut self.events);
        events.extend(losses);
        let running = self.workers.iter().map(|worker| worker.log.path());
        for log in running.chain(self.ended.iter().map(PathBuf::as_path)) {
            match LogReader::read(log) {
                Ok(read) => events.extend(read),
                // Killed before it began.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => {
                    let what = "reading a worker's log";
                    return Err(RecordError::Io { what, source });
                }
            }
        }
        Ok(events)
    }
}

/// How many operations had succeeded by each carrier, and since when there were no more.
struct Progress {
    since: Instant,
    last: BTreeMap<CarrierKind, (u64, Instant)>,
}

impl Progress {
    fn new() -> Self {
        Progress {
            since: Instant::now(),
            last: BTreeMap::new(),
        }
    }

    /// What hangs, if anything does.
    fn trouble(&mut self, succeeded: &BTreeMap<CarrierKind, u64>) -> Option<String> {
        for (carrier, count) in succeeded {
            let last = self.last.entry(*carrier).or_insert((0, self.since));
            if *count > last.0 {
                *last = (*count, Instant::now());
            } else if last.1.elapsed() > PROGRESS_PATIENCE {
                let why = format!("no operation by {carrier} has succeeded");
                return Some(format!("{why} for {PROGRESS_PATIENCE:?}"));
            }
        }
        None
    }
}

/// Neither gone nor waiting to be reaped.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}
