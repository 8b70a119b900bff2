//! Commands that store or remove under one key.

use super::execute::Call;
use super::expire::{Options, expiry_of};
use super::gather::value_len_max;
use super::parse::number;
use super::read::Unit;
use super::reply::{Reply, TOO_LONG};
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::world::{Command, Ending};

/// When to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    #[default]
    Always,
    /// There is nothing yet.
    Absent,
    /// There is something.
    Present,
}

/// What expiry a stored value gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    At(u64),
    /// That of the value before.
    Kept,
}

const NEVER: Expiry = Expiry::At(0);

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// OK, or null if nothing was stored.
    Ok,
    /// 1, or 0 if nothing was stored.
    Number,
    /// The value before, or null.
    Old,
}

/// Stores a value under the key.
fn store<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    value: &[u8],
    condition: Condition,
    expiry: Expiry,
    answered: Answered,
) -> Result<(), Pending> {
    if value.len() > value_len_max(call.world) {
        call.reply.error(TOO_LONG);
        call.done(Command::Set, Ending::ClientError, value.len());
        return Ok(());
    }
    if !call.key_fits() {
        let fault = call.key_fault();
        call.fault(Command::Set, &fault);
        return Ok(());
    }
    let key = call.key();
    let new = |expiry_ms| NewItem {
        value,
        expiry_ms,
        ..NewItem::default()
    };
    let start = call.reply.out.len();
    let reply = &mut call.reply;
    let stored = match (condition, expiry, answered) {
        (Condition::Always, Expiry::At(expiry_ms), Answered::Ok | Answered::Number) => {
            call.world.keyspace.put(key, &new(expiry_ms)).map(|()| true)
        }
        _ => call
            .world
            .keyspace
            .update(key, &mut |item, scratch| {
                reply.out.truncate(start);
                if answered == Answered::Old {
                    reply.value_or_null(item);
                }
                match (condition, item) {
                    (Condition::Absent, Some(_)) | (Condition::Present, None) => Decision::Keep,
                    _ => {
                        scratch.extend_from_slice(value);
                        let expiry_ms = match expiry {
                            Expiry::At(expiry_ms) => expiry_ms,
                            Expiry::Kept => item.map_or(0, |item| item.expiry_ms),
                        };
                        Decision::Store(NewItem {
                            value: scratch,
                            expiry_ms,
                            ..NewItem::default()
                        })
                    }
                }
            })
            .map(|updated| matches!(updated, Updated::Stored(_))),
    };
    let was_stored = match stored.ready()? {
        Ok(was_stored) => was_stored,
        Err(fault) => {
            call.reply.out.truncate(start);
            call.fault(Command::Set, &fault);
            return Ok(());
        }
    };
    match (answered, was_stored) {
        (Answered::Ok, true) => call.reply.simple("OK"),
        (Answered::Ok, false) => call.reply.null(),
        (Answered::Number, _) => call.reply.integer(i64::from(was_stored)),
        (Answered::Old, _) => {}
    }
    let ending = match (was_stored, condition) {
        (true, _) => Ending::Hit,
        (false, Condition::Present) => Ending::Miss,
        (false, _) => Ending::Refused,
    };
    call.done(Command::Set, ending, value.len());
    Ok(())
}

/// SET with its options.
pub(super) fn set<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let Some(options) = Options::parse(&call.arguments, 3, true) else {
        call.reply.syntax_error();
        return Ok(());
    };
    let expiry = match options.expiry {
        None if options.keep_ttl => Expiry::Kept,
        None => NEVER,
        Some(given) => {
            let text = call.arguments.get(given.index);
            match expiry_of(call, text, given.unit, given.is_relative) {
                Some(expiry_ms) => Expiry::At(expiry_ms),
                None => return Ok(()),
            }
        }
    };
    let answered = if options.get {
        Answered::Old
    } else {
        Answered::Ok
    };
    let value = call.arguments.get(2);
    store(call, value, options.condition, expiry, answered)
}

/// SETNX.
pub(super) fn set_nx<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let value = call.arguments.get(2);
    store(call, value, Condition::Absent, NEVER, Answered::Number)
}

