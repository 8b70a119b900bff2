//! The text protocol: lines, and values behind some of them.
//!
//! A line is parsed once, by bytes. A command whose value has not come stays
//! unconsumed, as the contract of `Session` asks, so nothing is kept between
//! two calls but a few words: that a long answer goes on, or that bytes of a
//! refused value are still to come.
//!
//! | module | what it does |
//! |---|---|
//! | `line` | lines and words |
//! | `read` | get, gets, gat, gats |
//! | `store` | set, add, replace, append, prepend, cas |
//! | `change` | delete, touch, incr, decr |
//! | `server` | flush_all, version, verbosity, stats, watch, … |
//! | `tuning` | commands about memcached's memory, answered and without effect |
//! | `dump` | lists of all items |
//! | `auth` | authentication |

mod auth;
pub(super) mod change;
mod dump;
pub(super) mod line;
mod read;
mod server;
pub(super) mod store;
mod tuning;

use super::meta;
use super::mutate::Mode;
use crate::keyspace::{Keyspace, Pending};
use crate::session::{Driven, Session, Wants, is_long_enough, is_work_done};
use crate::world::{Command, Done, Ending, Release, Role, World};
use line::{Line, Words};

/// A line this long that has not ended is a command only if it reads many
/// keys.
const LINE_LEN_MAX: usize = 2048;
/// So much of a line is looked at in one step; a longer one of keys is taken part by part. A
/// connection may have kept megabytes of it, and everybody else waits for the step.
const SEEN_MAX: usize = 64 << 10;

/// A line that is shorter, with its end, is no command to the newer memcached.
const LINE_LEN_MIN: usize = 4;

pub(super) const ERROR: &[u8] = b"ERROR";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";
pub(super) const BAD_DATA_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk";
const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";

/// One connection that speaks the text protocol.
#[derive(Clone, Debug, Default)]
pub(super) struct TextSession {
    state: State,
    /// Of the user, once authenticated.
    user: Option<Role>,
    watching: bool,
    /// What the last command has found, if that was a list by class.
    empty: Option<dump::EmptyClasses>,
}

/// What a connection is in the middle of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum State {
    /// Nothing: a command comes next.
    #[default]
    Command,
    /// A line of keys, of which some are done with.
    Reading(read::Reading),
    /// A line that means nothing any more.
    SkipLine,
    /// A refused value, of which this many bytes are to come.
    Swallow(usize),
    /// A list of all items.
    Dump(dump::Dump),
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This much of the input is done with.
    Done(usize),
    /// The command needs this many bytes in all (0: not known).
    Input(usize),
    /// This much is done with, and the output is full.
    Output(usize),
    /// This much is done with, and an operation is pending.
    Pending(usize),
    /// This much is done with, and the connection is to be closed.
    Close(usize),
}

/// What a command takes.
fn role_of(word: &[u8]) -> Role {
    match word {
        b"flush_all" | b"cache_memlimit" | b"shutdown" => Role::Admin,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"ms" | b"md" | b"ma"
        | b"delete" | b"incr" | b"decr" | b"touch" | b"gat" | b"gats" => Role::Write,
        _ => Role::Read,
    }
}

/// The line for a command that the user's role does not allow: memcached's own
/// for `flush_all` under its option `-F`.
pub(super) fn put_not_allowed(word: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"CLIENT_ERROR ");
    out.extend_from_slice(word);
    out.extend_from_slice(b" not allowed\r\n");
}

/// What steps are lent beside the input.
pub(super) struct Desk<'a, 'w, K: Keyspace> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) out_len_max: usize,
    pub(super) world: &'a mut World<'w, K>,
    /// What the client may do.
    pub(super) role: Role,
}

