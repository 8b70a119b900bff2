//! memcached's binary protocol, which older Java and PHP clients still speak.
//!
//! Statuses, words and silences are those of memcached 1.6.18. What differs,
//! and why:
//!
//! | what | memcached | here |
//! |---|---|---|
//! | an unknown command with a key | skips more bytes than the request has, and loses its place | skips exactly the request |
//! | `stat` with a value | takes the value for the next request | skips it |
//! | a body of 2 GiB or more | loses its place | skipped as any other value that is too large |
//! | get and touch, touch, with a value | takes the value for the next request | invalid arguments, and the end |
//! | a counter that becomes shorter | keeps its length, but not while an answer with its old value waits to be sent | keeps its length |
//! | verbosity (0x1b) | unknown command | obeyed |
//! | a key longer than 250 bytes | answered once it has come | answered at once |
//! | a cell that cannot answer for now | – | 0x86, temporary failure; never *not found* |
//!
//! | module | what it does |
//! |---|---|
//! | `frame` | the bytes of headers, statuses and their words |
//! | `read` | get, get and touch, touch; runs of gets go to the keyspace together |
//! | `store` | set, add, replace, append, prepend, delete |
//! | `count` | increment, decrement |
//! | `admin` | statistics, flush, version, verbosity |
//! | `sasl` | authentication |

mod admin;
mod count;
mod frame;
mod read;
mod sasl;
mod store;

pub use frame::REQUEST_MAGIC;

use crate::keyspace::{Keyspace, Pending};
use crate::memcache::KEY_LEN_MAX;
use crate::session::{Driven, Session, Wants, is_long_enough, is_work_done};
use crate::world::{Done, Ending, Role, World};
use frame::{Frame, HEADER_LEN, Header, Status, Verb, put_error, verb_of};

/// One connection that speaks the binary protocol.
#[derive(Clone, Debug, Default)]
pub struct BinarySession {
    /// Bytes of a refused value that are still to come.
    swallow_len: usize,
    /// Of the user, once authenticated.
    user: Option<Role>,
    sasl_started: bool,
}

/// How one request ended, for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The request is done with.
    Continue,
    /// So is the connection.
    Close,
}

