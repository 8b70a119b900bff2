//! Promises, and what the parts' reports say about them. Pure functions: a
//! report in, rows out.

use super::Figure;
use crate::compare::{BatchRates, CompareReport};
use crate::hit_ratio::{HitRatioReport, OLTP_REFERENCE};
use crate::load::Latency;
use crate::look_aside::Touches;
use crate::memory::MemoryReport;
use crate::report::{bytes, nanoseconds, rate, ratio};
use crate::scenario::{KillReport, ReshapeReport, RetriesReport, RetryFigures, TakeoverReport};
use crate::size_shift::SizeShiftReport;

/// Rows of one command.
struct Rows {
    command: &'static str,
    rows: Vec<Figure>,
}

impl Rows {
    fn of(command: &'static str) -> Self {
        Self {
            command,
            rows: Vec::new(),
        }
    }

    /// The latest row's command needs these options as well.
    fn with(&mut self, more: &str) {
        if let Some(row) = self.rows.last_mut() {
            row.command = format!("{} {more}", row.command);
        }
    }

    fn add(&mut self, what: impl Into<String>, target: &str, met: Option<bool>, measured: String) {
        self.rows.push(Figure {
            what: what.into(),
            target: target.to_owned(),
            measured,
            met,
            command: self.command.to_owned(),
        });
    }
}

fn at_p50(latency: &Latency) -> String {
    nanoseconds(latency.p50_ns)
}

pub(super) const COMPARE: &str = "trefoil bench compare --peer memcached";

pub(super) fn compare(report: &CompareReport) -> Vec<Figure> {
    let (get, set, peer) = (&report.get, &report.set, &report.peer);
    let corpus = bytes(report.keys * report.value_size as u64);
    let shape = format!(
        "{} values, {corpus} corpus, {} pages",
        bytes(report.value_size as u64),
        report.page
    );
    let mut rows = Rows::of(COMPARE);
    rows.add(
        format!("GET, R=1, {shape}: p50 beside {peer} with a spinning client"),
        "at least 20× lower",
        Some(get.ratio_p50 >= 20.0),
        format!(
            "{} lower: {}, {peer} {}",
            ratio(get.ratio_p50),
            at_p50(&get.trefoil),
            at_p50(&get.memcached)
        ),
    );
    rows.add(
        format!("the same beside {peer} with a blocking client"),
        "at least 50× lower",
        Some(get.ratio_p50_blocking >= 50.0),
        format!(
            "{} lower: {peer} {}",
            ratio(get.ratio_p50_blocking),
            at_p50(&get.memcached_blocking)
        ),
    );
    rows.add(
        "GET, R=1: p99.9 by its own p50",
        "at most 4×",
        Some(get.tail_ratio <= 4.0),
        format!(
            "{}: {}; the floor's own p99.9 is {}",
            ratio(get.tail_ratio),
            nanoseconds(get.trefoil.p999_ns),
            nanoseconds(get.floor.p999_ns)
        ),
    );
    rows.add(
        "GET, R=1: p50 by the raw floor's",
        "at most 1.6×",
        Some(get.floor_ratio_p50 <= 1.6),
        format!(
            "{}: floor {}",
            ratio(get.floor_ratio_p50),
            at_p50(&get.floor)
        ),
    );
    rows.add(
        "GET, R=3.2, all replicas up: p50 by R=1's",
        "at most 2×",
        Some(get.r32_ratio_p50 <= 2.0),
        format!("{}: {}", ratio(get.r32_ratio_p50), at_p50(&get.trefoil_r32)),
    );
    let many = &report.get_many;
    let rates = |rates: &BatchRates| {
        format!(
            "{}: {}, {peer} {}; {} beside a blocking client's {}",
            ratio(rates.ratio),
            rate(rates.trefoil_ops_per_s),
            rate(rates.memcached_ops_per_s),
            ratio(rates.ratio_blocking),
            rate(rates.memcached_blocking_ops_per_s)
        )
    };
    rows.add(
        format!(
            "get_many of {}, {} B values, {} keys, R=1, beside {peer}'s multiget",
            many.batch, many.value_size, many.rates.keys
        ),
        "at least 15×",
        Some(many.rates.ratio >= 15.0),
        rates(&many.rates),
    );
    rows.add(
        format!(
            "the same of {} keys, which the caches hold",
            many.cached.keys
        ),
        "reported",
        None,
        rates(&many.cached),
    );
    rows.add(
        "backend CPU per one-sided GET, batched touches included",
        "at most 0.05 µs",
        Some(report.server_cpu_us_per_get <= 0.05),
        format!("{:.4} µs", report.server_cpu_us_per_get),
    );
    rows.add(
        format!("SET, R=1, by message, backend awake: p50 beside {peer} with a spinning client"),
        "at most 0.15×",
        Some(set.ratio_p50 <= 0.15),
        format!(
            "{:.3}×: {}, {peer} {}",
            set.ratio_p50,
            at_p50(&set.trefoil),
            at_p50(&set.memcached)
        ),
    );
    rows.add(
        "SET, R=3.2 in `serve`: p50 by R=1's",
        "at most 2.5×",
        Some(set.r32_ratio_p50 <= 2.5),
        format!("{}: {}", ratio(set.r32_ratio_p50), at_p50(&set.trefoil_r32)),
    );
    rows.add(
        "SET, R=3.2 with `cell up`, three processes on one core",
        "p50 at most 10 µs",
        Some(set.trefoil_r32_processes.p50_ns <= 10_000),
        at_p50(&set.trefoil_r32_processes),
    );
    rows.add(
        "SET, R=1, backend asleep",
        "reported beside a futex ping-pong",
        None,
        format!(
            "{}; memcached asleep {}; a futex ping-pong between the two cores {}",
            at_p50(&set.trefoil_asleep),
            at_p50(&set.memcached_asleep),
            at_p50(&set.futex_ping_pong)
        ),
    );
    rows.add(
        "SET through gRPC: p50 by an empty call's",
        "at most 1.3×",
        Some(report.rpc.ratio_p50 <= 1.3),
        format!(
            "{}: {}, empty {}",
            ratio(report.rpc.ratio_p50),
            at_p50(&report.rpc.set),
            at_p50(&report.rpc.empty)
        ),
    );
    rows.rows
}

