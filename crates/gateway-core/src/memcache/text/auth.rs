//! Authentication: the first command is a `set` whose value is name and
//! password. Key, flags and expiration mean nothing.

use super::line::{Args, Line, Words};
use super::store::{Behind, behind};
use super::{Desk, LINE_LEN_MAX, Step};
use crate::keyspace::Keyspace;
use crate::memcache::number::parse_u32;
use crate::world::{Introduction, Role};

/// Longest name and password together.
const TOKEN_LEN_MAX: usize = 16 << 10;

/// What came before authentication.
pub(super) fn authenticate<K: Keyspace>(
    user: &mut Option<Role>,
    line: Option<Line<'_>>,
    input: &[u8],
    desk: &mut Desk<'_, '_, K>,
) -> Step {
    let Some(line) = line else {
        return if input.len() > LINE_LEN_MAX {
            Step::Close(input.len())
        } else {
            Step::Input(0)
        };
    };
    let args = Args::<6>::of(Words::of(line.text));
    let len = match *args {
        [b"set", _, _, _, len, ..] => parse_u32(len),
        _ => None,
    };
    let Some(len) = len else {
        desk.answer(false, b"CLIENT_ERROR unauthenticated");
        return Step::Done(line.len);
    };
    let len = len as usize;
    if len > TOKEN_LEN_MAX {
        desk.answer(false, b"CLIENT_ERROR auth token too long");
        return Step::Done(line.len);
    }
    match behind(input, line.len, len) {
        Behind::Missing(total) => Step::Input(total),
        Behind::Unended(total) => {
            desk.answer(false, b"CLIENT_ERROR bad command line termination");
            Step::Done(total)
        }
        Behind::Value(value, total) => {
            let text = value.split(|&byte| byte == 0).next().unwrap_or_default();
            let mut words = Words::of(text);
            let answer: &[u8] = match (words.next(), words.next()) {
                (Some(name), Some(password)) => {
                    *user = desk.world.observer.authenticate(name, password);
                    match user {
                        Some(_) => {
                            let said = Introduction::of_user(name);
                            desk.world.observer.introduce(&said);
                            b"STORED"
                        }
                        None => b"CLIENT_ERROR authentication failure",
                    }
                }
                _ => b"CLIENT_ERROR bad authentication token format",
            };
            desk.answer(false, answer);
            Step::Done(total)
        }
    }
}
