//! memcached's groups of statistics.
//!
//! Every name that memcached 1.6.18 gives is given, in its order, because
//! monitoring agents read them by name and some count them. What has no meaning
//! here (slab classes, LRU segments, its worker's buffers) is 0 or what says
//! that it is off; `docs/memcached.md` lists those.

use super::block::Sums;
use super::observatory::Observatory;
use std::fmt::{Display, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_backend::Cpu;
use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::world::Command::{
    Cas, Decr, Delete, Flush, Get, GetAndTouch, Incr, Set, Touch,
};
use trefoil_gateway_core::world::Ending::{Hit, Miss, Refused};
use trefoil_layout::IndexEntry;

/// Keys that `stats topkeys` shows of either order.
const TOP_COUNT: usize = 20;
/// Bytes of an index bucket.
const BUCKET_LEN: u64 = 512;

/// Gives a group's statistics; `false` if there is no such group.
pub(super) fn report(office: &Observatory, group: &str, each: &mut dyn FnMut(&str, &str)) -> bool {
    let mut lines = Lines {
        each,
        text: String::new(),
    };
    match group {
        "" => general(office, &mut lines),
        "settings" => settings(office, &mut lines),
        "items" => items(&office.since_reset().1, &mut lines),
        "slabs" => slabs(&office.since_reset(), &mut lines),
        "sizes" => lines.put("sizes_status", "disabled"),
        // The event loop gives the table of its connections.
        "conns" => {}
        "detail on" => office.detail.turn(true),
        "detail off" => office.detail.turn(false),
        "detail dump" => office.detail.report(lines.each),
        "slow" => slow(office, &mut lines),
        "topkeys" => top_keys(office, &mut lines),
        _ => return false,
    }
    true
}

struct Lines<'a> {
    each: &'a mut dyn FnMut(&str, &str),
    text: String,
}

impl Lines<'_> {
    fn put(&mut self, name: &str, value: impl Display) {
        self.text.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        (self.each)(name, &self.text);
    }

    fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.put(name, 0);
        }
    }
}

fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn general(office: &Observatory, lines: &mut Lines<'_>) {
    let (sums, totals) = office.since_reset();
    let options = &office.options;
    let settings = &options.settings;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let cpu = Cpu::now();
    lines.put("pid", std::process::id());
    lines.put("uptime", office.started.elapsed().as_secs());
    lines.put("time", now.unwrap_or_default().as_secs());
    lines.put("version", settings.version);
    lines.put("libevent", "none");
    lines.put("pointer_size", usize::BITS);
    lines.put("rusage_user", seconds(cpu.user_us));
    lines.put("rusage_system", seconds(cpu.system_us));
    lines.put("max_connections", settings.connections_max);
    lines.put("curr_connections", sums.connections());
    lines.put("total_connections", sums.opened);
    lines.put("rejected_connections", sums.refused);
    lines.put("connection_structures", sums.connections());
    lines.zeros(&[
        "response_obj_oom",
        "response_obj_count",
        "response_obj_bytes",
        "read_buf_count",
        "read_buf_bytes",
        "read_buf_bytes_free",
        "read_buf_oom",
        "reserved_fds",
    ]);
    commands(&sums, lines);
    lines.put("store_too_large", 0);
    lines.put("store_no_memory", totals.out_of_memory);
    lines.put("auth_cmds", sums.authenticated + sums.unauthenticated);
    lines.put("auth_errors", sums.unauthenticated);
    if options.idle_timeout.is_some() {
        lines.put("idle_kicks", sums.timed_out);
    }
    lines.put("bytes_read", sums.bytes_read);
    lines.put("bytes_written", sums.bytes_written);
    lines.put("limit_maxbytes", totals.limit_bytes);
    lines.put("accepting_conns", 1);
    lines.zeros(&["listen_disabled_num", "time_in_listen_disabled_us"]);
    lines.put("threads", settings.thread_count);
    lines.put("conn_yields", 0);
    lines.put("hash_power_level", totals.index_buckets.max(1).ilog2());
    lines.put("hash_bytes", totals.index_buckets * BUCKET_LEN);
    lines.zeros(&[
        "hash_is_expanding",
        "slab_reassign_rescues",
        "slab_reassign_chunk_rescues",
        "slab_reassign_evictions_nomem",
        "slab_reassign_inline_reclaim",
        "slab_reassign_busy_items",
        "slab_reassign_busy_deletes",
        "slab_reassign_running",
        "slabs_moved",
        "lru_crawler_running",
        "lru_crawler_starts",
        "lru_maintainer_juggles",
        "malloc_fails",
        "log_worker_dropped",
        "log_worker_written",
        "log_watcher_skipped",
        "log_watcher_sent",
        "log_watchers",
        "unexpected_napi_ids",
        "round_robin_fallback",
    ]);
    lines.put("bytes", totals.entry_bytes);
    lines.put("curr_items", totals.items);
    lines.put("total_items", totals.stored);
    lines.zeros(&[
        "slab_global_page_pool",
        "expired_unfetched",
        "evicted_unfetched",
        "evicted_active",
    ]);
    lines.put("evictions", totals.evictions);
    lines.put("reclaimed", totals.expired);
    lines.put("crawler_reclaimed", totals.expired);
    lines.zeros(&[
        "crawler_items_checked",
        "lrutail_reflocked",
        "moves_to_cold",
        "moves_to_warm",
        "moves_within_lru",
        "direct_reclaims",
        "lru_bumps_dropped",
    ]);
}