/// SETEX, PSETEX.
pub(super) fn set_ex<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    unit: Unit,
) -> Result<(), Pending> {
    let text = call.arguments.get(2);
    let Some(expiry_ms) = expiry_of(call, text, unit, true) else {
        return Ok(());
    };
    let value = call.arguments.get(3);
    let expiry = Expiry::At(expiry_ms);
    store(call, value, Condition::Always, expiry, Answered::Ok)
}

/// GETSET.
pub(super) fn get_set<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let value = call.arguments.get(2);
    store(call, value, Condition::Always, NEVER, Answered::Old)
}

/// Changes a value in place, keeping flags and expiry. `change` gets the value
/// in the buffer and leaves the new one there, or does nothing and returns
/// `false`; the answer is the length.
fn change<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    change: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> Result<(), Pending> {
    if !call.key_fits() {
        let fault = call.key_fault();
        call.fault(Command::Set, &fault);
        return Ok(());
    }
    let len_max = value_len_max(call.world);
    let mut len = 0;
    let mut is_too_long = false;
    let changed = call
        .world
        .keyspace
        .update(call.arguments.get(1), &mut |item, scratch| {
            if let Some(item) = item {
                item.value.append_to(scratch);
            }
            let has_changed = change(scratch);
            len = scratch.len();
            is_too_long = len > len_max;
            if !has_changed || is_too_long {
                return Decision::Keep;
            }
            Decision::Store(NewItem {
                value: scratch,
                client_flags: item.map_or(0, |item| item.client_flags),
                expiry_ms: item.map_or(0, |item| item.expiry_ms),
                ..NewItem::default()
            })
        });
    match changed.ready()? {
        Ok(_) if is_too_long => {
            call.reply.error(TOO_LONG);
            call.done(Command::Set, Ending::ClientError, len);
        }
        Ok(_) => {
            call.reply.integer(len as i64);
            call.done(Command::Set, Ending::Hit, len);
        }
        Err(fault) => call.fault(Command::Set, &fault),
    }
    Ok(())
}

/// APPEND.
pub(super) fn append<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let tail = call.arguments.get(2);
    change(call, &mut |value| {
        value.extend_from_slice(tail);
        true
    })
}

/// SETRANGE: what lies between the value's end and the offset becomes zeros.
pub(super) fn set_range<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let part = call.arguments.get(3);
    let offset = match number(call.arguments.get(2)).map(usize::try_from) {
        None => {
            call.reply.not_an_integer();
            return Ok(());
        }
        Some(Err(_)) => {
            call.reply.error("ERR offset is out of range");
            return Ok(());
        }
        Some(Ok(offset)) => offset,
    };
    let len_max = value_len_max(call.world);
    if !part.is_empty() && offset.saturating_add(part.len()) > len_max {
        call.reply.error(TOO_LONG);
        return Ok(());
    }
    change(call, &mut |value| {
        if part.is_empty() {
            return false;
        }
        let end = offset + part.len();
        if value.len() < end {
            value.resize(end, 0);
        }
        value[offset..end].copy_from_slice(part);
        true
    })
}

/// Answers the value, or null, and decides with it in view.
pub(super) fn answer_value(
    reply: &mut Reply<'_>,
    start: usize,
    item: Option<&crate::keyspace::Item<'_>>,
) {
    // The decision may be asked for again.
    reply.out.truncate(start);
    reply.value_or_null(item);
}

/// GETDEL.
pub(super) fn get_del<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    if !call.key_fits() {
        call.reply.null();
        call.done(Command::Delete, Ending::Miss, 0);
        return Ok(());
    }
    let start = call.reply.out.len();
    let reply = &mut call.reply;
    let mut value_len = 0;
    let erased = call
        .world
        .keyspace
        .update(call.arguments.get(1), &mut |item, _| {
            answer_value(reply, start, item);
            value_len = item.map_or(0, |item| item.value.len());
            match item {
                Some(_) => Decision::Erase,
                None => Decision::Keep,
            }
        });
    match erased.ready()? {
        Ok(Updated::Erased) => call.done(Command::Delete, Ending::Hit, value_len),
        Ok(_) => call.done(Command::Delete, Ending::Miss, 0),
        Err(fault) => {
            call.reply.out.truncate(start);
            call.fault(Command::Delete, &fault);
        }
    }
    Ok(())
}
