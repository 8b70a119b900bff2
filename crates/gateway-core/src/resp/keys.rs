//! KEYS: all keys that match a pattern, in one answer, listed in slices: others have
//! their turn in between. The answer begins with its length, so it is collected first.

use super::execute::Call;
use super::reply::Reply;
use super::scan::{Comparing, PATTERN_LEN_MAX};
use super::{RespSession, Step};
use crate::keyspace::{Keyspace, Ready as _};
use crate::world::World;

/// Longest answer, in bytes: it is kept until it is whole.
pub(super) const ANSWER_LEN_MAX: usize = 64 << 20;

/// What one step adds to the output, of an answer that is whole: who waits for its turn
/// does not wait for a copy of all of it.
const GIVEN_TOGETHER: usize = 128 << 10;

/// An answer that is being collected, or given.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` matches everything.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    found: Vec<u8>,
    count: usize,
    /// Items that the next step looks at, at most.
    step_len_max: usize,
    /// All were looked at, and so many bytes of what was found are answered.
    given: Option<usize>,
}

/// Begins one, or answers what is wrong.
pub(super) fn keys<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Keys> {
    let pattern = call.arguments.get(1);
    if pattern.len() > PATTERN_LEN_MAX {
        call.reply.error(format!(
            "ERR the pattern is longer than {PATTERN_LEN_MAX} bytes"
        ));
        return None;
    }
    Some(Keys {
        pattern: (pattern != b"*").then(|| pattern.into()),
        cursor: 0,
        found: Vec::new(),
        count: 0,
        step_len_max: usize::MAX,
        given: None,
    })
}

impl Keys {
    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        self.found.capacity()
    }

    /// Gives the next part of the answer; whether that was the last one.
    fn give(&mut self, given: usize, out: &mut Vec<u8>) -> bool {
        let end = self.found.len().min(given.saturating_add(GIVEN_TOGETHER));
        out.extend_from_slice(&self.found[given..end]);
        self.given = Some(end);
        end == self.found.len()
    }
}

impl RespSession {
    /// Looks at more items; answers, part by part, when all were looked at.
    pub(super) fn step_keys<K: Keyspace>(
        &mut self,
        mut keys: Keys,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Step {
        if let Some(given) = keys.given {
            if !keys.give(given, out) {
                self.keys = Some(keys);
            }
            return Step::Done(0);
        }
        let page_len = world.keyspace.page_len();
        let step_len = page_len.min(keys.step_len_max);
        let mark = (keys.found.len(), keys.count);
        let (pattern, found, count) = (&keys.pattern, &mut keys.found, &mut keys.count);
        let mut reply = Reply {
            out: found,
            is_resp3: false,
        };
        let mut comparing = Comparing::new(pattern.as_deref(), step_len);
        let listed = world.keyspace.list(keys.cursor, step_len, &mut |item| {
            if comparing.takes(item.key) {
                reply.bulk(item.key);
                *count += 1;
            }
        });
        let Ok(listed) = listed.ready() else {
            keys.found.truncate(mark.0);
            keys.count = mark.1;
            self.keys = Some(keys);
            return Step::Pending(0);
        };
        world.keyspace.charge(comparing.work());
        if let Some(compared) = comparing.gave_up_after()
            && listed.is_ok()
        {
            // From the same place, with fewer keys: others have their turn first.
            keys.found.truncate(mark.0);
            keys.count = mark.1;
            keys.step_len_max = compared.min(step_len / 2).max(1);
            self.keys = Some(keys);
            return Step::Done(0);
        }
        keys.step_len_max = (step_len * 2).min(page_len);
        let len_max = ANSWER_LEN_MAX.min(world.settings.answer_len_max);
        match listed {
            Err(fault) => self.reply(out).fault(&fault),
            Ok(_) if keys.found.len() > len_max => self.reply(out).error(format!(
                "ERR the answer is longer than {len_max} bytes; use SCAN"
            )),
            Ok(0) => {
                self.reply(out).array(keys.count);
                if !keys.give(0, out) {
                    self.keys = Some(keys);
                }
            }
            Ok(next) => {
                keys.cursor = next;
                self.keys = Some(keys);
            }
        }
        Step::Done(0)
    }
}
