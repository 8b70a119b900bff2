//! What classic and meta commands do to an item: store, touch, count.

use super::number::{parse_u64, put_u64};
use crate::keyspace::{
    Access, Decision, Fault, Halt, Item, Keyspace, NewItem, Pending, Ready as _, Updated,
    cas_is_older, cas_unique_of,
};
use crate::world::{Progress, WATCH_FETCHERS, World};
use trefoil_layout::data::{ITEM_STALE, ITEM_WIN_GIVEN};
use trefoil_layout::op::Rejection;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Whatever is there.
    Set,
    /// If nothing is there.
    Add,
    /// If something is there.
    Replace,
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
    /// If what is there has this CAS unique.
    Cas,
}

impl Mode {
    /// Its command.
    pub(super) fn word(self) -> &'static [u8] {
        match self {
            Mode::Set => b"set",
            Mode::Add => b"add",
            Mode::Replace => b"replace",
            Mode::Append => b"append",
            Mode::Prepend => b"prepend",
            Mode::Cas => b"cas",
        }
    }
}

/// A value to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storing<'a> {
    pub(super) mode: Mode,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) client_flags: u32,
    pub(super) expiry_ms: u64,
    /// The CAS unique that the item must have; 0 is none that an item has,
    /// and does not count for modes other than `Cas`.
    pub(super) compare: u64,
    /// CAS unique that the item gets.
    pub(super) unique: Option<u64>,
    /// Whether the answer tells the CAS unique.
    pub(super) tells_unique: bool,
    /// `Cas` stores over a newer item too, and marks it stale.
    pub(super) allow_stale: bool,
    /// Append and prepend create the item, with this expiry.
    pub(super) vivify_expiry_ms: Option<u64>,
    /// Longest value.
    pub(super) value_len_max: usize,
}

/// What storing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Done.
    Stored {
        /// The CAS unique that the item has now, if the answer tells it.
        unique: u64,
        /// The length of the value that it has now.
        value_len: usize,
    },
    /// What is there, or not there, is against it.
    NotStored,
    /// The CAS unique differs.
    Exists,
    /// There is nothing to compare with.
    NotFound,
}

/// memcached looks an item up before it changes it, and has a log line for that:
/// this is for those who watch. The line is written once, before the change.
/// Whether somebody watches is asked once for a request: one that waits is executed
/// again, and must do then what it did before.
#[inline]
pub(super) fn log_lookup<K: Keyspace>(world: &mut World<'_, K>, key: &[u8]) -> Result<(), Pending> {
    if world.progress == Progress::Begun {
        let is_watched = world.observer.watched() & WATCH_FETCHERS != 0;
        world.progress = match is_watched {
            true => Progress::LookingUp,
            false => Progress::NotLookedUp,
        };
    }
    if world.progress == Progress::LookingUp {
        log_lookup_now(world, key)?;
    }
    Ok(())
}

#[cold]
fn log_lookup_now<K: Keyspace>(world: &mut World<'_, K>, key: &[u8]) -> Result<(), Pending> {
    let mut value_len = None;
    let read = world.keyspace.get(key, Access::Peek, &mut |item| {
        value_len = item.map(|item| item.value.len());
    });
    // The command itself answers a fault.
    if read.ready()?.is_ok() {
        world.observer.looked_up(key, value_len);
    }
    world.advance(Progress::LookedUp(value_len));
    Ok(())
}