/// What memcached counts where: a read with a new expiry is a touch, whatever
/// it returns; a CAS is a set, too.
fn commands(sums: &Sums, lines: &mut Lines<'_>) {
    lines.put("cmd_get", sums.of(Get, Hit) + sums.of(Get, Miss));
    lines.put("cmd_set", stores(sums));
    lines.put("cmd_flush", sums.all(Flush));
    let touched = [Hit, Miss].map(|end| sums.of(Touch, end) + sums.of(GetAndTouch, end));
    lines.put("cmd_touch", touched[0] + touched[1]);
    // Meta commands are counted as what they do.
    lines.put("cmd_meta", 0);
    lines.put("get_hits", sums.of(Get, Hit));
    lines.put("get_misses", sums.of(Get, Miss));
    lines.zeros(&["get_expired", "get_flushed"]);
    for (command, misses, hits) in [
        (Delete, "delete_misses", "delete_hits"),
        (Incr, "incr_misses", "incr_hits"),
        (Decr, "decr_misses", "decr_hits"),
        (Cas, "cas_misses", "cas_hits"),
    ] {
        lines.put(misses, sums.of(command, Miss));
        lines.put(hits, sums.of(command, Hit));
    }
    lines.put("cas_badval", sums.of(Cas, Refused));
    lines.put("touch_hits", touched[0]);
    lines.put("touch_misses", touched[1]);
}

fn stores(sums: &Sums) -> u64 {
    let ends = [Hit, Miss, Refused];
    ends.map(|end| sums.of(Set, end) + sums.of(Cas, end))
        .iter()
        .sum()
}

fn settings(office: &Observatory, lines: &mut Lines<'_>) {
    let options = &office.options;
    let settings = &options.settings;
    let (_, totals) = office.since_reset();
    let yes = |is: bool| if is { "yes" } else { "no" };
    lines.put("maxbytes", totals.limit_bytes);
    lines.put("maxconns", settings.connections_max);
    lines.put("tcpport", options.port.as_ref().map_or(0, |port| port.1));
    lines.put("udpport", 0);
    let address = options.port.as_ref().map(|port| port.0.as_str());
    lines.put("inter", address.unwrap_or("NULL"));
    lines.zeros(&["verbosity", "oldest"]);
    lines.put("evictions", "on");
    match &options.socket {
        Some(path) => lines.put("domain_socket", path.display()),
        None => lines.put("domain_socket", "NULL"),
    }
    lines.put("umask", 700);
    lines.put("shutdown_command", yes(settings.shutdown_allowed));
    lines.put("growth_factor", "1.12");
    lines.put("chunk_size", 16);
    lines.put("num_threads", settings.thread_count);
    lines.put("num_threads_per_udp", 0);
    lines.put("stat_key_prefix", ":");
    lines.put("detail_enabled", yes(office.detail.is_on()));
    lines.put("reqs_per_event", 0);
    lines.put("cas_enabled", "yes");
    lines.put("tcp_backlog", 1024);
    lines.put("binding_protocol", "auto-negotiate");
    lines.put("auth_enabled_sasl", yes(settings.authentication));
    lines.put("auth_enabled_ascii", yes(settings.authentication));
    lines.put("item_size_max", settings.item_len_max);
    lines.put("maxconns_fast", "yes");
    lines.put("hashpower_init", 0);
    lines.put("slab_reassign", "no");
    lines.put("slab_automove", 0);
    lines.put("slab_chunk_max", settings.item_len_max);
    lines.put("lru_crawler", "no");
    lines.zeros(&[
        "lru_crawler_sleep",
        "lru_crawler_tocrawl",
        "tail_repair_time",
    ]);
    lines.put("flush_enabled", "yes");
    lines.put("dump_enabled", "yes");
    lines.put("hash_algorithm", "xxh3");
    lines.put("lru_maintainer_thread", "no");
    lines.put("lru_segmented", "no");
    lines.put("temp_lru", "no");
    lines.put(
        "idle_timeout",
        options.idle_timeout.map_or(0, |idle| idle.as_secs()),
    );
    lines.put("track_sizes", "no");
    lines.put("inline_ascii_response", "no");
    lines.put("ssl_enabled", yes(options.tls));
    // What memcached does not have stands here, not among the counters: some
    // agents, and its own tests, count those.
    lines.put("trefoil_version", env!("CARGO_PKG_VERSION"));
    let slow = options.slow_threshold.map_or(0, |slow| slow.as_micros());
    lines.put("slow_threshold_us", slow);
}

