//! Lists of all items: `lru_crawler metadump`, `lru_crawler mgdump`,
//! `stats cachedump`. They leave in pieces, as the client takes them.
//!
//! Items have a class by their size (`layout::size_class`), so that tools which
//! ask for one class after the other see each item once.

use super::tuning::{BAD_CLASS, CLASS_COUNT_MAX, are_classes};
use super::{BAD_FORMAT, Desk, State, Step};
use crate::keyspace::{Keyspace, ListedItem, PAGE_LEN, Pending, Ready as _, cas_unique_of};
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::meta::base64;
use crate::memcache::mutate::put_fault;
use crate::memcache::number::{parse_u32, put_u64};
use crate::world::Now;
use std::io::Write;
use trefoil_layout::size_class;

/// What a list found of classes is believed for so long, in the lists behind it.
const EMPTY_CLASSES_NS: u64 = 1_000_000_000;

/// Longest answer to `stats cachedump`, as memcached has it.
const CACHEDUMP_LEN_MAX: usize = 2 << 20;

/// A list that is being sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcache) struct Dump {
    kind: Kind,
    cursor: u64,
    /// A bit for each class that is listed.
    classes: u64,
    /// A bit for each class that was found to have items.
    seen: u64,
    /// When it began, by the monotonic clock.
    began_ns: u64,
}

/// Classes that a list of all items has found to have none. Tools ask for one class
/// after the other, most of them empty: those need not go through all items again.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcache) struct EmptyClasses {
    seen: u64,
    began_ns: u64,
}

impl EmptyClasses {
    fn has(self, classes: u64, now_ns: u64) -> bool {
        self.seen & classes == 0 && now_ns.saturating_sub(self.began_ns) < EMPTY_CLASSES_NS
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// All that is known of items.
    Meta,
    /// Commands that get them.
    Mg,
    /// Keys, lengths and expiries, up to these limits.
    Cache { count_left: u32, len_left: usize },
}

impl Kind {
    fn end(self) -> &'static [u8] {
        match self {
            Kind::Meta | Kind::Cache { .. } => b"END",
            Kind::Mg => b"EN",
        }
    }
}

/// `lru_crawler metadump <classes>|all|hash`.
pub(super) fn metadump<K: Keyspace>(state: &mut State, classes: &[u8], desk: &mut Desk<'_, '_, K>) {
    begin(state, classes, Kind::Meta, desk);
}

/// `lru_crawler mgdump <classes>|all|hash`.
pub(super) fn mgdump<K: Keyspace>(state: &mut State, classes: &[u8], desk: &mut Desk<'_, '_, K>) {
    begin(state, classes, Kind::Mg, desk);
}

fn begin<K: Keyspace>(state: &mut State, classes: &[u8], kind: Kind, desk: &mut Desk<'_, '_, K>) {
    let everything = matches!(classes, b"all" | b"hash");
    if !everything && !are_classes(classes) {
        desk.answer(false, BAD_CLASS);
        return;
    }
    let named = classes
        .split(|&byte| byte == b',')
        .filter_map(parse_u32)
        .fold(0, |bits, class| bits | 1 << class);
    *state = State::Dump(Dump {
        kind,
        cursor: 0,
        classes: if everything { u64::MAX } else { named },
        seen: 0,
        began_ns: desk.world.now.monotonic_ns,
    });
}

/// `stats cachedump <class> <count>`; a count of 0 is all. `before`: what the
/// command before this one has found, if it was another one of these; what this one
/// finds is `empty`.
pub(super) fn cachedump<K: Keyspace>(
    state: &mut State,
    empty: &mut Option<EmptyClasses>,
    before: Option<EmptyClasses>,
    args: &[&[u8]],
    desk: &mut Desk<'_, '_, K>,
) {
    let [class, count] = *args else {
        desk.answer(false, b"CLIENT_ERROR bad command line");
        return;
    };
    let (Some(class), Some(count)) = (parse_u32(class), parse_u32(count)) else {
        desk.answer(false, BAD_FORMAT);
        return;
    };
    if class >= CLASS_COUNT_MAX {
        desk.answer(false, b"CLIENT_ERROR Illegal slab id");
        return;
    }
    let kind = Kind::Cache {
        count_left: if count == 0 { u32::MAX } else { count },
        len_left: CACHEDUMP_LEN_MAX,
    };
    let (classes, now_ns) = (1 << class, desk.world.now.monotonic_ns);
    if before.is_some_and(|before| before.has(classes, now_ns)) {
        *empty = before;
        desk.answer(false, kind.end());
        return;
    }
    *state = State::Dump(Dump {
        kind,
        cursor: 0,
        classes,
        seen: 0,
        began_ns: now_ns,
    });
}

