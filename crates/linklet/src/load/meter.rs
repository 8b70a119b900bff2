//! Counters of each slice, and the samples that feed them.

use super::spikes::{Spike, Spikes};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;
use trefoil_hot::Sampler;
use trefoil_sharder::{
    AssignmentVersion, HotKey, KeyPoint, Load, ServerId, ServerReport, Slice, SliceLoad,
};

/// Hot keys in a report.
const HOT_KEYS_REPORTED: usize = 32;
/// A key below this part of the server's time is not worth a line.
const HOT_SHARE_MIN: f64 = 0.005;

/// How the cost of an operation grows with replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Any one replica can answer.
    Shared,
    /// Every replica pays.
    Each,
}

#[derive(Debug, Default)]
struct Meter {
    shared_ns: AtomicU64,
    each_ns: AtomicU64,
    requests: AtomicU64,
}

impl Meter {
    fn add(&self, cost: Cost, ns: u64, requests: u64) {
        match cost {
            Cost::Shared => self.shared_ns.fetch_add(ns, Ordering::Relaxed),
            Cost::Each => self.each_ns.fetch_add(ns, Ordering::Relaxed),
        };
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Metered {
    slice: Slice,
    meter: Arc<Meter>,
    since: Instant,
}

/// The counters of every slice that this server serves.
#[derive(Debug)]
pub(crate) struct Meters {
    slices: RwLock<Vec<Metered>>,
    spikes: Mutex<Spikes>,
    interval: Mutex<Instant>,
    started: Instant,
    sequence: AtomicU64,
}

thread_local! {
    static SAMPLER: RefCell<Sampler> = RefCell::new(Sampler::new(seed()));
    /// Whether what runs on this thread is already being measured, or not, as
    /// a part of something larger.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What runs until it is dropped is a part of something larger.
struct Inside(bool);

impl Inside {
    fn enter() -> Self {
        Inside(INSIDE.replace(true))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// Tells the threads' samplers apart.
fn seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(0x9e37_79b9, Ordering::Relaxed)
}

fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000) + now.tv_nsec as u64
}

impl Meters {
    pub(crate) fn new(now: Instant) -> Self {
        Meters {
            slices: RwLock::default(),
            spikes: Mutex::default(),
            interval: Mutex::new(now),
            started: now,
            sequence: AtomicU64::new(0),
        }
    }

    /// Follows the assignment: slices cut as before keep their counters, the
    /// others start at nothing.
    pub(crate) fn follow(&self, mut slices: Vec<Slice>, now: Instant) {
        slices.sort_unstable();
        let mut metered = self.slices.write().unwrap_or_else(|e| e.into_inner());
        let mut before = std::mem::take(&mut *metered).into_iter().peekable();
        *metered = slices
            .into_iter()
            .map(|slice| {
                while before.next_if(|kept| kept.slice < slice).is_some() {}
                before
                    .next_if(|kept| kept.slice == slice)
                    .unwrap_or_else(|| Metered {
                        slice,
                        meter: Arc::default(),
                        since: now,
                    })
            })
            .collect();
    }

    /// Begins to measure an operation, if it is one of those that are.
    #[inline]
    pub(crate) fn probe(&self) -> Option<Probe> {
        if INSIDE.get() {
            return None;
        }
        let sample = SAMPLER.with(|sampler| {
            // A closure of the application may come back here.
            sampler
                .try_borrow_mut()
                .ok()?
                .tick(0, || self.started.elapsed().as_secs_f64())
        })?;
        (sample.ops > 0.0).then(|| Probe {
            weight: sample.ops as u64,
            began_ns: thread_cpu_ns(),
        })
    }

    /// Measures a future as a whole, and nothing inside it.
    pub(crate) async fn metered<F: Future>(&self, point: KeyPoint, future: F) -> F::Output {
        let probe = self.probe();
        let sampled = probe.is_some();
        let mut future = pin!(future);
        let mut ns = 0;
        let output = poll_fn(|context| {
            let _inside = Inside::enter();
            if !sampled {
                return future.as_mut().poll(context);
            }
            let began_ns = thread_cpu_ns();
            let polled = future.as_mut().poll(context);
            ns += thread_cpu_ns().saturating_sub(began_ns);
            polled
        })
        .await;
        if let Some(probe) = probe {
            self.count(point, Cost::Shared, ns * probe.weight, probe.weight);
        }
        output
    }

    /// Counts what a probe has measured.
    pub(crate) fn finish(&self, probe: Option<Probe>, point: KeyPoint, cost: Cost) {
        if let Some(probe) = probe {
            let ns = thread_cpu_ns().saturating_sub(probe.began_ns);
            self.count(point, cost, ns * probe.weight, probe.weight);
        }
    }

    /// Counts CPU time and requests.
    pub(crate) fn count(&self, point: KeyPoint, cost: Cost, ns: u64, requests: u64) {
        {
            let slices = self.slices.read().unwrap_or_else(|e| e.into_inner());
            let after = slices.partition_point(|metered| metered.slice.start() <= point);
            match after.checked_sub(1).map(|i| &slices[i]) {
                Some(metered) if metered.slice.contains(point) => {
                    metered.meter.add(cost, ns, requests);
                }
                // Not served here (any more): nobody's load.
                _ => return,
            }
        }
        let spent = Spike {
            shared_ns: if cost == Cost::Shared { ns as f64 } else { 0.0 },
            each_ns: if cost == Cost::Each { ns as f64 } else { 0.0 },
            requests: requests as f64,
        };
        let mut spikes = self.spikes.lock().unwrap_or_else(|e| e.into_inner());
        spikes.add(point.0, spent);
    }

    /// What was measured since the last report.
    pub(crate) fn report(
        &self,
        server: ServerId,
        version: AssignmentVersion,
        now: Instant,
        bytes_in: impl Fn(Slice) -> u64,
    ) -> ServerReport {
        let since_last = {
            let mut interval = self.interval.lock().unwrap_or_else(|e| e.into_inner());
            std::mem::replace(&mut *interval, now)
        };
        let seconds_since =
            |since: Instant| now.saturating_duration_since(since).as_secs_f64().max(1e-3);
        let slices: Vec<SliceLoad> = {
            let slices = self.slices.read().unwrap_or_else(|e| e.into_inner());
            slices
                .iter()
                .map(|metered| {
                    let seconds = seconds_since(metered.since.max(since_last));
                    let rate =
                        |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed) as f64 / seconds;
                    SliceLoad {
                        slice: metered.slice,
                        load: Load {
                            cpu_shared: rate(&metered.meter.shared_ns) * 1e-9,
                            cpu_each: rate(&metered.meter.each_ns) * 1e-9,
                            requests: rate(&metered.meter.requests),
                            bytes: bytes_in(metered.slice) as f64,
                        },
                    }
                })
                .collect()
        };
        let seconds = seconds_since(since_last);
        let total: f64 = slices
            .iter()
            .map(|said| said.load.cpu_shared + said.load.cpu_each)
            .sum();
        let hottest = {
            let mut spikes = self.spikes.lock().unwrap_or_else(|e| e.into_inner());
            spikes.take(HOT_KEYS_REPORTED)
        };
        let hot_keys = hottest
            .into_iter()
            .map(|(point, spike)| HotKey {
                point: KeyPoint(point),
                load: Load {
                    cpu_shared: spike.shared_ns * 1e-9 / seconds,
                    cpu_each: spike.each_ns * 1e-9 / seconds,
                    requests: spike.requests / seconds,
                    bytes: 0.0,
                },
            })
            .filter(|hot| hot.load.cpu_shared + hot.load.cpu_each >= total * HOT_SHARE_MIN)
            .map(|mut hot| {
                hot.load.bytes = bytes_in(Slice::of_point(hot.point)) as f64;
                hot
            })
            .collect();
        ServerReport {
            server,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            version,
            slices,
            hot_keys,
            unstored: Vec::new(),
        }
    }
}

/// An operation that is being measured.
#[derive(Debug)]
pub(crate) struct Probe {
    weight: u64,
    began_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn load_is_counted_where_it_belongs() {
        let start = Instant::now();
        let meters = Meters::new(start);
        let halves = Slice::tiles(2);
        meters.follow(halves.clone(), start);
        let hot = KeyPoint(5);
        for i in 0..1_000u64 {
            meters.count(hot, Cost::Shared, 1_000_000, 1);
            meters.count(KeyPoint(u64::MAX - i), Cost::Each, 100_000, 1);
        }
        let second = Duration::from_secs(2);
        let version = AssignmentVersion::first_of(1);
        let report = meters.report(ServerId(3), version, start + second, |slice| {
            if slice.is_point() { 7 } else { 70 }
        });
        assert_eq!(report.validate(), Ok(()));
        assert_eq!((report.sequence, report.slices.len()), (1, 2));
        let loads: Vec<Load> = report.slices.iter().map(|said| said.load).collect();
        assert_eq!((loads[0].cpu_shared, loads[0].cpu_each), (0.5, 0.0));
        assert_eq!((loads[0].requests, loads[0].bytes), (500.0, 70.0));
        assert_eq!((loads[1].cpu_shared, loads[1].cpu_each), (0.0, 0.05));
        assert_eq!(report.hot_keys.len(), 1);
        assert_eq!(report.hot_keys[0].point, hot);
        assert_eq!(report.hot_keys[0].load.bytes, 7.0);

        // Another cut: nothing of the other half is lost.
        meters.count(KeyPoint::MAX, Cost::Shared, 1_000, 1);
        let (left, right) = halves[0].split_before(KeyPoint(9)).unwrap();
        meters.follow(vec![right, left, halves[1]], start + second);
        let report = meters.report(ServerId(3), version, start + second * 2, |_| 0);
        assert_eq!(report.slices.len(), 3);
        assert_eq!(report.slices[2].load.requests, 0.5);
        assert_eq!(report.slices[0].load.requests, 0.0);
    }

