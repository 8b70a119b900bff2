//! SLOWLOG: the front door's own slow log, in Redis's shape. An entry has the
//! command's name in reports and its key, not all arguments.

use super::execute::Call;
use super::parse::number;
use super::subcommands::{help, subcommand};
use crate::keyspace::{Keyspace, REPORT_WORK};
use crate::world::{Role, SlowCommand};

/// Entries shown unless told otherwise.
const COUNT_DEFAULT: i64 = 10;
/// All entries.
const COUNT_ALL: i64 = -1;

const HELP: &[&str] = &[
    "GET [<count>]",
    "    The last slow commands, ten unless told otherwise, -1 for all.",
    "LEN",
    "    How many are kept.",
    "RESET",
    "    Forgets them.",
];

/// SLOWLOG and its subcommands.
pub(super) fn slow_log<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    call.world.keyspace.charge(REPORT_WORK);
    match subcommand(call) {
        None => {}
        Some("help") => help(call, HELP),
        Some("len") => {
            let mut count = 0;
            call.world.observer.slow_log(&mut |_| {
                count += 1;
                true
            });
            call.reply.integer(count);
        }
        Some("reset") if call.role < Role::Admin => {
            call.reply.no_permission("slowlog|reset");
        }
        Some("reset") => {
            call.world.observer.forget_slow();
            call.reply.simple("OK");
        }
        Some(_) => get(call),
    }
}

fn get<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let count = match call.arguments.len() {
        2 => Some(COUNT_DEFAULT),
        3 => number(call.arguments.get(2)).filter(|count| *count >= COUNT_ALL),
        _ => {
            let shown = String::from_utf8_lossy(call.arguments.get(1)).into_owned();
            return call.reply.error(format!(
                "ERR unknown subcommand or wrong number of arguments for '{shown}'. \
                 Try SLOWLOG HELP."
            ));
        }
    };
    let Some(count) = count else {
        let error = "ERR count should be greater than or equal to -1";
        return call.reply.error(error);
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // How many there are has to be said first.
    let mut entries = Vec::new();
    let mut shown = 0;
    let is_resp3 = call.reply.is_resp3;
    call.world.observer.slow_log(&mut |slow| {
        if shown < count {
            let out = &mut entries;
            put(&mut super::reply::Reply { out, is_resp3 }, slow);
            shown += 1;
        }
        shown < count
    });
    call.reply.array(shown);
    call.reply.out.extend_from_slice(&entries);
}

fn put(reply: &mut super::reply::Reply<'_>, slow: &SlowCommand<'_>) {
    reply.array(6);
    reply.integer(slow.number as i64);
    reply.integer((slow.unix_ms / 1000) as i64);
    reply.integer(slow.duration_us as i64);
    reply.array(2);
    reply.bulk(slow.command);
    reply.bulk(slow.key);
    reply.bulk(slow.client.strip_prefix("tcp:").unwrap_or(slow.client));
    // Names of connections are not kept.
    reply.bulk("");
}
