//! Commands about the server: INFO, CONFIG, DBSIZE, FLUSHALL, TIME.

use super::connection::{help, subcommand};
use super::execute::Call;
use super::gather::value_len_max;
use super::glob;
use crate::keyspace::{FLUSH_WORK, Keyspace, Pending, REPORT_WORK, Ready as _};
use crate::world::{Command, Ending, Isolation, Role, World};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The Redis whose answers these are; clients look at it to know what they can
/// ask for.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// Entries that the slow log keeps.
const SLOW_LOG_LEN: usize = 128;

/// DBSIZE.
pub(super) fn db_size<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let totals = call.world.keyspace.totals().ready()?;
    call.world.keyspace.charge(REPORT_WORK);
    match totals {
        Ok(totals) => call.reply.integer(totals.items as i64),
        Err(fault) => call.reply.fault(&fault),
    }
    Ok(())
}

/// FLUSHALL, FLUSHDB: done when it is answered, whether asked to wait or not.
pub(super) fn flush<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let is_legal = match call.arguments.len() {
        1 => true,
        2 => call.arguments.is(1, "sync") || call.arguments.is(1, "async"),
        _ => false,
    };
    if !is_legal {
        call.reply.syntax_error();
        return Ok(());
    }
    let now_ms = call.world.now.unix_ms;
    let flushed = call.world.keyspace.flush(now_ms).ready()?;
    call.world.keyspace.charge(FLUSH_WORK);
    let ending = match flushed {
        Ok(()) => {
            call.reply.simple("OK");
            Ending::Hit
        }
        Err(fault) => {
            call.reply.fault(&fault);
            Ending::ServerError
        }
    };
    let done = crate::world::Done {
        command: Command::Flush,
        ending,
        key: b"",
        value_len: 0,
    };
    call.world.observer.done(&done);
    Ok(())
}

/// TIME: seconds and microseconds.
pub(super) fn time<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let now_ms = call.world.now.unix_ms;
    call.reply.array(2);
    call.reply.bulk((now_ms / 1000).to_string());
    call.reply.bulk((now_ms % 1000 * 1000).to_string());
}

/// Lines of INFO: Redis's name and the statistic that says it.
type Lines = &'static [(&'static str, &'static str)];

/// The sections that INFO gives from the server's statistics.
const SECTIONS: [(&str, Lines); 8] = [
    (
        "Server",
        &[("process_id", "pid"), ("uptime_in_seconds", "uptime")],
    ),
    (
        "Clients",
        &[
            ("connected_clients", "curr_connections"),
            ("maxclients", "max_connections"),
        ],
    ),
    (
        "Memory",
        &[("used_memory", "bytes"), ("maxmemory", "limit_maxbytes")],
    ),
    ("Persistence", &[]),
    (
        "Stats",
        &[
            ("total_connections_received", "total_connections"),
            ("total_net_input_bytes", "bytes_read"),
            ("total_net_output_bytes", "bytes_written"),
            ("rejected_connections", "rejected_connections"),
            ("evicted_keys", "evictions"),
            ("keyspace_hits", "get_hits"),
            ("keyspace_misses", "get_misses"),
        ],
    ),
    ("Replication", &[]),
    ("Cluster", &[]),
    ("Keyspace", &[]),
];

/// Lines that are always the same.
fn fixed_lines(section: &str, eviction: &str, text: &mut String) {
    let lines = match section {
        "Server" => {
            let ours = env!("CARGO_PKG_VERSION");
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "redis_version:{REDIS_VERSION}\r\ntrefoil_version:{ours}\r\n"
            );
            "redis_mode:standalone\r\narch_bits:64\r\n"
        }
        "Memory" => {
            let _ = write!(text, "maxmemory_policy:allkeys-{eviction}\r\n");
            ""
        }
        "Persistence" => "loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n",
        "Replication" => "role:master\r\nconnected_slaves:0\r\n",
        "Cluster" => "cluster_enabled:0\r\n",
        _ => "",
    };
    text.push_str(lines);
}

/// How many keys a transaction changes as one, and what becomes of others.
fn transactions<K: Keyspace>(world: &World<'_, K>) -> (&'static str, &'static str) {
    let keys = match world.keyspace.isolates() {
        true => "several",
        false => "one",
    };
    let others = match world.settings.transactions {
        Isolation::Relaxed => "relaxed",
        Isolation::Strict => "strict",
    };
    (keys, others)
}

/// Commands on keys, which are counted; others are not.
fn processed(statistics: &BTreeMap<String, String>) -> u64 {
    [
        "cmd_get",
        "cmd_set",
        "cmd_flush",
        "cmd_touch",
        "delete_hits",
        "delete_misses",
        "incr_hits",
        "incr_misses",
        "decr_hits",
        "decr_misses",
    ]
    .iter()
    .filter_map(|name| statistics.get(*name)?.parse::<u64>().ok())
    .sum()
}

