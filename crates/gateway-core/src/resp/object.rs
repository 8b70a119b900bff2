//! OBJECT: how Redis would hold a value, and when the item was last used.

use super::execute::Call;
use super::parse::number;
use super::read::{look, look_at_use};
use super::subcommands::{help, subcommand};
use crate::keyspace::{Access, Item, Keyspace, Pending};
use crate::world::Command;

/// Longest value that Redis keeps together with its head.
const EMBEDDED_LEN_MAX: usize = 44;
/// Digits and sign of the longest number.
const NUMBER_LEN_MAX: usize = 20;

const HELP: &[&str] = &[
    "ENCODING <key>",
    "    How Redis would hold the value of this length: int, embstr or raw.",
    "IDLETIME <key>",
    "    Seconds since the item was last used.",
    "REFCOUNT <key>",
    "    1.",
];

/// OBJECT and its subcommands.
pub(super) fn object<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    match subcommand(call) {
        None => {}
        Some("help") => help(call, HELP),
        Some("freq") => call.reply.error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please \
             note that when switching between policies at runtime LRU and LFU data will take \
             some time to adjust.",
        ),
        Some("encoding") => {
            return look(
                call,
                Command::Other,
                Access::Peek,
                &mut |reply, item| match item {
                    Some(item) => reply.bulk(encoding(item)),
                    None => reply.null(),
                },
            );
        }
        Some("idletime") => {
            return look_at_use(call, &mut |reply, item| match item {
                Some(item) => reply.integer(i64::from(item.seen.idle_s)),
                None => reply.null(),
            });
        }
        Some(_) => {
            return look(
                call,
                Command::Other,
                Access::Peek,
                &mut |reply, item| match item {
                    Some(_) => reply.integer(1),
                    None => reply.null(),
                },
            );
        }
    }
    Ok(())
}

fn encoding(item: &Item<'_>) -> &'static str {
    let mut bytes = Vec::new();
    if item.value.len() <= NUMBER_LEN_MAX {
        item.value.append_to(&mut bytes);
        if number(&bytes).is_some() {
            return "int";
        }
    }
    if item.value.len() <= EMBEDDED_LEN_MAX {
        "embstr"
    } else {
        "raw"
    }
}
