//! SCAN: lists keys, a part at a time.

use super::execute::Call;
use super::glob;
use super::parse::number;
use super::reply::{Reply, put_number};
use crate::keyspace::{Keyspace, PAGE_LEN, Pending, Ready as _};

/// Items that are listed unless the client says otherwise.
const COUNT_DEFAULT: i64 = 10;
/// Items that are looked at before the answer's length is.
const STEP_LEN: usize = 16;
/// Where pages are calls to somebody else a command brings one, of at least so many
/// items: COUNT is what a client thinks is little work.
const CALL_LEN_MIN: usize = 512;
/// Most items that one command looks at: others wait meanwhile.
const COUNT_MAX: usize = 10_000;
/// Longest answer, but for one step.
const ANSWER_LEN_MAX: usize = 256 * 1024;
/// Longest pattern.
pub(super) const PATTERN_LEN_MAX: usize = 1024;
/// Most comparisons of bytes, but for one key.
const WORK_MAX: u64 = 1 << 22;

/// Most work of the keyspace, but for one step: an index that is almost empty has
/// many places to look at.
const LISTING_WORK_MAX: u64 = 1 << 20;

/// Compares the keys of a page with a pattern, until that has come to more than it may:
/// the page is then listed again, with fewer of them.
pub(super) struct Comparing<'p> {
    /// `None` matches everything.
    pattern: Option<&'p [u8]>,
    work: u64,
    compared: usize,
    may_give_up: bool,
    has_given_up: bool,
}

impl<'p> Comparing<'p> {
    /// Of a page of `step_len` keys that were asked for. Stores list some keys together
    /// always: where one was asked for, fewer cannot be had.
    pub(super) fn new(pattern: Option<&'p [u8]>, step_len: usize) -> Self {
        Comparing {
            pattern,
            may_give_up: step_len > 1,
            work: 0,
            compared: 0,
            has_given_up: false,
        }
    }

    /// Whether the key is one of those that are asked for.
    pub(super) fn takes(&mut self, key: &[u8]) -> bool {
        let Some(pattern) = self.pattern else {
            return true;
        };
        // The first one is compared in any case.
        self.has_given_up |= self.may_give_up && self.compared > 0 && self.work > WORK_MAX;
        if self.has_given_up {
            return false;
        }
        self.compared += 1;
        glob::matches_counting(pattern, key, &mut self.work)
    }

    /// Bytes that were compared.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// How many keys were compared, if there were more.
    pub(super) fn gave_up_after(&self) -> Option<usize> {
        self.has_given_up.then_some(self.compared)
    }
}

/// What one command answers and takes at most, about.
pub(super) const COME_TO_MAX: usize = 2 << 20;

/// What is asked for.
struct Options<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    is_other_type: bool,
}

/// Parses the options, or answers what is wrong.
fn options<'a, K: Keyspace>(call: &mut Call<'a, '_, '_, K>) -> Option<Options<'a>> {
    let mut options = Options {
        count: COUNT_DEFAULT as usize,
        pattern: None,
        is_other_type: false,
    };
    let arguments = call.arguments;
    let mut at = 2;
    while at < arguments.len() {
        let has_value = at + 1 < arguments.len();
        let value = arguments.get(at + 1);
        if arguments.is(at, "count") && has_value {
            match number(value) {
                None => {
                    call.reply.not_an_integer();
                    return None;
                }
                Some(count) if count < 1 => {
                    call.reply.syntax_error();
                    return None;
                }
                Some(count) => {
                    options.count = usize::try_from(count).map_or(COUNT_MAX, |n| n.min(COUNT_MAX));
                }
            }
        } else if arguments.is(at, "match") && has_value {
            if value.len() > PATTERN_LEN_MAX {
                call.reply.error(format!(
                    "ERR the pattern is longer than {PATTERN_LEN_MAX} bytes"
                ));
                return None;
            }
            options.pattern = (value != b"*").then_some(value);
        } else if arguments.is(at, "type") && has_value {
            // Every value is a string.
            options.is_other_type = !value.eq_ignore_ascii_case(b"string");
        } else {
            call.reply.syntax_error();
            return None;
        }
        at += 2;
    }
    Some(options)
}

