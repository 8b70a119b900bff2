//! Commands about the server: flush_all, version, verbosity, stats,
//! cache_memlimit, watch, shutdown.

use super::line::{Args, Words};
use super::{BAD_FORMAT, Desk, ERROR, State, dump, put_not_allowed};
use crate::keyspace::{FLUSH_WORK, Keyspace, Pending, REPORT_WORK, Ready as _, Totals};
use crate::memcache::expiry::{expiry_ms, parse_expiration};
use crate::memcache::mutate::put_fault;
use crate::memcache::number::{parse_u32, parse_u32_plain};
use crate::world::{
    Command, Ending, Role, ServerRequest, WATCH_EVICTIONS, WATCH_FETCHERS, WATCH_MUTATIONS,
};

/// `version`.
pub(super) fn version<K: Keyspace>(desk: &mut Desk<'_, '_, K>) {
    desk.out.extend_from_slice(b"VERSION ");
    desk.answer(false, desk.world.settings.release.version().as_bytes());
}

/// `verbosity <level> [noreply]`.
pub(super) fn verbosity<K: Keyspace>(words: Words<'_>, desk: &mut Desk<'_, '_, K>) {
    let args = Args::<3>::of(words);
    if !desk.takes(args.len(), 1..=2) {
        desk.answer_wrong_count();
        return;
    }
    let Some(level) = parse_u32_plain(args[0], desk.is_newer()) else {
        desk.answer(args.noreply(), BAD_FORMAT);
        return;
    };
    let request = ServerRequest::Verbosity(level);
    desk.world.observer.request(request);
    desk.answer(args.noreply(), b"OK");
}

/// `flush_all [delay] [noreply]`.
pub(super) fn flush_all<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = Args::<3>::of(words);
    if !desk.takes(args.len(), 0..=2) {
        desk.answer_wrong_count();
        return Ok(());
    }
    let noreply = words.noreply();
    let mut seconds = 0;
    if args.len() != usize::from(noreply) {
        let Some(parsed) = parse_expiration(args[0], desk.is_newer()) else {
            desk.answer(noreply, b"CLIENT_ERROR invalid exptime argument");
            return Ok(());
        };
        seconds = parsed;
    }
    let now = desk.world.now;
    let at_ms = expiry_ms(seconds, now);
    let flushed = if at_ms > now.unix_ms {
        let request = ServerRequest::FlushAt(at_ms);
        desk.world.observer.request(request);
        Ok(())
    } else {
        let flushed = desk.world.keyspace.flush(now.unix_ms).ready()?;
        desk.world.keyspace.charge(FLUSH_WORK);
        desk.world.observer.request(ServerRequest::FlushNoMore);
        flushed
    };
    let ending = match flushed {
        Ok(()) => {
            desk.answer(noreply, b"OK");
            Ending::Hit
        }
        Err(fault) => {
            if !noreply {
                put_fault(desk.out, &fault);
            }
            Ending::ServerError
        }
    };
    desk.done(Command::Flush, ending, b"", 0);
    Ok(())
}

/// `stats [group]`.
pub(super) fn stats<K: Keyspace>(
    state: &mut State,
    (empty, before): (&mut Option<dump::EmptyClasses>, Option<dump::EmptyClasses>),
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    let args = Args::<3>::of(words);
    let group = args.first().copied().unwrap_or_default();
    let is_change = match (group, args.get(1)) {
        (b"reset", _) => true,
        (b"detail", Some(what)) => matches!(*what, b"on" | b"off"),
        _ => false,
    };
    if is_change && desk.role < Role::Admin {
        put_not_allowed(b"stats", desk.out);
        return Ok(());
    }
    let totals = match std::str::from_utf8(group) {
        Ok(name) if name == "reset" || desk.world.observer.needs_totals(name) => {
            // Without them the front door's own counters are better than nothing.
            desk.world.keyspace.totals().ready()?.unwrap_or_default()
        }
        _ => Totals::default(),
    };
    if group != b"cachedump" {
        desk.world.keyspace.charge(REPORT_WORK);
    }
    match group {
        b"reset" => {
            desk.world.observer.reset(&totals);
            desk.answer(false, b"RESET");
        }
        b"detail" => detail(args.get(1).copied().unwrap_or_default(), desk),
        b"cachedump" => dump::cachedump(state, empty, before, &args[1..], desk),
        group => {
            let mark = desk.out.len();
            let out = &mut *desk.out;
            let observer = &mut *desk.world.observer;
            let known = std::str::from_utf8(group).is_ok_and(|group| {
                observer.stats(group, &totals, &mut |name, value| {
                    put_stat(out, b"STAT ", name, value)
                })
            });
            if known {
                desk.answer(false, b"END");
            } else {
                desk.out.truncate(mark);
                desk.answer(false, ERROR);
            }
        }
    }
    Ok(())
}

