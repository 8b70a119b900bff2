//! MSETNX, RENAME, RENAMENX, COPY: commands that are about several keys as one.
//!
//! | keys | how | others see |
//! |---|---|---|
//! | the same one | one operation on it | all of it or nothing, everywhere |
//! | several, the store is in this process | one after another, all event loops standing still ([`Keyspace::isolate`]) | all of it or nothing, at this front door |
//! | several, any other cell | refused, before anything is read | nothing |
//!
//! Native clients do not stand still. What they read or write in between is as if it came
//! before or after, key by key: what RENAME removes is the version that it has copied, and
//! MSETNX removes what it has stored if it meets a key that somebody has stored meanwhile.
//! A full cache may evict in between.

use super::connection::database;
use super::execute::Call;
use super::gather::value_len_max;
use super::many::ending_of;
use super::reply::TOO_LONG;
use crate::deferred::OwnedItem;
use crate::keyspace::{
    Access, Decision, Fault, Keyspace, MESSAGE_WORK, NewItem, Pending, Ready as _, Updated,
};
use crate::world::{Command, Done, Ending, World};
use std::collections::HashMap;
use trefoil_layout::Version;
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::Rejection;

const NO_SUCH_KEY: &str = "ERR no such key";

/// Has `act` executed while others stand still; `None`: that cannot be had here.
///
/// `is_alone`: they do already, for the transaction that this is a part of.
fn alone<'w, K: Keyspace, T>(
    world: &mut World<'w, K>,
    is_alone: bool,
    act: impl FnOnce(&mut World<'w, K>) -> T,
) -> Result<Option<T>, Pending> {
    if !world.keyspace.isolates() {
        return Ok(None);
    }
    if !is_alone {
        world.keyspace.isolate()?;
        // All others have waited.
        world.keyspace.charge(MESSAGE_WORK);
    }
    let done = act(world);
    if !is_alone {
        world.keyspace.end_isolation();
    }
    Ok(Some(done))
}

/// What is said of several keys where they cannot be changed as one.
fn refuse<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    call.reply.error(format!(
        "ERR {} of different keys is not here: before a replicated cell a command is atomic \
         for one key; nothing was applied",
        call.spec.name.to_ascii_uppercase()
    ));
    call.done(Command::Other, Ending::ClientError, 0);
}

fn tell<K: Keyspace>(
    world: &mut World<'_, K>,
    command: Command,
    ending: Ending,
    key: &[u8],
    value_len: usize,
) {
    world.observer.done(&Done {
        command,
        ending,
        key,
        value_len,
    });
}

/// What keeps a key from being stored under.
pub(super) fn key_fault(key: &[u8]) -> Option<Fault> {
    match key.len() {
        0 => Some(Fault::Rejected(Rejection::KeyEmpty)),
        1..=KEY_LEN_MAX => None,
        _ => Some(Fault::Rejected(Rejection::KeyTooLong)),
    }
}

/// The pairs of MSETNX, each key once, in the order of their first places: of one that
/// is there twice the last value counts.
fn distinct<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<(&'a [u8], &'a [u8])> {
    let (mut pairs, mut places) = (Vec::new(), HashMap::new());
    let mut words = words;
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        let place = *places.entry(key).or_insert(pairs.len());
        match pairs.get_mut(place) {
            Some(pair) => *pair = (key, value),
            None => pairs.push((key, value)),
        }
    }
    pairs
}

/// Stores a value under a key that nobody has; its version, unless somebody has it.
fn store_new<K: Keyspace>(
    world: &mut World<'_, K>,
    (key, value): (&[u8], &[u8]),
) -> Result<Result<Option<Version>, Fault>, Pending> {
    let stored = world
        .keyspace
        .update(key, &mut |item, scratch| match item {
            Some(_) => Decision::Keep,
            None => {
                scratch.extend_from_slice(value);
                Decision::Store(NewItem {
                    value: scratch,
                    ..NewItem::default()
                })
            }
        })
        .ready()?;
    Ok(stored.map(|updated| match updated {
        Updated::Stored(version) => Some(version),
        Updated::Kept | Updated::Erased => None,
    }))
}

/// Removes what has this version, if it is still there.
fn erase_exactly<K: Keyspace>(
    world: &mut World<'_, K>,
    key: &[u8],
    version: Version,
) -> Result<Result<Updated, Fault>, Pending> {
    let erased = world.keyspace.update(key, &mut |item, _| match item {
        Some(item) if item.version == version => Decision::Erase,
        _ => Decision::Keep,
    });
    erased.ready()
}