pub(super) const MEMORY: &str =
    "trefoil bench memory --items 5000000 --key-size 36 --value-size 224 --peer memcached";

pub(super) fn memory(report: &MemoryReport) -> Vec<Figure> {
    let mut rows = Rows::of(MEMORY);
    rows.add(
        format!(
            "overhead per item, {} items, {} B keys, {} B values, R=1, beside {}",
            report.items, report.key_size, report.value_size, report.peer
        ),
        "at most 0.75×, aim 0.5×",
        Some(report.ratio <= 0.75),
        format!(
            "{:.2}×: {:.1} B, {} {:.1} B",
            report.ratio,
            report.trefoil.overhead_bytes_per_item,
            report.peer,
            report.memcached.overhead_bytes_per_item
        ),
    );
    rows.rows
}

pub(super) const SIZE_SHIFT: &str = "trefoil bench size-shift";

/// The promise is the default policy's; the others are reported.
pub(super) fn size_shift(reports: &[SizeShiftReport]) -> Vec<Figure> {
    let mut rows = Rows::of(SIZE_SHIFT);
    for report in reports {
        let phases: Vec<String> = report
            .phases
            .iter()
            .map(|phase| {
                format!(
                    "{} B {:.2} % (fresh {:.2} %)",
                    phase.value_len,
                    phase.hit_ratio * 100.0,
                    phase.fresh_hit_ratio * 100.0
                )
            })
            .collect();
        let is_default = report.policy == crate::PolicyKind::default().to_string();
        rows.add(
            format!(
                "value sizes 100 B → 4 KiB → 100 B at full memory, {}",
                report.policy
            ),
            if is_default {
                "within 2 points of a fresh cache, no write refused"
            } else {
                "reported; no write refused"
            },
            if is_default {
                Some(report.loss_points_max <= 2.0 && report.refused == 0)
            } else {
                (report.refused > 0).then_some(false)
            },
            format!(
                "worst loss {:.2} points, {} refused: {}",
                report.loss_points_max.max(0.0),
                report.refused,
                phases.join(", ")
            ),
        );
    }
    rows.rows
}

pub(super) const HIT_RATIO: &str = "trefoil bench hit-ratio --trace crates/bench/data/OLTP.lis.zst --objects 1000,2000,5000,10000,15000";

