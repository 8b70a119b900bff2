//! `ms` and `md`.

use super::MetaArgs;
use super::flags::{Flags, OPAQUE_TOO_LONG, UNDECODED, has_strange_letter};
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::memcache::mutate::{self, Mode, Outcome, Storing, put_fault};
use crate::memcache::number::put_u64;
use crate::memcache::text::line::{Line, Words};
use crate::memcache::text::store::{Behind, behind, ending, value_len};
use crate::memcache::text::{
    BAD_DATA_CHUNK, BAD_FORMAT, Desk, State, Step, TOO_LARGE, put_not_allowed,
};
use crate::world::{Command, Ending, Role};
use trefoil_layout::data::{ITEM_STALE, ITEM_WIN_GIVEN};

fn mode(flags: &Flags<'_>) -> Option<Mode> {
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return None,
    };
    Some(match (mode, flags.compare) {
        (Mode::Set | Mode::Replace, Some(_)) => Mode::Cas,
        _ => mode,
    })
}

/// `ms <key> <length> <flag>*`, and a value.
pub(in crate::memcache) fn set<K: Keyspace>(
    state: &mut State,
    words: Words<'_>,
    line: Line<'_>,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Result<Step, Pending> {
    let args = MetaArgs::of(words);
    let done = Step::Done(line.len);
    if args.len() == 1 {
        desk.answer(false, BAD_FORMAT);
        return Ok(done);
    }
    let is_newer = desk.is_newer();
    // The newer memcached knows of the value before anything else is wrong.
    let announced = args.get(1).and_then(|word| value_len(word, is_newer));
    if is_newer && (announced.is_none() || has_strange_letter(&args[2..])) {
        desk.answer(false, BAD_FORMAT);
        return Ok(done);
    }
    if !super::check(&args, b"CLIENT_ERROR options flags too long", desk) {
        if let Some(len) = announced.filter(|_| is_newer) {
            *state = State::Swallow(len + 2);
        }
        return Ok(done);
    }
    let Some(len) = announced else {
        desk.answer(false, BAD_FORMAT);
        return Ok(done);
    };
    let mut decoded = UNDECODED;
    let parsed = Flags::parse(
        args[0],
        &args[2..],
        &mut decoded,
        desk.world.next_now,
        is_newer,
    )
    .and_then(|flags| match mode(&flags) {
        Some(mode) => Ok((flags, mode)),
        None => Err(b"CLIENT_ERROR invalid mode for ms M token".as_slice()),
    });
    let (flags, mode) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            desk.answer(false, error);
            *state = State::Swallow(len + 2);
            return Ok(done);
        }
    };
    if desk.role < Role::Write {
        put_not_allowed(b"ms", desk.out);
        *state = State::Swallow(len + 2);
        return Ok(done);
    }
    let command = match mode {
        Mode::Cas => Command::Cas,
        _ => Command::Set,
    };
    let key = flags.key.bytes();
    let value_len_max = desk.value_len_max();
    if len > value_len_max {
        mutate::erase_outdated(desk.world.keyspace, key)?;
        desk.answer(false, TOO_LARGE);
        desk.done(command, Ending::ClientError, key, len);
        *state = State::Swallow(len + 2);
        return Ok(done);
    }
    let (value, total) = match behind(input, line.len, len) {
        Behind::Value(value, total) => (value, total),
        Behind::Missing(total) => return Ok(Step::Input(total)),
        Behind::Unended(total) => {
            desk.answer(false, BAD_DATA_CHUNK);
            desk.done(command, Ending::ClientError, key, len);
            return Ok(Step::Done(total));
        }
    };
    let storing = Storing {
        mode,
        key,
        value,
        client_flags: flags.client_flags,
        expiry_ms: flags.expiry_ms.unwrap_or(0),
        compare: flags.compare.unwrap_or(0),
        unique: flags.unique,
        tells_unique: flags.words.iter().any(|word| word[0] == b'c'),
        allow_stale: flags.invalidate,
        vivify_expiry_ms: flags.vivify_expiry_ms,
        value_len_max,
    };
    mutate::log_lookup(desk.world, key)?;
    let stored = mutate::store(desk.world.keyspace, &storing).ready()?;
    let ending = ending(mode, stored.as_ref().ok());
    match stored {
        Ok(stored) => put_stored(desk.out, &flags, stored, len),
        Err(fault) => put_fault(desk.out, &fault),
    }
    desk.done(command, ending, key, len);
    Ok(Step::Done(total))
}