/// Stores all pairs, or none if one of the keys is there; whether it has.
fn store_all<K: Keyspace>(
    world: &mut World<'_, K>,
    pairs: &[(&[u8], &[u8])],
) -> Result<Result<bool, Fault>, Pending> {
    for (key, _) in pairs {
        let mut is_there = false;
        let read = world.keyspace.get(key, Access::Peek, &mut |item| {
            is_there = item.is_some();
        });
        match read.ready()? {
            Ok(()) if is_there => return Ok(Ok(false)),
            Ok(()) => {}
            Err(fault) => return Ok(Err(fault)),
        }
    }
    let mut stored = Vec::new();
    for pair in pairs {
        let failed = match store_new(world, *pair)? {
            Ok(Some(version)) => {
                stored.push((pair.0, version));
                continue;
            }
            Ok(None) => Ok(false),
            Err(fault) => Err(fault),
        };
        // All of it or nothing; as little as can be, if that fails for one of them.
        let mut first_fault = None;
        for (key, version) in stored {
            if let Err(fault) = erase_exactly(world, key, version)? {
                first_fault.get_or_insert(fault);
            }
        }
        return Ok(first_fault.map_or(failed, Err));
    }
    Ok(Ok(true))
}

/// MSETNX.
pub(super) fn mset_nx<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    is_alone: bool,
) -> Result<(), Pending> {
    if call.arguments.len().is_multiple_of(2) {
        call.reply.wrong_arity(call.spec.name);
        return Ok(());
    }
    let pairs = distinct(call.arguments.from(1));
    let len_max = value_len_max(call.world);
    if pairs.iter().any(|(_, value)| value.len() > len_max) {
        call.reply.error(TOO_LONG);
        call.done(Command::Set, Ending::ClientError, 0);
        return Ok(());
    }
    if let Some(fault) = pairs.iter().find_map(|(key, _)| key_fault(key)) {
        call.fault(Command::Set, &fault);
        return Ok(());
    }
    let stored = match pairs.as_slice() {
        [pair] => store_new(call.world, *pair)?.map(|version| version.is_some()),
        pairs => match alone(call.world, is_alone, |world| store_all(world, pairs))? {
            Some(stored) => stored?,
            None => {
                refuse(call);
                return Ok(());
            }
        },
    };
    let ending = match &stored {
        Ok(true) => Ending::Hit,
        Ok(false) => Ending::Refused,
        Err(fault) => ending_of(fault),
    };
    for (key, value) in &pairs {
        tell(call.world, Command::Set, ending, key, value.len());
    }
    match stored {
        Ok(was_stored) => call.reply.integer(i64::from(was_stored)),
        Err(fault) => call.reply.fault(&fault),
    }
    Ok(())
}

/// What is to be done with an item.
#[derive(Clone, Copy, Debug)]
struct Carry<'a> {
    from: &'a [u8],
    to: &'a [u8],
    /// What is under the other key gives way.
    replaces: bool,
    /// The first key loses it.
    removes: bool,
}

/// What that came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    /// Done, with a value of this length.
    Done(usize),
    /// There is nothing under the first key.
    NothingThere,
    /// There is something under the other one.
    Taken,
}

/// Reads an item.
fn read<K: Keyspace>(
    world: &mut World<'_, K>,
    key: &[u8],
    access: Access,
) -> Result<Result<Option<OwnedItem>, Fault>, Pending> {
    if key_fault(key).is_some() {
        return Ok(Ok(None));
    }
    let mut found = None;
    let read = world.keyspace.get(key, access, &mut |item| {
        found = item.map(OwnedItem::of);
    });
    Ok(read.ready()?.map(|()| found))
}

/// Whether there is an item.
fn is_there<K: Keyspace>(
    world: &mut World<'_, K>,
    key: &[u8],
) -> Result<Result<bool, Fault>, Pending> {
    if key_fault(key).is_some() {
        return Ok(Ok(false));
    }
    let mut is_there = false;
    let read = world.keyspace.get(key, Access::Peek, &mut |item| {
        is_there = item.is_some();
    });
    Ok(read.ready()?.map(|()| is_there))
}