/// INFO.
pub(super) fn info<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    // Without them the front door's own counters are better than nothing.
    let totals = call.world.keyspace.totals().ready()?.unwrap_or_default();
    call.world.keyspace.charge(REPORT_WORK);
    let items = totals.items;
    let eviction = call.world.keyspace.eviction().to_owned();
    let mut statistics = BTreeMap::new();
    call.world.observer.stats("", &totals, &mut |name, value| {
        statistics.insert(name.to_owned(), value.to_owned());
    });
    let is_all = call.arguments.len() == 1
        || call.arguments.from(1).any(|section| {
            ["all", "default", "everything"]
                .iter()
                .any(|all| section.eq_ignore_ascii_case(all.as_bytes()))
        });
    let mut text = String::new();
    for (section, lines) in SECTIONS {
        let is_asked_for = call
            .arguments
            .from(1)
            .any(|asked| asked.eq_ignore_ascii_case(section.as_bytes()));
        if !is_all && !is_asked_for {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let _ = write!(text, "# {section}\r\n");
        fixed_lines(section, &eviction, &mut text);
        if section == "Server" {
            let (keys, others) = transactions(call.world);
            let _ = write!(
                text,
                "trefoil_transaction_keys:{keys}\r\ntrefoil_transactions:{others}\r\n"
            );
        }
        if section == "Stats" {
            let processed = processed(&statistics);
            let _ = write!(text, "total_commands_processed:{processed}\r\n");
        }
        for (name, statistic) in lines {
            if let Some(value) = statistics.get(*statistic) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
        if section == "Keyspace" && items > 0 {
            let _ = write!(text, "db0:keys={items},expires=0,avg_ttl=0\r\n");
        }
    }
    call.reply.text(&text);
    Ok(())
}

/// The configuration, in Redis's names.
fn configuration<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
) -> Result<Vec<(&'static str, String)>, Pending> {
    let totals = call.world.keyspace.totals().ready()?;
    call.world.keyspace.charge(REPORT_WORK);
    // As Redis has it: -1 keeps nothing.
    let mut slow_us = "-1".to_owned();
    let slow = &mut |name: &str, value: &str| {
        if name == "slow_threshold_us" && value != "0" {
            slow_us = value.to_owned();
        }
    };
    call.world.observer.stats(
        "settings",
        &totals.as_ref().copied().unwrap_or_default(),
        slow,
    );
    let limit_bytes = totals.unwrap_or_default().limit_bytes;
    let settings = call.world.settings;
    let eviction = call.world.keyspace.eviction();
    // 0 is never; less than a second is not told.
    let timeout = settings.idle_timeout.unwrap_or_default();
    Ok(vec![
        ("appendonly", "no".to_owned()),
        ("cluster-enabled", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("io-threads", settings.thread_count.to_string()),
        ("maxclients", settings.connections_max.to_string()),
        ("maxmemory", limit_bytes.to_string()),
        ("maxmemory-policy", format!("allkeys-{eviction}")),
        ("notify-keyspace-events", String::new()),
        ("proto-max-bulk-len", value_len_max(call.world).to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", slow_us),
        ("slowlog-max-len", SLOW_LOG_LEN.to_string()),
        ("timeout", timeout.as_secs().to_string()),
    ])
}

const CONFIG_HELP: &[&str] = &[
    "GET <pattern>",
    "    Settings whose names match.",
    "RESETSTAT",
    "    Statistics begin anew.",
];

/// CONFIG GET, CONFIG RESETSTAT. What an operator chose is not for clients to
/// change.
pub(super) fn config<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    match subcommand(
        call,
        &[("get", -3), ("help", 2), ("resetstat", 2), ("set", -4)],
    ) {
        None => {}
        Some("help") => help(call, CONFIG_HELP),
        Some("set") => call.reply.error(
            "ERR CONFIG SET is not here: what an operator chose is not for clients to change",
        ),
        Some("resetstat") if call.role < Role::Admin => {
            call.reply.no_permission("config|resetstat");
        }
        Some("resetstat") => {
            let totals = call.world.keyspace.totals().ready()?.unwrap_or_default();
            call.world.keyspace.charge(REPORT_WORK);
            call.world.observer.reset(&totals);
            call.reply.simple("OK");
        }
        Some(_) => {
            let mut found = configuration(call)?;
            let arguments = call.arguments;
            found.retain(|(name, _)| {
                arguments.from(2).take(32).any(|pattern| {
                    let pattern = pattern.to_ascii_lowercase();
                    pattern.len() <= 128 && glob::matches(&pattern, name.as_bytes())
                })
            });
            call.reply.map(found.len());
            for (name, value) in found {
                call.reply.bulk(name);
                call.reply.bulk(value);
            }
        }
    }
    Ok(())
}
