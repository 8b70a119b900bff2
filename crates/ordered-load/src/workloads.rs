//! Four workloads on three systems of one codebase, over shared memory or by an engine from
//! another host: requests that are run to completion and answered (as eRPC's are), requests
//! that the CPU acknowledges before it executes them (DeferredExec), and the ordered queue.
//!
//! The paper gives medians "at peak throughput" and does not say how close to it. Here each
//! system's peak is what it does with a window of requests under way, or less, if it cannot
//! keep up with 90 % of that as Poisson arrivals; its median is taken at these 90 %.

use crate::client::{Load, Offered, SLICE, Slice};
use crate::clusters::Cluster;
use crate::report::{Latency, OrderedReport, SYSTEMS, Way, WorkloadRun, median};
use crate::session::{System, with_session};
use crate::{LoadError, LoadOptions, Progress};
use std::time::Duration;

/// Part of its peak that a system is offered.
const OFFERED: f64 = 0.9;
/// Part of what is due in a slice that has to be done in it: at its end the system is 40 µs
/// behind, at most.
const KEPT_UP: f64 = 0.998;
/// What is left of a peak that is not kept up with, so often at most; and on another host,
/// where a window of requests goes with far fewer system calls each than single ones.
const STEP: f64 = 0.95;
const STEP_FAR: f64 = 0.9;
const STEPS_MAX: usize = 10;
const STEPS_FAR_MAX: usize = 20;
/// Who measures for less than this wants to see that it can be done, not where the peak is.
const SEEKS_FROM_S: f64 = 0.1;
/// Slices are repeated because of pauses until there are so many times as many as asked for.
const REPEATED_MAX: usize = 2;
/// A slice in which nothing was done says nothing of the system: others had the cores. It is
/// measured again, so often at most in a row.
const NOTHING_DONE_MAX: usize = 50;

const _: () = assert!(System::ALL.len() == SYSTEMS.len());

/// What is done with a client.
pub type Body<'b> = dyn FnMut(&mut dyn Offered) -> Result<(), LoadError> + 'b;

/// Runs something with a client of a server of this system that has the cluster's keys.
pub type Session<'s> = dyn FnMut(Cluster, System, &mut Body<'_>) -> Result<(), LoadError> + 's;

/// Slices of one load.
struct Slices(Vec<Slice>);

