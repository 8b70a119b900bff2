//! INFO: Redis's names for what this server knows. What it does not have is left out, but
//! for zeros that programs count on: of copies that are made for disks and replicas, of
//! defragmentation, of messages.

use super::execute::Call;
use super::reply::Reply;
use super::server::REDIS_VERSION;
use crate::keyspace::{Keyspace, Pending, REPORT_WORK, Ready as _, Totals};
use crate::world::{Isolation, World};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// Sections, in Redis's order, and whether they are told without being asked for.
const SECTIONS: [(&str, bool); 13] = [
    ("Server", true),
    ("Clients", true),
    ("Memory", true),
    ("Persistence", true),
    ("Stats", true),
    ("Replication", true),
    ("CPU", true),
    ("Modules", true),
    ("Commandstats", false),
    ("Errorstats", true),
    ("Latencystats", false),
    ("Cluster", true),
    ("Keyspace", true),
];

/// What all sections are made from.
struct Facts {
    totals: Totals,
    statistics: BTreeMap<String, String>,
    eviction: String,
    port: u16,
    now_ms: u64,
    /// Keys that a transaction changes as one, and what becomes of others.
    transactions: (&'static str, &'static str),
    /// Libraries of functions, and functions.
    functions: (usize, usize),
}

/// Lines of one section.
struct Lines<'a>(&'a mut String);

impl Lines<'_> {
    fn put(&mut self, name: &str, value: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    fn bytes(&mut self, name: &str, bytes: u64) {
        self.put(name, bytes);
        self.put(&format!("{name}_human"), human(bytes));
    }

    fn zeros(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.put(name, 0));
    }
}

/// A number of bytes, for people.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.2}{}", UNITS[unit])
}

impl Facts {
    /// Passes a statistic of the front door on, under Redis's name.
    fn pass(&self, lines: &mut Lines<'_>, name: &str, statistic: &str) {
        if let Some(value) = self.statistics.get(statistic) {
            lines.put(name, value);
        }
    }

    fn number(&self, statistic: &str) -> Option<u64> {
        self.statistics.get(statistic)?.parse().ok()
    }

    /// Commands on keys, which are counted; others are not.
    fn processed(&self) -> u64 {
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
        .filter_map(|name| self.number(name))
        .sum()
    }

    fn section(&self, name: &str, lines: &mut Lines<'_>) {
        match name {
            "Server" => self.server(lines),
            "Clients" => self.clients(lines),
            "Memory" => self.memory(lines),
            "Persistence" => persistence(lines),
            "Stats" => self.stats(lines),
            "Replication" => replication(lines),
            "CPU" => self.cpu(lines),
            "Cluster" => lines.put("cluster_enabled", 0),
            "Keyspace" if self.totals.items > 0 => {
                let keys = self.totals.items;
                lines.put("db0", format!("keys={keys},expires=0,avg_ttl=0"));
            }
            _ => {}
        }
    }

    fn server(&self, lines: &mut Lines<'_>) {
        lines.put("redis_version", REDIS_VERSION);
        lines.put("redis_git_sha1", "00000000");
        lines.put("redis_git_dirty", 0);
        lines.put("redis_build_id", 0);
        lines.put("redis_mode", "standalone");
        lines.put("os", format!("Linux {}", std::env::consts::ARCH));
        lines.put("arch_bits", usize::BITS);
        lines.put("multiplexing_api", "epoll");
        self.pass(lines, "process_id", "pid");
        lines.put("tcp_port", self.port);
        lines.put("server_time_usec", self.now_ms * 1000);
        self.pass(lines, "uptime_in_seconds", "uptime");
        if let Some(uptime_s) = self.number("uptime") {
            lines.put("uptime_in_days", uptime_s / 86_400);
        }
        lines.put("trefoil_version", env!("CARGO_PKG_VERSION"));
        lines.put("trefoil_transaction_keys", self.transactions.0);
        lines.put("trefoil_transactions", self.transactions.1);
        lines.put("io_threads_active", 0);
    }

    fn clients(&self, lines: &mut Lines<'_>) {
        self.pass(lines, "connected_clients", "curr_connections");
        self.pass(lines, "maxclients", "max_connections");
        lines.zeros(&[
            "cluster_connections",
            "blocked_clients",
            "tracking_clients",
            "clients_in_timeout_table",
        ]);
    }

    fn memory(&self, lines: &mut Lines<'_>) {
        let totals = &self.totals;
        // What the limit is about.
        lines.bytes("used_memory", totals.used_bytes);
        lines.put(
            "used_memory_overhead",
            totals.used_bytes.saturating_sub(totals.entry_bytes),
        );
        lines.put("used_memory_dataset", totals.entry_bytes);
        lines.put("number_of_libraries", self.functions.0);
        lines.put("number_of_functions", self.functions.1);
        lines.bytes("maxmemory", totals.limit_bytes);
        lines.put("maxmemory_policy", format!("allkeys-{}", self.eviction));
        lines.zeros(&[
            "mem_not_counted_for_evict",
            "mem_replication_backlog",
            "mem_clients_slaves",
            "mem_aof_buffer",
            "active_defrag_running",
            "lazyfree_pending_objects",
        ]);
    }

