//! `mg` and `me`.

use super::MetaArgs;
use super::flags::{Flags, Key, UNDECODED};
use crate::keyspace::{
    Access, Decision, Halt, Item, Keyspace, NewItem, Pending, Ready as _, Seen, Updated,
    ValueSource, cas_unique_of,
};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::remaining_s;
use crate::memcache::mutate::{self, put_fault};
use crate::memcache::number::put_u64;
use crate::memcache::text::line::Words;
use crate::memcache::text::{BAD_FORMAT, Desk, put_not_allowed};
use crate::world::{Command, Ending, Now, Progress, Role};
use std::io::Write;
use trefoil_layout::data::{DATA_HEADER_LEN, ITEM_STALE, ITEM_WIN_GIVEN};
use trefoil_layout::size_class;

/// What an answer tells of an item.
struct Shown<'a> {
    value: &'a dyn ValueSource,
    unique: u64,
    client_flags: u32,
    item_flags: u8,
    expiry_ms: u64,
    seen: Seen,
    /// This command has made it.
    is_new: bool,
}

impl<'a> Shown<'a> {
    fn of(item: &Item<'a>) -> Self {
        Shown {
            value: item.value,
            unique: item.cas_unique(),
            client_flags: item.client_flags,
            item_flags: item.item_flags,
            expiry_ms: item.expiry_ms,
            seen: item.seen,
            is_new: false,
        }
    }
}

/// What the flags make of an item that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct After {
    expiry_ms: u64,
    item_flags: u8,
}

/// `mg <key> <flag>*`.
pub(in crate::memcache) fn get<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = MetaArgs::of(words);
    if !super::check(&args, super::TOO_MANY, desk) {
        return Ok(());
    }
    let now = desk.world.now;
    let mut decoded = UNDECODED;
    let flags = match Flags::parse(args[0], &args[1..], &mut decoded, now, desk.is_newer()) {
        Ok(flags) => flags,
        Err(error) => {
            desk.answer(false, error);
            return Ok(());
        }
    };
    let is_change = flags.expiry_ms.is_some() || flags.vivify_expiry_ms.is_some();
    if is_change && desk.role < Role::Write {
        put_not_allowed(b"mg", desk.out);
        return Ok(());
    }
    if flags.idle {
        desk.world.keyspace.keep_last_use();
    }
    let mark = desk.out.len();
    let found = find(&flags, now, desk).ready()?;
    let ending = match found {
        Ok(Some(_)) => Ending::Hit,
        Ok(None) => Ending::Miss,
        Err(_) => Ending::ServerError,
    };
    let value_len = match found {
        Ok(Some(value_len)) => value_len,
        Ok(None) => {
            desk.out.truncate(mark);
            if !flags.quiet {
                desk.out.extend_from_slice(b"EN");
                flags.put_repeated(desk.out);
                desk.out.extend_from_slice(b"\r\n");
            }
            0
        }
        Err(fault) => {
            desk.out.truncate(mark);
            put_fault(desk.out, &fault);
            0
        }
    };
    let command = match flags.expiry_ms {
        Some(_) => Command::GetAndTouch,
        None => Command::Get,
    };
    desk.done(command, ending, flags.key.bytes(), value_len);
    Ok(())
}

/// Answers with the item, if there is one or the flags make one; the length of
/// its value.
fn find<K: Keyspace>(
    flags: &Flags<'_>,
    now: Now,
    desk: &mut Desk<'_, '_, K>,
) -> Result<Option<usize>, Halt> {
    let mark = desk.out.len();
    let key = flags.key.bytes();
    let mut value_len = None;
    let mut writes = flags.expiry_ms.is_some();
    let wants_seen = flags
        .words
        .iter()
        .any(|word| matches!(word[0], b'h' | b'l'));
    let mut seen = None;
    let progress = desk.world.progress;
    if let Progress::Read(before) = progress {
        (seen, writes) = (before, true);
    } else if writes && wants_seen {
        let note = &mut |item: Option<&Item<'_>>| seen = item.map(|item| item.seen);
        desk.world.keyspace.get_seen(key, Access::Peek, note)?;
    } else if !writes {
        // Nearly always nothing changes, and a read is enough.
        let access = if flags.no_bump {
            Access::Peek
        } else {
            Access::Use
        };
        let out = &mut *desk.out;
        let show = &mut |item: Option<&Item<'_>>| match item {
            Some(item) => {
                let after = put_item(out, flags, &Shown::of(item), now);
                seen = Some(item.seen);
                value_len = Some(item.value.len());
                writes = after.item_flags != item.item_flags;
            }
            None => writes = flags.vivify_expiry_ms.is_some(),
        };
        let keyspace = &mut *desk.world.keyspace;
        match wants_seen {
            true => keyspace.get_seen(key, access, show)?,
            false => keyspace.get(key, access, show)?,
        }
    }
    // A reader does not mark what it has seen either.
    if !writes || desk.role < Role::Write {
        return Ok(value_len);
    }
    if progress == Progress::Begun {
        desk.world.advance(Progress::Read(seen));
    }
    let mut is_new = false;
    let out = &mut *desk.out;
    let updated = desk.world.keyspace.update(key, &mut |item, scratch| {
        out.truncate(mark);
        is_new = false;
        value_len = None;
        let Some(item) = item else {
            return match flags.vivify_expiry_ms {
                None => Decision::Keep,
                Some(vivify_expiry_ms) => {
                    is_new = true;
                    Decision::Store(NewItem {
                        item_flags: ITEM_WIN_GIVEN,
                        expiry_ms: new_expiry_ms(flags, vivify_expiry_ms),
                        unique: flags.unique,
                        ..NewItem::default()
                    })
                }
            };
        };
        let shown = Shown {
            seen: seen.unwrap_or(item.seen),
            ..Shown::of(item)
        };
        let after = put_item(out, flags, &shown, now);
        value_len = Some(item.value.len());
        if after.item_flags == item.item_flags && after.expiry_ms == item.expiry_ms {
            return Decision::Keep;
        }
        Decision::Store(NewItem {
            item_flags: after.item_flags,
            expiry_ms: after.expiry_ms,
            ..mutate::again(item, scratch)
        })
    })?;
    if let (true, Updated::Stored(version)) = (is_new, updated) {
        let nothing = Vec::new();
        let shown = Shown {
            value: &nothing,
            unique: flags.unique.unwrap_or_else(|| cas_unique_of(version)),
            client_flags: 0,
            item_flags: 0,
            expiry_ms: 0,
            seen: Seen {
                hit_before: false,
                idle_s: 0,
            },
            is_new: true,
        };
        put_item(desk.out, flags, &shown, now);
        value_len = Some(0);
    }
    Ok(value_len)
}