fn put_stat(out: &mut Vec<u8>, kind: &[u8], name: &str, value: &str) {
    out.extend_from_slice(kind);
    out.extend_from_slice(name.as_bytes());
    out.push(b' ');
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `stats detail on|off|dump`: counters by prefix of the key, which are the
/// observer's groups of these names. Of `detail dump` it gives a prefix and
/// `get 1 hit 1 set 1 del 1` each.
fn detail<K: Keyspace>(what: &[u8], desk: &mut Desk<'_, '_, K>) {
    let mark = desk.out.len();
    let out = &mut *desk.out;
    let observer = &mut *desk.world.observer;
    let mut ask = |group| {
        observer.stats(group, &Totals::default(), &mut |name, value| {
            put_stat(out, b"PREFIX ", name, value)
        })
    };
    let (known, answer) = match what {
        b"on" => (ask("detail on"), b"OK".as_slice()),
        b"off" => (ask("detail off"), b"OK".as_slice()),
        b"dump" => (ask("detail dump"), b"END".as_slice()),
        _ => {
            desk.answer(false, b"CLIENT_ERROR usage: stats detail on|off|dump");
            return;
        }
    };
    if known {
        desk.answer(false, answer);
    } else {
        desk.out.truncate(mark);
        desk.answer(false, b"SERVER_ERROR stats detail is not available here");
    }
}

/// `cache_memlimit <megabytes> [noreply]`.
pub(super) fn memory_limit<K: Keyspace>(
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) -> Result<(), Pending> {
    /// memcached's own bounds, in megabytes.
    const MEGABYTES_MIN: u32 = 8;
    const MEGABYTES_MAX: u32 = 1_000_000_000;
    let args = Args::<3>::of(words);
    if args.len() != 1 && args.len() != 2 {
        desk.answer(false, ERROR);
        return Ok(());
    }
    let answer: &[u8] = match parse_u32(args[0]) {
        None => ERROR,
        Some(..MEGABYTES_MIN) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        Some(megabytes @ MEGABYTES_MIN..=MEGABYTES_MAX) => {
            let bytes = u64::from(megabytes) << 20;
            match desk.world.keyspace.set_memory_limit(bytes).ready()? {
                Ok(()) => b"OK",
                Err(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
            }
        }
        Some(_) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
    };
    desk.answer(args.noreply(), answer);
    Ok(())
}

/// `watch [kind]...`: log lines from now on.
pub(super) fn watch<K: Keyspace>(
    watching: &mut bool,
    words: Words<'_>,
    desk: &mut Desk<'_, '_, K>,
) {
    let noreply = words.last() == Some(b"noreply");
    let mut kinds = 0;
    let mut count = 0;
    for word in words {
        kinds |= match word {
            b"fetchers" => WATCH_FETCHERS,
            b"mutations" | b"deletions" => WATCH_MUTATIONS,
            b"evictions" => WATCH_EVICTIONS,
            // Known to memcached; nothing of the kind happens here.
            b"rawcmds" | b"sysevents" | b"connevents" | b"proxyreqs" | b"proxyevents"
            | b"proxyuser" => 0,
            _ => {
                desk.answer(noreply, ERROR);
                return;
            }
        };
        count += 1;
    }
    if count == 0 {
        kinds = WATCH_FETCHERS;
    }
    if !desk.world.observer.watch(desk.world.connection, kinds) {
        desk.answer(noreply, b"WATCHER_TOO_MANY log watcher limit reached");
        return;
    }
    *watching = true;
    desk.answer(false, b"OK");
}

/// `shutdown [graceful]`; whether the connection is to be closed.
pub(super) fn shutdown<K: Keyspace>(words: Words<'_>, desk: &mut Desk<'_, '_, K>) -> bool {
    if !desk.world.settings.shutdown_allowed {
        let words: &[u8] = match desk.is_newer() {
            true => b"SERVER_ERROR: shutdown not enabled",
            false => b"ERROR: shutdown not enabled",
        };
        desk.answer(false, words);
        return false;
    }
    let args = Args::<2>::of(words);
    let valid = matches!(*args, [] | [b"graceful"]);
    if valid {
        desk.world.observer.request(ServerRequest::Shutdown);
    } else {
        desk.answer(false, b"CLIENT_ERROR invalid shutdown mode");
    }
    valid
}
