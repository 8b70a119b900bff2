//! Set, add, replace, append, prepend, delete.

use super::frame::{Frame, Status, Verb, be_u32, put_error, put_fault, put_success};
use super::{done, value_len_max};
use crate::keyspace::{Decision, Keyspace, Pending, Ready as _, Updated};
use crate::memcache::expiry::expiry_ms;
use crate::memcache::mutate::{self, Mode, Outcome, Storing};
use crate::world::{Command, Ending, World};

fn command_of(frame: &Frame<'_>) -> Command {
    if frame.header.cas == 0 {
        Command::Set
    } else {
        Command::Cas
    }
}

/// The status of a command that stored nothing, and how it ended.
fn not_stored(verb: Verb, outcome: Outcome) -> (Status, Ending) {
    match (outcome, verb) {
        (Outcome::Exists, _) | (Outcome::NotStored, Verb::Add) => (Status::Exists, Ending::Refused),
        (Outcome::NotStored, Verb::Append | Verb::Prepend) => (Status::NotStored, Ending::Miss),
        _ => (Status::NotFound, Ending::Miss),
    }
}

/// Set, add, replace, append, prepend. With a CAS unique the first three are
/// the same, as in memcached: stored iff the item has that unique.
pub(super) fn store<K: Keyspace>(
    verb: Verb,
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let cas = frame.header.cas;
    let mode = match verb {
        Verb::Append => Mode::Append,
        Verb::Prepend => Mode::Prepend,
        _ if cas != 0 => Mode::Cas,
        Verb::Add => Mode::Add,
        Verb::Replace => Mode::Replace,
        _ => Mode::Set,
    };
    // Appended bytes come without flags and expiry.
    let (client_flags, expiration) = match frame.extras {
        [] => (0, 0),
        extras => (be_u32(extras), be_u32(&extras[4..])),
    };
    let storing = Storing {
        key: frame.key,
        value: frame.value,
        mode,
        client_flags,
        expiry_ms: expiry_ms(i64::from(expiration), world.next_now),
        unique: None,
        tells_unique: !frame.quiet,
        compare: cas,
        allow_stale: false,
        vivify_expiry_ms: None,
        value_len_max: value_len_max(world),
    };
    let header = &frame.header;
    mutate::log_lookup(world, frame.key)?;
    let ending = match mutate::store(world.keyspace, &storing).ready()? {
        Ok(Outcome::Stored { unique, .. }) => {
            if !frame.quiet {
                put_success(out, header, unique, b"");
            }
            Ending::Hit
        }
        Ok(outcome) => {
            let (status, ending) = not_stored(verb, outcome);
            put_error(out, header, status);
            ending
        }
        Err(fault) => {
            put_fault(out, header, &fault);
            Ending::ServerError
        }
    };
    let command = command_of(frame);
    done(world, command, ending, frame.key, frame.value.len());
    Ok(())
}

/// Delete, of a certain CAS unique if one is given.
pub(super) fn delete<K: Keyspace>(
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let (header, cas) = (&frame.header, frame.header.cas);
    mutate::log_lookup(world, frame.key)?;
    let mut kept = Outcome::NotFound;
    let mut value_len = 0;
    let erased = world.keyspace.update(frame.key, &mut |item, _| {
        kept = Outcome::NotFound;
        value_len = 0;
        match item {
            None => Decision::Keep,
            Some(item) if cas != 0 && item.cas_unique() != cas => {
                kept = Outcome::Exists;
                Decision::Keep
            }
            Some(item) => {
                value_len = item.value.len();
                Decision::Erase
            }
        }
    });
    let ending = match erased.ready()? {
        Ok(Updated::Erased) => {
            if !frame.quiet {
                put_success(out, header, 0, b"");
            }
            Ending::Hit
        }
        Ok(_) => {
            let (status, ending) = not_stored(Verb::Delete, kept);
            put_error(out, header, status);
            ending
        }
        Err(fault) => {
            put_fault(out, header, &fault);
            Ending::ServerError
        }
    };
    done(world, Command::Delete, ending, frame.key, value_len);
    Ok(())
}

/// A value over the limit. A set removes what it should have replaced.
pub(super) fn refuse_too_large<K: Keyspace>(
    verb: Verb,
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    if verb == Verb::Set {
        mutate::erase_outdated(world.keyspace, frame.key)?;
    }
    put_error(out, &frame.header, Status::TooLarge);
    let (command, value_len) = (command_of(frame), frame.header.value_len());
    done(world, command, Ending::ClientError, frame.key, value_len);
    Ok(())
}
