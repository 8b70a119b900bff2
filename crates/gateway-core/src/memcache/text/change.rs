//! delete, touch, incr, decr.

use super::line::{Args, Words};
use super::{BAD_FORMAT, Desk};
use crate::keyspace::{Decision, Fault, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::{parse_expiration, text_expiry_ms};
use crate::memcache::mutate::{self, put_fault};
use crate::memcache::number::{parse_u64, put_u64};
use crate::world::{Command, Ending};
use trefoil_layout::op::Rejection;

pub(in crate::memcache) const NON_NUMERIC: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value";

/// `delete <key> [0] [noreply]`: very old clients send the zero.
pub(super) fn delete<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = Args::<4>::of(words);
    if !desk.takes(args.len(), 1..=3) {
        desk.answer_wrong_count();
        return Ok(());
    }
    let key = args[0];
    let noreply = args.len() > 1 && words.noreply();
    let valid = match args.len() {
        _ if desk.is_newer() => true,
        1 => true,
        2 => noreply || args[1] == b"0",
        _ => noreply && args[1] == b"0",
    };
    if !valid {
        desk.answer(
            noreply,
            b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
        );
        return Ok(());
    }
    if key.len() > KEY_LEN_MAX {
        desk.answer(noreply, BAD_FORMAT);
        return Ok(());
    }
    mutate::log_lookup(desk.world, key)?;
    let erased = mutate::erase(desk.world.keyspace, key).ready()?;
    found(Command::Delete, key, erased, b"DELETED", noreply, desk);
    Ok(())
}

/// `touch <key> <exptime> [noreply]`.
pub(super) fn touch<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = Args::<4>::of(words);
    if !desk.takes(args.len(), 2..=3) {
        desk.answer_wrong_count();
        return Ok(());
    }
    let noreply = words.noreply();
    let key = args[0];
    if key.len() > KEY_LEN_MAX {
        desk.answer(noreply, BAD_FORMAT);
        return Ok(());
    }
    let Some(seconds) = parse_expiration(args[1], desk.is_newer()) else {
        desk.answer(noreply, b"CLIENT_ERROR invalid exptime argument");
        return Ok(());
    };
    let expiry_ms = text_expiry_ms(seconds, desk.world.next_now);
    let mut value_len = 0;
    let touched = mutate::touch(desk.world.keyspace, key, expiry_ms, &mut |item| {
        value_len = item.value.len();
    });
    let touched = touched.ready()?.map(|touched| touched.then_some(value_len));
    found(Command::Touch, key, touched, b"TOUCHED", noreply, desk);
    Ok(())
}

/// Answers a command that needs the item and nothing else; `found` is the length
/// of its value.
fn found<K: Keyspace>(
    command: Command,
    key: &[u8],
    found: Result<Option<usize>, Fault>,
    word: &[u8],
    noreply: bool,
    desk: &mut Desk<'_, '_, K>,
) {
    let (ending, value_len) = match found {
        Ok(Some(value_len)) => (Ending::Hit, value_len),
        Ok(None) => (Ending::Miss, 0),
        Err(_) => (Ending::ServerError, 0),
    };
    match found {
        Ok(Some(_)) => desk.answer(noreply, word),
        Ok(None) => desk.answer(noreply, b"NOT_FOUND"),
        Err(_) if noreply => {}
        Err(fault) => put_fault(desk.out, &fault),
    }
    desk.done(command, ending, key, value_len);
}

/// `incr|decr <key> <delta> [noreply]`.
pub(super) fn count<K: Keyspace>(
    up: bool,
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = Args::<4>::of(words);
    if !desk.takes(args.len(), 2..=3) {
        desk.answer_wrong_count();
        return Ok(());
    }
    let noreply = words.noreply();
    let key = args[0];
    if key.len() > KEY_LEN_MAX {
        desk.answer(noreply, BAD_FORMAT);
        return Ok(());
    }
    let is_plain = !desk.is_newer() || args[1][0].is_ascii_digit();
    let Some(delta) = parse_u64(args[1]).filter(|_| is_plain) else {
        desk.answer(noreply, b"CLIENT_ERROR invalid numeric delta argument");
        return Ok(());
    };
    mutate::log_lookup(desk.world, key)?;
    let mut number = 0;
    let mut kept = Ending::Miss;
    let mut value_len = 0;
    let updated = desk.world.keyspace.update(key, &mut |item, scratch| {
        kept = Ending::Miss;
        let Some(item) = item else {
            return Decision::Keep;
        };
        let Ok(counted) = mutate::count(item, up, delta, scratch) else {
            kept = Ending::ClientError;
            return Decision::Keep;
        };
        number = counted;
        value_len = scratch.len();
        Decision::Store(NewItem {
            item_flags: mutate::flags_counted(item, value_len),
            value: scratch,
            client_flags: item.client_flags,
            expiry_ms: item.expiry_ms,
            unique: None,
        })
    });
    let updated = updated.ready()?;
    let ending = match updated {
        Ok(Updated::Stored(_)) => Ending::Hit,
        Ok(Updated::Kept | Updated::Erased) => kept,
        Err(_) => Ending::ServerError,
    };
    match (updated, ending) {
        _ if noreply => {}
        (Err(fault), _) => put_count_fault(desk.out, &fault),
        (_, Ending::Hit) => {
            put_u64(desk.out, number);
            desk.out.extend_from_slice(b"\r\n");
        }
        (_, Ending::ClientError) => desk.answer(false, NON_NUMERIC),
        _ => desk.answer(false, b"NOT_FOUND"),
    }
    let command = if up { Command::Incr } else { Command::Decr };
    desk.done(command, ending, key, value_len);
    Ok(())
}

/// The line that a fault of counting is answered with.
pub(in crate::memcache) fn put_count_fault(out: &mut Vec<u8>, fault: &Fault) {
    match fault {
        Fault::Rejected(Rejection::NoMemory) => {
            out.extend_from_slice(b"SERVER_ERROR out of memory\r\n");
        }
        fault => put_fault(out, fault),
    }
}
