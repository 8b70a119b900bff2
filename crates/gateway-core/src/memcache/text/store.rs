//! set, add, replace, append, prepend, cas.

use super::line::{Args, Line, Words};
use super::{BAD_DATA_CHUNK, BAD_FORMAT, Desk, State, Step, TOO_LARGE, put_not_allowed};
use crate::keyspace::{Keyspace, Pending, Ready as _};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::text_expiry_ms;
use crate::memcache::mutate::{self, Mode, Outcome, Storing, put_fault};
use crate::memcache::number::{parse_i64, parse_u32, parse_u64};
use crate::world::{Command, Ending, Role};

/// Longest value that a line may announce.
const ANNOUNCED_LEN_MAX: i64 = i32::MAX as i64 - 2;

/// What a line announces.
struct Announced<'a> {
    key: &'a [u8],
    client_flags: u32,
    expiration: i64,
    value_len: usize,
    compare: u64,
}

fn announced<'a>(words: &[&'a [u8]], mode: Mode, is_newer: bool) -> Option<Announced<'a>> {
    let key = words[0];
    if key.len() > KEY_LEN_MAX {
        return None;
    }
    Some(Announced {
        key,
        client_flags: parse_u32(words[1])?,
        expiration: parse_i64(words[2])?,
        value_len: value_len(words[3], is_newer)?,
        compare: match mode {
            Mode::Cas => {
                let is_plain = |word: &&&[u8]| !is_newer || word[0].is_ascii_digit();
                parse_u64(words.get(4).filter(is_plain)?)?
            }
            _ => 0,
        },
    })
}

/// The length of a value that a line announces. The newer memcached takes digits only.
pub(in crate::memcache) fn value_len(word: &[u8], is_newer: bool) -> Option<usize> {
    if is_newer && !word[0].is_ascii_digit() {
        return None;
    }
    let len = parse_i64(word).filter(|&len| len <= ANNOUNCED_LEN_MAX)?;
    usize::try_from(len).ok()
}

/// The value behind a line, and the length of both.
pub(in crate::memcache) enum Behind<'a> {
    /// It has come.
    Value(&'a [u8], usize),
    /// It has come, and is not followed by an end of line.
    Unended(usize),
    /// It has not come: needs so much.
    Missing(usize),
}

/// The value behind a line.
#[inline]
pub(in crate::memcache) fn behind(input: &[u8], line_len: usize, value_len: usize) -> Behind<'_> {
    let total = line_len + value_len + 2;
    match input.get(line_len..total) {
        None => Behind::Missing(total),
        Some(block) => match block.split_at(value_len) {
            (value, b"\r\n") => Behind::Value(value, total),
            _ => Behind::Unended(total),
        },
    }
}

/// Of a value that is coming, behind its line: how many bytes are left, and whether
/// nobody waits for an answer.
pub(super) fn unfinished(input: &[u8]) -> Option<(usize, bool)> {
    let line = Line::first(input)?;
    let mut words = Words::of(line.text);
    let word = words.next()?;
    let args = Args::<7>::of(words);
    let (len, noreply) = match word {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            (value_len(args.get(3)?, false)?, words.noreply())
        }
        b"ms" => (value_len(args.get(1)?, false)?, false),
        _ => return None,
    };
    let left = (line.len + len + 2).checked_sub(input.len())?;
    Some((left, noreply)).filter(|_| left > 0)
}

/// A line has come that announces a value.
#[inline]
pub(super) fn store<K: Keyspace>(
    state: &mut State,
    mode: Mode,
    words: Words<'_>,
    line: Line<'_>,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Result<Step, Pending> {
    let args = Args::<7>::of(words);
    let is_newer = desk.is_newer();
    let least = match mode {
        // Without a number to compare with, the value is skipped.
        Mode::Cas if !is_newer => 5,
        _ => 4,
    };
    if !desk.takes(args.len(), least..=least + 1) {
        desk.answer_wrong_count();
        return Ok(Step::Done(line.len));
    }
    let noreply = words.noreply();
    let Some(announced) = announced(&args, mode, is_newer) else {
        let value_len = value_len(args[3], is_newer).filter(|_| is_newer);
        desk.answer(noreply && (!is_newer || value_len.is_some()), BAD_FORMAT);
        if let Some(value_len) = value_len {
            *state = State::Swallow(value_len + 2);
        }
        return Ok(Step::Done(line.len));
    };
    let command = if mode == Mode::Cas {
        Command::Cas
    } else {
        Command::Set
    };
    let key = announced.key;
    if desk.role < Role::Write {
        if !noreply {
            put_not_allowed(mode.word(), desk.out);
        }
        *state = State::Swallow(announced.value_len + 2);
        return Ok(Step::Done(line.len));
    }
    let value_len_max = desk.value_len_max();
    if announced.value_len > value_len_max {
        if mode == Mode::Set {
            mutate::erase_outdated(desk.world.keyspace, key)?;
        }
        desk.answer(noreply, TOO_LARGE);
        desk.done(command, Ending::ClientError, key, announced.value_len);
        *state = State::Swallow(announced.value_len + 2);
        return Ok(Step::Done(line.len));
    }
    let (value, total) = match behind(input, line.len, announced.value_len) {
        Behind::Value(value, total) => (value, total),
        Behind::Missing(total) => return Ok(Step::Input(total)),
        Behind::Unended(total) => {
            desk.answer(noreply, BAD_DATA_CHUNK);
            desk.done(command, Ending::ClientError, key, announced.value_len);
            return Ok(Step::Done(total));
        }
    };
    let storing = Storing {
        mode,
        key,
        value,
        client_flags: announced.client_flags,
        expiry_ms: text_expiry_ms(announced.expiration, desk.world.next_now),
        compare: announced.compare,
        unique: None,
        tells_unique: false,
        allow_stale: false,
        vivify_expiry_ms: None,
        value_len_max,
    };
    mutate::log_lookup(desk.world, key)?;
    let stored = mutate::store(desk.world.keyspace, &storing).ready()?;
    let ending = ending(mode, stored.as_ref().ok());
    match stored {
        Ok(stored) => desk.answer(noreply, word(stored)),
        Err(_) if noreply => {}
        Err(fault) => put_fault(desk.out, &fault),
    }
    desk.done(command, ending, key, value.len());
    Ok(Step::Done(total))
}

fn word(stored: Outcome) -> &'static [u8] {
    match stored {
        Outcome::Stored { .. } => b"STORED",
        Outcome::NotStored => b"NOT_STORED",
        Outcome::Exists => b"EXISTS",
        Outcome::NotFound => b"NOT_FOUND",
    }
}

/// How storing ended, for the observer.
pub(in crate::memcache) fn ending(mode: Mode, stored: Option<&Outcome>) -> Ending {
    match stored {
        None => Ending::ServerError,
        Some(Outcome::Stored { .. }) => Ending::Hit,
        Some(Outcome::Exists) => Ending::Refused,
        Some(Outcome::NotStored) if mode == Mode::Add => Ending::Refused,
        Some(Outcome::NotStored | Outcome::NotFound) => Ending::Miss,
    }
}
