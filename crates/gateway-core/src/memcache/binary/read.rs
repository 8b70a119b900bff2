//! Get, get and touch, touch.
//!
//! Clients of this protocol ask for many items by a row of quiet gets and a
//! no-op. Gets that stand in a row go to the keyspace together, which overlaps
//! their memory latencies.

use super::done;
use super::frame::{
    Answer, Frame, HEADER_LEN, Header, REQUEST_MAGIC, Status, Verb, be_u32, put_error, put_fault,
    put_header, verb_of,
};
use crate::keyspace::{Access, Fault, Item, Keyspace, Pending, Ready as _};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::expiry_ms;
use crate::memcache::mutate;
use crate::world::{Command, Done, Ending, Observer, World};

/// Most gets that go to the keyspace together: enough to hide a memory
/// latency, few enough that their headers stay in the nearest cache.
const RUN_MAX: usize = 32;

/// What an answer carries beside the flags.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Nothing.
    Flags,
    /// The value, and the key or not.
    Value { with_key: bool },
}

impl Shape {
    fn with_key(self) -> bool {
        matches!(self, Shape::Value { with_key: true })
    }
}

fn put_item(out: &mut Vec<u8>, header: &Header, key: &[u8], shape: Shape, item: &Item<'_>) {
    let key = if shape.with_key() { key } else { b"" };
    let value_len = match shape {
        Shape::Flags => 0,
        Shape::Value { .. } => item.value.len(),
    };
    let answer = Answer {
        status: 0,
        extras_len: 4,
        key_len: key.len(),
        value_len,
        cas: item.cas_unique(),
    };
    put_header(out, header, &answer);
    out.extend_from_slice(&item.client_flags.to_be_bytes());
    out.extend_from_slice(key);
    if matches!(shape, Shape::Value { .. }) {
        item.value.append_to(out);
    }
}

/// A miss: words, or the key where the hit would have carried it.
fn put_miss(out: &mut Vec<u8>, header: &Header, key: &[u8], shape: Shape) {
    if shape.with_key() {
        let answer = Answer {
            status: Status::NotFound as u16,
            key_len: key.len(),
            ..Answer::default()
        };
        put_header(out, header, &answer);
        out.extend_from_slice(key);
    } else {
        put_error(out, header, Status::NotFound);
    }
}

/// One get of a row.
#[derive(Clone, Copy)]
struct Asked {
    header: Header,
    quiet: bool,
    shape: Shape,
}

/// Answers one get and tells the observer.
fn answer(
    asked: &Asked,
    key: &[u8],
    read: Result<Option<&Item<'_>>, Fault>,
    out: &mut Vec<u8>,
    observer: &mut dyn Observer,
) {
    let header = &asked.header;
    let (ending, value_len) = match read {
        Ok(Some(item)) => {
            put_item(out, header, key, asked.shape, item);
            (Ending::Hit, item.value.len())
        }
        Ok(None) => {
            if !asked.quiet {
                put_miss(out, header, key, asked.shape);
            }
            (Ending::Miss, 0)
        }
        // Also to a quiet get: silence would be a miss.
        Err(fault) => {
            put_fault(out, header, &fault);
            (Ending::ServerError, 0)
        }
    };
    observer.done(&Done {
        command: Command::Get,
        ending,
        key,
        value_len,
    });
}

/// A get that stands alone.
pub(super) fn get<K: Keyspace>(
    frame: &Frame<'_>,
    with_key: bool,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let asked = Asked {
        header: frame.header,
        quiet: frame.quiet,
        shape: Shape::Value { with_key },
    };
    let World {
        keyspace, observer, ..
    } = world;
    let read = keyspace.get(frame.key, Access::Use, &mut |item| {
        answer(&asked, frame.key, Ok(item), out, &mut **observer);
    });
    if let Err(fault) = read.ready()? {
        answer(&asked, frame.key, Err(fault), out, &mut **observer);
    }
    Ok(())
}

/// The get at the front of these bytes, if one is there and whole.
fn peek(bytes: &[u8]) -> Option<(Asked, &[u8])> {
    let head = bytes.first_chunk::<HEADER_LEN>()?;
    if head[0] != REQUEST_MAGIC {
        return None;
    }
    let (Verb::Get { with_key }, quiet) = verb_of(head[1]) else {
        return None;
    };
    let header = Header::decode(head);
    if header.extras_len != 0
        || header.key_len == 0
        || header.key_len > KEY_LEN_MAX
        || header.body_len != header.key_len
    {
        return None;
    }
    let key = bytes.get(HEADER_LEN..header.frame_len())?;
    let asked = Asked {
        header,
        quiet,
        shape: Shape::Value { with_key },
    };
    Some((asked, key))
}

/// Whether another whole get follows this one.
pub(super) fn another_get(rest: &[u8], frame: &Frame<'_>) -> bool {
    peek(&rest[frame.header.frame_len()..]).is_some()
}

/// Executes the gets at the front of `rest`, as many as the output and one
/// call of the keyspace take. Returns the bytes that are done with, and whether
/// the get behind them is pending.
pub(super) fn get_run<K: Keyspace>(
    rest: &[u8],
    out: &mut Vec<u8>,
    out_len_max: usize,
    world: &mut World<'_, K>,
) -> (usize, Result<(), Pending>) {
    let mut keys: [&[u8]; RUN_MAX] = [b""; RUN_MAX];
    let mut asked: [Option<Asked>; RUN_MAX] = [None; RUN_MAX];
    let (mut count, mut end) = (0, 0);
    while count < RUN_MAX
        && let Some((get, key)) = peek(&rest[end..])
    {
        (asked[count], keys[count]) = (Some(get), key);
        end += get.header.frame_len();
        count += 1;
    }
    let World {
        keyspace, observer, ..
    } = world;
    let mut consumed = 0;
    let end = keyspace.get_many(&keys[..count], Access::Use, &mut |index, read| {
        if let Some(asked) = &asked[index] {
            answer(asked, keys[index], read, out, &mut **observer);
            consumed += asked.header.frame_len();
        }
        out.len() < out_len_max
    });
    (consumed, end)
}

/// A new expiry; the item keeps its CAS unique, as in memcached.
pub(super) fn touch<K: Keyspace>(
    frame: &Frame<'_>,
    shape: Shape,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let expiry_ms = expiry_ms(i64::from(be_u32(frame.extras)), world.now);
    let start = out.len();
    let mut value_len = 0;
    let touched = mutate::touch(world.keyspace, frame.key, expiry_ms, &mut |item| {
        // Of an earlier attempt.
        out.truncate(start);
        value_len = item.value.len();
        put_item(out, &frame.header, frame.key, shape, item);
    });
    let ending = match touched.ready()? {
        Ok(true) => Ending::Hit,
        Ok(false) => {
            out.truncate(start);
            if !frame.quiet {
                put_miss(out, &frame.header, frame.key, shape);
            }
            Ending::Miss
        }
        Err(fault) => {
            out.truncate(start);
            put_fault(out, &frame.header, &fault);
            Ending::ServerError
        }
    };
    let command = match shape {
        Shape::Flags => Command::Touch,
        Shape::Value { .. } => Command::GetAndTouch,
    };
    done(world, command, ending, frame.key, value_len);
    Ok(())
}
