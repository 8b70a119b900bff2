//! Increment and decrement.

use super::done;
use super::frame::{Frame, Status, Verb, be_u32, be_u64, put_error, put_fault, put_success};
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated, cas_unique_of};
use crate::memcache::expiry::expiry_ms;
use crate::memcache::mutate;
use crate::memcache::number::put_u64;
use crate::world::{Command, Ending, World};

/// An expiry that means: do not create the item.
const NEVER_CREATE: u32 = u32::MAX;
/// Executes one.
pub(super) fn count<K: Keyspace>(
    verb: Verb,
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &mut World<'_, K>,
) -> Result<(), Pending> {
    let delta = be_u64(frame.extras);
    let initial = be_u64(&frame.extras[8..]);
    let expiration = be_u32(&frame.extras[16..]);
    let expiry_ms = expiry_ms(i64::from(expiration), world.now);
    let cas = frame.header.cas;
    mutate::log_lookup(world, frame.key)?;
    let mut number = 0;
    let mut found = false;
    let mut kept = Status::NotFound;
    let updated = world.keyspace.update(frame.key, &mut |item, scratch| {
        found = item.is_some();
        kept = Status::NotFound;
        let Some(item) = item else {
            if expiration == NEVER_CREATE {
                return Decision::Keep;
            }
            number = initial;
            put_u64(scratch, number);
            return Decision::Store(NewItem {
                value: scratch,
                expiry_ms,
                ..NewItem::default()
            });
        };
        // An empty value is no number, whatever its unique is; other values
        // are looked at after their uniques.
        if item.value.is_empty() {
            kept = Status::NonNumeric;
            return Decision::Keep;
        }
        if cas != 0 && item.cas_unique() != cas {
            kept = Status::Exists;
            return Decision::Keep;
        }
        match mutate::count(item, verb == Verb::Increment, delta, scratch) {
            Ok(counted) => number = counted,
            Err(mutate::NonNumeric) => {
                kept = Status::NonNumeric;
                return Decision::Keep;
            }
        }
        let item_flags = mutate::flags_counted(item, scratch.len());
        Decision::Store(NewItem {
            value: scratch,
            client_flags: item.client_flags,
            item_flags,
            expiry_ms: item.expiry_ms,
            unique: None,
        })
    });
    let header = &frame.header;
    let ending = match updated.ready()? {
        Ok(Updated::Stored(version)) => {
            if !frame.quiet {
                put_success(out, header, cas_unique_of(version), &number.to_be_bytes());
            }
            // A number that was created was missed before.
            if found { Ending::Hit } else { Ending::Miss }
        }
        Ok(Updated::Kept | Updated::Erased) => {
            put_error(out, header, kept);
            match kept {
                Status::NotFound => Ending::Miss,
                Status::Exists => Ending::Refused,
                _ => Ending::ClientError,
            }
        }
        Err(fault) => {
            put_fault(out, header, &fault);
            Ending::ServerError
        }
    };
    let command = if verb == Verb::Increment {
        Command::Incr
    } else {
        Command::Decr
    };
    done(world, command, ending, frame.key, 8);
    Ok(())
}
