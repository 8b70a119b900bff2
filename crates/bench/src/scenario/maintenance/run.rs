//! One run: a cell, a load, and what is done to a backend meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{Cell, Options};

use super::super::aside::onlooker;
use super::super::planned::order;
use super::super::read_back::ReadBack;
use super::super::steady::{Course, Ended, Load, OPS_PER_S};
use super::super::{Progress, ScenarioError};
use super::MaintenanceOptions;
use super::phase::Phase;
use super::slots::{SLOT, Slot, slots};
use super::watch::watch;
use crate::server::{Server, ServerOptions};

const BACKENDS: usize = 3;
/// The one that something is done to.
const VICTIM: usize = 1;
/// How long a recovery may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at how far it is.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Memory of each process, beside what its items take.
const MEMORY_MIN: u64 = 128 << 20;
/// Of an item of 1,000 bytes with everything that belongs to it, generously.
const MEMORY_OF_ITEM: u64 = 1500;

/// What is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    name: &'static str,
    title: &'static str,
    mode: &'static str,
    is_planned: bool,
}

pub(super) const PLANNED_THREE: Plan = Plan {
    name: "planned-r3.2",
    title: "Planned maintenance by a warm spare, R=3.2",
    mode: "R=3.2",
    is_planned: true,
};
pub(super) const PLANNED_ONE: Plan = Plan {
    name: "planned-r1",
    title: "Planned maintenance by a warm spare, R=1",
    mode: "R=1",
    is_planned: true,
};
pub(super) const UNPLANNED: Plan = Plan {
    name: "unplanned-r3.2",
    title: "kill -9 of one of three backends, R=3.2",
    mode: "R=3.2",
    is_planned: false,
};

/// A moment at which something was done, or was over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaintenanceEvent {
    /// From the run's start.
    pub at_ms: u64,
    /// What.
    pub label: String,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct MaintenanceRun {
    /// Of its files.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Copies.
    pub mode: &'static str,
    /// Items of 1,000 bytes in the cell.
    pub keys: u64,
    /// Bytes of all data entries of the backend that something was done to.
    pub corpus_bytes: u64,
    /// Until the first event.
    pub before: Phase,
    /// Until the last.
    pub during: Phase,
    /// After it.
    pub after: Phase,
    /// All keys, read afterwards.
    #[serde(flatten)]
    pub read_back: ReadBack,
    /// The whole load, with how late its own loop was.
    pub load: Course,
    /// What was done when.
    pub events: Vec<MaintenanceEvent>,
    /// Milliseconds of a slot.
    pub slot_ms: u64,
    /// All slots, in order.
    pub slots: Vec<Slot>,
}

impl MaintenanceRun {
    pub(super) fn is_clean(&self) -> bool {
        let phases = [&self.before, &self.during, &self.after];
        let bad = |phase: &&Phase| phase.failed + phase.misses + phase.stale > 0;
        !phases.iter().any(bad) && self.load.is_kept() && self.read_back.is_clean()
    }
}

