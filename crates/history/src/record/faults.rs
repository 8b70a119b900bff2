//! What goes wrong in a round: one thing at a time, and at most one backend
//! that does not work.

use super::RecordError;
use super::plan::{Fault, RoundPlan};
use super::round::Round;
use super::worker::now_ns;
use crate::event::{Event, Kind, Outcome};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two faults.
const PAUSE_MS: std::ops::Range<u64> = 20..400;
/// How long a backend stands still: shorter and longer than its lease.
const STOP_MS: std::ops::Range<u64> = 50..1_500;
/// Who flushes and loses, among the events: no client.
const NOBODY: u32 = 0;
/// No backend works with less.
const MEMORY_MIN: u64 = 32 << 20;
/// How long a backend may take to recover, on a machine that does much else.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);
/// Share of the round after which a backend may be killed: memory is full by then.
const KILL_AFTER: f64 = 0.4;

pub(super) struct Faults {
    enabled: Vec<Fault>,
    next: Instant,
    /// The backend that stands still, and until when.
    stopped: Option<(u32, Instant)>,
    killed: Option<usize>,
    /// The loss that the kill was, if there is no other copy.
    loss: Option<Event>,
    /// The one started in its place, which has not recovered yet, and when it was.
    successor: Option<(Child, Instant)>,
    /// Those who have.
    recovered: Vec<Child>,
    counts: BTreeMap<Fault, u64>,
    events: Vec<Event>,
    /// What should not have happened.
    trouble: Option<String>,
}

impl Faults {
    pub(super) fn new(plan: &RoundPlan) -> Self {
        let mut enabled = plan.faults.clone();
        enabled.retain(|fault| *fault != Fault::Skew);
        let counts = match plan.faults.contains(&Fault::Skew) {
            true => BTreeMap::from([(Fault::Skew, 1)]),
            false => BTreeMap::new(),
        };
        Faults {
            enabled,
            next: Instant::now() + Duration::from_millis(200),
            stopped: None,
            killed: None,
            loss: None,
            successor: None,
            recovered: Vec::new(),
            counts,
            events: Vec::new(),
            trouble: None,
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<Fault, u64> {
        self.counts.clone()
    }

    /// The flushes and losses.
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().chain(&self.loss).copied().collect()
    }

    /// How many backends have lost their memory and voted again.
    pub(super) fn recoveries(&self) -> u64 {
        self.recovered.len() as u64
    }

    /// What should not have happened.
    pub(super) fn trouble(&self) -> Option<&String> {
        self.trouble.as_ref()
    }

    pub(super) fn killed(&self) -> Option<usize> {
        self.killed
    }

    /// Called often; does something now and then.
    pub(super) fn step(&mut self, round: &mut Round<'_>, done: f64) -> Result<(), RecordError> {
        let now = Instant::now();
        if self.stopped.is_some_and(|(_, until)| until <= now) {
            self.go_on();
        }
        if now < self.next {
            return Ok(());
        }
        self.next = now + Duration::from_millis(round.rng.random_range(PAUSE_MS));
        self.look_for_recovery(round);
        let Some(fault) = self.enabled.choose(&mut round.rng).copied() else {
            return Ok(());
        };
        if self.apply(fault, round, done)? {
            *self.counts.entry(fault).or_default() += 1;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        fault: Fault,
        round: &mut Round<'_>,
        done: f64,
    ) -> Result<bool, RecordError> {
        let all_work = self.stopped.is_none() && self.killed.is_none();
        match fault {
            Fault::Stop if all_work => {
                let Some(pid) = round.server.pids.choose(&mut round.rng).copied() else {
                    return Ok(false);
                };
                signal(pid, Signal::STOP);
                let stay = Duration::from_millis(round.rng.random_range(STOP_MS));
                self.stopped = Some((pid, Instant::now() + stay));
                Ok(true)
            }
            Fault::Kill if all_work && done > KILL_AFTER => {
                let number = round.rng.random_range(0..round.server.pids.len());
                if round.plan.mode == "R=1" {
                    let event = Event::begun(NOBODY, 0, 0, Kind::Loss, now_ns());
                    self.loss = Some(event);
                }
                round.server.kill(number);
                self.killed = Some(number);
                Ok(true)
            }
            Fault::Restart if self.successor.is_none() => self.restart(round),
            Fault::ClientKill => round.replace_worker(),
            Fault::GatewayRestart => round.restart_gateway().map(|()| true),
            // A flush needs an answer of every backend that lives.
            Fault::Flush if self.stopped.is_none() => Ok(self.flush(round)),
            Fault::Memory => {
                let limit = round.plan.memory / 4 * round.rng.random_range(2..=6);
                let limit = limit.max(MEMORY_MIN);
                let _ = round.cell.set_memory_limit(limit);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Starts a backend where one was killed. It has forgotten everything.
    fn restart(&mut self, round: &Round<'_>) -> Result<bool, RecordError> {
        let Some(number) = self.killed else {
            return Ok(false);
        };
        // The killed one has gone by now: it does not answer after this.
        if let Some(loss) = &mut self.loss {
            loss.end_ns = now_ns();
            loss.outcome = Outcome::Stored;
        }
        let child = Command::new(round.program())
            .args(["cell", "backend", "--dir"])
            .arg(round.cell_dir())
            .args(["--number", &number.to_string()])
            .args(["--memory", &round.plan.memory.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(RecordError::doing("starting a backend again"))?;
        self.successor = Some((child, Instant::now()));
        Ok(true)
    }

    /// Once it votes again, another one may be killed.
    fn look_for_recovery(&mut self, round: &mut Round<'_>) {
        let (Some(number), Some((successor, since))) = (self.killed, self.successor.take()) else {
            return;
        };
        let pid = successor.id();
        let stats = round.cell.stats().into_iter().nth(number);
        let stats = stats.and_then(|answer| answer.stats.ok());
        let votes = stats.is_some_and(|stats| {
            let is_it = stats.process.is_some_and(|process| process.pid == pid);
            let mut recoveries = stats.members.iter().map(|member| &member.recovery);
            is_it && recoveries.all(|recovery| matches!(recovery, Some(r) if r.shards_left == 0))
        });
        if !votes {
            let is_stuck = round.plan.mode != "R=1" && since.elapsed() > RECOVERY_PATIENCE;
            if is_stuck && self.trouble.is_none() {
                let patience = RECOVERY_PATIENCE.as_secs();
                let trouble = format!("backend {number} has not recovered within {patience} s");
                self.trouble = Some(trouble);
            }
            self.successor = Some((successor, since));
            return;
        }
        round.server.pids[number] = pid;
        self.killed = None;
        self.recovered.push(successor);
    }

    fn flush(&mut self, round: &Round<'_>) -> bool {
        let number = self.events.len() as u32 + 1;
        let mut event = Event::begun(NOBODY, number, 0, Kind::Flush, now_ns());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let flushed = round
            .cell
            .flush(now.map_or(0, |now| now.as_millis() as u64));
        event.end_ns = now_ns();
        event.outcome = match flushed {
            Ok(_) => Outcome::Stored,
            Err(_) => Outcome::Unknown,
        };
        self.events.push(event);
        event.outcome == Outcome::Stored
    }

    fn go_on(&mut self) {
        if let Some((pid, _)) = self.stopped.take() {
            signal(pid, Signal::CONT);
        }
    }

    /// Nobody is left standing still.
    pub(super) fn end(&mut self) {
        self.go_on();
        let successor = self.successor.take().map(|(child, _)| child);
        for mut child in self.recovered.drain(..).chain(successor) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.end();
    }
}

/// It fails only if the process is gone already.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}
