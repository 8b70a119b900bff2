//! get, gets, gat, gats.
//!
//! Keys are looked up in batches, so that memory latencies overlap. Once the
//! output is full, the rest of the line waits in the input; a line of keys may
//! be longer than any buffer, and is then read as it comes.

use super::line::{Line, Words};
use super::{BAD_FORMAT, Desk, LINE_LEN_MAX, SEEN_MAX, State, Step};
use crate::keyspace::{Access, Decision, Fault, Item, Keyspace, Pending, Ready as _, Updated};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::{parse_expiration, text_expiry_ms};
use crate::memcache::mutate::{self, put_fault};
use crate::memcache::number::put_u64;
use crate::session::is_work_done;
use crate::world::{Command, Done, Ending};

/// Keys that go to the keyspace together.
const BATCH: usize = 32;
/// Keys that are touched together: their values are kept meanwhile.
const TOUCHED_TOGETHER: usize = 8;

/// What a line of keys asks for.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcache) struct Reading {
    with_cas: bool,
    /// The expiration time that items get.
    touch: Option<i64>,
    /// Keys that were begun to be touched together, and are pending.
    begun: usize,
}

/// `get`.
pub(super) const GET: Reading = Reading {
    with_cas: false,
    touch: None,
    begun: 0,
};
/// `gets`.
pub(super) const GETS: Reading = Reading {
    with_cas: true,
    touch: None,
    begun: 0,
};

/// What stands behind some keys of a line.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The end of the line, which makes this much of the input.
    Line(usize),
    /// Bytes of the line that mean nothing.
    Ignored,
    /// More keys, which have not come.
    Open,
}

/// Whole keys of a line.
#[derive(Clone, Copy, Debug)]
struct Keys<'a> {
    text: &'a [u8],
    /// Where they begin in the input.
    at: usize,
    end: End,
}

/// A line has come that begins with `get` or `gets`.
#[inline]
pub(super) fn start<K: Keyspace>(
    state: &mut State,
    reading: Reading,
    mut words: Words<'_>,
    line: Line<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<Step, Pending> {
    let all = words;
    let Some(key) = words.next() else {
        desk.answer_wrong_count();
        return Ok(Step::Done(line.len));
    };
    if words.rest().is_empty() && reading.touch.is_none() && key.len() <= KEY_LEN_MAX {
        get_one(key, reading.with_cas, desk)?;
        return Ok(Step::Done(line.len));
    }
    let keys = Keys {
        text: all.rest(),
        at: line.text.len() - all.rest().len(),
        end: End::Line(line.len),
    };
    let mark = Some(desk.out.len());
    Ok(read(state, reading, keys, mark, desk))
}

/// A line has come that begins with `gat` or `gats`.
pub(super) fn start_touching<K: Keyspace>(
    state: &mut State,
    reading: Reading,
    mut words: Words<'_>,
    line: Line<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let has_key = words.clone().nth(1).is_some();
    let Some(word) = words.next().filter(|_| has_key || !desk.is_newer()) else {
        desk.answer_wrong_count();
        return Step::Done(line.len);
    };
    let touch = parse_expiration(word, desk.is_newer());
    if touch.is_none() {
        desk.answer(false, b"CLIENT_ERROR invalid exptime argument");
        return Step::Done(line.len);
    }
    let keys = Keys {
        text: words.rest(),
        at: line.text.len() - words.rest().len(),
        end: End::Line(line.len),
    };
    let mark = Some(desk.out.len());
    read(state, Reading { touch, ..reading }, keys, mark, desk)
}

/// The beginning of a long line of keys has come.
pub(super) fn start_long<K: Keyspace>(
    state: &mut State,
    reading: Reading,
    words: Words<'_>,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let at = input.len() - words.rest().len();
    let mark = Some(desk.out.len());
    read(state, reading, open_keys(input, at), mark, desk)
}

/// The beginning of a long line of an expiration time and keys has come.
pub(super) fn start_touching_long<K: Keyspace>(
    state: &mut State,
    reading: Reading,
    mut words: Words<'_>,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let is_newer = desk.is_newer();
    let touch = words
        .next()
        .and_then(|word| parse_expiration(word, is_newer));
    if touch.is_none() {
        desk.answer(false, b"CLIENT_ERROR invalid exptime argument");
        *state = State::SkipLine;
        return Step::Done(input.len());
    }
    start_long(state, Reading { touch, ..reading }, words, input, desk)
}

/// More of a line has come, or there is room for more answers.
pub(super) fn resume<K: Keyspace>(
    state: &mut State,
    reading: Reading,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let input = &input[..input.len().min(SEEN_MAX)];
    let keys = match Line::first(input) {
        Some(line) => Keys {
            // The rest of a line may be its end alone.
            text: if line.text == b"\r" { b"" } else { line.text },
            at: 0,
            end: End::Line(line.len),
        },
        None => open_keys(input, 0),
    };
    if matches!(keys.end, End::Open) && keys.text.is_empty() && input.len() <= LINE_LEN_MAX {
        return Step::Input(0);
    }
    read(state, reading, keys, None, desk)
}

/// The whole keys of a line that has not ended, from `at` on.
fn open_keys(input: &[u8], at: usize) -> Keys<'_> {
    let text = &input[at..];
    if let Some(len) = memchr::memchr(0, text) {
        return Keys {
            text: &text[..len],
            at,
            end: End::Ignored,
        };
    }
    let whole_len = memchr::memrchr(b' ', text).map_or(0, |blank| blank + 1);
    // What is longer than a key is shown, in order to be refused.
    let len = if text.len() - whole_len > KEY_LEN_MAX + 1 {
        text.len()
    } else {
        whole_len
    };
    Keys {
        text: &text[..len],
        at,
        end: End::Open,
    }
}

