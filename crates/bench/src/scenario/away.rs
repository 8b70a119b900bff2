//! A replica is away while some keys are written, comes back, and another one
//! stands still: of those keys only one copy is left that is up to date. They
//! are misses, at once, until somebody writes them; and when all are back,
//! nothing that anybody touches stays without a quorum.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use trefoil_client::{
    CarrierInUse, Cell, Client, LinkStatus, Lookup, MissReason, Options, SetOptions,
};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::server::{Server, ServerOptions};

const MEMORY: u64 = 64 << 20;
const KEYS: u64 = 2_000;
const WRITTEN: u64 = 500;
const VALUE_LEN: usize = 256;
const AWAY: usize = 2;
const OTHER: usize = 0;
const AWAY_FOR: Duration = Duration::from_secs(3);
/// Until a lease of 500 ms has ended, and a client believes that it has.
const LEASE_OVER: Duration = Duration::from_millis(700);

/// Until a client has connected anew to a backend that is back. It tries once a
/// second.
const REACH_PATIENCE: Duration = Duration::from_secs(10);

/// What must be shown of an inquorate GET, in milliseconds.
const INQUORATE_GET_MS_MAX: f64 = 1.0;

/// What came of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AwayReport {
    /// Keys of the corpus.
    pub keys: u64,
    /// Of these, written while a replica was away.
    pub written: u64,
    /// GETs of those keys without a quorum while another replica stands still.
    pub inquorate: u64,
    /// What such a GET took, median, in milliseconds.
    pub inquorate_get_p50_ms: f64,
    /// The 99th percentile.
    pub inquorate_get_p99_ms: f64,
    /// The slowest.
    pub inquorate_get_max_ms: f64,
    /// Of the keys without a quorum that were then SET, those that were not
    /// found by the next GET.
    pub lost_after_set: u64,
    /// Of those that were then filled, those that were not found.
    pub lost_after_fill: u64,
    /// From then on until the client, which only reads, reaches all of them.
    pub reached_after_ms: f64,
    /// Keys without a quorum at their second GET after that.
    pub inquorate_for_good: u64,
    /// Values older than what had been acknowledged.
    pub stale: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The first message.
    pub first_error: Option<String>,
}

impl AwayReport {
    /// Everything that must be shown is; without a GET that found no quorum,
    /// nothing was shown.
    pub fn is_clean(&self) -> bool {
        self.stale + self.errors + self.inquorate_for_good == 0
            && self.lost_after_set + self.lost_after_fill == 0
            && self.inquorate > 0
            && self.inquorate_get_p99_ms <= INQUORATE_GET_MS_MAX
    }
}

