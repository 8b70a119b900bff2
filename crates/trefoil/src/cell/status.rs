//! `cell status`: what a cell holds and how it is.

use crate::args::CellAddress;
use crate::cell::places::{self, Places};
use crate::failure::{Failure, Outcome, print_json, print_line};
use bytesize::ByteSize;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use trefoil_cell::CorpusId;
use trefoil_client::{BackendStats, Cell, EngineStats, Options};
use trefoil_rpc::v1::{MemberStats, RecoveryStats, RepairStats, ResizeStats};

#[derive(Serialize)]
struct Status {
    cell: String,
    mode: String,
    config_id: u32,
    eviction: String,
    value_len_max: u64,
    /// Of an immutable cell: what it is to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    corpus: Option<CorpusId>,
    backends: Vec<Backend>,
    /// That read backends for clients on other hosts.
    engines: Vec<EngineLine>,
    /// Of a cell that was asked for by its address in etcd.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    places: Option<Places>,
}

#[derive(Serialize, Default)]
struct Backend {
    number: u32,
    /// "up", "recovering" (it has lost its memory and does not vote for all of its keys
    /// yet), "silent" (its process is there and does not answer) or "down".
    state: &'static str,
    /// What carries this process's operations to it, and why nothing faster does.
    carrier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    carrier_why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// None where nobody is: 0 would be the reader's own process group.
    pid: Option<u32>,
    uptime_ms: u64,
    memory_limit_bytes: u64,
    resident_bytes: u64,
    items: u64,
    entry_bytes: u64,
    index_bytes: u64,
    data_bytes: u64,
    evictions_capacity: u64,
    evictions_associativity: u64,
    expired: u64,
    side_table_items: u64,
    tombstones: u64,
    index_reshapes: u64,
    slab_moves: u64,
    lookups_by_message: u64,
    touches: u64,
    cpu_us: u64,
    epoch: u32,
    incarnation: String,
    mutations: Vec<Mutations>,
    /// Of a configuration store on other machines: "away" (it does not answer) or
    /// "refused" (what it says is not believed, or cannot be followed).
    #[serde(skip_serializing_if = "Option::is_none")]
    config_store: Option<&'static str>,
    /// The same store knows another process as this backend: which, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    registered_elsewhere: Option<String>,
    /// Of one that was restarted without its cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<RecoveryStats>,
    /// Of one that repairs the shard of which it is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<RepairStats>,
    /// Of a cell that is being resized.
    #[serde(skip_serializing_if = "Option::is_none")]
    resize: Option<ResizeStats>,
    /// Of one of an immutable cell: what it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    corpus: Option<CorpusId>,
}

