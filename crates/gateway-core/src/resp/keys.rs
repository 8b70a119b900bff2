//! KEYS: all keys that match a pattern, in one answer, listed in slices: others have
//! their turn in between. The answer begins with its length, so it is collected first.

use super::execute::Call;
use super::glob;
use super::reply::Reply;
use super::scan::{PATTERN_LEN_MAX, WORK_MAX};
use super::{RespSession, Step};
use crate::keyspace::{Keyspace, Ready as _};
use crate::world::World;

/// Longest answer, in bytes: it is kept until it is whole.
const ANSWER_LEN_MAX: usize = 64 << 20;

/// An answer that is being collected.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` matches everything.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    found: Vec<u8>,
    count: usize,
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
    })
}

impl Keys {
    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        self.found.capacity()
    }

    /// How many items to look at in one piece of work.
    fn step_len(&self, page_len: usize) -> usize {
        // Patterns are compared with each key: a long one takes shorter steps.
        let work = self.pattern.as_ref().map_or(0, |pattern| pattern.len()) * 256;
        page_len.min(WORK_MAX / 2 / work.max(1)).max(1)
    }
}

impl RespSession {
    /// Looks at more items; answers when all were looked at.
    pub(super) fn step_keys<K: Keyspace>(
        &mut self,
        mut keys: Keys,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Step {
        let step_len = keys.step_len(world.keyspace.page_len());
        let mark = (keys.found.len(), keys.count);
        let (pattern, found, count) = (&keys.pattern, &mut keys.found, &mut keys.count);
        let mut reply = Reply {
            out: found,
            is_resp3: false,
        };
        let listed = world.keyspace.list(keys.cursor, step_len, &mut |item| {
            let is_asked_for = pattern
                .as_ref()
                .is_none_or(|pattern| glob::matches(pattern, item.key));
            if is_asked_for {
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
        match listed {
            Err(fault) => self.reply(out).fault(&fault),
            Ok(_) if keys.found.len() > ANSWER_LEN_MAX => self.reply(out).error(format!(
                "ERR the answer is longer than {ANSWER_LEN_MAX} bytes; use SCAN"
            )),
            Ok(0) => {
                self.reply(out).array(keys.count);
                out.append(&mut keys.found);
            }
            Ok(next) => {
                keys.cursor = next;
                self.keys = Some(keys);
            }
        }
        Step::Done(0)
    }
}
