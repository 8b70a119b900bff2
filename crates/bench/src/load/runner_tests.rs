//! Scenarios: a target that misbehaves on purpose, and a runner that must notice.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Duration;

use super::*;
use crate::target::{GetOutcome, SetOutcome, Target, TargetError};

/// A cache in a map, with faults.
#[derive(Default)]
struct Fake {
    values: HashMap<Vec<u8>, Vec<u8>>,
    old: HashMap<Vec<u8>, Vec<u8>>,
    serve_old_every: Option<u64>,
    swap_keys: bool,
    fail_every: Option<u64>,
    stall_at: Option<(u64, Duration)>,
    calls: u64,
}

impl Fake {
    fn call(&mut self) -> Result<(), TargetError> {
        self.calls += 1;
        if let Some((at, stall)) = self.stall_at
            && self.calls == at
        {
            std::thread::sleep(stall);
        }
        match self.fail_every {
            Some(every) if self.calls.is_multiple_of(every) => Err(TargetError::Io {
                what: "fake",
                source: io::ErrorKind::BrokenPipe.into(),
            }),
            _ => Ok(()),
        }
    }
}

impl Target for Fake {
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        self.call()?;
        let mut key = key.to_vec();
        if self.swap_keys
            && let Some(last) = key.last_mut()
        {
            *last ^= 1;
        }
        let is_old = matches!(self.serve_old_every, Some(n) if self.calls.is_multiple_of(n));
        let from = if is_old { &self.old } else { &self.values };
        Ok(from
            .get(&key)
            .map_or(GetOutcome::Miss, |v| GetOutcome::Hit(v)))
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        _ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        self.call()?;
        if let Some(old) = self.values.insert(key.to_vec(), value.to_vec()) {
            self.old.insert(key.to_vec(), old);
        }
        Ok(SetOutcome::Stored)
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        self.values.remove(key);
        Ok(SetOutcome::Stored)
    }

    fn count_retries(&self, counts: &mut BTreeMap<String, u64>) {
        *counts.entry("fake".into()).or_default() += self.calls;
    }
}

const KEYS_COUNT: u64 = 64;

fn source(gets: f64) -> SyntheticSource {
    SyntheticSource::new(SyntheticOptions {
        keys_count: KEYS_COUNT,
        value_len: ValueLen::Fixed(100),
        gets,
        ..Default::default()
    })
    .unwrap()
}

fn loaded(shared: &RunShared) -> Fake {
    let mut fake = Fake::default();
    let codec = source(1.0).codec();
    let mut told = 0;
    let value_len = ValueLen::Fixed(100);
    preload(
        &mut fake,
        codec,
        0..KEYS_COUNT,
        value_len,
        shared,
        &mut |n| told = n,
    )
    .unwrap();
    assert_eq!((told, fake.values.len()), (KEYS_COUNT, KEYS_COUNT as usize));
    fake
}

fn ops(ops: u64) -> RunOptions {
    RunOptions {
        warm_up: Bound::Ops(10),
        bound: Bound::Ops(ops),
        ..Default::default()
    }
}

#[test]
fn an_honest_target_is_found_honest() {
    let shared = RunShared::writing(KEYS_COUNT);
    let mut fake = loaded(&shared);
    let result = run(&mut fake, &mut source(0.5), &ops(10_000), &shared).unwrap();
    let summary = Summary::of(&result);
    assert_eq!((summary.ops, summary.failed), (10_000, 0));
    assert_eq!((summary.stale, summary.wrong, summary.misses), (0, 0, 0));
    assert!((4_000..6_000).contains(&summary.hits));
    assert_eq!(summary.get.count + summary.set.count, 10_000);
    assert!(summary.p50_ns > 0 && summary.p999_ns >= summary.p99_ns);
    assert_eq!(summary.retries["fake"], 10_000, "warm-up's are not counted");
    let slots: u64 = result.timeline.slots.iter().map(|s| s.ops).sum();
    assert_eq!(slots, 10_000);
    assert_eq!(shared.progress_ops(), 10_000);
}

