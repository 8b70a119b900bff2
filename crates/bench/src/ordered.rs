//! The ordered queue beside today's SET of a cell: the rows that a running program is needed
//! for, and those from another host. All others are `trefoil-ordered-load`'s.

mod far_workloads;
mod off_host;
mod one_thread;
mod plots;
#[cfg(test)]
mod vanished;

pub use plots::draw;

use crate::load::pin_current_thread;
use crate::server::{Server, ServerOptions};
use hdrhistogram::Histogram;
use std::path::Path;
use std::time::{Duration, Instant};
use trefoil_client::{Cell, Client, Commit, OpError, Options, SetOptions};
use trefoil_ordered_load::{
    Latency, LoadError, LoadOptions, OrderedReport, Pace, Progress, Way, measure,
};

/// Of the server of today's SETs.
const MEMORY: u64 = 256 << 20;
/// Keys of today's SETs.
const KEYS: u64 = 10_000;
/// Arrivals while the server is awake.
const AWAKE_PER_S: f64 = 100_000.0;
/// How long a backend takes to fall asleep, with a margin.
const ASLEEP_AFTER: Duration = Duration::from_millis(5);
/// SETs to a server that sleeps, in a run.
const ASLEEP_COUNT: usize = 60;
/// Nanoseconds beyond which latencies are not told apart.
const MOST: u64 = 10_000_000_000;

/// What is measured of a cell.
#[derive(Clone, Copy)]
enum Case {
    /// A SET, done when this says.
    Set(Commit),
    /// A GET of what was just stored so.
    Get(Commit),
}

/// One cell, and what is measured of it.
struct Measured {
    mode: &'static str,
    has_queue: bool,
    cases: &'static [(&'static str, Case)],
}

const MEASURED: [Measured; 3] = [
    Measured {
        mode: "R=1",
        has_queue: false,
        cases: &[("SET of a cell today, R=1", Case::Set(Commit::Executed))],
    },
    Measured {
        mode: "R=1",
        has_queue: true,
        cases: &[
            (
                "SET of a cell with a queue, executed",
                Case::Set(Commit::Executed),
            ),
            (
                "SET of a cell with a queue, acknowledged",
                Case::Set(Commit::Acknowledged),
            ),
            (
                "GET of it after a SET that is executed",
                Case::Get(Commit::Executed),
            ),
            (
                "GET of it after a SET that is acknowledged",
                Case::Get(Commit::Acknowledged),
            ),
        ],
    },
    Measured {
        mode: "R=3.2",
        has_queue: true,
        cases: &[
            (
                "SET of three copies with queues, executed",
                Case::Set(Commit::Executed),
            ),
            (
                "SET of three copies with queues, acknowledged",
                Case::Set(Commit::Acknowledged),
            ),
            (
                "GET of three copies after a SET that is executed",
                Case::Get(Commit::Executed),
            ),
            (
                "GET of three copies after a SET that is acknowledged",
                Case::Get(Commit::Acknowledged),
            ),
        ],
    },
];

impl Case {
    /// Carries it out; since when it counts, of what is due at this time.
    fn carry_out(
        self,
        client: &mut Client,
        key: &[u8],
        value: &[u8],
        due: Instant,
    ) -> Result<Instant, OpError> {
        let (Case::Set(commit) | Case::Get(commit)) = self;
        let options = SetOptions::default();
        client.set_by(key, value, options, commit)?;
        if let Case::Set(_) = self {
            return Ok(due);
        }
        let begun = Instant::now();
        client.get(key)?;
        Ok(begun)
    }
}

/// Measures everything asked for, today's SETs by a server of this program.
pub fn ordered(
    program: &Path,
    options: &LoadOptions,
    progress: &mut Progress<'_>,
) -> Result<OrderedReport, LoadError> {
    let failed = |error: &dyn std::fmt::Display| LoadError::Queue(error.to_string());
    let mut cells = [const { None }; MEASURED.len()];
    let ground = match options.off_host || options.off_host_workloads || options.one_thread {
        true => Some(off_host::Ground::new().map_err(|error| failed(&error))?),
        false => None,
    };
    let mut also = |report: &mut OrderedReport, progress: &mut Progress<'_>| {
        if let Some(ground) = &ground {
            if options.off_host {
                off_host::measure(ground, options, report)?;
            }
            if options.off_host_workloads {
                far_workloads::measure(ground, options, Way::Engine, (report, progress))?;
            }
            if options.one_thread {
                far_workloads::measure(ground, options, Way::OneThread, (report, progress))?;
            }
            report.off_host_note = Some(ground.by.to_owned());
        }
        if !options.commits {
            return Ok(());
        }
        pin_current_thread(options.client_core).map_err(|error| failed(&error))?;
        let start = |mode, has_queue: bool| {
            let server = Server::start(&ServerOptions {
                core: Some(options.server_core),
                processes: has_queue,
                more: has_queue
                    .then(|| "--queue".to_owned())
                    .into_iter()
                    .collect(),
                ..ServerOptions::new(program, mode, MEMORY)
            })
            .map_err(|error| failed(&error))?;
            let cell = Cell::connect(&server.address).map_err(|error| failed(&error))?;
            Ok::<_, LoadError>((server, cell.client(Options::default())))
        };
        for (measured, known) in MEASURED.iter().zip(&mut cells) {
            if known.is_none() {
                *known = Some(start(measured.mode, measured.has_queue)?);
            }
            let Some((_server, client)) = known else {
                return Ok(());
            };
            for len in [100, 1024] {
                for (what, case) in measured.cases {
                    let awake = awake(client, *case, len, options);
                    let awake = awake.map_err(|error| failed(&error))?;
                    report.add_commit(what, len, true, awake);
                    let asleep = asleep(client, *case, len).map_err(|error| failed(&error))?;
                    report.add_commit(what, len, false, asleep);
                }
            }
        }
        Ok(())
    };
    measure(options, &mut also, progress)
}

fn awake(
    client: &mut Client,
    case: Case,
    len: usize,
    options: &LoadOptions,
) -> Result<Latency, OpError> {
    let value = vec![7; len];
    let mut took = histogram();
    let mut pace = Pace::new(AWAKE_PER_S, 1);
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(options.seconds);
    let warm = begun + Duration::from_secs_f64(options.seconds / 10.0);
    let mut number = 0u64;
    loop {
        let due = pace.wait();
        if due > end {
            return Ok(Latency::of(&took));
        }
        number += 1;
        let key = (number % KEYS).to_le_bytes();
        let counted_from = case.carry_out(client, &key, &value, due)?;
        if due > warm {
            took.saturating_record(counted_from.elapsed().as_nanos() as u64);
        }
    }
}

fn asleep(client: &mut Client, case: Case, len: usize) -> Result<Latency, OpError> {
    let value = vec![7; len];
    let mut took = histogram();
    for number in 0..ASLEEP_COUNT as u64 {
        // The servers sleep, and not this core: what a client pays for its own sleep is not theirs.
        let begin = Instant::now();
        while begin.elapsed() < ASLEEP_AFTER {
            std::hint::spin_loop();
        }
        let key = number.to_le_bytes();
        let counted_from = case.carry_out(client, &key, &value, Instant::now())?;
        took.saturating_record(counted_from.elapsed().as_nanos() as u64);
    }
    Ok(Latency::of(&took))
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(MOST, 3).expect("valid bounds")
}
