//! Expiries: EXPIRE and its kin, PERSIST, GETEX, and the options of SET.

use super::execute::Call;
use super::gather::Arguments;
use super::parse::number;
use super::read::Unit;
use super::write::{Condition, answer_value};
use crate::keyspace::{Decision, Item, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::world::{Command, Ending};
use trefoil_layout::data::EXPIRY_MS_MAX;

/// An expiry among options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenExpiry {
    /// The argument that has the number.
    pub(super) index: usize,
    pub(super) unit: Unit,
    pub(super) is_relative: bool,
}

/// Options of SET and GETEX.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) condition: Condition,
    pub(super) get: bool,
    pub(super) keep_ttl: bool,
    pub(super) persist: bool,
    pub(super) expiry: Option<GivenExpiry>,
}

/// The expiry that an option introduces.
fn expiry_option(arguments: &Arguments<'_>, at: usize) -> Option<(Unit, bool)> {
    let options = [
        ("ex", Unit::Seconds, true),
        ("px", Unit::Milliseconds, true),
        ("exat", Unit::Seconds, false),
        ("pxat", Unit::Milliseconds, false),
    ];
    options
        .into_iter()
        .find(|&(name, ..)| arguments.is(at, name))
        .map(|(_, unit, is_relative)| (unit, is_relative))
}

impl Options {
    /// Parses options from this argument on; `None` is a syntax error. An
    /// option may be repeated, but not contradicted.
    pub(super) fn parse(arguments: &Arguments<'_>, first: usize, is_set: bool) -> Option<Self> {
        let mut options = Options::default();
        let mut at = first;
        while at < arguments.len() {
            if is_set && arguments.is(at, "nx") && options.condition != Condition::Present {
                options.condition = Condition::Absent;
            } else if is_set && arguments.is(at, "xx") && options.condition != Condition::Absent {
                options.condition = Condition::Present;
            } else if is_set && arguments.is(at, "get") {
                options.get = true;
            } else if is_set && arguments.is(at, "keepttl") && options.expiry.is_none() {
                options.keep_ttl = true;
            } else if !is_set && arguments.is(at, "persist") && options.expiry.is_none() {
                options.persist = true;
            } else if let Some((unit, is_relative)) = expiry_option(arguments, at)
                && !options.keep_ttl
                && !options.persist
                && at + 1 < arguments.len()
                && options
                    .expiry
                    .is_none_or(|other| (other.unit, other.is_relative) == (unit, is_relative))
            {
                at += 1;
                options.expiry = Some(GivenExpiry {
                    index: at,
                    unit,
                    is_relative,
                });
            } else {
                return None;
            }
            at += 1;
        }
        Some(options)
    }
}

/// The expiry that a number means, in milliseconds since the Unix epoch.
/// Answers what is wrong with it otherwise.
pub(super) fn expiry_of<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    text: &[u8],
    unit: Unit,
    is_relative: bool,
) -> Option<u64> {
    let Some(given) = number(text) else {
        call.reply.not_an_integer();
        return None;
    };
    let factor = if unit == Unit::Seconds { 1000 } else { 1 };
    // From the attempt that may be stored, not from one that another writer has undone.
    let base = if is_relative {
        call.world.next_now.unix_ms as i64
    } else {
        0
    };
    let at = given
        .checked_mul(factor)
        .filter(|_| given > 0)
        .and_then(|ms| ms.checked_add(base));
    match at {
        Some(at) => Some((at as u64).min(EXPIRY_MS_MAX)),
        None => {
            call.reply.bad_expiry(call.spec.name);
            None
        }
    }
}

/// Conditions of EXPIRE.
#[derive(Clone, Copy, Debug, Default)]
struct When {
    without: bool,
    with: bool,
    greater: bool,
    less: bool,
}

impl When {
    /// Whether an item of this expiry (0: none, which is later than any) gets
    /// that one.
    fn allows(self, old_ms: u64, new_ms: i64) -> bool {
        let old = (old_ms != 0).then_some(old_ms as i64);
        let refused = (self.without && old.is_some())
            || (self.with && old.is_none())
            || (self.greater && old.is_none_or(|old| new_ms <= old))
            || (self.less && old.is_some_and(|old| new_ms >= old));
        !refused
    }
}

/// Parses them, or answers what is wrong.
fn when<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<When> {
    let mut when = When::default();
    for at in 3..call.arguments.len() {
        if call.arguments.is(at, "nx") {
            when.without = true;
        } else if call.arguments.is(at, "xx") {
            when.with = true;
        } else if call.arguments.is(at, "gt") {
            when.greater = true;
        } else if call.arguments.is(at, "lt") {
            when.less = true;
        } else {
            let option = call.arguments.get(at);
            let shown = option.split(|&byte| byte == 0).next().unwrap_or_default();
            let error = [b"ERR Unsupported option ", shown].concat();
            call.reply.error(error);
            return None;
        }
    }
    if when.without && (when.with || when.greater || when.less) {
        call.reply
            .error("ERR NX and XX, GT or LT options at the same time are not compatible");
        return None;
    }
    if when.greater && when.less {
        call.reply
            .error("ERR GT and LT options at the same time are not compatible");
        return None;
    }
    Some(when)
}

/// The same item with another expiry. It keeps its CAS unique: to clients of
/// memcached a new expiry is no change.
fn with_expiry<'s>(item: &Item<'_>, scratch: &'s mut Vec<u8>, expiry_ms: u64) -> Decision<'s> {
    item.value.append_to(scratch);
    Decision::Store(NewItem {
        value: scratch,
        client_flags: item.client_flags,
        item_flags: item.item_flags,
        expiry_ms,
        unique: Some(item.cas_unique()),
    })
}

/// EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT. A time that is over removes the item.
pub(super) fn expire<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    unit: Unit,
    is_relative: bool,
) -> Result<(), Pending> {
    let Some(when) = when(call) else {
        return Ok(());
    };
    let Some(given) = number(call.arguments.get(2)) else {
        call.reply.not_an_integer();
        return Ok(());
    };
    let now_ms = call.world.next_now.unix_ms as i64;
    let factor = if unit == Unit::Seconds { 1000 } else { 1 };
    let base = if is_relative { now_ms } else { 0 };
    let Some(at_ms) = given
        .checked_mul(factor)
        .and_then(|ms| ms.checked_add(base))
    else {
        call.reply.bad_expiry(call.spec.name);
        return Ok(());
    };
    if !call.key_fits() {
        call.reply.integer(0);
        call.done(Command::Touch, Ending::Miss, 0);
        return Ok(());
    }
    let mut kept = Ending::Miss;
    let touched =
        call.world
            .keyspace
            .update(call.arguments.get(1), &mut |item, scratch| match item {
                None => {
                    kept = Ending::Miss;
                    Decision::Keep
                }
                Some(item) if !when.allows(item.expiry_ms, at_ms) => {
                    kept = Ending::Refused;
                    Decision::Keep
                }
                Some(_) if at_ms <= now_ms => Decision::Erase,
                Some(item) => with_expiry(item, scratch, (at_ms as u64).min(EXPIRY_MS_MAX)),
            });
    let touched = touched.ready()?;
    finish(call, touched.map(|updated| updated != Updated::Kept), kept);
    Ok(())
}

/// Answers 1 or 0.
fn finish<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    touched: Result<bool, crate::keyspace::Fault>,
    kept: Ending,
) {
    match touched {
        Ok(has_changed) => {
            call.reply.integer(i64::from(has_changed));
            let ending = if has_changed { Ending::Hit } else { kept };
            call.done(Command::Touch, ending, 0);
        }
        Err(fault) => call.fault(Command::Touch, &fault),
    }
}

/// PERSIST.
pub(super) fn persist<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    if !call.key_fits() {
        call.reply.integer(0);
        call.done(Command::Touch, Ending::Miss, 0);
        return Ok(());
    }
    let mut kept = Ending::Miss;
    let touched =
        call.world
            .keyspace
            .update(call.arguments.get(1), &mut |item, scratch| match item {
                Some(item) if item.expiry_ms != 0 => with_expiry(item, scratch, 0),
                other => {
                    kept = match other {
                        Some(_) => Ending::Refused,
                        None => Ending::Miss,
                    };
                    Decision::Keep
                }
            });
    let touched = touched.ready()?;
    finish(call, touched.map(|updated| updated != Updated::Kept), kept);
    Ok(())
}

/// GETEX: the value, and a new expiry for it.
pub(super) fn get_ex<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let Some(options) = Options::parse(&call.arguments, 2, false) else {
        call.reply.syntax_error();
        return Ok(());
    };
    if options.expiry.is_none() && !options.persist {
        return super::read::get(call);
    }
    // An expiry is only looked at if there is something that could have it.
    if !call.key_fits() {
        call.reply.null();
        call.done(Command::GetAndTouch, Ending::Miss, 0);
        return Ok(());
    }
    let start = call.reply.out.len();
    let expiry_ms = match options.expiry {
        None => Some(0),
        Some(given) => {
            let text = call.arguments.get(given.index);
            expiry_of(call, text, given.unit, given.is_relative)
        }
    };
    // In case of a bad expiry: the error, to be said if the item exists.
    let error = call.reply.out.split_off(start);
    let now_ms = call.world.next_now.unix_ms;
    let reply = &mut call.reply;
    let mut found = None;
    let touched = call
        .world
        .keyspace
        .update(call.arguments.get(1), &mut |item, scratch| {
            found = item.map(|item| item.value.len());
            let (Some(item), Some(expiry_ms)) = (item, expiry_ms) else {
                answer_value(reply, start, None);
                return Decision::Keep;
            };
            answer_value(reply, start, Some(item));
            if expiry_ms == item.expiry_ms {
                Decision::Keep
            } else if expiry_ms != 0 && expiry_ms <= now_ms {
                Decision::Erase
            } else {
                with_expiry(item, scratch, expiry_ms)
            }
        });
    match (touched.ready()?, found) {
        (Err(fault), _) => {
            call.reply.out.truncate(start);
            call.fault(Command::GetAndTouch, &fault);
        }
        (Ok(_), Some(_)) if expiry_ms.is_none() => {
            call.reply.out.truncate(start);
            call.reply.out.extend_from_slice(&error);
        }
        (Ok(_), Some(value_len)) => call.done(Command::GetAndTouch, Ending::Hit, value_len),
        (Ok(_), None) => call.done(Command::GetAndTouch, Ending::Miss, 0),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::When;

    #[test]
    fn conditions() {
        // Condition, old expiry (0: none), new one, allowed.
        let cases = [
            ("", 0, 10, true),
            ("", 20, 10, true),
            ("n", 0, 10, true),
            ("n", 20, 10, false),
            ("x", 0, 10, false),
            ("x", 20, 10, true),
            ("g", 0, 10, false),
            ("g", 20, 20, false),
            ("g", 20, 21, true),
            ("l", 0, 10, true),
            ("l", 20, 20, false),
            ("l", 20, 19, true),
            ("xl", 0, 10, false),
            ("xg", 20, 21, true),
        ];
        for (flags, old, new, expected) in cases {
            let when = When {
                without: flags.contains('n'),
                with: flags.contains('x'),
                greater: flags.contains('g'),
                less: flags.contains('l'),
            };
            assert_eq!(when.allows(old, new), expected, "{flags:?} {old} {new}");
        }
    }
}