/// A cursor: an unsigned number, as C's `strtoul` reads it but for blanks.
fn cursor_of(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() {
        // Redis takes an empty cursor for 0.
        return text.is_empty().then_some(0);
    }
    digits.iter().try_fold(0u64, |cursor, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        cursor.checked_mul(10)?.checked_add(digit)
    })
}

/// Executes it. The answer may have fewer keys than asked for, none even, as
/// any client of SCAN has to expect: it ends early when it becomes long.
pub(super) fn scan<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let Some(mut cursor) = cursor_of(call.arguments.get(1)) else {
        call.reply.error("ERR invalid cursor");
        return Ok(());
    };
    let Some(options) = options(call) else {
        return Ok(());
    };
    let reply = &mut call.reply;
    let start = reply.out.len();
    let began = call.world.keyspace.work();
    let (mut looked_at, mut listed, mut work) = (0, 0, 0);
    let mut step_len_left = usize::MAX;
    let page_len = call.world.keyspace.page_len();
    let (count, step_len_max) = match page_len > PAGE_LEN {
        true => (
            options.count.clamp(CALL_LEN_MIN.min(page_len), page_len),
            page_len,
        ),
        false => (options.count, STEP_LEN),
    };
    while looked_at < count {
        let step_len = step_len_max.min(count - looked_at).min(step_len_left);
        let mark = (reply.out.len(), listed);
        let mut comparing = Comparing::new(options.pattern, step_len);
        let step = call.world.keyspace.list(cursor, step_len, &mut |item| {
            if !options.is_other_type && comparing.takes(item.key) {
                reply.bulk(item.key);
                listed += 1;
            }
        });
        let step = step.ready()?;
        work += comparing.work();
        if let Some(compared) = comparing.gave_up_after()
            && step.is_ok()
        {
            reply.out.truncate(mark.0);
            listed = mark.1;
            step_len_left = compared.min(step_len / 2).max(1);
            continue;
        }
        looked_at += step_len;
        cursor = match step {
            Ok(cursor) => cursor,
            Err(fault) => {
                reply.out.truncate(start);
                reply.fault(&fault);
                return Ok(());
            }
        };
        let listing_work = call.world.keyspace.work().wrapping_sub(began);
        if cursor == 0
            || reply.out.len() - start > ANSWER_LEN_MAX
            || work > WORK_MAX
            || listing_work > LISTING_WORK_MAX
        {
            break;
        }
    }
    call.world.keyspace.charge(work);
    // What stands before the keys is known only now.
    let mut head = Vec::new();
    let mut digits = Vec::new();
    put_number(&mut digits, cursor);
    let mut head_reply = Reply {
        out: &mut head,
        is_resp3: false,
    };
    head_reply.array(2);
    head_reply.bulk(&digits);
    head_reply.array(listed);
    reply.out.splice(start..start, head);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Comparing, cursor_of};

    /// A store lists keys of one home together, however few are asked for.
    #[test]
    fn a_page_of_one_key_is_compared_whole() {
        let key = vec![b'y'; 60_000];
        let pattern = [b"*".as_slice(), &[b'x'; 1000], b"y"].concat();
        let pattern = [pattern.as_slice(), b"[", &[b'x'; 200], b"]"].concat();
        for (step_len, gives_up) in [(2, true), (1, false)] {
            let mut comparing = Comparing::new(Some(&pattern), step_len);
            while comparing.work() <= super::WORK_MAX {
                assert!(!comparing.takes(&key));
            }
            assert!(!comparing.takes(b"short"));
            assert_eq!(comparing.gave_up_after().is_some(), gives_up, "{step_len}");
        }
    }

    #[test]
    fn cursors() {
        let cases = [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("x", None),
            (" 1", None),
            ("1x", None),
            ("+1", Some(1)),
            ("", Some(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(cursor_of(text.as_bytes()), expected, "{text:?}");
        }
    }
}