/// The expiry of an item that a flag has made: of `N` and `T`, the later one
/// in the line decides.
fn new_expiry_ms(flags: &Flags<'_>, vivify_expiry_ms: u64) -> u64 {
    let mut expiry_ms = 0;
    for word in flags.words {
        match (word[0], flags.expiry_ms) {
            (b'N', _) => expiry_ms = vivify_expiry_ms,
            (b'T', Some(touched_ms)) => expiry_ms = touched_ms,
            _ => {}
        }
    }
    expiry_ms
}

/// Appends the answer that shows an item, in the order of the flags, and tells
/// what they make of it.
fn put_item(out: &mut Vec<u8>, flags: &Flags<'_>, shown: &Shown<'_>, now: Now) -> After {
    let len = shown.value.len();
    let has_value = flags.value && flags.compare != Some(shown.unique);
    if has_value {
        out.extend_from_slice(b"VA ");
        put_u64(out, len as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    let mut expiry_ms = shown.expiry_ms;
    let is_given = shown.item_flags & ITEM_WIN_GIVEN != 0;
    let mut wins = false;
    for word in flags.words {
        let number = match word[0] {
            b's' => len as u64,
            b'c' => shown.unique,
            b'f' => u64::from(shown.client_flags),
            b'l' => u64::from(shown.seen.idle_s),
            b'h' => u64::from(shown.seen.hit_before),
            b't' if expiry_ms == 0 => {
                out.extend_from_slice(b" t-1");
                continue;
            }
            b't' => remaining_s(expiry_ms, now),
            b'T' => {
                expiry_ms = flags.expiry_ms.unwrap_or(expiry_ms);
                continue;
            }
            b'N' => {
                if shown.is_new {
                    expiry_ms = flags.vivify_expiry_ms.unwrap_or(expiry_ms);
                    wins = true;
                }
                continue;
            }
            b'R' => {
                if !shown.is_new && !is_given && expiry_ms != 0 {
                    wins |= remaining_s(expiry_ms, now) < remaining_s(flags.recache_ms, now);
                }
                continue;
            }
            _ => {
                flags.put_if_repeated(word, out);
                continue;
            }
        };
        out.extend_from_slice(&[b' ', word[0]]);
        put_u64(out, number);
    }
    if is_given {
        out.extend_from_slice(b" Z");
    }
    if shown.item_flags & ITEM_STALE != 0 {
        out.extend_from_slice(b" X");
        wins |= !is_given;
    }
    if wins {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
    if has_value {
        shown.value.append_to(out);
        out.extend_from_slice(b"\r\n");
    }
    After {
        expiry_ms,
        item_flags: shown.item_flags | if wins { ITEM_WIN_GIVEN } else { 0 },
    }
}

/// `me <key> [b]`: what is known of an item, for people.
pub(in crate::memcache) fn debug<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = MetaArgs::of(words);
    let Some(text) = args.first().filter(|key| key.len() <= KEY_LEN_MAX) else {
        desk.answer(false, BAD_FORMAT);
        return Ok(());
    };
    let mut decoded = UNDECODED;
    let key = if args.get(1) == Some(&b"b".as_slice()) {
        Key::decode(text, &mut decoded)
    } else {
        Some(Key::plain(text))
    };
    let Some(key) = key else {
        desk.answer(false, BAD_FORMAT);
        return Ok(());
    };
    let (now, is_newer) = (desk.world.now, desk.is_newer());
    let out = &mut *desk.out;
    let read = desk
        .world
        .keyspace
        .get_seen(key.bytes(), Access::Peek, &mut |item| match item {
            None => out.extend_from_slice(b"EN\r\n"),
            Some(item) => put_debug(out, &key, item, now, is_newer),
        });
    if let Err(fault) = read.ready()? {
        put_fault(desk.out, &fault);
    }
    Ok(())
}

fn put_debug(out: &mut Vec<u8>, key: &Key<'_>, item: &Item<'_>, now: Now, is_newer: bool) {
    out.extend_from_slice(b"ME ");
    key.put_text(out);
    // The older memcached tells of seconds since the expiry, below 0 until then; the
    // newer one of those until it.
    let remaining_s = remaining_s(item.expiry_ms, now) as i64;
    let exp = match (item.expiry_ms, is_newer) {
        (0, _) => -1,
        (_, true) => remaining_s,
        (_, false) => -remaining_s,
    };
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        " exp={exp} la={} cas={} fetch={} cls={} size={}\r\n",
        item.seen.idle_s,
        item.cas_unique(),
        if item.seen.hit_before { "yes" } else { "no" },
        size_class::of_item(key.bytes().len(), item.value.len()),
        DATA_HEADER_LEN + key.bytes().len() + item.value.len(),
    );
}