    fn stats(&self, lines: &mut Lines<'_>) {
        self.pass(lines, "total_connections_received", "total_connections");
        lines.put("total_commands_processed", self.processed());
        self.pass(lines, "total_net_input_bytes", "bytes_read");
        self.pass(lines, "total_net_output_bytes", "bytes_written");
        self.pass(lines, "rejected_connections", "rejected_connections");
        self.pass(lines, "expired_keys", "reclaimed");
        self.pass(lines, "evicted_keys", "evictions");
        self.pass(lines, "keyspace_hits", "get_hits");
        self.pass(lines, "keyspace_misses", "get_misses");
        lines.zeros(&[
            "sync_full",
            "sync_partial_ok",
            "sync_partial_err",
            "evicted_clients",
            "pubsub_channels",
            "pubsub_patterns",
            "latest_fork_usec",
            "total_forks",
            "migrate_cached_sockets",
            "slave_expires_tracked_keys",
            "active_defrag_hits",
            "active_defrag_misses",
            "active_defrag_key_hits",
            "active_defrag_key_misses",
            "tracking_total_keys",
            "tracking_total_items",
            "tracking_total_prefixes",
        ]);
    }

    fn cpu(&self, lines: &mut Lines<'_>) {
        self.pass(lines, "used_cpu_sys", "rusage_system");
        self.pass(lines, "used_cpu_user", "rusage_user");
        lines.put("used_cpu_sys_children", "0.000000");
        lines.put("used_cpu_user_children", "0.000000");
    }
}

/// Nothing is on disks.
fn persistence(lines: &mut Lines<'_>) {
    lines.zeros(&[
        "loading",
        "async_loading",
        "rdb_changes_since_last_save",
        "rdb_bgsave_in_progress",
        "rdb_last_save_time",
    ]);
    lines.put("rdb_last_bgsave_status", "ok");
    lines.put("rdb_last_bgsave_time_sec", -1);
    lines.put("rdb_current_bgsave_time_sec", -1);
    lines.zeros(&[
        "rdb_last_cow_size",
        "aof_enabled",
        "aof_rewrite_in_progress",
        "aof_rewrite_scheduled",
    ]);
    lines.put("aof_last_rewrite_time_sec", -1);
    lines.put("aof_current_rewrite_time_sec", -1);
    lines.put("aof_last_bgrewrite_status", "ok");
    lines.put("aof_last_write_status", "ok");
    lines.zeros(&["aof_last_cow_size", "module_fork_in_progress"]);
}

/// Copies of Redis's kind: there are none.
fn replication(lines: &mut Lines<'_>) {
    lines.put("role", "master");
    lines.put("connected_slaves", 0);
    lines.put("master_failover_state", "no-failover");
    lines.put("master_repl_offset", 0);
    lines.put("second_repl_offset", -1);
    lines.zeros(&[
        "repl_backlog_active",
        "repl_backlog_size",
        "repl_backlog_first_byte_offset",
        "repl_backlog_histlen",
    ]);
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

fn facts<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, totals: Totals) -> Facts {
    let mut statistics = BTreeMap::new();
    let world = &mut *call.world;
    let mut functions = (0, 0);
    if let Some(scripts) = world.observer.scripts() {
        scripts.libraries(&mut |libraries| functions = libraries.counts());
    }
    world.observer.stats("", &totals, &mut |name, value| {
        statistics.insert(name.to_owned(), value.to_owned());
    });
    Facts {
        totals,
        statistics,
        eviction: world.keyspace.eviction().to_owned(),
        port: world.observer.own_port(),
        now_ms: world.now.unix_ms,
        transactions: transactions(world),
        functions,
    }
}

/// INFO.
pub(super) fn info<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    // Without them the front door's own counters are better than nothing.
    let totals = call.world.keyspace.totals().ready()?.unwrap_or_default();
    call.world.keyspace.charge(REPORT_WORK);
    let facts = facts(call, totals);
    let arguments = call.arguments;
    let asks = |names: &[&str]| {
        let mut asked = arguments.from(1);
        asked.any(|word| {
            let is_it = |name: &&str| word.eq_ignore_ascii_case(name.as_bytes());
            names.iter().any(is_it)
        })
    };
    let asks_for_all = asks(&["all", "everything"]);
    let asks_as_usual = arguments.len() == 1 || asks(&["default"]);
    let mut text = String::new();
    for (section, is_usual) in SECTIONS {
        let is_asked = asks_for_all || asks_as_usual && is_usual || asks(&[section]);
        if !is_asked {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let _ = write!(text, "# {section}\r\n");
        facts.section(section, &mut Lines(&mut text));
    }
    let reply: &mut Reply<'_> = &mut call.reply;
    reply.text(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn bytes_for_people() {
        let cases = [
            (0, "0B"),
            (1023, "1023B"),
            (916_336, "894.86K"),
            (1 << 30, "1.00G"),
            (u64::MAX, "16384.00P"),
        ];
        for (bytes, words) in cases {
            assert_eq!(human(bytes), words);
        }
    }
}
