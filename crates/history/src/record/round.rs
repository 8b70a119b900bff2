//! One round: a fresh cell, clients at work, faults, and all that was logged.

use super::RecordError;
use super::faults::Faults;
use super::plan::{CarrierKind, Fault, RoundPlan};
use super::upgrade::{Programs, Release, Upgraded, Upgrades};
use super::worker::{WORKER_COMMAND, WorkerPlan};
use crate::event::Event;
use crate::log::{LogReader, RECORD_LEN};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_bench::server::{Door, Server, ServerOptions};
use trefoil_client::Cell;

/// Between two looks at how far the workers are.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// A round that makes no progress for so long hangs.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(30);
/// How long a worker may take to end: its operation's deadline, and a busy machine.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Clients that a counter's value can name.
const CLIENTS_MAX: u32 = 4_000;

/// What a round has left.
pub(super) struct Recorded {
    pub events: Vec<Event>,
    /// How each client reached the cell.
    pub carriers: BTreeMap<u32, CarrierKind>,
    /// What went wrong on purpose, and how often.
    pub faults: BTreeMap<Fault, u64>,
    /// Backends that were killed and voted again.
    pub recoveries: u64,
    /// Of a round with another release.
    pub upgraded: Option<Upgraded>,
    /// What went wrong and should not have.
    pub troubles: Vec<String>,
    pub seconds: f64,
}

struct Worker {
    child: Child,
    client: u32,
    release: Release,
    log: PathBuf,
}

/// A round under way; also what faults are done to.
pub(super) struct Round<'a> {
    pub plan: &'a RoundPlan,
    pub server: Server,
    pub cell: Cell,
    pub rng: SmallRng,
    programs: Programs<'a>,
    dir: TempDir,
    /// One of each release.
    gateways: Vec<(Release, Door)>,
    workers: Vec<Worker>,
    ended: Vec<PathBuf>,
    carriers: BTreeMap<u32, CarrierKind>,
    next_client: u32,
}

/// Runs a round.
pub(super) fn run(program: &Path, plan: &RoundPlan) -> Result<Recorded, RecordError> {
    let begin = Instant::now();
    let mut round = Round::start(program, plan)?;
    let mut faults = Faults::new(plan);
    let first = Release::first(plan.seed);
    let mut upgrades = Upgrades::new(round.programs, first);
    let mut troubles = Vec::new();
    let mut last = (0, Instant::now());
    loop {
        std::thread::sleep(LOOK_PERIOD);
        let done = round.operations();
        let moves = upgrades
            .as_ref()
            .is_some_and(|upgrades| !upgrades.is_over());
        if done >= plan.operations && !moves {
            break;
        }
        if done > last.0 {
            last = (done, Instant::now());
        } else if last.1.elapsed() > PROGRESS_PATIENCE {
            troubles.push(format!("no operation has ended for {PROGRESS_PATIENCE:?}"));
            break;
        }
        let share = done as f64 / plan.operations.max(1) as f64;
        faults.step(&mut round, share)?;
        if let Some(upgrades) = &mut upgrades {
            upgrades.step(&mut round, share)?;
        }
        round.look_after_workers(&mut troubles);
    }
    round.check_servers(&faults, &mut troubles);
    troubles.extend(faults.trouble().cloned());
    let upgrades = upgrades.as_ref();
    troubles.extend(upgrades.and_then(|upgrades| upgrades.trouble().cloned()));
    let upgraded = upgrades.and_then(Upgrades::done);
    let recoveries = faults.recoveries();
    faults.end();
    let (events, carriers) = round.end(faults.events(), &mut troubles)?;
    Ok(Recorded {
        events,
        carriers,
        faults: faults.counts(),
        recoveries,
        upgraded,
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
        let programs = Programs {
            present: program,
            previous: plan.previous.as_deref(),
        };
        // As often as may be: what it does to keys is to be in the histories.
        let mut more = vec!["--repair-interval", "1s"];
        if plan.previous.is_some() {
            more.extend(["--backends", "3", "--spares", "1"]);
        }
        let first = programs.of(Release::first(plan.seed));
        let server = Server::start(&ServerOptions {
            processes: true,
            is_silent: true,
            dir: Some(dir.path().join("cell")),
            more: more.into_iter().map(str::to_owned).collect(),
            ..ServerOptions::new(first, plan.mode, plan.memory)
        })?;
        let cell = Cell::connect(&server.address)?;
        let mut round = Round {
            plan,
            cell,
            rng: SmallRng::seed_from_u64(plan.seed ^ 0x51D),
            programs,
            gateways: Vec::new(),
            workers: Vec::new(),
            ended: Vec::new(),
            carriers: BTreeMap::new(),
            next_client: 1,
            server,
            dir,
        };
        if plan.carriers.contains(&CarrierKind::Gateway) {
            round.restart_gateway()?;
        }
        for at in 0..plan.clients {
            let carriers = plan.carriers.len();
            let release = match at / carriers % 2 {
                0 => Release::Present,
                _ => Release::Previous,
            };
            round.start_worker(plan.carriers[at % carriers], release)?;
        }
        Ok(round)
    }

    pub(super) fn program(&self) -> &Path {
        self.programs.present
    }

    pub(super) fn cell_dir(&self) -> PathBuf {
        self.dir.path().join("cell")
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
            super::faults::signal(old.pid, rustix::process::Signal::KILL);
        }
        self.start_gateway(Release::Present)?;
        match self.programs.previous {
            Some(_) => self.start_gateway(Release::Previous),
            None => Ok(()),
        }
    }

    fn start_gateway(&mut self, release: Release) -> Result<(), RecordError> {
        let door = Door::start(self.programs.of(release), &self.server.address, None)?;
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

    fn start_worker(&mut self, carrier: CarrierKind, release: Release) -> Result<(), RecordError> {
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
        };
        let text = serde_json::to_string(&plan)
            .map_err(|e| RecordError::Course(format!("a worker's plan: {e}")))?;
        let mut child = Command::new(self.programs.of(release))
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
            log,
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
        self.ended.push(worker.log);
        let carrier = self.carriers[&worker.client];
        self.start_worker(carrier, worker.release)?;
        Ok(true)
    }

    /// About as many as have been logged: a mutation has two records.
    fn operations(&self) -> u64 {
        let running = self.workers.iter().map(|worker| &worker.log);
        let records = running.chain(&self.ended).map(|log| {
            let len = std::fs::metadata(log).map_or(0, |file| file.len());
            len / RECORD_LEN as u64
        });
        records.sum::<u64>() * 3 / 4
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
                    self.ended.push(worker.log);
                }
            }
        }
    }

    fn check_servers(&self, faults: &Faults, troubles: &mut Vec<String>) {
        for (number, pid) in self.server.pids.iter().enumerate() {
            if faults.killed() != Some(number) && !is_running(*pid) {
                troubles.push(format!("backend {number} has died by itself"));
            }
        }
        if self.gateways.iter().any(|(_, door)| !is_running(door.pid)) {
            troubles.push("a gateway has died by itself".to_owned());
        }
    }

    /// Ends the clients, then the servers, and reads the logs.
    fn end(
        mut self,
        mut events: Vec<Event>,
        troubles: &mut Vec<String>,
    ) -> Result<(Vec<Event>, BTreeMap<u32, CarrierKind>), RecordError> {
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
        let running = self.workers.iter().map(|worker| &worker.log);
        for log in running.chain(&self.ended) {
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
        Ok((events, self.carriers))
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