/// Stores a value.
pub(super) fn store<K: Keyspace>(keyspace: &mut K, storing: &Storing<'_>) -> Result<Outcome, Halt> {
    let new = NewItem {
        value: storing.value,
        client_flags: storing.client_flags,
        item_flags: 0,
        expiry_ms: storing.expiry_ms,
        unique: storing.unique,
    };
    let unique_of = |version| storing.unique.unwrap_or_else(|| cas_unique_of(version));
    if storing.mode == Mode::Set {
        let stored = match (storing.unique, storing.tells_unique) {
            (None, true) => keyspace.set(storing.key, &new).map(cas_unique_of),
            (unique, _) => {
                let put = keyspace.put(storing.key, &new);
                put.map(|()| unique.unwrap_or_default())
            }
        };
        return match stored.ready()? {
            Ok(unique) => Ok(Outcome::Stored {
                unique,
                value_len: new.value.len(),
            }),
            Err(fault) => {
                if matches!(
                    fault,
                    Fault::Rejected(Rejection::NoMemory | Rejection::ValueTooLong)
                ) {
                    erase_outdated(keyspace, storing.key)?;
                }
                Err(fault.into())
            }
        };
    }
    let mut kept = Outcome::NotStored;
    let mut value_len = 0;
    let updated = keyspace.update(storing.key, &mut |item, scratch| match decide(
        storing, &new, item, scratch,
    ) {
        Ok(decided) => {
            value_len = scratch.len();
            Decision::Store(NewItem {
                value: scratch,
                client_flags: decided.client_flags,
                item_flags: decided.item_flags,
                expiry_ms: decided.expiry_ms,
                unique: decided.unique,
            })
        }
        Err(why) => {
            kept = why;
            Decision::Keep
        }
    })?;
    Ok(match updated {
        Updated::Stored(version) => Outcome::Stored {
            unique: unique_of(version),
            value_len,
        },
        Updated::Kept | Updated::Erased => kept,
    })
}

/// Builds the value in `scratch`, and tells what goes with it.
fn decide(
    storing: &Storing<'_>,
    new: &NewItem<'_>,
    item: Option<&Item<'_>>,
    scratch: &mut Vec<u8>,
) -> Result<NewItem<'static>, Outcome> {
    let mut decided = NewItem {
        value: b"",
        client_flags: new.client_flags,
        item_flags: new.item_flags,
        expiry_ms: new.expiry_ms,
        unique: new.unique,
    };
    match (storing.mode, item) {
        (Mode::Add, Some(_)) | (Mode::Replace, None) => return Err(Outcome::NotStored),
        (Mode::Set | Mode::Add, _) | (Mode::Replace, Some(_)) => {
            scratch.extend_from_slice(new.value);
        }
        (Mode::Cas, None) => return Err(Outcome::NotFound),
        (Mode::Cas, Some(item)) => {
            let unique = item.cas_unique();
            if storing.compare == 0 || storing.compare != unique {
                let stale = storing.allow_stale
                    && storing.compare != 0
                    && cas_is_older(storing.compare, unique);
                if !stale {
                    return Err(Outcome::Exists);
                }
                // Somebody made the item stale, or new, while this value was
                // computed: better than nothing, for as long as the item had.
                decided.expiry_ms = item.expiry_ms;
                decided.item_flags = ITEM_STALE | (item.item_flags & ITEM_WIN_GIVEN);
            }
            scratch.extend_from_slice(new.value);
        }
        (Mode::Append | Mode::Prepend, None) => {
            decided.expiry_ms = storing.vivify_expiry_ms.ok_or(Outcome::NotStored)?;
            scratch.extend_from_slice(new.value);
        }
        (Mode::Append | Mode::Prepend, Some(item)) => {
            if storing.compare != 0 && storing.compare != item.cas_unique() {
                return Err(Outcome::Exists);
            }
            let len = item.value.len() + new.value.len();
            if len > storing.value_len_max {
                return Err(Outcome::NotStored);
            }
            scratch.reserve(len);
            if storing.mode == Mode::Append {
                item.value.append_to(scratch);
                scratch.extend_from_slice(new.value);
            } else {
                scratch.extend_from_slice(new.value);
                item.value.append_to(scratch);
            }
            decided.client_flags = item.client_flags;
            decided.expiry_ms = item.expiry_ms;
        }
    }
    Ok(decided)
}

/// Removes what a refused value should have replaced: the client has a newer
/// one, and nobody should go on reading the old. If that fails as well, the
/// client has been told that its command failed.
pub(super) fn erase_outdated<K: Keyspace>(keyspace: &mut K, key: &[u8]) -> Result<(), Pending> {
    let _ = erase(keyspace, key).ready()?;
    Ok(())
}