/// What a look at the front of the input came to.
enum Front<'a> {
    /// A request that can be executed or refused.
    Frame(Verb, Frame<'a>),
    /// Not all of it is there.
    Incomplete(Wants),
    /// What the header says is impossible.
    Impossible(Header, Status),
    /// A value that is longer than the limit; the key has come.
    TooLarge(Verb, Frame<'a>),
    /// Not a request.
    NoRequest,
}

impl BinarySession {
    /// A new connection's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the first request of the input.
    fn front<'a, K: Keyspace>(&self, rest: &'a [u8], world: &World<'_, K>) -> Front<'a> {
        match rest.first() {
            None => return Front::Incomplete(Wants::Input(0)),
            Some(&magic) if magic != REQUEST_MAGIC => return Front::NoRequest,
            Some(_) => {}
        }
        let Some(header) = rest.first_chunk().map(Header::decode) else {
            return Front::Incomplete(Wants::Input(HEADER_LEN));
        };
        if header.key_len + header.extras_len > header.body_len {
            return Front::Impossible(header, Status::UnknownCommand);
        }
        let (verb, quiet) = verb_of(header.opcode);
        if world.settings.authentication
            && self.user.is_none()
            && !matches!(
                verb,
                Verb::SaslMechanisms | Verb::SaslAuth | Verb::SaslStep | Verb::Version
            )
        {
            return Front::Impossible(header, Status::AuthError);
        }
        if header.key_len > KEY_LEN_MAX || !shape_fits(verb, &header) {
            return Front::Impossible(header, Status::InvalidArguments);
        }
        let value_len_max = match verb {
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend => {
                value_len_max(world)
            }
            Verb::SaslAuth | Verb::SaslStep => sasl::MESSAGE_LEN_MAX,
            // Their values mean nothing and are skipped.
            Verb::Stat | Verb::Unknown | Verb::SaslMechanisms => 0,
            // `shape_fits` leaves no value.
            _ => 0,
        };
        let extras_end = HEADER_LEN + header.extras_len;
        let key_end = extras_end + header.key_len;
        let too_large = header.value_len() > value_len_max;
        let needed = if too_large {
            key_end
        } else {
            header.frame_len()
        };
        if rest.len() < needed {
            return Front::Incomplete(Wants::Input(needed));
        }
        let frame = Frame {
            header,
            quiet,
            extras: &rest[HEADER_LEN..extras_end],
            key: &rest[extras_end..key_end],
            value: if too_large {
                b""
            } else {
                &rest[key_end..needed]
            },
        };
        if too_large {
            Front::TooLarge(verb, frame)
        } else {
            Front::Frame(verb, frame)
        }
    }

    fn execute<K: Keyspace>(
        &mut self,
        verb: Verb,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<Next, Pending> {
        if world.settings.role(self.user) < role_of(verb, frame) {
            // What memcached answers to flush under its option `-F`.
            put_error(out, &frame.header, Status::AuthError);
            return Ok(Next::Continue);
        }
        match verb {
            Verb::Get { with_key } => read::get(frame, with_key, out, world)?,
            Verb::GetAndTouch { with_key } => {
                let shape = read::Shape::Value { with_key };
                read::touch(frame, shape, out, world)?;
            }
            Verb::Touch => read::touch(frame, read::Shape::Flags, out, world)?,
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend => {
                store::store(verb, frame, out, world)?;
            }
            Verb::Delete => store::delete(frame, out, world)?,
            Verb::Increment | Verb::Decrement => count::count(verb, frame, out, world)?,
            Verb::Quit => {
                if !frame.quiet {
                    frame::put_success(out, &frame.header, 0, b"");
                }
                return Ok(Next::Close);
            }
            Verb::Flush => admin::flush(frame, out, world)?,
            Verb::Noop => frame::put_success(out, &frame.header, 0, b""),
            Verb::Version => admin::version(frame, out, world),
            Verb::Stat => admin::stat(frame, out, world)?,
            Verb::Verbosity => admin::verbosity(frame, out, world),
            Verb::SaslMechanisms => sasl::mechanisms(frame, out, world),
            Verb::SaslAuth | Verb::SaslStep => self.sasl(verb, frame, out, world),
            Verb::Unknown => put_error(out, &frame.header, Status::UnknownCommand),
        }
        Ok(Next::Continue)
    }

    /// Refuses a request whose value is not looked at.
    fn refuse_value<K: Keyspace>(
        &mut self,
        verb: Verb,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<(), Pending> {
        let is_allowed = world.settings.role(self.user) >= role_of(verb, frame);
        match verb {
            _ if !is_allowed => put_error(out, &frame.header, Status::AuthError),
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend => {
                store::refuse_too_large(verb, frame, out, world)?;
            }
            Verb::SaslAuth | Verb::SaslStep => sasl::refuse_too_large(frame, out, world),
            // Execution does not need the value.
            _ => {
                self.execute(verb, frame, out, world)?;
            }
        }
        Ok(())
    }
}

/// What a request takes.
fn role_of(verb: Verb, frame: &Frame<'_>) -> Role {
    match verb {
        Verb::Flush => Role::Admin,
        Verb::Stat if frame.key.starts_with(b"reset") => Role::Admin,
        Verb::Stat if frame.key.starts_with(b"detail o") => Role::Admin,
        Verb::Set
        | Verb::Add
        | Verb::Replace
        | Verb::Append
        | Verb::Prepend
        | Verb::Delete
        | Verb::Increment
        | Verb::Decrement
        | Verb::Touch
        | Verb::GetAndTouch { .. } => Role::Write,
        _ => Role::Read,
    }
}

/// Whether the lengths of extras, key and value are those of this request.
/// memcached closes the connection over those that are not.
fn shape_fits(verb: Verb, header: &Header) -> bool {
    let (extras_len, key_len) = (header.extras_len, header.key_len);
    let value_len = header.value_len();
    match verb {
        Verb::Get { .. } | Verb::Delete => extras_len == 0 && key_len > 0 && value_len == 0,
        // memcached does not mind a value here; nobody sends one.
        Verb::GetAndTouch { .. } | Verb::Touch => extras_len == 4 && key_len > 0 && value_len == 0,
        Verb::Set | Verb::Add | Verb::Replace => extras_len == 8 && key_len > 0,
        Verb::Append | Verb::Prepend => extras_len == 0 && key_len > 0,
        Verb::Increment | Verb::Decrement => extras_len == 20 && key_len > 0 && value_len == 0,
        Verb::Flush => (extras_len == 0 || extras_len == 4) && key_len == 0 && value_len == 0,
        Verb::Verbosity => extras_len == 4 && key_len == 0 && value_len == 0,
        Verb::Quit | Verb::Noop | Verb::Version | Verb::SaslMechanisms => header.body_len == 0,
        Verb::Stat => extras_len == 0,
        Verb::SaslAuth | Verb::SaslStep => extras_len == 0 && key_len > 0,
        Verb::Unknown => true,
    }
}

/// The longest value that is stored.
fn value_len_max<K: Keyspace>(world: &World<'_, K>) -> usize {
    world
        .settings
        .item_len_max
        .min(world.keyspace.value_len_max())
}

/// Tells the observer how a command on an item ended.
fn done<K: Keyspace>(
    world: &mut World<'_, K>,
    command: crate::world::Command,
    ending: Ending,
    key: &[u8],
    value_len: usize,
) {
    world.observer.done(&Done {
        command,
        ending,
        key,
        value_len,
    });
}

impl Session for BinarySession {
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        let mut consumed = 0;
        let began = world.keyspace.work();
        let wants = loop {
            let swallowed = self.swallow_len.min(input.len() - consumed);
            self.swallow_len -= swallowed;
            consumed += swallowed;
            let rest = &input[consumed..];
            if self.swallow_len > 0 || rest.is_empty() {
                break Wants::Input(0);
            }
            if out.len() >= out_len_max {
                break Wants::Output;
            }
            if is_work_done(world.keyspace, began) || is_long_enough(consumed) {
                break Wants::Turn;
            }
            let mark = out.len();
            match self.front(rest, world) {
                Front::Frame(Verb::Get { .. }, frame) if read::another_get(rest, &frame) => {
                    let (len, end) = read::get_run(rest, out, out_len_max, world);
                    consumed += len;
                    if end == Err(Pending) {
                        break Wants::Operation;
                    }
                }
                Front::Frame(verb, frame) => {
                    let Ok(next) = self.execute(verb, &frame, out, world) else {
                        out.truncate(mark);
                        break Wants::Operation;
                    };
                    consumed += frame.header.frame_len();
                    if next == Next::Close {
                        break Wants::Close;
                    }
                }
                Front::TooLarge(verb, frame) => {
                    if self.refuse_value(verb, &frame, out, world) == Err(Pending) {
                        out.truncate(mark);
                        break Wants::Operation;
                    }
                    consumed += frame.header.frame_len() - frame.header.value_len();
                    self.swallow_len = frame.header.value_len();
                }
                Front::Incomplete(wants) => break wants,
                Front::Impossible(header, status) => {
                    put_error(out, &header, status);
                    consumed = input.len();
                    break Wants::Close;
                }
                Front::NoRequest => {
                    consumed = input.len();
                    break Wants::Close;
                }
            }
            world.conclude();
        };
        Driven { consumed, wants }
    }

    fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }
}
