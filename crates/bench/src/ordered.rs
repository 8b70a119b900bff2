//! The ordered queue beside today's SET of a cell: the rows that a running program is needed
//! for, and those from another host. All others are `trefoil-ordered-load`'s.

mod far_workloads;
mod off_host;
mod one_thread;
#[cfg(test)]
mod vanished;

use crate::load::pin_current_thread;
use crate::server::{Server, ServerOptions};
use hdrhistogram::Histogram;
use std::path::Path;
use std::time::{Duration, Instant};
use trefoil_client::{Cell, Client, Options, SetOptions};
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

/// Measures everything asked for, today's SETs by a server of this program.
pub fn ordered(
    program: &Path,
    options: &LoadOptions,
    progress: &mut Progress<'_>,
) -> Result<OrderedReport, LoadError> {
    let failed = |error: &dyn std::fmt::Display| LoadError::Queue(error.to_string());
    let mut today = None;
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
        if today.is_none() {
            let server = Server::start(&ServerOptions {
                core: Some(options.server_core),
                ..ServerOptions::new(program, "R=1", MEMORY)
            })
            .map_err(|error| failed(&error))?;
            let cell = Cell::connect(&server.address).map_err(|error| failed(&error))?;
            today = Some((server, cell.client(Options::default())));
        }
        let Some((_server, client)) = &mut today else {
            return Ok(());
        };
        for len in [100, 1024] {
            let awake = awake(client, len, options).map_err(|error| failed(&error))?;
            report.add_commit("SET of a cell today, R=1", len, true, awake);
            let asleep = asleep(client, len).map_err(|error| failed(&error))?;
            report.add_commit("SET of a cell today, R=1", len, false, asleep);
        }
        Ok(())
    };
    measure(options, &mut also, progress)
}

fn awake(
    client: &mut Client,
    len: usize,
    options: &LoadOptions,
) -> Result<Latency, trefoil_client::OpError> {
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
        client.set(&key, &value, SetOptions::default())?;
        if due > warm {
            took.saturating_record(due.elapsed().as_nanos() as u64);
        }
    }
}

fn asleep(client: &mut Client, len: usize) -> Result<Latency, trefoil_client::OpError> {
    let value = vec![7; len];
    let mut took = histogram();
    for number in 0..ASLEEP_COUNT as u64 {
        std::thread::sleep(ASLEEP_AFTER);
        let start = Instant::now();
        client.set(&number.to_le_bytes(), &value, SetOptions::default())?;
        took.saturating_record(start.elapsed().as_nanos() as u64);
    }
    Ok(Latency::of(&took))
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(MOST, 3).expect("valid bounds")
}