/// What a byte of a list counts as: see [`Keyspace::work`]. A line of many small fields
/// takes longer than two lookups.
const TOLD_WORK: u64 = 16;

/// Lists more items.
pub(super) fn resume<K: Keyspace>(
    state: &mut State,
    empty: &mut Option<EmptyClasses>,
    mut dump: Dump,
    desk: &mut Desk<'_, '_, K>,
) -> Result<Step, Pending> {
    let now = desk.world.now;
    let out = &mut *desk.out;
    let (kind, seen) = (&mut dump.kind, &mut dump.seen);
    // Each call is a piece of work. Only the first one asks the cell for as much as it says.
    let page_len = match dump.cursor {
        0 => desk.world.keyspace.page_len(),
        _ => desk.world.keyspace.page_len().min(PAGE_LEN),
    };
    let out_len = out.len();
    let listed = desk
        .world
        .keyspace
        .list(dump.cursor, page_len, &mut |item| {
            // Other protocols have longer keys; no client could use them here.
            let class = 1 << size_class::of_entry(item.entry_len);
            *seen |= class;
            let is_wanted = dump.classes & class != 0;
            if is_wanted && item.key.len() <= KEY_LEN_MAX {
                put_item(out, kind, item, now);
            }
        });
    let listed = listed.ready()?;
    let told = (out.len() - out_len) as u64;
    desk.world.keyspace.charge(TOLD_WORK * told);
    let is_full = matches!(
        dump.kind,
        Kind::Cache { count_left: 0, .. } | Kind::Cache { len_left: 0, .. }
    );
    *state = match listed {
        Ok(cursor) if cursor != 0 && !is_full => {
            *state = State::Dump(Dump { cursor, ..dump });
            // Many steps may list nothing: the keyspace counts what it looks at, and
            // others get their turn in between.
            return Ok(Step::Done(0));
        }
        Ok(cursor) => {
            if cursor == 0 && matches!(dump.kind, Kind::Cache { .. }) {
                *empty = Some(EmptyClasses {
                    seen: dump.seen,
                    began_ns: dump.began_ns,
                });
            }
            desk.answer(false, dump.kind.end());
            State::Command
        }
        Err(fault) => {
            put_fault(desk.out, &fault);
            State::Command
        }
    };
    Ok(Step::Done(0))
}

fn put_item(out: &mut Vec<u8>, kind: &mut Kind, item: &ListedItem<'_>, now: Now) {
    match kind {
        Kind::Meta => put_meta(out, item, now),
        Kind::Mg => {
            out.extend_from_slice(b"mg ");
            if is_plain(item.key) {
                out.extend_from_slice(item.key);
            } else {
                base64::encode(item.key, out);
                out.extend_from_slice(b" b");
            }
            out.extend_from_slice(b"\r\n");
        }
        Kind::Cache {
            count_left,
            len_left,
        } => {
            let mark = out.len();
            if *count_left == 0 || *len_left == 0 || !is_plain(item.key) {
                return;
            }
            out.extend_from_slice(b"ITEM ");
            out.extend_from_slice(item.key);
            // Writing to a vector does not fail.
            let _ = write!(
                out,
                " [{} b; {} s]\r\n",
                item.value_len,
                item.expiry_ms / 1000
            );
            *count_left -= 1;
            *len_left = len_left.saturating_sub(out.len() - mark);
        }
    }
}

/// Whether a key can stand in a line as it is.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}

fn put_meta(out: &mut Vec<u8>, item: &ListedItem<'_>, now: Now) {
    out.extend_from_slice(b"key=");
    for &byte in item.key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            // Writing to a vector does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out.extend_from_slice(b" exp=");
    if item.expiry_ms == 0 {
        out.extend_from_slice(b"-1");
    } else {
        put_u64(out, item.expiry_ms / 1000);
    }
    out.extend_from_slice(b" la=");
    put_u64(
        out,
        (now.unix_ms / 1000).saturating_sub(u64::from(item.seen.idle_s)),
    );
    out.extend_from_slice(b" cas=");
    put_u64(
        out,
        item.unique.unwrap_or_else(|| cas_unique_of(item.version)),
    );
    out.extend_from_slice(if item.seen.hit_before {
        b" fetch=yes cls=".as_slice()
    } else {
        b" fetch=no cls="
    });
    put_u64(out, size_class::of_entry(item.entry_len) as u64);
    out.extend_from_slice(b" size=");
    put_u64(out, item.entry_len as u64);
    out.extend_from_slice(b" flags=");
    put_u64(out, u64::from(item.client_flags));
    out.push(b'\n');
}