pub(super) fn hit_ratio(reports: &[HitRatioReport]) -> Vec<Figure> {
    let mut rows = Rows::of(HIT_RATIO);
    let of = |policy: &str, touches| {
        reports
            .iter()
            .find(|report| report.policy == policy && report.touches == touches)
    };
    for (policy, reference) in OLTP_REFERENCE {
        let name = policy.to_string();
        let (Some(exact), Some(batched)) = (of(&name, Touches::Exact), of(&name, Touches::Batched))
        else {
            continue;
        };
        let points_max = if policy == crate::PolicyKind::Lru {
            0.01
        } else {
            0.3
        };
        let expected = |objects| {
            let entry = reference.iter().find(|(at, _)| *at == objects);
            entry.map_or(f64::NAN, |(_, percent)| *percent)
        };
        // As printed in the reference's table: two digits.
        let percent = |hit_ratio: f64| (hit_ratio * 1e4).round() / 1e2;
        let off = exact
            .results
            .iter()
            .map(|r| (percent(r.hit_ratio) - expected(r.objects)).abs())
            .fold(0.0, f64::max);
        let list: Vec<String> = exact
            .results
            .iter()
            .map(|r| format!("{} {:.2} %", r.objects, r.hit_ratio * 100.0))
            .collect();
        rows.add(
            format!("OLTP hit ratios beside libCacheSim 0.3.5, exact touches, {name}"),
            &format!("within {points_max} points"),
            // A hair for what two decimal digits are in binary.
            Some(off <= points_max + 1e-6),
            format!("off by {off:.2} points at most: {}", list.join(", ")),
        );
        rows.with(&format!("--policy {name}"));
        let loss = exact
            .results
            .iter()
            .zip(&batched.results)
            .map(|(exact, batched)| (exact.hit_ratio - batched.hit_ratio) * 100.0)
            .fold(f64::MIN, f64::max);
        rows.add(
            format!("the same with the default partitions and batched touches, {name}"),
            "loses at most 1 point",
            Some(loss <= 1.0),
            if loss > 0.0 {
                format!("loses {loss:.2} points at most")
            } else {
                format!("gains at least {:.2} points", -loss)
            },
        );
        rows.with(&format!("--policy {name} --touches batched"));
    }
    rows.rows
}

pub(super) const KILL: &str = "trefoil bench scenario kill";

pub(super) fn kill(report: &KillReport) -> Vec<Figure> {
    let mut rows = Rows::of(KILL);
    rows.add(
        format!(
            "kill -9 of one of three backends, R=3.2, 95/5 at {}, {} runs",
            rate(report.rate),
            report.runs
        ),
        "no failed GET or SET, no stale hit, no miss",
        Some(report.is_clean()),
        format!(
            "of {} operations {} failed, {} stale, {} wrong, {} missed{}",
            report.ops,
            report.failed,
            report.stale,
            report.wrong,
            report.misses,
            message(report.first_error.as_deref())
        ),
    );
    let seconds = |ms: Option<u64>| {
        ms.map_or_else(
            || "not for three tenths of a second on end".to_owned(),
            |ms| format!("after {:.1} s", ms as f64 / 1e3),
        )
    };
    rows.add(
        "the same: p99 back under twice what it was",
        "within 1 s",
        Some(report.recovery_ms.is_some_and(|ms| ms < 1_000)),
        format!(
            "{} (slowest run {}); p99 of a tenth of a second, median: {} before, {} from 1 s after",
            seconds(report.recovery_ms),
            seconds(report.recovery_ms_max),
            nanoseconds(report.p99_before_ns),
            nanoseconds(report.p99_after_ns)
        ),
    );
    rows.rows
}

fn message(error: Option<&str>) -> String {
    error.map_or_else(String::new, |error| format!("; the first said: {error}"))
}

pub(super) const TAKEOVER: &str = "trefoil bench scenario takeover";

pub(super) fn takeover(report: &TakeoverReport) -> Vec<Figure> {
    let mut rows = Rows::of(TAKEOVER);
    rows.add(
        "kill -9 of the only backend, R=1, and a new process in its place",
        "clean errors in time; never a hit from the dead one's memory",
        Some(report.is_clean()),
        format!(
            "{} hits from dead memory; {} clean errors, slowest call {:.0} ms; served again after {} ms, answered {} later{}",
            report.dead_hits,
            report.errors,
            report.slowest_call_ms,
            report.served_again_ms,
            report
                .answered_again_ms
                .map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms")),
            message(report.first_error.as_deref())
        ),
    );
    rows.rows
}

pub(super) const RETRIES: &str = "trefoil bench scenario retries";

pub(super) fn retries(report: &RetriesReport) -> Vec<Figure> {
    let mut rows = Rows::of(RETRIES);
    let mut row = |name: &str, figures: &RetryFigures, target: &str, per_get_max: f64| {
        let causes: Vec<String> = figures
            .retries
            .iter()
            .map(|(cause, count)| format!("{cause} {count}"))
            .collect();
        rows.add(
            format!(
                "retries of GETs, R=3.2, {} keys, {name}, 95/5 at {} by {} clients",
                report.keys,
                rate(report.rate),
                report.clients
            ),
            target,
            Some(figures.per_get < per_get_max && figures.bad == 0),
            format!(
                "{:.4} % of {} GETs ({}); {} bad operations",
                figures.per_get * 100.0,
                figures.gets,
                if causes.is_empty() {
                    "none".to_owned()
                } else {
                    causes.join(", ")
                },
                figures.bad
            ),
        );
    };
    row("uniform", &report.uniform, "below 0.01 %", 1e-4);
    row("Zipf 0.99", &report.zipf, "at most 1 %", 1e-2);
    rows.rows
}