#[test]
fn old_values_are_stale_only_once_newer_ones_are_acknowledged() {
    let shared = RunShared::writing(KEYS_COUNT);
    let mut fake = loaded(&shared);
    fake.serve_old_every = Some(10);
    let result = run(&mut fake, &mut source(0.5), &ops(10_000), &shared).unwrap();
    assert!((300..700).contains(&result.stale), "{}", result.stale);
    assert_eq!(result.wrong, 0);
}

#[test]
fn foreign_values_are_wrong() {
    let shared = RunShared::reading();
    let mut fake = loaded(&shared);
    fake.swap_keys = true;
    let result = run(&mut fake, &mut source(1.0), &ops(1_000), &shared).unwrap();
    // Not every flipped digit is a digit; each one that is names another key.
    assert!(result.hits > 500 && result.wrong >= result.hits);
}

#[test]
fn failures_are_counted_named_and_have_no_latency() {
    let shared = RunShared::reading();
    let mut fake = loaded(&shared);
    fake.fail_every = Some(4);
    let result = run(&mut fake, &mut source(1.0), &ops(1_000), &shared).unwrap();
    assert_eq!((result.ops, result.failed), (1_000, 250));
    assert_eq!(result.get.len(), 750);
    assert!(result.first_error.unwrap().contains("fake"));
    assert_eq!(
        result.timeline.slots.iter().map(|s| s.failed).sum::<u64>(),
        250
    );
}

#[test]
fn batches_count_keys_and_time_calls() {
    let shared = RunShared::writing(KEYS_COUNT);
    let mut fake = loaded(&shared);
    fake.values.clear();
    let options = RunOptions {
        batch: 10,
        fill_on_miss: true,
        warm_up: Bound::Ops(0),
        ..ops(20_000)
    };
    let result = run(&mut fake, &mut source(1.0), &options, &shared).unwrap();
    assert!((64..=128).contains(&result.misses), "{}", result.misses);
    assert_eq!(result.set.len(), result.misses);
    assert_eq!(result.hits + result.misses, result.get.len() * 10);
    assert_eq!((result.wrong, result.stale), (0, 0));
}

#[test]
fn an_open_loop_charges_a_stall_to_all_who_waited() {
    let stalled = |arrivals| {
        let shared = RunShared::reading();
        let mut fake = loaded(&shared);
        fake.stall_at = Some((KEYS_COUNT + 500, Duration::from_millis(50)));
        let options = RunOptions {
            arrivals,
            warm_up: Bound::Ops(0),
            ..ops(2_000)
        };
        let result = run(&mut fake, &mut source(1.0), &options, &shared).unwrap();
        result.get.len() - result.get.count_between(0, 10_000_000)
    };
    assert!(stalled(Arrivals::Closed) <= 3);
    // 50 ms at 10,000/s: some 400 requests began more than 10 ms late.
    let delayed = stalled(Arrivals::Poisson {
        ops_per_s: 10_000.0,
    });
    assert!(delayed > 250, "{delayed}");
}

#[test]
fn clients_add_up_and_a_stop_ends_them() {
    let shared = RunShared::reading();
    let clients = (0..2)
        .map(|_| (loaded(&shared), source(1.0), None))
        .collect();
    let options = RunOptions {
        bound: Bound::Stopped,
        ..ops(0)
    };
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| run_clients(clients, &options, &shared));
        std::thread::sleep(Duration::from_millis(150));
        shared.stop();
        run.join().unwrap()
    })
    .unwrap();
    assert!(result.ops > 1_000);
    assert!((0.05..2.0).contains(&result.elapsed.as_secs_f64()));
    assert_eq!(result.ops, result.hits);
}

#[test]
fn runs_that_make_no_sense_are_refused() {
    let shared = RunShared::reading();
    let mut fake = Fake::default();
    let mut refuse = |options| run(&mut fake, &mut source(1.0), &options, &shared).is_err();
    assert!(refuse(RunOptions { batch: 0, ..ops(1) }));
    assert!(refuse(RunOptions {
        bound: Bound::Source,
        ..ops(1)
    }));
    let arrivals = Arrivals::Poisson { ops_per_s: 0.0 };
    assert!(refuse(RunOptions { arrivals, ..ops(1) }));
}
