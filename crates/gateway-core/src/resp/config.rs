//! CONFIG: settings in Redis's names. The memory limit is the one that clients may set, as
//! they may by memcached's `cache_memlimit`; all others are an operator's.

use super::execute::Call;
use super::gather::value_len_max;
use super::glob;
use super::script_job::SCRIPT_TIME_MS_MAX;
use super::subcommands::{help, subcommand};
use crate::keyspace::{Keyspace, Pending, REPORT_WORK, Ready as _};
use crate::world::Role;

/// Entries that the slow log keeps.
const SLOW_LOG_LEN: usize = 128;
/// Names and patterns of one command that are looked at.
const ASKED_MAX: usize = 32;
/// The least memory limit, in bytes: that of one process. A cell of several has that many
/// times as much, and says so itself.
const LIMIT_BYTES_MIN: u64 = 32 << 20;

/// Settings, in alphabetical order.
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

const HELP: &[&str] = &[
    "GET <pattern>",
    "    Settings whose names match.",
    "RESETSTAT",
    "    Statistics begin anew.",
    "SET <name> <value> [<name> <value> ...]",
    "    maxmemory can be set, in all of the cell; of others, to what they are already.",
];

/// CONFIG and its subcommands.
pub(super) fn config<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    match subcommand(call) {
        None => {}
        Some("help") => help(call, HELP),
        Some(name @ ("set" | "resetstat" | "rewrite")) if call.role < Role::Admin => {
            call.reply.no_permission(&format!("config|{name}"));
        }
        Some("set") => return set(call),
        Some("rewrite") => call.reply.error(
            "ERR CONFIG REWRITE is not here: settings are the operator's, in a file or options",
        ),
        Some("resetstat") => {
            let totals = call.world.keyspace.totals().ready()?.unwrap_or_default();
            call.world.keyspace.charge(REPORT_WORK);
            call.world.observer.reset(&totals);
            call.reply.simple("OK");
        }
        Some(_) => return get(call),
    }
    Ok(())
}

fn get<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let mut found = configuration(call)?;
    let arguments = call.arguments;
    found.retain(|(name, _)| {
        arguments.from(2).take(ASKED_MAX).any(|pattern| {
            let pattern = pattern.to_ascii_lowercase();
            pattern.len() <= 128 && glob::matches(&pattern, name.as_bytes())
        })
    });
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name);
        call.reply.bulk(value);
    }
    Ok(())
}

/// CONFIG SET: all of them, or an error that names the first that cannot be.
fn set<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let arguments = call.arguments;
    if !arguments.len().is_multiple_of(2) {
        call.reply.wrong_arity("config|set");
        return Ok(());
    }
    let known = configuration(call)?;
    let mut limit_bytes = None;
    let mut before: Vec<&str> = Vec::new();
    for at in (2..arguments.len()).step_by(2) {
        let (name, value) = (arguments.get(at), arguments.get(at + 1));
        let setting = known
            .iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        let Some((name, now)) = setting else {
            let words = b"ERR Unknown option or number of arguments for CONFIG SET - '";
            call.reply.error([words, name, b"'"].concat());
            return Ok(());
        };
        let refusal = if before.contains(name) {
            Some("duplicate parameter".to_owned())
        } else if *name == "maxmemory" {
            match bytes_of(value) {
                None => Some("argument must be a memory value".to_owned()),
                Some(bytes) if bytes < LIMIT_BYTES_MIN => {
                    Some(format!("at least {LIMIT_BYTES_MIN}: a cell has a limit"))
                }
                bytes => {
                    limit_bytes = bytes;
                    None
                }
            }
        } else if value.eq_ignore_ascii_case(now.as_bytes()) {
            None
        } else {
            Some("not for clients to change: the operator's options do".to_owned())
        };
        if let Some(refusal) = refusal {
            put_failure(call, name, &refusal);
            return Ok(());
        }
        before.push(name);
    }
    let Some(bytes) = limit_bytes else {
        call.reply.simple("OK");
        return Ok(());
    };
    match call.world.keyspace.set_memory_limit(bytes).ready()? {
        Ok(()) => call.reply.simple("OK"),
        Err(fault) => {
            let words = format!("the cell cannot: {fault}");
            put_failure(call, "maxmemory", &words);
        }
    }
    Ok(())
}

/// Begins as Redis's own.
fn put_failure<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, name: &str, why: &str) {
    call.reply.error(format!(
        "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
    ));
}

/// A number of bytes as Redis's configuration has it: with a unit, of 1,000 or 1,024.
fn bytes_of(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.len()
        - text
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .len();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes() {
        let cases = [
            ("0", Some(0)),
            ("100", Some(100)),
            ("100b", Some(100)),
            ("1k", Some(1000)),
            ("1KB", Some(1024)),
            ("3mb", Some(3 << 20)),
            ("2G", Some(2_000_000_000)),
            ("2gb", Some(2 << 30)),
            ("", None),
            ("mb", None),
            ("-1", None),
            ("1.5gb", None),
            ("1 mb", None),
            ("18446744073709551616", None),
            ("18446744073709551615kb", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(bytes_of(text.as_bytes()), bytes, "{text}");
        }
    }
}
