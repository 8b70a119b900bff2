//! Commands about memcached's slabs, queues and crawler. A cell moves memory
//! by itself and has no such knobs: arguments are checked and answered as
//! memcached does, so that scripts which set them go on, without effect.

use super::line::{Args, Words};
use super::{BAD_FORMAT, Desk, ERROR, State, dump};
use crate::keyspace::Keyspace;
use crate::memcache::number::{parse_i64, parse_u32};

/// Slab classes that memcached can have.
pub(super) const CLASS_COUNT_MAX: u32 = 64;

/// Whether a list names slab classes only.
pub(super) fn are_classes(list: &[u8]) -> bool {
    list.split(|&byte| byte == b',')
        .filter(|class| !class.is_empty())
        .all(|class| parse_u32(class).is_some_and(|class| (1..CLASS_COUNT_MAX).contains(&class)))
}

pub(super) const BAD_CLASS: &[u8] = b"BADCLASS invalid class id";

/// `lru_crawler crawl|metadump|mgdump|tocrawl|sleep|enable|disable`.
pub(super) fn lru_crawler<K: Keyspace>(
    state: &mut State,
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) {
    const SLEEP_US_MAX: u32 = 1_000_000;
    let args = Args::<3>::of(words);
    let answer: &[u8] = match *args {
        [b"metadump", classes] => return dump::metadump(state, classes, desk),
        [b"mgdump", classes] => return dump::mgdump(state, classes, desk),
        [b"crawl", b"all" | b"hash"] => b"OK",
        [b"crawl", classes] if are_classes(classes) => b"OK",
        [b"crawl", _] => BAD_CLASS,
        [b"tocrawl", count] => match parse_u32(count) {
            Some(_) => b"OK",
            None => BAD_FORMAT,
        },
        [b"sleep", us] => match parse_u32(us) {
            None => BAD_FORMAT,
            Some(..=SLEEP_US_MAX) => b"OK",
            Some(_) => b"CLIENT_ERROR sleep must be one second or less",
        },
        [b"enable" | b"disable"] => b"OK",
        _ => ERROR,
    };
    desk.answer(false, answer);
}

/// `lru tune|mode|temp_ttl`.
pub(super) fn lru<K: Keyspace>(words: Words<'_>, desk: &mut Desk<'_, '_, K>) {
    let args = Args::<6>::of(words);
    let answer: &[u8] = match *args {
        [b"tune", hot, warm, hot_factor, warm_factor, ..] => {
            tune(hot, warm, hot_factor, warm_factor)
        }
        [b"mode", b"flat" | b"segmented", ..] => b"OK",
        [b"temp_ttl", seconds, ..] if parse_i64(seconds).is_some() => b"OK",
        _ => ERROR,
    };
    desk.answer(args.len() > 1 && args.noreply(), answer);
}

fn tune(hot: &[u8], warm: &[u8], hot_factor: &[u8], warm_factor: &[u8]) -> &'static [u8] {
    const PERCENT_MAX: u64 = 80;
    let (Some(hot), Some(warm), Some(hot_factor), Some(warm_factor)) = (
        parse_u32(hot),
        parse_u32(warm),
        parse_f64(hot_factor),
        parse_f64(warm_factor),
    ) else {
        return ERROR;
    };
    if u64::from(hot) + u64::from(warm) > PERCENT_MAX {
        return b"ERROR hot and warm pcts must not exceed 80";
    }
    if hot_factor <= 0.0 || warm_factor <= 0.0 {
        return b"ERROR hot/warm age factors must be greater than 0";
    }
    b"OK"
}

fn parse_f64(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `slabs reassign|automove`.
pub(super) fn slabs<K: Keyspace>(words: Words<'_>, desk: &mut Desk<'_, '_, K>) {
    let args = Args::<4>::of(words);
    let mut noreply = false;
    let answer: &[u8] = match *args {
        [b"reassign", from, to] => reassign(from, to),
        [b"automove", mode, ref rest @ ..] => {
            noreply = args.noreply();
            match (mode, rest) {
                (b"ratio", [ratio, ..]) if parse_f64(ratio).is_some() => b"OK",
                (b"ratio", _) => ERROR,
                (mode, _) => match parse_u32(mode) {
                    Some(0..=2) => b"OK",
                    Some(_) => ERROR,
                    None => BAD_FORMAT,
                },
            }
        }
        _ => ERROR,
    };
    desk.answer(noreply, answer);
}

fn reassign(from: &[u8], to: &[u8]) -> &'static [u8] {
    let (Some(from), Some(to)) = (parse_i64(from), parse_i64(to)) else {
        return BAD_FORMAT;
    };
    let classes = 0..i64::from(CLASS_COUNT_MAX);
    if from == to {
        b"SAME src and dst class are identical"
    } else if !classes.contains(&to) || !classes.contains(&from) {
        b"BADCLASS invalid src or dst class id"
    } else {
        b"NOSPARE source class has no spare pages"
    }
}
