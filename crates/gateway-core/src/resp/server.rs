//! Commands about the server: CONFIG, DBSIZE, FLUSHALL, TIME.

use super::connection::{help, subcommand};
use super::eval::SCRIPT_TIME_MS_MAX;
use super::execute::Call;
use super::gather::value_len_max;
use super::glob;
use crate::keyspace::{FLUSH_WORK, Keyspace, Pending, REPORT_WORK, Ready as _};
use crate::world::{Command, Ending, Role};

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
    let port = call.world.observer.own_port();
    let settings = call.world.settings;
    let eviction = call.world.keyspace.eviction();
    // 0 is never; less than a second is not told.
    let timeout = settings.idle_timeout.unwrap_or_default();
    Ok(vec![
        ("aclfile", String::new()),
        ("appendonly", "no".to_owned()),
        ("busy-reply-threshold", SCRIPT_TIME_MS_MAX.to_string()),
        ("cluster-enabled", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("enable-module-command", "no".to_owned()),
        ("io-threads", settings.thread_count.to_string()),
        ("lua-time-limit", SCRIPT_TIME_MS_MAX.to_string()),
        ("maxclients", settings.connections_max.to_string()),
        ("maxmemory", limit_bytes.to_string()),
        ("maxmemory-policy", format!("allkeys-{eviction}")),
        ("notify-keyspace-events", String::new()),
        ("port", port.to_string()),
        ("proto-max-bulk-len", value_len_max(call.world).to_string()),
        ("replicaof", String::new()),
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