pub(super) const RESHAPE: &str = "trefoil bench scenario reshape";

pub(super) fn reshape(report: &ReshapeReport) -> Vec<Figure> {
    let mut rows = Rows::of(RESHAPE);
    let limits = format!(
        "{} → {} → {}",
        bytes(report.limit_small_bytes),
        bytes(report.limit_large_bytes),
        bytes(report.limit_small_bytes)
    );
    rows.add(
        format!("memory {limits} under load"),
        "no failed operation",
        Some(report.is_clean()),
        format!(
            "of {} operations {} failed, {} stale, {} wrong{}",
            report.ops,
            report.failed,
            report.stale,
            report.wrong,
            message(report.first_error.as_deref())
        ),
    );
    rows.add(
        "the same: memory returned to the system",
        "back below the lower limit",
        Some(report.resident_after_bytes <= report.limit_small_bytes),
        format!(
            "{} before, {} after {:.1} s, {} at most after shrinking for {:.1} s",
            bytes(report.resident_before_bytes),
            bytes(report.resident_grown_bytes),
            report.grow_seconds,
            bytes(report.resident_after_bytes),
            report.shrink_seconds
        ),
    );
    rows.add(
        "the same: the bound holds all the time",
        "never above the limit in force",
        Some(report.exceeded_bytes_max == 0),
        format!(
            "above by {} at most in {} looks at the process",
            bytes(report.exceeded_bytes_max),
            report.samples
        ),
    );
    rows.rows
}

pub(super) const SIMULATOR: &str = "trefoil sim --seed 1 --seeds 100000";

pub(super) fn simulator(seeds: u64, is_clean: bool, seconds: f64) -> Vec<Figure> {
    let mut rows = Rows::of(SIMULATOR);
    rows.add(
        "simulated cells under loss, delay, torn reads and crashes",
        "100,000 seeds without a violation",
        Some(is_clean),
        format!(
            "{seeds} seeds in {seconds:.0} s: {}",
            if is_clean { "clean" } else { "violations" }
        ),
    );
    rows.rows
}

/// What other commands decide, so that the table has every promise.
pub(super) fn elsewhere() -> Vec<Figure> {
    let row = |what: &str, target: &str, command: &str| Figure {
        what: what.to_owned(),
        target: target.to_owned(),
        measured: "by its own command".to_owned(),
        met: None,
        command: command.to_owned(),
    };
    vec![
        row(
            "a mutant without each safety rule",
            "caught by the simulator",
            "make test",
        ),
        row("loom, Miri, fuzzing", "clean", "make soak"),
        row(
            "the tests of a fresh clone",
            "at most 25 minutes",
            "make test",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hit_ratio::HitRatioResult;

    fn hit_ratios(policy: &str, touches: Touches, hit_ratio: f64) -> HitRatioReport {
        HitRatioReport {
            policy: policy.to_owned(),
            touches,
            references: 1,
            distinct: 1,
            results: vec![HitRatioResult {
                objects: 1000,
                hit_ratio,
                hits: 0,
                evicted_associativity: 0,
            }],
        }
    }

    #[test]
    fn hit_ratios_are_judged_by_their_reference() {
        let met = |exact, batched| {
            let reports = [
                hit_ratios("lru", Touches::Exact, exact),
                hit_ratios("lru", Touches::Batched, batched),
            ];
            hit_ratio(&reports)
                .iter()
                .map(|row| row.met)
                .collect::<Vec<_>>()
        };
        assert_eq!(met(0.32834, 0.3200), [Some(true), Some(true)]);
        assert_eq!(met(0.32844, 0.3200), [Some(true), Some(true)]);
        assert_eq!(met(0.3286, 0.3185), [Some(false), Some(false)]);
    }

    #[test]
    fn retries_and_bad_operations_are_judged() {
        let mut report = RetriesReport {
            keys: 10,
            value_size: 1,
            rate: 20_000.0,
            clients: 4,
            uniform: RetryFigures {
                gets: 100_000,
                per_get: 0.00009,
                ..RetryFigures::default()
            },
            zipf: RetryFigures::default(),
        };
        assert_eq!(retries(&report)[0].met, Some(true));
        report.uniform.bad = 1;
        report.zipf.per_get = 0.02;
        let rows = retries(&report);
        assert_eq!((rows[0].met, rows[1].met), (Some(false), Some(false)));
    }
}