/// Does it.
pub(super) fn run(
    options: &MaintenanceOptions,
    plan: Plan,
    progress: Progress<'_>,
) -> Result<MaintenanceRun, ScenarioError> {
    let name = plan.name;
    progress(&format!("{name}: filling"));
    let memory = MEMORY_MIN + options.keys * MEMORY_OF_ITEM;
    let (backends, spares) = (BACKENDS.to_string(), u32::from(plan.is_planned).to_string());
    let more = ["--backends", &backends, "--spares", &spares];
    let more = more.into_iter().chain(["--restart", "always"]);
    let server = Server::start(&ServerOptions {
        processes: true,
        more: more.map(str::to_owned).collect(),
        is_silent: true,
        ..options.scenario.server(plan.mode, memory)
    })?;
    let cell = Cell::connect(&server.address)?;
    let mut load = Load::new(cell.client(Options::default()), options.keys);
    load.fill()?;
    server.settle()?;
    let onlooker = onlooker(&options.scenario, &server.address)?;

    progress(&format!("{name}: begins"));
    let stage = Stage {
        options,
        server: &server,
        cell: &onlooker,
        origin: Instant::now(),
        events: Mutex::default(),
    };
    let corpus_bytes = stage.entry_bytes();
    let is_over = AtomicBool::new(false);
    // Made before it begins, and longer than needed: growing would be seen in the figures.
    let seconds = 6 * options.calm.as_secs() + PATIENCE.as_secs();
    let mut ended: Vec<Ended> = Vec::with_capacity((seconds * OPS_PER_S) as usize);
    let (length, load_course, looks, done) = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            // Where that fails they disturb the load; its figures show that.
            let _ = options.scenario.pin_aside();
            watch(&onlooker, server.process(), stage.origin, &is_over)
        });
        let events = scope.spawn(|| {
            // Where that fails they disturb the load; its figures show that.
            let _ = options.scenario.pin_aside();
            stage.course(plan)
        });
        let course = load.run_noting(&mut || events.is_finished(), &mut |one| ended.push(one));
        let length = stage.origin.elapsed();
        is_over.store(true, Ordering::Relaxed);
        (length, course, looks.join(), events.join())
    });
    let panicked = || ScenarioError::Course(format!("{name}: a thread has panicked"));
    done.map_err(|_| panicked())?
        .map_err(|why| ScenarioError::Course(format!("{name}: {why}")))?;
    let looks = looks.map_err(|_| panicked())?;

    progress(&format!("{name}: everything is read"));
    let read_back = load.read_back(Cell::connect(&server.address)?.client(Options::default()));
    let events = stage.events.into_inner();
    let events = events.unwrap_or_else(PoisonError::into_inner);
    let slots = slots(&ended, &looks, length);
    let slot_ms = SLOT.as_millis() as u64;
    let at_ms = |event: Option<&MaintenanceEvent>| event.map_or(0, |event| event.at_ms);
    let (first_ms, last_ms) = (at_ms(events.first()), at_ms(events.last()));
    // The slots with the first event and with the last, and the one in which the last was
    // seen, belong to what is between them.
    let count = slots.len();
    let begin = ((first_ms / slot_ms) as usize).min(count);
    let end = ((last_ms / slot_ms) as usize + 2).clamp(begin, count);
    let (first, last) = (first_ms * 1_000_000, last_ms * 1_000_000);
    Ok(MaintenanceRun {
        name,
        title: plan.title,
        mode: plan.mode,
        keys: options.keys,
        corpus_bytes,
        before: Phase::of(&ended, (0, first), &slots[..begin]),
        during: Phase::of(&ended, (first, last), &slots[begin..end]),
        after: Phase::of(&ended, (last, length.as_nanos() as u64), &slots[end..]),
        read_back,
        load: load_course,
        events,
        slot_ms,
        slots,
    })
}

/// What the events happen to.
struct Stage<'a> {
    options: &'a MaintenanceOptions,
    server: &'a Server,
    cell: &'a Cell,
    origin: Instant,
    events: Mutex<Vec<MaintenanceEvent>>,
}

impl Stage<'_> {
    fn note(&self, label: &str) {
        let event = MaintenanceEvent {
            at_ms: self.origin.elapsed().as_millis() as u64,
            label: label.to_owned(),
        };
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }

    fn course(&self, plan: Plan) -> Result<(), String> {
        std::thread::sleep(self.options.calm);
        match plan.is_planned {
            true => self.planned()?,
            false => self.unplanned()?,
        }
        std::thread::sleep(self.options.calm);
        Ok(())
    }

    /// As in the paper: the backend moves to the spare, its process ends, a new one starts
    /// in its place and takes the data back.
    fn planned(&self) -> Result<(), String> {
        let victim = VICTIM.to_string();
        let give = |order_: &str| {
            let arguments = [order_, &victim];
            order(
                &self.options.scenario.program,
                &self.server.address,
                &arguments,
            )
        };
        self.note("drain");
        give("drain")?;
        self.note("on the spare");
        std::thread::sleep(self.options.calm);
        // The backend has a process of its own again, and another spare is started.
        self.note("restart");
        give("restart")?;
        self.note("back");
        Ok(())
    }

    fn unplanned(&self) -> Result<(), String> {
        self.note("kill -9");
        self.server.kill(VICTIM);
        self.await_recovery("recovered", |shards_left, _| shards_left == 0)?;
        self.await_recovery("repaired", |_, is_done| is_done)
    }

    fn await_recovery(
        &self,
        label: &str,
        is_reached: fn(shards_left: u32, is_done: bool) -> bool,
    ) -> Result<(), String> {
        let killed = self.server.pids[VICTIM];
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let answer = self.cell.stats().into_iter().nth(VICTIM);
            let stats = answer.and_then(|answer| answer.stats.ok());
            let another = stats.filter(|stats| {
                let process = stats.process.as_ref();
                process.is_some_and(|process| process.pid != killed)
            });
            let member = another.and_then(|stats| stats.members.into_iter().next());
            let recovery = member.and_then(|member| member.recovery);
            if recovery.is_some_and(|one| is_reached(one.shards_left, one.done)) {
                self.note(label);
                return Ok(());
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        Err(format!("not {label} within {PATIENCE:?}"))
    }

    fn entry_bytes(&self) -> u64 {
        let answer = self.cell.stats().into_iter().nth(VICTIM);
        let stats = answer.and_then(|answer| answer.stats.ok());
        let member = stats.and_then(|stats| stats.members.into_iter().next());
        member.map_or(0, |member| member.entry_bytes)
    }
}