/// Takes replicas away one after the other.
pub fn away(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<AwayReport, ScenarioError> {
    options.pin()?;
    progress("away: filling");
    let server = Server::start(&ServerOptions {
        processes: true,
        is_silent: true,
        ..options.server("R=3.2", MEMORY)
    })?;
    let mut run = Run {
        client: Cell::connect(&server.address)?.client(Options::default()),
        acked: vec![0; KEYS as usize],
        report: AwayReport {
            keys: KEYS,
            written: WRITTEN,
            ..AwayReport::default()
        },
    };
    for key in 0..KEYS {
        run.set(key, 1);
    }
    progress("away: a replica stands still, keys are written");
    server.signal(AWAY, Signal::STOP);
    let begin = Instant::now();
    // Whoever reads learns that its lease is over. What stands in its ring it
    // would execute when it is back: nothing may be sent to it any more.
    std::thread::sleep(LEASE_OVER);
    for key in 0..KEYS {
        run.get(key);
    }
    for key in 0..WRITTEN {
        run.set(key, 2);
    }
    std::thread::sleep(AWAY_FOR.saturating_sub(begin.elapsed()));
    server.signal(AWAY, Signal::CONT);
    std::thread::sleep(LEASE_OVER);
    progress("away: it is back, another stands still");
    server.signal(OTHER, Signal::STOP);
    std::thread::sleep(LEASE_OVER);
    // Whoever meets the silence first pays for it; that is another scenario's.
    for key in WRITTEN..KEYS {
        run.get(key);
    }
    let mut took_ms = Vec::new();
    let mut open = Vec::new();
    for key in 0..WRITTEN {
        let begin = Instant::now();
        let seen = run.get(key);
        if seen == Seen::Inquorate {
            took_ms.push(begin.elapsed().as_secs_f64() * 1e3);
            open.push(key);
        }
    }
    took_ms.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = took_ms.len().saturating_sub(1) as f64;
        took_ms.get((last * share) as usize).copied().unwrap_or(0.0)
    };
    run.report.inquorate = took_ms.len() as u64;
    run.report.inquorate_get_p50_ms = at(0.5);
    run.report.inquorate_get_p99_ms = at(0.99);
    run.report.inquorate_get_max_ms = at(1.0);
    progress("away: a third is set, a third is filled");
    for (at, key) in open.iter().enumerate() {
        match at % 3 {
            0 => {
                run.set(*key, 3);
                let lost = run.get(*key) != Seen::Value;
                run.report.lost_after_set += u64::from(lost);
            }
            1 => {
                run.fill(*key, 3);
                let lost = run.get(*key) != Seen::Value;
                run.report.lost_after_fill += u64::from(lost);
            }
            _ => {}
        }
    }
    progress("away: all are back");
    server.signal(OTHER, Signal::CONT);
    let begin = Instant::now();
    run.reach_all()?;
    run.report.reached_after_ms = begin.elapsed().as_secs_f64() * 1e3;
    for key in 0..KEYS {
        run.get(key);
    }
    for key in 0..KEYS {
        let inquorate = run.get(key) == Seen::Inquorate;
        run.report.inquorate_for_good += u64::from(inquorate);
    }
    Ok(run.report)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Value,
    Nothing,
    Inquorate,
}

struct Run {
    client: Client,
    /// The newest acknowledged of each key.
    acked: Vec<u8>,
    report: AwayReport,
}

impl Run {
    /// Reads until every backend is reached as before.
    fn reach_all(&mut self) -> Result<(), ScenarioError> {
        let begin = Instant::now();
        let is_away = |link: &LinkStatus| link.carrier != CarrierInUse::Shared;
        while self.client.carriers().iter().any(is_away) {
            if begin.elapsed() > REACH_PATIENCE {
                let carriers = self.client.carriers();
                let why = format!("a client that reads does not reach all: {carriers:?}");
                return Err(ScenarioError::Course(why));
            }
            for key in 0..KEYS {
                self.get(key);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn get(&mut self, key: u64) -> Seen {
        let acked = self.acked[key as usize];
        match self.client.get(&key.to_le_bytes()) {
            Ok(Lookup::Hit(hit)) => {
                let is_old = hit.value.first().is_none_or(|first| *first < acked);
                self.report.stale += u64::from(is_old);
                Seen::Value
            }
            Ok(Lookup::Miss(miss)) if miss.reason == MissReason::Inquorate => Seen::Inquorate,
            Ok(Lookup::Miss(_)) => Seen::Nothing,
            Err(error) => {
                self.failed(error.to_string());
                Seen::Nothing
            }
        }
    }

    fn set(&mut self, key: u64, generation: u8) {
        let value = [generation; VALUE_LEN];
        match self
            .client
            .set(&key.to_le_bytes(), &value, SetOptions::default())
        {
            Ok(_) => self.acked[key as usize] = generation,
            Err(error) => self.failed(error.to_string()),
        }
    }

    fn fill(&mut self, key: u64, generation: u8) {
        let value = [generation; VALUE_LEN];
        let ticket = match self.client.get(&key.to_le_bytes()) {
            Ok(Lookup::Miss(miss)) => miss.fill,
            Ok(Lookup::Hit(_)) => return,
            Err(error) => return self.failed(error.to_string()),
        };
        let filled = self
            .client
            .fill(ticket, &key.to_le_bytes(), &value, SetOptions::default());
        if let Err(error) = filled {
            self.failed(error.to_string());
        }
    }

    fn failed(&mut self, message: String) {
        self.report.errors += 1;
        self.report.first_error.get_or_insert(message);
    }
}