#[derive(Serialize)]
struct EngineLine {
    /// Where it is reached from here.
    address: String,
    /// Those that tell of it.
    backends: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What it has counted.
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Mutations {
    kind: String,
    outcome: String,
    count: u64,
}

pub(super) fn run(address: &CellAddress, json: bool) -> Outcome {
    let cell = crate::connect::cell(address)?;
    let config = cell.config();
    let mut status = Status {
        cell: config.cell.clone(),
        mode: config.mode.to_string(),
        config_id: config.config_id,
        eviction: config.eviction.clone(),
        value_len_max: config.value_len_max,
        corpus: config.corpus.clone(),
        backends: cell
            .stats()
            .into_iter()
            .map(|answer| backend(&cell, answer))
            .collect(),
        engines: cell.engines().into_iter().map(engine).collect(),
        places: places(&address.cell),
    };
    for link in cell.client(Options::default()).carriers() {
        let number = link.backend;
        if let Some(backend) = status.backends.iter_mut().find(|b| b.number == number) {
            backend.carrier = link.carrier.name();
            backend.carrier_why = link.why.map(|why| why.to_string());
        }
    }
    if json {
        print_json(&status)?
    } else {
        print(&status)?
    }
    let any_up = status.backends.iter().any(|backend| is_up(backend.state));
    Ok(if any_up {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn places(address: &str) -> Option<Places> {
    let places = places::of(address)?;
    let tell = |why: &String| eprintln!("trefoil: spares are not known: {why}");
    places.inspect_err(tell).ok()
}

/// The state of a backend that answers.
pub(crate) fn state_of(member: &MemberStats) -> &'static str {
    match &member.recovery {
        Some(recovery) if recovery.shards_left > 0 => "recovering",
        _ => "up",
    }
}

/// Whether a backend of this state answers.
pub(crate) fn is_up(state: &str) -> bool {
    matches!(state, "up" | "recovering")
}

/// The state of a backend that says nothing, and its process: one that hangs is
/// there, one that has died, or is dying, is not.
pub(crate) fn silence(cell: &Cell, answer: &BackendStats) -> (&'static str, Option<u32>) {
    if !answer.is_silent {
        return ("down", None);
    }
    match cell.listening_process(answer.number) {
        Some(pid) if trefoil_cell::is_ending(pid) => ("down", None),
        pid => ("silent", pid),
    }
}

fn backend(cell: &Cell, answer: BackendStats) -> Backend {
    let number = answer.number;
    let (state, pid) = silence(cell, &answer);
    let stats = match answer.stats {
        Ok(stats) => stats,
        Err(error) => {
            return Backend {
                number,
                state,
                pid,
                error: Some(error),
                ..Backend::default()
            };
        }
    };
    let process = stats.process.unwrap_or_default();
    let Some(member) = stats
        .members
        .into_iter()
        .find(|member| member.backend == number)
    else {
        let error = Some("another process answered at its address".into());
        return Backend {
            number,
            state: "down",
            error,
            ..Backend::default()
        };
    };
    let resident = member.resident.unwrap_or_default();
    let evictions = member.evictions.unwrap_or_default();
    Backend {
        number,
        state: state_of(&member),
        carrier: "",
        carrier_why: None,
        error: None,
        pid: Some(process.pid),
        uptime_ms: process.uptime_ms,
        memory_limit_bytes: process.memory_limit_bytes,
        resident_bytes: process.resident_bytes,
        items: member.items,
        entry_bytes: member.entry_bytes,
        index_bytes: resident.index,
        data_bytes: resident.data,
        evictions_capacity: evictions.capacity,
        evictions_associativity: evictions.associativity,
        expired: evictions.expired,
        side_table_items: member.side_table_items,
        tombstones: member.tombstones,
        index_reshapes: member.index_reshapes,
        slab_moves: member.slab_moves,
        lookups_by_message: member.lookup_hits + member.lookup_misses,
        touches: member.touches,
        cpu_us: process.cpu_user_us + process.cpu_system_us,
        epoch: member.epoch,
        incarnation: member.incarnation,
        mutations: member
            .mutations
            .into_iter()
            .map(|m| Mutations {
                kind: m.kind,
                outcome: m.outcome,
                count: m.count,
            })
            .collect(),
        config_store: match (process.config_store_refused, process.config_store_away) {
            (true, _) => Some("refused"),
            (false, true) => Some("away"),
            (false, false) => None,
        },
        registered_elsewhere: Some(process.registered_elsewhere).filter(|text| !text.is_empty()),
        recovery: member.recovery,
        repair: member.repair,
        resize: member.resize,
        corpus: member
            .corpus
            .and_then(|corpus| trefoil_cell::decode_corpus(&corpus).ok()),
    }
}

fn engine(stats: EngineStats) -> EngineLine {
    let (counters, error) = match stats.counters {
        Ok(counters) => (counters.into_iter().collect(), None),
        Err(error) => (BTreeMap::new(), Some(error)),
    };
    EngineLine {
        address: stats.address.to_string(),
        backends: stats.backends,
        error,
        counters,
    }
}

fn engine_line(engine: &EngineLine) -> String {
    let EngineLine {
        address, counters, ..
    } = engine;
    if let Some(error) = &engine.error {
        return format!("engine {address}: {error}");
    }
    let count = |name| counters.get(name).copied().unwrap_or_default();
    let operations = count("scans") + count("reads");
    let cpu_per_operation = match operations {
        0 => String::new(),
        _ => format!(
            " ({:.2} us each)",
            count("cpu_us") as f64 / operations as f64
        ),
    };
    let (threads, most) = (count("engines").max(1), count("engines_max"));
    let at_most = match most > threads {
        true => format!(" (of {most})"),
        false => String::new(),
    };
    // An earlier release does not know it.
    let sent_again = match counters.get("retransmitted") {
        Some(count) => format!(", {count} sent again"),
        None => String::new(),
    };
    let under_way = match counters.get("lag_us_max") {
        Some(lag_us) => format!(
            ", {} under way of {}, lag {lag_us} us",
            ByteSize::b(count("in_flight_bytes")),
            ByteSize::b(count("window_bytes")),
        ),
        None => String::new(),
    };
    format!(
        "engine {address}: {threads} threads{at_most}, {} backends, {} connections, {operations} reads{cpu_per_operation}, {} in, {} out{under_way}, {} asked again{sent_again}, {} refused, {} revoked",
        count("backends_mapped"),
        // This one asks.
        count("sessions_open").saturating_sub(1),
        ByteSize::b(count("bytes_in")),
        ByteSize::b(count("bytes_out")),
        count("repeated"),
        count("refused") + count("turned_away"),
        count("revoked"),
    )
}

fn print(status: &Status) -> Result<(), Failure> {
    print_line(&format!(
        "cell {}  {}  eviction {}  config id {}",
        status.cell, status.mode, status.eviction, status.config_id
    ))?;
    if let Some(line) = resize_line(&status.backends) {
        print_line(&line)?;
    }
    if let Some(corpus) = &status.corpus {
        print_line(&format!("corpus {corpus}"))?;
    }
    print_line(
        "backend  state          pid        items   entries    resident       limit   evicted  expired",
    )?;
    for backend in &status.backends {
        if let Some(error) = &backend.error {
            print_line(&format!(
                "{:>7}  {:<10} {:>7}  {error}",
                backend.number,
                backend.state,
                backend
                    .pid
                    .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            ))?;
            continue;
        }
        print_line(&format!(
            "{:>7}  {:<10} {:>7} {:>12} {:>11} {:>11} {:>11} {:>9} {:>8}",
            backend.number,
            backend.state,
            backend.pid.unwrap_or_default(),
            backend.items,
            ByteSize::b(backend.entry_bytes).to_string(),
            ByteSize::b(backend.resident_bytes).to_string(),
            ByteSize::b(backend.memory_limit_bytes).to_string(),
            backend.evictions_capacity + backend.evictions_associativity,
            backend.expired,
        ))?;
        if let (Some(corpus), Some(cell)) = (&backend.corpus, &status.corpus)
            && corpus != cell
        {
            print_line(&format!("         serves another corpus: {corpus}"))?;
        }
        if let Some(recovery) = &backend.recovery {
            print_line(&format!("         {}", recovery_line(recovery)))?;
        }
        match backend.config_store {
            Some("refused") => {
                print_line("         does not believe its configuration store: its log says why")?;
            }
            Some(_) => print_line("         cannot reach its configuration store")?,
            None => {}
        }
        if let Some(why) = &backend.registered_elsewhere {
            print_line(&format!("         TWO PROCESSES: {why}"))?;
        }
        if let Some(line) = backend.repair.as_ref().and_then(repair_line) {
            print_line(&format!("         {line}"))?;
        }
        if let Some(why) = &backend.carrier_why {
            let carrier = backend.carrier;
            print_line(&format!("         reached by {carrier}, not faster: {why}"))?;
        }
    }
    for engine in &status.engines {
        print_line(&engine_line(engine))?;
    }
    let lines = status.places.as_ref().map(places::lines);
    for line in lines.unwrap_or_default() {
        print_line(&line)?;
    }
    Ok(())
}

/// How far a resize has come, as its backends know it. The processes that copy begin one
/// after the other.
fn resize_line(backends: &[Backend]) -> Option<String> {
    let known: Vec<&ResizeStats> = backends.iter().filter_map(|b| b.resize.as_ref()).collect();
    let wanted = known.first()?.backends;
    let mut takers = BTreeMap::new();
    for taker in known.iter().flat_map(|resize| &resize.takers) {
        takers.insert(taker.backend, taker);
    }
    let permille: u64 = takers.values().map(|t| u64::from(t.permille)).sum();
    let share = permille as f64 / 10.0 / f64::from(wanted.max(1));
    let items: u64 = takers.values().map(|taker| taker.items).sum();
    let bytes: u64 = takers.values().map(|taker| taker.bytes).sum();
    let paused = match takers.values().any(|taker| taker.paused) {
        true => ", paused",
        false => "",
    };
    Some(format!(
        "is being resized to {wanted} backends: {share:.1} % copied, {items} items, {}{paused}",
        ByteSize::b(bytes)
    ))
}

/// What is under way, or could not be repaired; nothing where all is well.
fn repair_line(repair: &RepairStats) -> Option<String> {
    let mut parts = Vec::new();
    if repair.backlog > 0 {
        parts.push(format!("{} keys to look at again", repair.backlog));
    }
    if repair.scan_unrepaired > 0 {
        let (keys, full) = (repair.scan_unrepaired, repair.full);
        parts.push(match full {
            0 => format!("{keys} keys could not be repaired"),
            _ => format!("{keys} keys differ that a full replica has evicted, or that are in use"),
        });
    }
    if !repair.waits_for.is_empty() {
        parts.push(format!("waits: {}", repair.waits_for));
    }
    (!parts.is_empty()).then(|| format!("repair: {}", parts.join("; ")))
}

/// How far a recovery has come, or what came of it.
fn recovery_line(recovery: &RecoveryStats) -> String {
    let items = recovery.items + recovery.repaired;
    let bytes = ByteSize::b(recovery.bytes);
    let seconds = recovery.took_ms as f64 / 1e3;
    let mut line = match recovery.shards_left {
        0 => format!("recovered {items} items, {bytes}, in {seconds:.1} s"),
        left => format!(
            "recovering: {:.1} % done, {left} shards left, {items} items, {bytes}, since {seconds:.1} s",
            f64::from(recovery.permille) / 10.0
        ),
    };
    if !recovery.waits_for.is_empty() {
        line += &format!("; waits: {}", recovery.waits_for);
    }
    if recovery.skipped > 0 {
        line += &format!("; {} colder ones had no room", recovery.skipped);
    }
    if recovery.shards_lost > 0 {
        line += &format!(
            "; {} shards came back empty: two of three replicas had lost them",
            recovery.shards_lost
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_of_an_earlier_release_does_not_count_is_left_out() {
        let line = |counters: &[(&'static str, u64)]| {
            engine_line(&engine(EngineStats {
                address: ([127, 0, 0, 1], 7431).into(),
                backends: vec![0],
                counters: Ok(counters.to_vec()),
            }))
        };
        let mut counters = vec![("engines", 2), ("scans", 3), ("repeated", 5)];
        let old = line(&counters);
        assert!(
            old.contains("2 threads, ") && old.contains("5 asked again, 0 refused"),
            "{old}"
        );
        for unknown in ["under way", "lag", "sent again"] {
            assert!(!old.contains(unknown), "{old}");
        }
        counters.extend([
            ("lag_us_max", 310),
            ("retransmitted", 7),
            ("engines_max", 4),
        ]);
        let new = line(&counters);
        for known in [
            "2 threads (of 4)",
            "0 B under way of 0 B, lag 310 us",
            "7 sent again",
        ] {
            assert!(new.contains(known), "{new}");
        }
    }
}
