//! memcached's groups of statistics.
//!
//! Every name that memcached 1.6.18 gives is given, in its order, because
//! monitoring agents read them by name and some count them. What has no meaning
//! here (slab classes, LRU segments, its worker's buffers) is 0 or what says
//! that it is off; `docs/memcached.md` lists those.

use super::block::{ClassEvent, Sums};
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
use trefoil_layout::size_class::{self, ClassCount};

/// Keys that `stats topkeys` shows of either order.
const TOP_COUNT: usize = 20;
/// Bytes of an index bucket.
const BUCKET_LEN: u64 = 512;

/// Gives a group's statistics; `false` if there is no such group.
pub(super) fn report(
    office: &Observatory,
    group: &str,
    totals: &Totals,
    each: &mut dyn FnMut(&str, &str),
) -> bool {
    let mut lines = Lines {
        each,
        text: String::new(),
    };
    match group {
        "" => general(office, totals, &mut lines),
        "settings" => settings(office, totals, &mut lines),
        "items" => items(&office.since_reset(totals).1, &mut lines),
        "slabs" => slabs(&office.since_reset(totals), &mut lines),
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

fn general(office: &Observatory, totals: &Totals, lines: &mut Lines<'_>) {
    let (sums, totals) = office.since_reset(totals);
    let settings = office.settings();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let cpu = Cpu::now();
    lines.put("pid", std::process::id());
    lines.put("uptime", office.started.elapsed().as_secs());
    lines.put("time", now.unwrap_or_default().as_secs());
    lines.put("version", settings.release.version());
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
    if settings.idle_timeout.is_some() {
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

fn settings(office: &Observatory, totals: &Totals, lines: &mut Lines<'_>) {
    let options = &office.options;
    let settings = office.settings();
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
        settings.idle_timeout.map_or(0, |idle| idle.as_secs()),
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

/// Bytes of a class's items, each with its entry in the index.
fn requested(class: &ClassCount) -> u64 {
    class.entry_bytes + class.items * size_of::<IndexEntry>() as u64
}

fn items(totals: &Totals, lines: &mut Lines<'_>) {
    for (number, class) in totals.classes.iter() {
        if class.items == 0 {
            continue;
        }
        for (name, value) in [
            ("number", class.items),
            ("number_hot", class.items),
            ("number_warm", 0),
            ("number_cold", 0),
            ("age_hot", 0),
            ("age_warm", 0),
            ("age", 0),
            ("mem_requested", requested(class)),
            ("evicted", class.evicted),
            ("evicted_nonzero", 0),
            ("evicted_time", 0),
            ("outofmemory", class.no_memory),
            ("tailrepairs", 0),
            ("reclaimed", class.expired),
            ("expired_unfetched", 0),
            ("evicted_unfetched", 0),
            ("evicted_active", 0),
            ("crawler_reclaimed", class.expired),
            ("crawler_items_checked", 0),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", 0),
            ("moves_within_lru", 0),
            ("direct_reclaims", 0),
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", 0),
            ("hits_to_temp", 0),
        ] {
            lines.put(&format!("items:{number}:{name}"), value);
        }
    }
}

/// The same classes, by chunks. A cell cuts its memory otherwise: as many chunks
/// are shown as there are items.
fn slabs((sums, totals): &(Sums, Totals), lines: &mut Lines<'_>) {
    let mut active = 0;
    for (number, class) in totals.classes.iter() {
        // Whatever a class was ever asked is told of.
        if class.items + class.evicted + class.expired + sums.all_of_class(number) == 0 {
            continue;
        }
        active += 1;
        let (chunk_len, page_len) = (size_class::chunk_len(number), size_class::CLASS_PAGE_LEN);
        let event = |event| sums.of_class(number, event);
        for (name, value) in [
            ("chunk_size", chunk_len),
            ("chunks_per_page", page_len / chunk_len),
            ("total_pages", requested(class).div_ceil(page_len)),
            ("total_chunks", class.items),
            ("used_chunks", class.items),
            ("free_chunks", 0),
            ("free_chunks_end", 0),
            ("get_hits", event(ClassEvent::GetHit)),
            ("cmd_set", event(ClassEvent::Store)),
            ("delete_hits", event(ClassEvent::DeleteHit)),
            ("incr_hits", event(ClassEvent::IncrHit)),
            ("decr_hits", event(ClassEvent::DecrHit)),
            ("cas_hits", event(ClassEvent::CasHit)),
            ("cas_badval", event(ClassEvent::CasBadValue)),
            ("touch_hits", event(ClassEvent::TouchHit)),
        ] {
            lines.put(&format!("{number}:{name}"), value);
        }
    }
    lines.put("active_slabs", active);
    lines.put("total_malloced", totals.used_bytes);
}

fn slow(office: &Observatory, lines: &mut Lines<'_>) {
    let threshold = office.options.slow_threshold.unwrap_or_default();
    lines.put("slow_threshold_us", threshold.as_micros());
    lines.put(
        "slow_commands",
        office.since_reset(&Totals::default()).0.slow,
    );
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
