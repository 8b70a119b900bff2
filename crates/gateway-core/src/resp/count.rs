//! INCR, INCRBY, DECR, DECRBY: signed numbers of 64 bits.

use super::execute::Call;
use super::parse::number;
use super::table::Id;
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::world::{Command, Ending};
use std::io::Write;

/// Digits and sign of the longest number.
const NUMBER_LEN_MAX: usize = 20;

/// Why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NotAnInteger,
    Overflow,
}

/// Executes one of them.
pub(super) fn count<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let is_down = matches!(call.spec.id, Id::Decr | Id::DecrBy);
    let command = if is_down {
        Command::Decr
    } else {
        Command::Incr
    };
    let given = match call.spec.id {
        Id::IncrBy | Id::DecrBy => number(call.arguments.get(2)),
        _ => Some(1),
    };
    let Some(given) = given else {
        call.reply.not_an_integer();
        return Ok(());
    };
    let delta = if is_down {
        given.checked_neg()
    } else {
        Some(given)
    };
    let Some(delta) = delta else {
        call.reply.error("ERR decrement would overflow");
        return Ok(());
    };
    if !call.key_fits() {
        let fault = call.key_fault();
        call.fault(command, &fault);
        return Ok(());
    }
    let mut result = Ok(0);
    let updated = call
        .world
        .keyspace
        .update(call.arguments.get(1), &mut |item, scratch| {
            let old = match item {
                None => Some(0),
                Some(item) if item.value.len() > NUMBER_LEN_MAX => None,
                Some(item) => {
                    item.value.append_to(scratch);
                    number(scratch)
                }
            };
            result = old
                .ok_or(Refusal::NotAnInteger)
                .and_then(|old| old.checked_add(delta).ok_or(Refusal::Overflow));
            let Ok(new) = result else {
                return Decision::Keep;
            };
            scratch.clear();
            // Writing to a vector does not fail.
            let _ = write!(scratch, "{new}");
            Decision::Store(NewItem {
                value: scratch,
                client_flags: item.map_or(0, |item| item.client_flags),
                expiry_ms: item.map_or(0, |item| item.expiry_ms),
                ..NewItem::default()
            })
        });
    match (updated.ready()?, result) {
        (Err(fault), _) => call.fault(command, &fault),
        (Ok(Updated::Stored(_)), Ok(new)) => {
            call.reply.integer(new);
            call.done(command, Ending::Hit, NUMBER_LEN_MAX);
        }
        (Ok(_), refusal) => {
            if refusal == Err(Refusal::Overflow) {
                call.reply
                    .error("ERR increment or decrement would overflow");
            } else {
                call.reply.not_an_integer();
            }
            call.done(command, Ending::ClientError, 0);
        }
    }
    Ok(())
}
