//! Four workloads on three systems of one codebase, over shared memory: requests that are
//! run to completion and answered (as eRPC's are), requests that the CPU acknowledges before
//! it executes them (DeferredExec), and the ordered queue.
//!
//! The paper gives medians "at peak throughput" and does not say how close to it. Here each
//! system's peak is what it does with a window of requests under way, or less, if it cannot
//! keep up with 90 % of that as Poisson arrivals; its median is taken at these 90 %.

use crate::clusters::Cluster;
use crate::report::{Latency, OrderedReport, SYSTEMS, WorkloadRun, median};
use crate::session::{Client, Load, SLICE, Slice, System, with_session};
use crate::{LoadError, LoadOptions};
use std::time::Duration;

/// Part of its peak that a system is offered.
const OFFERED: f64 = 0.9;
/// Part of what is due in a slice that has to be done in it: at its end the system is 40 µs
/// behind, at most.
const KEPT_UP: f64 = 0.998;
/// What is taken off a peak that is not kept up with, so often at most.
const STEP: f64 = 0.95;
const STEPS_MAX: usize = 10;
/// Slices are repeated because of pauses until there are so many times as many as asked for.
const REPEATED_MAX: usize = 2;

pub(crate) const ALL: [System; 3] = [
    System::RunToCompletion,
    System::DeferredExec,
    System::OrderedQueue,
];
const _: () = assert!(ALL.len() == SYSTEMS.len());

/// Slices of one load.
struct Slices(Vec<Slice>);

impl Slices {
    /// So many without a pause of the host, if there are any.
    fn measure(
        client: &mut Client<'_>,
        load: Load,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let wanted = (options.seconds / SLICE.as_secs_f64()) as usize;
        let wanted = wanted.max(1);
        let mut all: Vec<Slice> = Vec::new();
        let mut whole = 0;
        while whole < wanted && all.len() < wanted * REPEATED_MAX {
            let slice = client.slice(load)?;
            whole += usize::from(slice.pauses == 0);
            all.push(slice);
        }
        Ok(Slices(all))
    }

    /// Those without a pause; all, if each had one.
    fn whole(&self) -> Vec<Slice> {
        let is_whole = |slice: &&Slice| slice.pauses == 0;
        let whole: Vec<Slice> = self.0.iter().filter(is_whole).copied().collect();
        if whole.is_empty() {
            self.0.clone()
        } else {
            whole
        }
    }

    fn median(&self, figure: fn(&Slice) -> f64) -> f64 {
        median(self.whole().iter().map(figure))
    }

    fn latency(slices: &[Slice]) -> Latency {
        let all: Vec<Latency> = slices.iter().map(|slice| slice.latency).collect();
        Latency::median(&all)
    }

    fn paused(&self) -> usize {
        self.0.iter().filter(|slice| slice.pauses > 0).count()
    }

    fn pause_max(&self) -> Duration {
        let longest = self.0.iter().map(|slice| slice.pause_max).max();
        longest.unwrap_or_default()
    }
}

pub(crate) fn measure(options: &LoadOptions, report: &mut OrderedReport) -> Result<(), LoadError> {
    for cluster in Cluster::all()? {
        let mut runs = Vec::new();
        for system in ALL {
            runs.push(with_session(options, cluster, system, |client| {
                at_peak(client, options)
            })?);
        }
        let peaks = runs.iter().map(|run| run.peak_per_s);
        let lowest = peaks.fold(f64::INFINITY, f64::min);
        for (at, (system, mut run)) in ALL.into_iter().zip(runs).enumerate() {
            let load = Load::PerSecond(lowest * OFFERED);
            let equal = with_session(options, cluster, system, |client| {
                Slices::measure(client, load, options)
            })?;
            run.at_equal_rate = Slices::latency(&equal.whole());
            report.add_workload(cluster.number, at, run);
        }
    }
    Ok(())
}

/// The system's peak, and latencies at 90 % of it.
fn at_peak(client: &mut Client<'_>, options: &LoadOptions) -> Result<WorkloadRun, LoadError> {
    let most = Slices::measure(client, Load::Window, options)?;
    let mut peak_per_s = most.median(|slice| slice.per_s);
    let mut steps = 0;
    loop {
        let load = Load::PerSecond(peak_per_s * OFFERED);
        let slices = Slices::measure(client, load, options)?;
        let kept_up = slices.median(|slice| slice.kept_up);
        if kept_up < KEPT_UP && steps < STEPS_MAX {
            peak_per_s *= STEP;
            steps += 1;
            continue;
        }
        return Ok(WorkloadRun {
            peak_per_s,
            kept_up,
            at_peak: Slices::latency(&slices.whole()),
            at_peak_with_pauses: Slices::latency(&slices.0),
            at_equal_rate: Latency::default(),
            slices: slices.0.len(),
            paused: slices.paused(),
            pause_max_us: slices.pause_max().as_micros() as u64,
        });
    }
}