    #[tokio::test]
    async fn a_request_is_measured_as_a_whole() {
        let meters = Meters::new(Instant::now());
        meters.follow(vec![Slice::ALL], Instant::now());
        let inside = meters.metered(KeyPoint(1), async {
            let probe = meters.probe();
            tokio::task::yield_now().await;
            probe.is_some() || meters.probe().is_some()
        });
        assert!(!inside.await);
        assert!(meters.probe().is_some(), "outside again");
        let later = Instant::now() + Duration::from_secs(1);
        let report = meters.report(ServerId(1), AssignmentVersion::first_of(1), later, |_| 0);
        let requests = report.slices[0].load.requests;
        assert!((0.9..=1.1).contains(&requests), "{requests}");
    }

    #[test]
    fn a_quiet_thread_measures_every_operation() {
        std::thread::spawn(|| {
            let meters = Meters::new(Instant::now());
            meters.follow(vec![Slice::ALL], Instant::now());
            for _ in 0..100 {
                let probe = meters.probe();
                assert!(probe.is_some());
                meters.finish(probe, KeyPoint(1), Cost::Shared);
            }
            let later = Instant::now() + Duration::from_secs(1);
            let report = meters.report(ServerId(1), AssignmentVersion::first_of(1), later, |_| 0);
            let requests = report.slices[0].load.requests;
            assert!((90.0..=100.1).contains(&requests), "{requests}");
        })
        .join()
        .unwrap();
    }
}