impl<K: Keyspace> Desk<'_, '_, K> {
    /// Answers with one line, unless the client wants no reply.
    pub(super) fn answer(&mut self, noreply: bool, text: &[u8]) {
        if !noreply {
            self.out.extend_from_slice(text);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether answers are those of memcached 1.6.45 where they contradict 1.6.18's: a
    /// table of both is in `tests/all/memcache_releases.rs`.
    pub(super) fn is_newer(&self) -> bool {
        self.world.settings.release == Release::V1_6_45
    }

    /// Whether a command has enough words behind its name, and not too many: the newer
    /// memcached does not look at what is too much.
    pub(super) fn takes(&self, count: usize, legal: std::ops::RangeInclusive<usize>) -> bool {
        count >= *legal.start() && (self.is_newer() || count <= *legal.end())
    }

    /// Answers a command that has not.
    pub(super) fn answer_wrong_count(&mut self) {
        let error = if self.is_newer() { BAD_FORMAT } else { ERROR };
        self.answer(false, error);
    }

    /// Tells the observer how a command on an item ended.
    pub(super) fn done(&mut self, command: Command, ending: Ending, key: &[u8], value_len: usize) {
        self.world.observer.done(&Done {
            command,
            ending,
            key,
            value_len,
        });
    }

    /// Longest value that is stored.
    pub(super) fn value_len_max(&self) -> usize {
        self.world
            .settings
            .item_len_max
            .min(self.world.keyspace.value_len_max())
    }
}

impl TextSession {
    /// Does what comes next, or nothing at all if its operation is pending.
    fn step<K: Keyspace>(&mut self, input: &[u8], desk: &mut Desk<'_, '_, K>) -> Step {
        let mark = desk.out.len();
        self.try_step(input, desk).unwrap_or_else(|Pending| {
            desk.out.truncate(mark);
            Step::Pending(0)
        })
    }

    fn try_step<K: Keyspace>(
        &mut self,
        input: &[u8],
        desk: &mut Desk<'_, '_, K>,
    ) -> Result<Step, Pending> {
        Ok(match self.state {
            State::Command => return self.command(input, desk),
            State::Reading(reading) => read::resume(&mut self.state, reading, input, desk),
            State::SkipLine => match memchr::memchr(b'\n', input) {
                Some(end) => {
                    self.state = State::Command;
                    Step::Done(end + 1)
                }
                None => Step::Done(input.len()),
            },
            State::Swallow(len) => {
                let swallowed = len.min(input.len());
                self.state = match len - swallowed {
                    0 => State::Command,
                    left => State::Swallow(left),
                };
                Step::Done(swallowed)
            }
            State::Dump(dump) => return dump::resume(&mut self.state, &mut self.empty, dump, desk),
        })
    }

    fn command<K: Keyspace>(
        &mut self,
        input: &[u8],
        desk: &mut Desk<'_, '_, K>,
    ) -> Result<Step, Pending> {
        let seen = &input[..input.len().min(SEEN_MAX)];
        let line = Line::first(seen);
        if desk.world.settings.authentication && self.user.is_none() {
            return Ok(auth::authenticate(&mut self.user, line, input, desk));
        }
        let Some(line) = line else {
            return Ok(self.unfinished(seen, desk));
        };
        let mut words = Words::of(line.text);
        let word = words.next().unwrap_or_default();
        let state = &mut self.state;
        let before = self.empty.take();
        let done = Step::Done(line.len);
        if desk.is_newer() {
            if line.len < LINE_LEN_MIN {
                desk.answer(false, BAD_FORMAT);
                return Ok(done);
            }
            if line.text.starts_with(b" ") || word == b"bget" {
                desk.answer(false, ERROR);
                return Ok(done);
            }
        }
        desk.role = desk.world.settings.role(self.user);
        if desk.role < Role::Admin && desk.role < role_of(word) {
            // Commands with values refuse those, too.
            if !matches!(
                word,
                b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"ms"
            ) {
                if words.last() != Some(b"noreply") {
                    put_not_allowed(word, desk.out);
                }
                return Ok(done);
            }
        }
        match word {
            b"get" => return read::start(state, read::GET, words, line, desk),
            b"gets" => return read::start(state, read::GETS, words, line, desk),
            b"set" => return store::store(state, Mode::Set, words, line, input, desk),
            b"mg" => meta::get(words, desk)?,
            b"ms" => return meta::set(state, words, line, input, desk),
            b"md" => meta::delete(words, desk)?,
            b"ma" => meta::arithmetic(words, desk)?,
            b"mn" => desk.answer(false, b"MN"),
            b"me" => meta::debug(words, desk)?,
            b"add" => return store::store(state, Mode::Add, words, line, input, desk),
            b"cas" => return store::store(state, Mode::Cas, words, line, input, desk),
            b"replace" => return store::store(state, Mode::Replace, words, line, input, desk),
            b"append" => return store::store(state, Mode::Append, words, line, input, desk),
            b"prepend" => return store::store(state, Mode::Prepend, words, line, input, desk),
            b"delete" => change::delete(words, desk)?,
            b"incr" => change::count(true, words, desk)?,
            b"decr" => change::count(false, words, desk)?,
            b"touch" => change::touch(words, desk)?,
            b"gat" => return Ok(read::start_touching(state, read::GET, words, line, desk)),
            b"gats" => return Ok(read::start_touching(state, read::GETS, words, line, desk)),
            // An old name of get that some clients may still use.
            b"bget" => return read::start(state, read::GET, words, line, desk),
            b"version" => server::version(desk),
            b"verbosity" => server::verbosity(words, desk),
            b"flush_all" => server::flush_all(words, desk)?,
            b"stats" => server::stats(state, (&mut self.empty, before), words, desk)?,
            b"cache_memlimit" => server::memory_limit(words, desk)?,
            b"watch" => server::watch(&mut self.watching, words, desk),
            b"lru_crawler" => tuning::lru_crawler(state, words, desk),
            b"lru" => tuning::lru(words, desk),
            b"slabs" => tuning::slabs(words, desk),
            b"extstore" => desk.answer(false, ERROR),
            b"shutdown" => {
                if server::shutdown(words, desk) {
                    return Ok(Step::Close(line.len));
                }
            }
            b"quit" => return Ok(Step::Close(line.len)),
            _ if is_http(word, words, desk.is_newer()) => return Ok(Step::Close(line.len)),
            _ => desk.answer(false, ERROR),
        }
        Ok(done)
    }

    /// The input ends in the middle of a line.
    fn unfinished<K: Keyspace>(&mut self, input: &[u8], desk: &mut Desk<'_, '_, K>) -> Step {
        if input.len() <= LINE_LEN_MAX {
            return Step::Input(0);
        }
        let mut words = Words::of(input);
        let word = words.next().unwrap_or_default();
        let state = &mut self.state;
        if desk.world.settings.role(self.user) < role_of(word) {
            put_not_allowed(word, desk.out);
            return Step::Close(input.len());
        }
        match word {
            b"get" => read::start_long(state, read::GET, words, input, desk),
            b"gets" => read::start_long(state, read::GETS, words, input, desk),
            b"gat" => read::start_touching_long(state, read::GET, words, input, desk),
            b"gats" => read::start_touching_long(state, read::GETS, words, input, desk),
            _ => {
                desk.answer(false, b"CLIENT_ERROR line too long");
                Step::Close(input.len())
            }
        }
    }
}

/// Whether a browser talks to us, or somebody makes one do so. The older memcached looks
/// for it where it has no command with the first letter, the newer one behind any word.
fn is_http(word: &[u8], words: Words<'_>, is_newer: bool) -> bool {
    let is_head = |word: &[u8]| word.starts_with(b"HTTP/");
    match is_newer {
        true => words.last().is_some_and(is_head),
        false => {
            word.len() > 1
                && !b"gsacidt".contains(&word[0])
                && is_head(words.last().unwrap_or(word))
        }
    }
}

impl Session for TextSession {
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        let mut consumed = 0;
        let began = world.keyspace.work();
        let mut desk = Desk {
            out,
            out_len_max,
            world,
            role: Role::Read,
        };
        let wants = loop {
            let rest = &input[consumed..];
            let goes_on = matches!(self.state, State::Dump(_));
            if rest.is_empty() && !goes_on {
                break self.idle(0);
            }
            if desk.out.len() >= out_len_max {
                break Wants::Output;
            }
            if is_work_done(desk.world.keyspace, began) || is_long_enough(consumed) {
                break Wants::Turn;
            }
            let step = self.step(rest, &mut desk);
            if !matches!(step, Step::Pending(_)) {
                desk.world.conclude();
            }
            match step {
                Step::Done(len) => consumed += len,
                Step::Input(len) => break self.idle(len),
                Step::Output(len) => {
                    consumed += len;
                    break Wants::Output;
                }
                Step::Pending(len) => {
                    consumed += len;
                    break Wants::Operation;
                }
                Step::Close(len) => {
                    consumed += len;
                    break Wants::Close;
                }
            }
        };
        Driven { consumed, wants }
    }

    fn refuse_unfinished(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        let unfinished = match self.state {
            State::Command => store::unfinished(input),
            _ => None,
        };
        let Some((left, noreply)) = unfinished else {
            return false;
        };
        if !noreply {
            out.extend_from_slice(OUT_OF_MEMORY);
        }
        self.state = State::Swallow(left);
        true
    }

    fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }
}

impl TextSession {
    fn idle(&self, len: usize) -> Wants {
        if self.watching && len == 0 {
            Wants::Events
        } else {
            Wants::Input(len)
        }
    }
}
