//! MEMORY: what an item takes.

use super::execute::Call;
use super::parse::number;
use super::read::look;
use super::subcommands::{help, subcommand};
use crate::keyspace::{Access, Item, Keyspace, Pending};
use crate::world::Command;
use trefoil_layout::data::encoded_len;
use trefoil_layout::entry::ENTRY_LEN;
use trefoil_layout::limits::GRANULE;

const HELP: &[&str] = &[
    "USAGE <key> [SAMPLES <count>]",
    "    Bytes that the item takes in one copy: its entry in the index, and its key and value",
    "    with what is kept beside them. The samples have no effect.",
];

/// MEMORY and its subcommands.
pub(super) fn memory<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    match subcommand(call) {
        None => {}
        Some("help") => help(call, HELP),
        Some(_) => {
            if !are_options_right(call) {
                return Ok(());
            }
            let key_len = call.key().len();
            return look(
                call,
                Command::Other,
                Access::Peek,
                &mut |reply, item| match item {
                    Some(item) => reply.integer(item_len(key_len, item) as i64),
                    None => reply.null(),
                },
            );
        }
    }
    Ok(())
}

/// Whether what stands behind the key can stand there; answers otherwise. A string needs
/// no samples.
fn are_options_right<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> bool {
    let arguments = call.arguments;
    let mut at = 3;
    while at < arguments.len() {
        if !arguments.is(at, "samples") || at + 1 == arguments.len() {
            call.reply.syntax_error();
            return false;
        }
        match number(arguments.get(at + 1)) {
            Some(0..) => {}
            Some(_) => {
                call.reply.syntax_error();
                return false;
            }
            None => {
                call.reply.not_an_integer();
                return false;
            }
        }
        at += 2;
    }
    true
}

/// Bytes of one copy.
fn item_len(key_len: usize, item: &Item<'_>) -> usize {
    let entry_len = encoded_len(key_len, item.value.len());
    ENTRY_LEN + entry_len.next_multiple_of(GRANULE)
}