/// What the one class's chunk size is rounded up to.
const CHUNK_LEN: u64 = 64;

/// Bytes of all items, each with its entry in the index.
fn item_bytes(totals: &Totals) -> u64 {
    totals.entry_bytes + totals.items * size_of::<IndexEntry>() as u64
}

/// As if there were one class of items.
fn items(totals: &Totals, lines: &mut Lines<'_>) {
    if totals.items == 0 {
        return;
    }
    lines.put("items:1:number", totals.items);
    lines.put("items:1:number_hot", totals.items);
    lines.zeros(&[
        "items:1:number_warm",
        "items:1:number_cold",
        "items:1:age_hot",
        "items:1:age_warm",
        "items:1:age",
    ]);
    lines.put("items:1:mem_requested", item_bytes(totals));
    lines.put("items:1:evicted", totals.evictions);
    lines.zeros(&["items:1:evicted_nonzero", "items:1:evicted_time"]);
    lines.put("items:1:outofmemory", totals.out_of_memory);
    lines.put("items:1:tailrepairs", 0);
    lines.put("items:1:reclaimed", totals.expired);
    lines.zeros(&[
        "items:1:expired_unfetched",
        "items:1:evicted_unfetched",
        "items:1:evicted_active",
    ]);
    lines.put("items:1:crawler_reclaimed", totals.expired);
    lines.zeros(&[
        "items:1:crawler_items_checked",
        "items:1:lrutail_reflocked",
        "items:1:moves_to_cold",
        "items:1:moves_to_warm",
        "items:1:moves_within_lru",
        "items:1:direct_reclaims",
        "items:1:hits_to_hot",
        "items:1:hits_to_warm",
        "items:1:hits_to_cold",
        "items:1:hits_to_temp",
    ]);
}

/// The same class, by bytes.
fn slabs((sums, totals): &(Sums, Totals), lines: &mut Lines<'_>) {
    if let Some(each) = item_bytes(totals).checked_div(totals.items) {
        let each = each.next_multiple_of(CHUNK_LEN);
        lines.put("1:chunk_size", each);
        lines.put("1:chunks_per_page", (64 << 10) / each.max(1));
        lines.put("1:total_pages", totals.data_pages);
        lines.put("1:total_chunks", totals.items);
        lines.put("1:used_chunks", totals.items);
        lines.zeros(&["1:free_chunks", "1:free_chunks_end"]);
        lines.put("1:get_hits", sums.of(Get, Hit));
        lines.put("1:cmd_set", stores(sums));
        lines.put("1:delete_hits", sums.of(Delete, Hit));
        lines.put("1:incr_hits", sums.of(Incr, Hit));
        lines.put("1:decr_hits", sums.of(Decr, Hit));
        lines.put("1:cas_hits", sums.of(Cas, Hit));
        lines.put("1:cas_badval", sums.of(Cas, Refused));
        lines.put(
            "1:touch_hits",
            sums.of(Touch, Hit) + sums.of(GetAndTouch, Hit),
        );
    }
    lines.put("active_slabs", u64::from(totals.items > 0));
    lines.put("total_malloced", totals.used_bytes);
}

fn slow(office: &Observatory, lines: &mut Lines<'_>) {
    let threshold = office.options.slow_threshold.unwrap_or_default();
    lines.put("slow_threshold_us", threshold.as_micros());
    lines.put("slow_commands", office.since_reset().0.slow);
    for slow in office.slow.newest() {
        let line = format_args!(
            "time={}.{:03} duration_us={} command={} key={} key_len={} value_len={} client={}",
            slow.unix_ms / 1000,
            slow.unix_ms % 1000,
            slow.duration_ns / 1000,
            slow.command,
            slow.key,
            slow.key_len,
            slow.value_len,
            slow.client,
        );
        lines.put(&format!("slow:{}", slow.number), line);
    }
}

fn top_keys(office: &Observatory, lines: &mut Lines<'_>) {
    for (place, key) in office.top_keys(TOP_COUNT).iter().enumerate() {
        let line = format_args!(
            "key={} key_len={} ops_per_s={:.1} bytes_per_s={:.0}",
            key.key.escape_ascii(),
            key.key_len,
            key.ops_per_s,
            key.bytes_per_s,
        );
        lines.put(&format!("topkeys:{place}"), line);
    }
}
