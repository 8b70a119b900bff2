//! Commands that read one key.

use super::execute::Call;
use super::parse::number;
use super::reply::Reply;
use crate::keyspace::{Access, Item, Keyspace, Pending, Ready as _};
use crate::world::{Command, Ending};

/// What times are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

/// GET: without allocation, copied once.
pub(super) fn get<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    look(call, Command::Get, Access::Use, &mut |reply, item| {
        reply.value_or_null(item);
    })
}

/// Reads the item and lets `look` answer; answers faults itself.
pub(super) fn look<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    command: Command,
    access: Access,
    look: &mut dyn FnMut(&mut Reply<'_>, Option<&Item<'_>>),
) -> Result<(), Pending> {
    let (key, fits) = (call.key(), call.key_fits());
    let mut value_len = None;
    let reply = &mut call.reply;
    let read = if fits {
        call.world.keyspace.get(key, access, &mut |item| {
            value_len = item.map(|item| item.value.len());
            look(reply, item);
        })
    } else {
        look(reply, None);
        Ok(())
    };
    match read.ready()? {
        Ok(()) => {
            let ending = if value_len.is_some() {
                Ending::Hit
            } else {
                Ending::Miss
            };
            call.done(command, ending, value_len.unwrap_or(0));
        }
        Err(fault) => call.fault(command, &fault),
    }
    Ok(())
}

/// Reads what is known of the item's use, which a cell's backends may have to be asked
/// for.
pub(super) fn look_at_use<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    look: &mut dyn FnMut(&mut Reply<'_>, Option<&Item<'_>>),
) -> Result<(), Pending> {
    let (key, mut is_hit) = (call.key(), false);
    if !call.key_fits() {
        look(&mut call.reply, None);
        return Ok(());
    }
    let reply = &mut call.reply;
    let read = call
        .world
        .keyspace
        .get_seen(key, Access::Peek, &mut |item| {
            is_hit = item.is_some();
            look(reply, item);
        });
    match (read.ready()?, is_hit) {
        (Ok(()), true) => call.done(Command::Other, Ending::Hit, 0),
        (Ok(()), false) => call.done(Command::Other, Ending::Miss, 0),
        (Err(fault), _) => call.fault(Command::Other, &fault),
    }
    Ok(())
}

/// STRLEN.
pub(super) fn str_len<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    look(call, Command::Get, Access::Use, &mut |reply, item| {
        reply.integer(item.map_or(0, |item| item.value.len() as i64));
    })
}

/// TYPE.
pub(super) fn kind<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    look(call, Command::Other, Access::Peek, &mut |reply, item| {
        reply.simple(if item.is_some() { "string" } else { "none" });
    })
}

/// GETRANGE: the bytes from one index to another, both included; negative
/// ones count from the end.
pub(super) fn get_range<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let (Some(first), Some(last)) = (number(call.arguments.get(2)), number(call.arguments.get(3)))
    else {
        call.reply.not_an_integer();
        return Ok(());
    };
    look(call, Command::Get, Access::Use, &mut |reply, item| {
        let range = item.and_then(|item| {
            let range = range_of(first, last, item.value.len())?;
            Some((item, range))
        });
        let Some((item, (start, end))) = range else {
            return reply.bulk(b"");
        };
        // A value can only be copied whole.
        let mut part = Vec::new();
        item.value.append_to(&mut part);
        reply.bulk(&part[start..end]);
    })
}

/// The bytes that a range means, unless there are none.
fn range_of(first: i64, last: i64, len: usize) -> Option<(usize, usize)> {
    if first < 0 && last < 0 && first > last {
        return None;
    }
    let len = len as i64;
    let from_start = |index: i64| {
        if index < 0 {
            index.saturating_add(len).max(0)
        } else {
            index
        }
    };
    let (first, last) = (from_start(first), from_start(last).min(len - 1));
    (first <= last && len > 0).then(|| (first as usize, last as usize + 1))
}

/// TTL, PTTL, EXPIRETIME, PEXPIRETIME: -2 without a key, -1 without an expiry.
pub(super) fn ttl<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    unit: Unit,
    is_absolute: bool,
) -> Result<(), Pending> {
    let now_ms = call.world.now.unix_ms;
    look(call, Command::Other, Access::Peek, &mut |reply, item| {
        let time = match item {
            None => -2,
            Some(item) if item.expiry_ms == 0 => -1,
            Some(item) => {
                let time_ms = if is_absolute {
                    item.expiry_ms
                } else {
                    item.expiry_ms.saturating_sub(now_ms)
                };
                match unit {
                    Unit::Seconds => (time_ms + 500) as i64 / 1000,
                    Unit::Milliseconds => time_ms as i64,
                }
            }
        };
        reply.integer(time);
    })
}

#[cfg(test)]
mod tests {
    use super::range_of;

    #[test]
    fn ranges() {
        let cases = [
            (0, 0, 5, Some((0, 1))),
            (0, -1, 5, Some((0, 5))),
            (-3, -2, 5, Some((2, 4))),
            (-2, -3, 5, None),
            (3, 100, 5, Some((3, 5))),
            (5, 100, 5, None),
            (-100, 1, 5, Some((0, 2))),
            (0, 0, 0, None),
            (-100, -50, 5, Some((0, 1))),
            (2, 1, 5, None),
            (0, -1, 0, None),
            (i64::MIN, i64::MAX, 5, Some((0, 5))),
        ];
        for (first, last, len, expected) in cases {
            assert_eq!(range_of(first, last, len), expected, "{first} {last} {len}");
        }
    }
}
