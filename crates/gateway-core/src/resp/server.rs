//! Commands about the server: DBSIZE, FLUSHALL, TIME.

use super::execute::Call;
use crate::keyspace::{FLUSH_WORK, Keyspace, Pending, REPORT_WORK, Ready as _};
use crate::world::{Command, Ending};

/// The Redis whose answers these are; clients look at it to know what they can
/// ask for.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// DBSIZE.
pub(super) fn db_size<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let totals = call.world.keyspace.totals().ready()?;
    call.world.keyspace.charge(REPORT_WORK);
    match totals {
        Ok(totals) => call.reply.integer(totals.items as i64),
        Err(fault) => call.reply.fault(&fault),
    }
    Ok(())
}

/// FLUSHALL, FLUSHDB: done when it is answered, whether asked to wait or not.
pub(super) fn flush<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let is_legal = match call.arguments.len() {
        1 => true,
        2 => call.arguments.is(1, "sync") || call.arguments.is(1, "async"),
        _ => false,
    };
    if !is_legal {
        call.reply.syntax_error();
        return Ok(());
    }
    let now_ms = call.world.now.unix_ms;
    let flushed = call.world.keyspace.flush(now_ms).ready()?;
    call.world.keyspace.charge(FLUSH_WORK);
    let ending = match flushed {
        Ok(()) => {
            call.reply.simple("OK");
            Ending::Hit
        }
        Err(fault) => {
            call.reply.fault(&fault);
            Ending::ServerError
        }
    };
    let done = crate::world::Done {
        command: Command::Flush,
        ending,
        key: b"",
        value_len: 0,
    };
    call.world.observer.done(&done);
    Ok(())
}

/// TIME: seconds and microseconds.
pub(super) fn time<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let now_ms = call.world.now.unix_ms;
    call.reply.array(2);
    call.reply.bulk((now_ms / 1000).to_string());
    call.reply.bulk((now_ms % 1000 * 1000).to_string());
}
