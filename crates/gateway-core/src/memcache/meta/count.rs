//! `ma`.

use super::MetaArgs;
use super::flags::{Flags, UNDECODED};
use super::store::flags_error;
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated, cas_unique_of};
use crate::memcache::expiry::remaining_s;
use crate::memcache::mutate;
use crate::memcache::number::put_u64;
use crate::memcache::text::change::{NON_NUMERIC, put_count_fault};
use crate::memcache::text::line::Words;
use crate::memcache::text::{BAD_FORMAT, Desk};
use crate::world::{Command, Ending, Now};

/// What a count has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    number: u64,
    unique: u64,
    /// The expiry before the flags' own.
    expiry_ms: u64,
    is_new: bool,
}

/// `ma <key> <flag>*`.
pub(in crate::memcache) fn arithmetic<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = MetaArgs::of(words);
    if !super::check(&args, b"CLIENT_ERROR options flags too long", desk) {
        return Ok(());
    }
    let now = desk.world.now;
    let mut decoded = UNDECODED;
    let is_newer = desk.is_newer();
    let flags = match Flags::parse(args[0], &args[1..], &mut decoded, now, is_newer) {
        Ok(flags) => flags,
        Err(error) => {
            let tells = is_newer && error == BAD_FORMAT;
            desk.answer(false, flags_error(error, tells));
            return Ok(());
        }
    };
    let up = match flags.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => {
            desk.answer(false, b"CLIENT_ERROR invalid mode for ma M token");
            return Ok(());
        }
    };
    let key = flags.key.bytes();
    mutate::log_lookup(desk.world, key)?;
    let mut kept = Ending::Miss;
    let mut counted = Counted::default();
    let mut value_len = 0;
    let updated = desk.world.keyspace.update(key, &mut |item, scratch| {
        kept = Ending::Miss;
        counted = Counted::default();
        value_len = 0;
        let Some(item) = item else {
            if flags.vivify_expiry_ms.is_none() {
                return Decision::Keep;
            }
            counted.number = flags.initial;
            counted.is_new = true;
            put_u64(scratch, flags.initial);
            value_len = scratch.len();
            return Decision::Store(NewItem {
                value: scratch,
                expiry_ms: last_expiry_ms(&flags, 0, true),
                unique: flags.unique,
                ..NewItem::default()
            });
        };
        let compare = flags.compare.unwrap_or(0);
        if !item.value.is_empty() && compare != 0 && compare != item.cas_unique() {
            kept = Ending::Refused;
            return Decision::Keep;
        }
        let Ok(number) = mutate::count(item, up, flags.delta, scratch) else {
            kept = Ending::ClientError;
            return Decision::Keep;
        };
        counted.number = number;
        value_len = scratch.len();
        counted.expiry_ms = item.expiry_ms;
        Decision::Store(NewItem {
            item_flags: mutate::flags_counted(item, scratch.len()),
            value: scratch,
            client_flags: item.client_flags,
            expiry_ms: last_expiry_ms(&flags, item.expiry_ms, false),
            unique: flags.unique,
        })
    });
    let updated = updated.ready()?;
    let ending = match updated {
        Ok(Updated::Stored(_)) if counted.is_new => Ending::Miss,
        Ok(Updated::Stored(_)) => Ending::Hit,
        Ok(_) => kept,
        Err(_) => Ending::ServerError,
    };
    match updated {
        Ok(Updated::Stored(version)) => {
            counted.unique = flags.unique.unwrap_or_else(|| cas_unique_of(version));
            // The older memcached answers for what it made, quiet or not.
            if !flags.quiet || counted.is_new && !is_newer {
                put_counted(desk.out, &flags, counted, now);
            }
        }
        Ok(_) if kept == Ending::ClientError => desk.answer(false, NON_NUMERIC),
        Ok(_) => {
            let code: &[u8] = if kept == Ending::Refused {
                b"EX"
            } else {
                b"NF"
            };
            desk.out.extend_from_slice(code);
            flags.put_repeated(desk.out);
            desk.out.extend_from_slice(b"\r\n");
        }
        Err(fault) => put_count_fault(desk.out, &fault),
    }
    let command = if up { Command::Incr } else { Command::Decr };
    desk.done(command, ending, key, value_len);
    Ok(())
}

/// The expiry that the flags leave, the later one deciding.
fn last_expiry_ms(flags: &Flags<'_>, mut expiry_ms: u64, is_new: bool) -> u64 {
    for word in flags.words {
        expiry_ms = expiry_after(flags, word[0], expiry_ms, is_new);
    }
    expiry_ms
}

fn expiry_after(flags: &Flags<'_>, letter: u8, expiry_ms: u64, is_new: bool) -> u64 {
    let changed = match letter {
        b'T' => flags.expiry_ms,
        b'N' if is_new => flags.vivify_expiry_ms,
        _ => None,
    };
    changed.unwrap_or(expiry_ms)
}

fn put_counted(out: &mut Vec<u8>, flags: &Flags<'_>, counted: Counted, now: Now) {
    if flags.value {
        let digit_count = counted.number.checked_ilog10().unwrap_or(0) + 1;
        out.extend_from_slice(b"VA ");
        put_u64(out, u64::from(digit_count));
    } else {
        out.extend_from_slice(b"HD");
    }
    let mut expiry_ms = counted.expiry_ms;
    for word in flags.words {
        expiry_ms = expiry_after(flags, word[0], expiry_ms, counted.is_new);
        match word[0] {
            b'c' => {
                out.extend_from_slice(b" c");
                put_u64(out, counted.unique);
            }
            b't' if expiry_ms == 0 => out.extend_from_slice(b" t-1"),
            b't' => {
                out.extend_from_slice(b" t");
                put_u64(out, remaining_s(expiry_ms, now));
            }
            _ => flags.put_if_repeated(word, out),
        }
    }
    out.extend_from_slice(b"\r\n");
    if flags.value {
        put_u64(out, counted.number);
        out.extend_from_slice(b"\r\n");
    }
}