/// Looks keys up and appends what is found. `mark` is where the answer began
/// in the output, if nothing of it has left.
fn read<K: Keyspace>(
    state: &mut State,
    mut reading: Reading,
    keys: Keys<'_>,
    mark: Option<usize>,
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let mut words = Words::of(keys.text);
    let began = desk.world.keyspace.work();
    loop {
        let from = words;
        let mut batch: [&[u8]; BATCH] = [b""; BATCH];
        let mut count = 0;
        while count < BATCH
            && let Some(key) = words.next()
        {
            batch[count] = key;
            count += 1;
        }
        let batch = &batch[..count];
        if batch.iter().any(|key| key.len() > KEY_LEN_MAX) {
            return refuse(state, keys, mark, desk, None);
        }
        if batch.is_empty() {
            break;
        }
        let (done, end) = match reading.touch {
            None => get_batch(batch, reading.with_cas, desk),
            Some(seconds) => {
                let begun = &mut reading.begun;
                touch_batch(batch, reading.with_cas, seconds, begun, desk)
            }
        };
        if let BatchEnd::Fault(fault) = &end {
            return refuse(state, keys, mark, desk, Some(fault));
        }
        let is_pending = matches!(end, BatchEnd::Pending);
        let is_full = done < count || desk.out.len() >= desk.out_len_max;
        if is_pending || is_full || is_work_done(desk.world.keyspace, began) {
            let mut left = from;
            for _ in 0..done {
                left.next();
            }
            if !is_pending && left.clone().next().is_none() {
                break;
            }
            // As long as nothing has left, the command can still fail as a
            // whole.
            if mark.is_some() && left.clone().any(|key| key.len() > KEY_LEN_MAX) {
                return refuse(state, keys, mark, desk, None);
            }
            *state = State::Reading(reading);
            let consumed = keys.at + keys.text.len() - left.rest().len();
            return match (is_pending, is_full) {
                (true, _) => Step::Pending(consumed),
                (false, true) => Step::Output(consumed),
                // Others have their turn first.
                (false, false) => Step::Done(consumed),
            };
        }
    }
    match keys.end {
        End::Line(len) => {
            desk.answer(false, b"END");
            *state = State::Command;
            Step::Done(len)
        }
        End::Ignored => {
            desk.answer(false, b"END");
            *state = State::SkipLine;
            Step::Done(keys.at + keys.text.len())
        }
        End::Open => {
            *state = State::Reading(reading);
            Step::Done(keys.at + keys.text.len())
        }
    }
}