fn put_stored(out: &mut Vec<u8>, flags: &Flags<'_>, stored: Outcome, sent_len: usize) {
    let (code, unique, value_len): (&[u8], _, _) = match stored {
        Outcome::Stored { .. } if flags.quiet => return,
        Outcome::Stored { unique, value_len } => (b"HD", unique, value_len),
        Outcome::NotStored => (b"NS", 0, sent_len),
        Outcome::Exists => (b"EX", 0, sent_len),
        Outcome::NotFound => (b"NF", 0, sent_len),
    };
    out.extend_from_slice(code);
    for word in flags.words {
        let number = match word[0] {
            b'c' => unique,
            b's' => value_len as u64,
            _ => {
                flags.put_if_repeated(word, out);
                continue;
            }
        };
        out.extend_from_slice(&[b' ', word[0]]);
        put_u64(out, number);
    }
    out.extend_from_slice(b"\r\n");
}

/// What `md` and `ma` answer to wrong flags: they do not tell which, but for the newer
/// memcached's `md`.
pub(super) fn flags_error(error: &'static [u8], tells: bool) -> &'static [u8] {
    if error == OPAQUE_TOO_LONG || tells {
        error
    } else {
        b"CLIENT_ERROR invalid or duplicate flag"
    }
}

/// `md <key> <flag>*`.
pub(in crate::memcache) fn delete<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = MetaArgs::of(words);
    if !super::check(&args, b"CLIENT_ERROR options flags too long", desk) {
        return Ok(());
    }
    let mut decoded = UNDECODED;
    let is_newer = desk.is_newer();
    let parsed = Flags::parse(args[0], &args[1..], &mut decoded, desk.world.now, is_newer);
    let flags = match parsed {
        Ok(flags) => flags,
        Err(error) => {
            desk.answer(false, flags_error(error, is_newer));
            return Ok(());
        }
    };
    let key = flags.key.bytes();
    mutate::log_lookup(desk.world, key)?;
    let mut kept = Ending::Miss;
    let mut value_len = 0;
    let updated = desk.world.keyspace.update(key, &mut |item, scratch| {
        kept = Ending::Miss;
        value_len = 0;
        let Some(item) = item else {
            return Decision::Keep;
        };
        value_len = item.value.len();
        let unique = item.cas_unique();
        if flags.compare.is_some_and(|compare| compare != unique) {
            kept = Ending::Refused;
            return Decision::Keep;
        }
        if !flags.remove_value && !flags.invalidate {
            return Decision::Erase;
        }
        let mut left = if flags.remove_value {
            NewItem {
                client_flags: flags.client_flags,
                expiry_ms: flags.expiry_ms.unwrap_or(0),
                unique: Some(unique),
                ..NewItem::default()
            }
        } else {
            NewItem {
                expiry_ms: flags.expiry_ms.unwrap_or(item.expiry_ms),
                ..mutate::again(item, scratch)
            }
        };
        if flags.invalidate {
            // A new CAS unique, and the right to recompute is free again.
            left.unique = None;
            left.item_flags = (left.item_flags | ITEM_STALE) & !ITEM_WIN_GIVEN;
        }
        left.unique = flags.unique.or(left.unique);
        Decision::Store(left)
    });
    let (code, ending): (&[u8], _) = match updated.ready()? {
        Ok(Updated::Stored(_) | Updated::Erased) => (b"HD", Ending::Hit),
        Ok(Updated::Kept) if kept == Ending::Refused => (b"EX", kept),
        Ok(Updated::Kept) => (b"NF", kept),
        Err(fault) => {
            put_fault(desk.out, &fault);
            desk.done(Command::Delete, Ending::ServerError, key, 0);
            return Ok(());
        }
    };
    if !(flags.quiet && ending == Ending::Hit) {
        desk.out.extend_from_slice(code);
        flags.put_repeated(desk.out);
        desk.out.extend_from_slice(b"\r\n");
    }
    desk.done(Command::Delete, ending, key, value_len);
    Ok(())
}