/// Removes an item; the length of its value if there was one.
pub(super) fn erase<K: Keyspace>(keyspace: &mut K, key: &[u8]) -> Result<Option<usize>, Halt> {
    let mut value_len = 0;
    let updated = keyspace.update(key, &mut |item, _| match item {
        Some(item) => {
            value_len = item.value.len();
            Decision::Erase
        }
        None => Decision::Keep,
    })?;
    Ok((updated == Updated::Erased).then_some(value_len))
}

/// The same item again, its value copied to `scratch`. It keeps its CAS
/// unique: a new expiry or a mark is no new value.
pub(super) fn again<'s>(item: &Item<'_>, scratch: &'s mut Vec<u8>) -> NewItem<'s> {
    item.value.append_to(scratch);
    NewItem {
        value: scratch,
        client_flags: item.client_flags,
        item_flags: item.item_flags,
        expiry_ms: item.expiry_ms,
        unique: Some(item.cas_unique()),
    }
}

/// Gives an item a new expiry and shows it to `with`, which is called once for
/// every attempt; whether there was one.
pub(super) fn touch<K: Keyspace>(
    keyspace: &mut K,
    key: &[u8],
    expiry_ms: u64,
    with: &mut dyn FnMut(&Item<'_>),
) -> Result<bool, Halt> {
    let updated = keyspace.update(key, &mut |item, scratch| match item {
        None => Decision::Keep,
        Some(item) => {
            with(item);
            touched(item, expiry_ms, scratch)
        }
    })?;
    Ok(matches!(updated, Updated::Stored(_)))
}

/// The decision to store an item again that expires then.
pub(super) fn touched<'s>(
    item: &Item<'_>,
    expiry_ms: u64,
    scratch: &'s mut Vec<u8>,
) -> Decision<'s> {
    Decision::Store(NewItem {
        expiry_ms,
        ..again(item, scratch)
    })
}

/// A value longer than this is no number, whatever it begins with: memcached
/// keeps those in pieces and does not look.
const NUMBER_LEN_MAX: usize = 512 << 10;

/// Why a value cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NonNumeric;

/// Counts the number that is the item's value, and leaves the new value in
/// `scratch`. A number that became shorter keeps its length, by blanks behind
/// it. Returns the number.
pub(super) fn count(
    item: &Item<'_>,
    up: bool,
    delta: u64,
    scratch: &mut Vec<u8>,
) -> Result<u64, NonNumeric> {
    let len = item.value.len();
    if len == 0 || len > NUMBER_LEN_MAX {
        return Err(NonNumeric);
    }
    item.value.append_to(scratch);
    let old = parse_u64(scratch).ok_or(NonNumeric)?;
    let number = if up {
        old.wrapping_add(delta)
    } else {
        old.saturating_sub(delta)
    };
    scratch.clear();
    put_u64(scratch, number);
    if scratch.len() < len {
        scratch.resize(len, b' ');
    }
    Ok(number)
}

/// Item flags after counting: memcached writes a number that fits into the
/// same item, and a longer one into a new item without marks.
pub(super) fn flags_counted(item: &Item<'_>, value_len: usize) -> u8 {
    if value_len > item.value.len() {
        0
    } else {
        item.item_flags
    }
}

/// The line that a fault is answered with.
pub(super) fn put_fault(out: &mut Vec<u8>, fault: &Fault) {
    match fault {
        Fault::Rejected(Rejection::NoMemory) => {
            out.extend_from_slice(b"SERVER_ERROR out of memory storing object");
        }
        Fault::Rejected(Rejection::ValueTooLong) => {
            out.extend_from_slice(b"SERVER_ERROR object too large for cache");
        }
        fault => {
            use std::io::Write;
            let mark = out.len();
            // Writing to a vector does not fail.
            let _ = write!(out, "SERVER_ERROR {fault}");
            // Words of others are in it; an answer is one line.
            for byte in &mut out[mark..] {
                if byte.is_ascii_control() {
                    *byte = b' ';
                }
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}
