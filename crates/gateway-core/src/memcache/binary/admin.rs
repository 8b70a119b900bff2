//! Statistics, flush, version, verbosity.

use super::done;
use super::frame::{
    Answer, Frame, Header, Status, be_u32, put_error, put_fault, put_header, put_success,
};
use crate::keyspace::{FLUSH_WORK, Keyspace, Pending, REPORT_WORK, Ready as _, Totals};
use crate::memcache::expiry::expiry_ms;
use crate::world::{Command, Ending, Observer, ServerRequest, World};

/// Flush, now or at a time to come.
pub(super) fn flush<K: Keyspace>(
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let expiration = if frame.extras.is_empty() {
        0
    } else {
        be_u32(frame.extras)
    };
    let at_ms = expiry_ms(i64::from(expiration), world.now);
    let flushed = if at_ms > world.now.unix_ms {
        world.observer.request(ServerRequest::FlushAt(at_ms));
        Ok(())
    } else {
        let at_ms = if expiration == 0 {
            world.now.unix_ms
        } else {
            at_ms
        };
        let flushed = world.keyspace.flush(at_ms).ready()?;
        world.keyspace.charge(FLUSH_WORK);
        world.observer.request(ServerRequest::FlushNoMore);
        flushed
    };
    let ending = match flushed {
        Ok(()) => {
            if !frame.quiet {
                put_success(out, &frame.header, 0, b"");
            }
            Ending::Hit
        }
        Err(fault) => {
            put_fault(out, &frame.header, &fault);
            Ending::ServerError
        }
    };
    done(world, Command::Flush, ending, b"", 0);
    Ok(())
}

/// The version.
pub(super) fn version<K: Keyspace>(frame: &Frame<'_>, out: &mut Vec<u8>, world: &World<'_, K>) {
    put_success(
        out,
        &frame.header,
        0,
        world.settings.release.version().as_bytes(),
    );
}

/// How much the server logs.
pub(super) fn verbosity<K: Keyspace>(
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) {
    let level = be_u32(frame.extras);
    world.observer.request(ServerRequest::Verbosity(level));
    put_success(out, &frame.header, 0, b"");
}

fn put_stat(out: &mut Vec<u8>, header: &Header, name: &str, value: &str) {
    // Lengths of statistics are the server's own; a name is far below 64 KiB.
    let answer = Answer {
        key_len: name.len(),
        value_len: value.len(),
        ..Answer::default()
    };
    put_header(out, header, &answer);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// A group of statistics: an answer for each, then an empty one.
pub(super) fn stat<K: Keyspace>(
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let start = out.len();
    let header = &frame.header;
    let group = std::str::from_utf8(frame.key).unwrap_or("?");
    let needs_totals = group.starts_with("reset")
        || group.starts_with("settings")
        || world.observer.needs_totals(group);
    let totals = match needs_totals {
        true => world.keyspace.totals().ready()?.unwrap_or_default(),
        false => Totals::default(),
    };
    world.keyspace.charge(REPORT_WORK);
    let totals = &totals;
    let observer = &mut *world.observer;
    let known = match frame.key {
        // memcached compares no further than the word.
        key if key.starts_with(b"reset") => {
            observer.reset(totals);
            true
        }
        key if key.starts_with(b"settings") => put_group(out, header, "settings", totals, observer),
        key if key.starts_with(b"detail dump") => {
            // All of it is one statistic, in the lines of the text protocol.
            let mut lines = String::new();
            let known = observer.stats("detail dump", totals, &mut |name, value| {
                lines.extend(["PREFIX ", name, " ", value, "\r\n"]);
            });
            lines.push_str("END\r\n");
            put_stat(out, header, "detailed", &lines);
            known
        }
        key if key.starts_with(b"detail on") => observer.stats("detail on", totals, &mut |_, _| {}),
        key if key.starts_with(b"detail off") => {
            observer.stats("detail off", totals, &mut |_, _| {})
        }
        key => std::str::from_utf8(key)
            .is_ok_and(|group| put_group(out, header, group, totals, observer)),
    };
    if known {
        put_header(out, header, &Answer::default());
    } else {
        out.truncate(start);
        put_error(out, header, Status::NotFound);
    }
    Ok(())
}

/// Each statistic of a group; whether there is such a group.
fn put_group(
    out: &mut Vec<u8>,
    header: &Header,
    group: &str,
    totals: &Totals,
    observer: &mut dyn Observer,
) -> bool {
    observer.stats(group, totals, &mut |name, value| {
        // An answer without a name would be the last.
        if !name.is_empty() {
            put_stat(out, header, name, value);
        }
    })
}
