//! What has happened between two readings.

use super::durations::Durations;
use super::reading::Reading;
use serde::Serialize;
use std::collections::BTreeMap;
use trefoil_client::{EngineStats, HotKey};
use trefoil_rpc::v1;

/// One object of `--json`.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) unix_ms: u64,
    /// Seconds that the rates are over.
    pub(super) seconds: f64,
    pub(super) cell: String,
    pub(super) mode: String,
    pub(super) config_id: u32,
    pub(super) memory: Memory,
    /// What backends see of operations; one-sided reads are reported to them by
    /// the clients that made them, misses are not.
    pub(super) operations: Operations,
    /// The front doors in the backends' processes, together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<Gateway>,
    pub(super) keys: Vec<Key>,
    pub(super) backends: Vec<Backend>,
    /// That read backends for clients on other hosts; what they do, no backend sees.
    pub(super) engines: Vec<Engine>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Engine {
    /// Where it is reached from here.
    pub(super) address: String,
    /// Those that tell of it.
    pub(super) backends: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Threads that read now.
    pub(super) threads: u64,
    /// The same under load, at most; this, and what else an engine of an earlier release does
    /// not count, is absent there.
    pub(super) threads_max: Option<u64>,
    /// Connections, without the one that asks.
    pub(super) sessions: u64,
    /// Lookups and reads.
    pub(super) operations_per_s: f64,
    pub(super) in_bytes_per_s: f64,
    pub(super) out_bytes_per_s: f64,
    /// Requests in datagrams that were asked before.
    pub(super) repeated_per_s: f64,
    /// Segments of TCP that were sent again.
    pub(super) retransmitted_per_s: Option<f64>,
    /// Bytes on streams that no client has acknowledged.
    pub(super) in_flight_bytes: Option<u64>,
    /// Bytes that TCP lets these streams have under way.
    pub(super) window_bytes: Option<u64>,
    /// The longest that requests may have waited for others lately.
    pub(super) lag_us_max: Option<u64>,
    /// The same on average since the reading before; absent if there were no requests.
    pub(super) lag_us: Option<f64>,
    /// Share of the time in which its threads that read carried out requests, 0 to their
    /// number.
    pub(super) busy: Option<f64>,
    /// Of the threads that read, in cores.
    pub(super) cpu_cores: f64,
    /// The same for each operation; absent if there were none.
    pub(super) cpu_us_per_operation: Option<f64>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Memory {
    pub(super) resident_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) items: u64,
    pub(super) entry_bytes: u64,
    pub(super) evictions_per_s: f64,
    pub(super) expired_per_s: f64,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Operations {
    /// Reads that found something, as clients report them.
    pub(super) reported_reads_per_s: f64,
    /// Lookups by message.
    pub(super) lookups_per_s: f64,
    /// Mutations of the cell: what several replicas apply is counted once.
    pub(super) mutations_per_s: f64,
    /// CPU of all backend processes, in cores.
    pub(super) cpu_cores: f64,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Gateway {
    pub(super) connections: u64,
    pub(super) commands_per_s: f64,
    /// Of reads; absent if there were none.
    pub(super) hit_ratio: Option<f64>,
    pub(super) read_bytes_per_s: f64,
    pub(super) written_bytes_per_s: f64,
    pub(super) slow_per_s: f64,
    pub(super) faults_per_s: f64,
    pub(super) commands: Vec<Command>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Command {
    pub(super) command: String,
    pub(super) per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

#[derive(Serialize, Clone, Debug)]
pub(super) struct Key {
    /// Its beginning, escaped.
    pub(super) key: String,
    pub(super) key_len: u32,
    pub(super) ops_per_s: f64,
    pub(super) bytes_per_s: f64,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Backend {
    pub(super) number: u32,
    /// "up", "silent" (its process is there and does not answer) or "down".
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// None where nobody is.
    pub(super) pid: Option<u32>,
    pub(super) uptime_s: f64,
    pub(super) items: u64,
    /// Of this backend's store.
    pub(super) resident_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) mutations_per_s: f64,
    pub(super) reported_reads_per_s: f64,
    pub(super) evictions_per_s: f64,
    pub(super) config_id: u32,
    pub(super) epoch: u32,
    /// Since the lease was renewed.
    pub(super) lease_age_ms: u64,
}

/// Counters of one backend that rates are made from.
#[derive(Clone, Copy, Default)]
struct Counts {
    mutations: u64,
    touches: u64,
    lookups: u64,
    evictions: u64,
    expired: u64,
}

impl Counts {
    fn of(member: &v1::MemberStats) -> Self {
        let evictions = member.evictions.unwrap_or_default();
        let mutations = member.mutations.iter();
        let counted = mutations.filter(|count| count.kind != "load");
        Counts {
            mutations: counted.map(|count| count.count).sum(),
            touches: member.touches,
            lookups: member.lookup_hits + member.lookup_misses,
            evictions: evictions.capacity + evictions.associativity,
            expired: evictions.expired,
        }
    }
}

impl Report {
    /// Rates of what was not there before, or began anew, are 0.
    pub(super) fn between(before: &Reading, now: &Reading) -> Report {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let mut report = Report {
            unix_ms: now.unix_ms,
            seconds,
            cell: now.cell.clone(),
            mode: now.mode.clone(),
            config_id: now.config_id,
            gateway: gateway(before, now, seconds),
            keys: now.keys.iter().map(key).collect(),
            engines: engines(before, now, seconds),
            ..Report::default()
        };
        for process in now.processes() {
            let own = process.process.clone().unwrap_or_default();
            report.memory.resident_bytes += own.resident_bytes;
            report.memory.limit_bytes += own.memory_limit_bytes;
            let cpu = |stats: &v1::ProcessStats| stats.cpu_user_us + stats.cpu_system_us;
            let earlier = before
                .same_process(process)
                .and_then(|stats| stats.process.clone());
            if let Some(earlier) = earlier {
                report.operations.cpu_cores += rate(cpu(&earlier), cpu(&own)) / 1e6;
            }
        }
        for answer in &now.backends {
            report.backends.push(match now.member(answer.number) {
                Ok((stats, member)) => {
                    let counts = Counts::of(member);
                    let earlier = before.member(answer.number).ok();
                    let earlier = earlier.filter(|(_, m)| m.incarnation == member.incarnation);
                    let earlier = earlier.map_or(counts, |(_, member)| Counts::of(member));
                    let of =
                        |counter: fn(&Counts) -> u64| rate(counter(&earlier), counter(&counts));
                    report.memory.items += member.items;
                    report.memory.entry_bytes += member.entry_bytes;
                    report.memory.evictions_per_s += of(|c| c.evictions);
                    report.memory.expired_per_s += of(|c| c.expired);
                    let copies = now.copy_count.max(1) as f64;
                    // A read is reported to all three copies, or to the one read.
                    let reports = if now.copy_count == 3 { 3.0 } else { 1.0 };
                    report.operations.mutations_per_s += of(|c| c.mutations) / copies;
                    report.operations.reported_reads_per_s += of(|c| c.touches) / reports;
                    report.operations.lookups_per_s += of(|c| c.lookups);
                    Backend {
                        mutations_per_s: of(|c| c.mutations),
                        reported_reads_per_s: of(|c| c.touches),
                        evictions_per_s: of(|c| c.evictions),
                        ..backend(stats, member)
                    }
                }
                Err(error) => {
                    let mut silence = now.silence.iter();
                    let known = silence.find(|(number, ..)| *number == answer.number);
                    let (_, state, pid) = known.copied().unwrap_or((0, "down", None));
                    Backend {
                        number: answer.number,
                        state,
                        pid,
                        error: Some(error.to_owned()),
                        ..Backend::default()
                    }
                }
            });
        }
        report
    }
}

fn backend(stats: &v1::StatsResponse, member: &v1::MemberStats) -> Backend {
    let process = stats.process.clone().unwrap_or_default();
    Backend {
        number: member.backend,
        state: crate::cell::status::state_of(member),
        pid: Some(process.pid),
        uptime_s: process.uptime_ms as f64 / 1e3,
        items: member.items,
        resident_bytes: member.resident.unwrap_or_default().total,
        limit_bytes: member.memory_limit_bytes,
        config_id: member.config_id,
        epoch: member.epoch,
        lease_age_ms: member.lease_ms.saturating_sub(member.lease_left_ms),
        ..Backend::default()
    }
}

fn key(key: &HotKey) -> Key {
    Key {
        key: key.key.escape_ascii().to_string(),
        key_len: key.key_len,
        ops_per_s: key.ops_per_s,
        bytes_per_s: key.bytes_per_s,
    }
}

fn engines(before: &Reading, now: &Reading, seconds: f64) -> Vec<Engine> {
    let engine = |own: &EngineStats| {
        let earlier = before.same_engine(own).unwrap_or(own);
        let grown = |of: &dyn Fn(&EngineStats) -> u64| of(own).saturating_sub(of(earlier)) as f64;
        let counter = |name: &str| grown(&|engine| engine.count(name));
        let rate_if_known = |name: &str| own.known(name).map(|_| counter(name) / seconds);
        let operations = grown(&EngineStats::operations);
        let cpu_us = counter("cpu_us");
        let (busy_us, rounds) = (counter("busy_us"), counter("rounds"));
        Engine {
            address: own.address.to_string(),
            backends: own.backends.clone(),
            error: own.counters.as_ref().err().cloned(),
            threads: own.count("engines"),
            threads_max: own.known("engines_max"),
            sessions: own.count("sessions_open").saturating_sub(1),
            operations_per_s: operations / seconds,
            in_bytes_per_s: counter("bytes_in") / seconds,
            out_bytes_per_s: counter("bytes_out") / seconds,
            repeated_per_s: counter("repeated") / seconds,
            retransmitted_per_s: rate_if_known("retransmitted"),
            in_flight_bytes: own.known("in_flight_bytes"),
            window_bytes: own.known("window_bytes"),
            lag_us_max: own.known("lag_us_max"),
            lag_us: (rounds > 0.0).then(|| busy_us / rounds),
            busy: rate_if_known("busy_us").map(|us| us / 1e6),
            cpu_cores: cpu_us / 1e6 / seconds,
            cpu_us_per_operation: (operations > 0.0).then(|| cpu_us / operations),
        }
    };
    now.engines.iter().map(engine).collect()
}

fn gateway(before: &Reading, now: &Reading, seconds: f64) -> Option<Gateway> {
    let mut gateway = None;
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let (mut hits, mut misses) = (0, 0);
    let mut commands: BTreeMap<String, Durations> = BTreeMap::new();
    for process in now.processes() {
        let Some(own) = &process.gateway else {
            continue;
        };
        let sum = gateway.get_or_insert_with(Gateway::default);
        sum.connections += own.connections;
        let earlier = before.same_process(process);
        let Some(earlier) = earlier.and_then(|stats| stats.gateway.as_ref()) else {
            continue;
        };
        sum.read_bytes_per_s += rate(earlier.bytes_read, own.bytes_read);
        sum.written_bytes_per_s += rate(earlier.bytes_written, own.bytes_written);
        sum.slow_per_s += rate(earlier.slow_commands, own.slow_commands);
        let faults = |stats: &v1::GatewayStats| stats.faults.iter().map(|f| f.count).sum();
        sum.faults_per_s += rate(faults(earlier), faults(own));
        for command in &own.commands {
            let mut known = earlier.commands.iter();
            let known = known.find(|known| known.command == command.command);
            let durations = commands.entry(command.command.clone()).or_default();
            let earlier = known.map_or(&[][..], |known| &known.durations);
            durations.add(earlier, &command.durations);
            if matches!(command.command.as_str(), "get" | "gat") {
                hits += command.hits - known.map_or(0, |k| k.hits.min(command.hits));
                misses += command.misses - known.map_or(0, |k| k.misses.min(command.misses));
            }
        }
    }
    let mut gateway = gateway?;
    gateway.hit_ratio = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
    for (command, durations) in commands {
        if durations.count() > 0 {
            let per_s = durations.count() as f64 / seconds;
            gateway.commands_per_s += per_s;
            gateway.commands.push(Command {
                command,
                per_s,
                p50_us: durations.quantile_us(0.5),
                p99_us: durations.quantile_us(0.99),
                p999_us: durations.quantile_us(0.999),
            });
        }
    }
    gateway.commands.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
    Some(gateway)
}