/// Stores under the other key first: whatever happens then, the value is somewhere.
fn carry<K: Keyspace>(
    world: &mut World<'_, K>,
    carry: Carry<'_>,
) -> Result<Result<Carried, Fault>, Pending> {
    let access = match carry.removes {
        true => Access::Peek,
        false => Access::Use,
    };
    let item = match read(world, carry.from, access)? {
        Ok(Some(item)) => item,
        Ok(None) => return Ok(Ok(Carried::NothingThere)),
        Err(fault) => return Ok(Err(fault)),
    };
    if let Some(fault) = key_fault(carry.to) {
        return Ok(Err(fault));
    }
    // With flags and expiry. A CAS unique is that of a key.
    let new = NewItem {
        unique: None,
        ..item.as_new()
    };
    let stored = match carry.replaces {
        true => world.keyspace.set(carry.to, &new).map(Updated::Stored),
        false => world
            .keyspace
            .update(carry.to, &mut |there, scratch| match there {
                Some(_) => Decision::Keep,
                None => {
                    scratch.extend_from_slice(new.value);
                    Decision::Store(NewItem {
                        value: scratch,
                        ..new
                    })
                }
            }),
    };
    match stored.ready()? {
        Ok(Updated::Stored(_)) => {}
        Ok(_) => return Ok(Ok(Carried::Taken)),
        Err(fault) => return Ok(Err(fault)),
    }
    if carry.removes
        && let Err(fault) = erase_exactly(world, carry.from, item.item().version)?
    {
        return Ok(Err(fault));
    }
    Ok(Ok(Carried::Done(new.value.len())))
}

/// Does it; `None` if it was answered that this cannot be done here, or has failed.
fn carried<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    what: Carry<'_>,
    is_alone: bool,
) -> Result<Option<Carried>, Pending> {
    let done = match alone(call.world, is_alone, |world| carry(world, what))? {
        Some(done) => done?,
        None => {
            refuse(call);
            return Ok(None);
        }
    };
    let (ending, value_len) = match &done {
        Ok(Carried::Done(len)) => (Ending::Hit, *len),
        Ok(Carried::NothingThere) => (Ending::Miss, 0),
        Ok(Carried::Taken) => (Ending::Refused, 0),
        Err(fault) => (ending_of(fault), 0),
    };
    if what.removes && ending == Ending::Hit {
        tell(call.world, Command::Delete, ending, what.from, value_len);
    }
    match ending {
        Ending::Miss => tell(call.world, Command::Other, ending, what.from, 0),
        _ => tell(call.world, Command::Set, ending, what.to, value_len),
    }
    Ok(match done {
        Ok(carried) => Some(carried),
        Err(fault) => {
            call.reply.fault(&fault);
            None
        }
    })
}

/// RENAME, RENAMENX.
pub(super) fn rename<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    replaces: bool,
    is_alone: bool,
) -> Result<(), Pending> {
    let (from, to) = (call.arguments.get(1), call.arguments.get(2));
    let carried = if from == to {
        match is_there(call.world, from)? {
            Ok(true) => {
                call.done(Command::Other, Ending::Hit, 0);
                Some(match replaces {
                    true => Carried::Done(0),
                    false => Carried::Taken,
                })
            }
            Ok(false) => {
                call.done(Command::Other, Ending::Miss, 0);
                Some(Carried::NothingThere)
            }
            Err(fault) => {
                call.fault(Command::Other, &fault);
                None
            }
        }
    } else {
        let what = Carry {
            from,
            to,
            replaces,
            removes: true,
        };
        carried(call, what, is_alone)?
    };
    match carried {
        None => {}
        Some(Carried::NothingThere) => call.reply.error(NO_SUCH_KEY),
        Some(Carried::Taken) => call.reply.integer(0),
        Some(Carried::Done(_)) if replaces => call.reply.simple("OK"),
        Some(Carried::Done(_)) => call.reply.integer(1),
    }
    Ok(())
}

/// COPY.
pub(super) fn copy<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    is_alone: bool,
) -> Result<(), Pending> {
    let arguments = call.arguments;
    let (mut replaces, mut at) = (false, 3);
    while at < arguments.len() {
        if arguments.is(at, "replace") {
            replaces = true;
        } else if arguments.is(at, "db") && at + 1 < arguments.len() {
            at += 1;
            if !database(call, arguments.get(at)) {
                return Ok(());
            }
        } else {
            call.reply.syntax_error();
            return Ok(());
        }
        at += 1;
    }
    let (from, to) = (arguments.get(1), arguments.get(2));
    if from == to {
        call.reply
            .error("ERR source and destination objects are the same");
        return Ok(());
    }
    let what = Carry {
        from,
        to,
        replaces,
        removes: false,
    };
    match carried(call, what, is_alone)? {
        None => {}
        Some(Carried::Done(_)) => call.reply.integer(1),
        Some(Carried::NothingThere | Carried::Taken) => call.reply.integer(0),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::distinct;

    #[test]
    fn the_last_value_of_a_key_counts() {
        let words = ["a", "1", "b", "2", "a", "3"];
        let pairs = distinct(words.iter().map(|word| word.as_bytes()));
        assert_eq!(pairs, [(&b"a"[..], &b"3"[..]), (&b"b"[..], &b"2"[..])]);
    }
}