/// How a batch of keys ended.
enum BatchEnd {
    /// All are done with that there is room for.
    Read,
    /// The next one's operation is pending.
    Pending,
    /// There will be no result.
    Fault(Fault),
}

/// Ends the command with an error, for a key that is too long or for a fault.
/// The error of a fault stands behind the items that were found: some of them may
/// have left, and no client should have to know how long our buffers are.
fn refuse<K: Keyspace>(
    state: &mut State,
    keys: Keys<'_>,
    mark: Option<usize>,
    desk: &mut Desk<'_, '_, K>,
    fault: Option<&Fault>,
) -> Step {
    match (fault, mark) {
        (Some(fault), _) => put_fault(desk.out, fault),
        (None, mark) => {
            desk.out.truncate(mark.unwrap_or(desk.out.len()));
            desk.answer(false, BAD_FORMAT);
        }
    }
    match keys.end {
        End::Line(len) => {
            *state = State::Command;
            Step::Done(len)
        }
        End::Ignored | End::Open => {
            *state = State::SkipLine;
            Step::Done(keys.at + keys.text.len())
        }
    }
}

/// Appends an item that was found.
#[inline]
fn put_value(out: &mut Vec<u8>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    let len = item.value.len();
    // The words and numbers around key and value make 81 bytes at most.
    out.reserve(key.len() + len + 96);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    put_u64(out, u64::from(item.client_flags));
    out.push(b' ');
    put_u64(out, len as u64);
    if with_cas {
        out.push(b' ');
        put_u64(out, item.cas_unique());
    }
    out.extend_from_slice(b"\r\n");
    item.value.append_to(out);
    out.extend_from_slice(b"\r\n");
}

/// A read of one key, answered as a whole.
#[inline]
fn get_one<K: Keyspace>(
    key: &[u8],
    with_cas: bool,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let mark = desk.out.len();
    let out = &mut *desk.out;
    let mut found = None;
    let read = desk.world.keyspace.get(key, Access::Use, &mut |item| {
        if let Some(item) = item {
            put_value(out, key, item, with_cas);
            found = Some(item.value.len());
        }
    });
    let read = read.ready()?;
    let ending = match (&read, found) {
        (Err(_), _) => Ending::ServerError,
        (Ok(()), Some(_)) => Ending::Hit,
        (Ok(()), None) => Ending::Miss,
    };
    match read {
        Ok(()) => desk.out.extend_from_slice(b"END\r\n"),
        Err(fault) => {
            desk.out.truncate(mark);
            put_fault(desk.out, &fault);
        }
    }
    desk.done(Command::Get, ending, key, found.unwrap_or(0));
    Ok(())
}

/// Reads keys until the output is full; how many, and why no more.
fn get_batch<K: Keyspace>(
    batch: &[&[u8]],
    with_cas: bool,
    desk: &mut Desk<'_, '_, K>,
) -> (usize, BatchEnd) {
    let out = &mut *desk.out;
    let out_len_max = desk.out_len_max;
    let observer = &mut *desk.world.observer;
    let mut done = 0;
    let mut end = BatchEnd::Read;
    let read = desk
        .world
        .keyspace
        .get_many(batch, Access::Use, &mut |index, read| {
            let key = batch[index];
            let (ending, value_len) = match &read {
                Ok(Some(item)) => {
                    put_value(out, key, item, with_cas);
                    (Ending::Hit, item.value.len())
                }
                Ok(None) => (Ending::Miss, 0),
                Err(_) => (Ending::ServerError, 0),
            };
            observer.done(&Done {
                command: Command::Get,
                ending,
                key,
                value_len,
            });
            match read {
                Ok(_) => done = index + 1,
                Err(fault) => end = BatchEnd::Fault(fault),
            }
            done == index + 1 && out.len() < out_len_max
        });
    if let Err(Pending) = read {
        end = BatchEnd::Pending;
    }
    (done, end)
}