impl Slices {
    /// So many without a pause of the host, if there are any.
    fn measure(
        client: &mut dyn Offered,
        load: Load,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let wanted = (options.seconds / SLICE.as_secs_f64()) as usize;
        let wanted = wanted.max(1);
        let mut all: Vec<Slice> = Vec::new();
        let (mut whole, mut idle) = (0, 0);
        while whole < wanted && all.len() < wanted * REPEATED_MAX {
            let slice = client.slice(load)?;
            if slice.per_s == 0.0 {
                idle += 1;
                if idle == NOTHING_DONE_MAX {
                    return Err(LoadError::NothingDone { slices: idle });
                }
                continue;
            }
            idle = 0;
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

pub(crate) fn measure(
    options: &LoadOptions,
    report: &mut OrderedReport,
    progress: &mut Progress<'_>,
) -> Result<(), LoadError> {
    let mut session =
        |cluster, system, body: &mut Body<'_>| with_session(options, cluster, system, body);
    measure_by(options, Way::Near, (report, progress), &mut session)
}

/// Measures all clusters on all systems, over what `session` connects them by. Each takes up
/// to some ten times as long as `options` say, so `progress` is told of each.
pub fn measure_by(
    options: &LoadOptions,
    way: Way,
    (report, progress): (&mut OrderedReport, &mut Progress<'_>),
    session: &mut Session<'_>,
) -> Result<(), LoadError> {
    for cluster in Cluster::all()? {
        let mut runs = Vec::new();
        for (system, name) in System::ALL.into_iter().zip(SYSTEMS) {
            progress(&format!("cluster {}, {name}: its peak", cluster.number));
            session(cluster, system, &mut |client| {
                runs.push(at_peak(client, options, way)?);
                Ok(())
            })?;
        }
        let peaks = runs.iter().map(|run| run.peak_per_s);
        let lowest = peaks.fold(f64::INFINITY, f64::min);
        let load = Load::PerSecond(lowest * OFFERED);
        progress(&format!("cluster {}, all: one rate", cluster.number));
        for (at, (system, mut run)) in System::ALL.into_iter().zip(runs).enumerate() {
            session(cluster, system, &mut |client| {
                let equal = Slices::measure(client, load, options)?;
                run.at_equal_rate = Slices::latency(&equal.whole());
                Ok(())
            })?;
            report.add_workload((way, cluster.number, at), run);
        }
    }
    Ok(())
}

/// The system's peak, and latencies at 90 % of it.
fn at_peak(
    client: &mut dyn Offered,
    options: &LoadOptions,
    way: Way,
) -> Result<WorkloadRun, LoadError> {
    let (step, steps_max) = match way {
        Way::Near => (STEP, STEPS_MAX),
        Way::Engine | Way::OneThread => (STEP_FAR, STEPS_FAR_MAX),
    };
    let steps_max = match options.seconds < SEEKS_FROM_S {
        true => 1,
        false => steps_max,
    };
    let most = Slices::measure(client, Load::Window, options)?;
    let mut peak_per_s = most.median(|slice| slice.per_s);
    let mut steps = 0;
    loop {
        let load = Load::PerSecond(peak_per_s * OFFERED);
        let slices = Slices::measure(client, load, options)?;
        let kept_up = slices.median(|slice| slice.kept_up);
        if kept_up < KEPT_UP && steps < steps_max {
            peak_per_s *= step;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that keeps up with nothing, each slice of which has a pause: what takes
    /// longest.
    struct Worst(usize);

    impl Offered for Worst {
        fn slice(&mut self, _: Load) -> Result<Slice, LoadError> {
            self.0 += 1;
            Ok(Slice {
                per_s: 1e6,
                kept_up: 0.0,
                latency: Latency::default(),
                pauses: 1,
                pause_max: Duration::ZERO,
            })
        }
    }

    /// Does nothing in so many slices, and then something.
    struct Idle(usize);

    impl Offered for Idle {
        fn slice(&mut self, load: Load) -> Result<Slice, LoadError> {
            let is_idle = self.0 > 0;
            self.0 = self.0.saturating_sub(1);
            let slice = Worst(0).slice(load)?;
            Ok(Slice {
                per_s: if is_idle { 0.0 } else { slice.per_s },
                ..slice
            })
        }
    }

    #[test]
    fn slices_in_which_nothing_was_done_are_measured_again() {
        let options = LoadOptions::default();
        let measure = |idle| Slices::measure(&mut Idle(idle), Load::Window, &options);
        let slices = measure(NOTHING_DONE_MAX - 1).expect("something is done");
        assert_eq!(slices.median(|slice| slice.per_s), 1e6);
        let Err(error) = measure(NOTHING_DONE_MAX) else {
            panic!("there is nothing to tell of");
        };
        assert!(matches!(error, LoadError::NothingDone { .. }), "{error}");
    }

    #[test]
    fn each_case_is_told_of_and_ends_however_slow_it_is() {
        let options = LoadOptions {
            seconds: 0.1,
            ..LoadOptions::default()
        };
        let mut report = OrderedReport::new(&options);
        let (mut told, mut slices_max) = (Vec::new(), 0);
        let mut progress = |what: &str| told.push(what.to_owned());
        let mut session = |_: Cluster, _: System, body: &mut Body<'_>| {
            let mut worst = Worst(0);
            body(&mut worst)?;
            slices_max = slices_max.max(worst.0);
            Ok(())
        };
        let both = (&mut report, &mut progress as &mut Progress<'_>);
        measure_by(&options, Way::OneThread, both, &mut session).expect("it ends");
        // A window, the first rate and each step of it.
        assert_eq!(slices_max, (2 + STEPS_FAR_MAX) * 5 * REPEATED_MAX);
        let clusters = Cluster::all().expect("a table").len();
        assert_eq!(told.len(), clusters * (SYSTEMS.len() + 1), "{told:?}");
        for name in SYSTEMS {
            let of = format!("cluster 12, {name}: its peak");
            assert!(told.contains(&of), "{told:?}");
        }
    }
}