/// Reads and touches keys until the output is full; how many, and why no more. `begun`
/// is how many were begun together, and are pending: more may have come meanwhile, but
/// the same is executed again.
fn touch_batch<K: Keyspace>(
    batch: &[&[u8]],
    with_cas: bool,
    seconds: i64,
    begun: &mut usize,
    desk: &mut Desk<'_, '_, K>,
) -> (usize, BatchEnd) {
    let mut done = 0;
    while done < batch.len() {
        let rest = &batch[done..];
        let len = match *begun {
            0 => distinct(&rest[..rest.len().min(TOUCHED_TOGETHER)]),
            begun => begun.min(rest.len()),
        };
        let keys = &rest[..len];
        let touched = touch_together(keys, with_cas, seconds, desk);
        let Ok(fault) = touched else {
            *begun = len;
            return (done, BatchEnd::Pending);
        };
        *begun = 0;
        // These keys are done with.
        desk.world.conclude();
        if let Some((index, fault)) = fault {
            return (done + index, BatchEnd::Fault(fault));
        }
        done += len;
        if desk.out.len() >= desk.out_len_max {
            return (done, BatchEnd::Read);
        }
    }
    (done, BatchEnd::Read)
}

/// How many of these, from the first on, are different.
fn distinct(keys: &[&[u8]]) -> usize {
    let is_repeated = |index: &usize| keys[..*index].contains(&keys[*index]);
    (0..keys.len()).find(is_repeated).unwrap_or(keys.len())
}

/// Reads and touches different keys at the same time. The first fault, and whose it is:
/// nothing is told of the keys behind it.
fn touch_together<K: Keyspace>(
    keys: &[&[u8]],
    with_cas: bool,
    seconds: i64,
    desk: &mut Desk<'_, '_, K>,
) -> Result<Option<(usize, Fault)>, Pending> {
    let expiry_ms = text_expiry_ms(seconds, desk.world.now);
    let begin = desk.out.len();
    // Where each key's answer begins, and the length of its value; nothing of a key that
    // could not even be looked at.
    let mut told = [None; TOUCHED_TOGETHER];
    let mut results: [Result<bool, Fault>; TOUCHED_TOGETHER] = std::array::from_fn(|_| Ok(false));
    let (out, mut last) = (&mut *desk.out, None);
    let touched = desk.world.keyspace.update_many(
        keys,
        &mut |index, item, scratch| {
            // A decision may be asked for again.
            if let Some((from, _)) = told[index].filter(|_| last == Some(index)) {
                out.truncate(from);
            }
            last = Some(index);
            let value_len = item.map_or(0, |item| item.value.len());
            told[index] = Some((out.len(), value_len));
            let Some(item) = item else {
                return Decision::Keep;
            };
            put_value(out, keys[index], item, with_cas);
            mutate::touched(item, expiry_ms, scratch)
        },
        &mut |index, updated| {
            results[index] = updated.map(|updated| matches!(updated, Updated::Stored(_)));
        },
    );
    if let Err(Pending) = touched {
        desk.out.truncate(begin);
        return Err(Pending);
    }
    let fault_at = results[..keys.len()].iter().position(Result::is_err);
    // Nothing of the one that failed, nor of those behind it.
    let from_fault_on = told.iter().skip(fault_at.unwrap_or(keys.len())).flatten();
    let end = from_fault_on.map(|(from, _)| *from).next();
    let end = end.unwrap_or(desk.out.len());
    desk.out.truncate(end);
    // What was shown and then not stored is not told, from behind.
    let mut ends = end;
    for index in (0..fault_at.unwrap_or(keys.len())).rev() {
        let Some((from, _)) = told[index] else {
            continue;
        };
        if !matches!(results[index], Ok(true)) {
            desk.out.drain(from..ends);
        }
        ends = from;
    }
    let told_count = fault_at.map_or(keys.len(), |at| at + 1);
    for (index, key) in keys.iter().enumerate().take(told_count) {
        let (ending, value_len) = match &results[index] {
            Ok(true) => (Ending::Hit, told[index].map_or(0, |(_, len)| len)),
            Ok(false) => (Ending::Miss, 0),
            Err(_) => (Ending::ServerError, 0),
        };
        desk.done(Command::GetAndTouch, ending, key, value_len);
    }
    Ok(fault_at.and_then(|at| {
        let fault = std::mem::replace(&mut results[at], Ok(false)).err()?;
        Some((at, fault))
    }))
}
