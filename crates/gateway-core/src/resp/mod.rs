//! Redis's protocol, RESP 2 and 3, with the commands that caches use.
//!
//! Answers are those of Redis 7.0, byte for byte. What differs, and why:
//!
//! | what | Redis | here |
//! |---|---|---|
//! | a value over the cell's limit (`--value-max`) | 512 MB are taken | skipped without a buffer, `-ERR string exceeds maximum allowed size (proto-max-bulk-len)`; the connection lives on |
//! | keys | any length | 1 to 65,536 bytes; a longer one is never found, storing one is an error |
//! | many keys (MGET, MSET, DEL, UNLINK, EXISTS, TOUCH) | one step | key after key, as they come; memory does not grow with their number, other clients may act in between |
//! | MSETNX, RENAME, RENAMENX, COPY | any keys | several keys where the store is in this process; else one, or refused |
//! | a key of MGET that cannot be read for now | – | an error in its place, never null |
//! | MULTI, EXEC | all commands as one | one key as one; several where the store is in this process; see `transaction` |
//! | EVAL, EVALSHA | any keys | one key; stored if its item has not changed, else executed again; one that fails stores nothing; no `cmsgpack`, `struct`, `load`, coroutines; a quarter of a second of CPU, 32 MiB |
//! | FUNCTION, FCALL | kept with the data; variables of a library outlive a call | like EVAL; in this process's memory, and nothing outlives a call |
//! | hashes, lists, sets, sorted sets, streams, messages, bits, places, and all else in `absent` | there | refused with an error that says so |
//! | INCRBYFLOAT | a long double's 19 digits | exact, in 17 places and below 10^20 |
//! | databases | 16 | 1 |
//! | expiry | any 64-bit time | no later than in the year 10889; later ones become that |
//! | a new expiry (EXPIRE, PERSIST, GETEX) | changes the expiry | stores the item again, value included, at every replica |
//! | `maxmemory-policy` | one of Redis's | `allkeys-` and the cell's policy |
//! | users | ACLs | roles: read, write, admin; `NOPERM` otherwise |
//! | TTL of a value stored elsewhere | – | memcached's expiry of the same item |
//! | INFO, CONFIG GET, COMMAND, CLIENT INFO and LIST | about Redis | about this server, in the same form |
//! | SLOWLOG | arguments of slow commands | kind of command and key; no HELP |
//! | CLIENT SETINFO, NO-TOUCH | of Redis 7.2 | taken, because clients send it |
//! | more than 1,024 arguments to a command that does not take many keys | taken | refused with an error |
//! | MATCH of SCAN, pattern of KEYS, over 1,024 bytes | taken | refused with an error |
//! | SCAN's COUNT | keys that are looked at | the same; before a cell, 512 to 1,024: each is a call to backends |
//! | KEYS | one step | in slices; items that come or go meanwhile may be listed or not; at most 64 MiB, and a quarter of `--buffers` |
//!
//! Faults of the cell: `-TRYAGAIN` if no quorum agrees or too many write the
//! same key, so that trying again may help; `-OOM` if memory is full; `-ERR`
//! if nobody serves the key, or the outcome is not known.
//!
//! | module | what it does |
//! |---|---|
//! | `parse` | numbers, lines, bulk strings, words |
//! | `reply` | answers |
//! | `table` | the commands |
//! | `gather` | a command's arguments, as they come |
//! | `execute` | from the command to its function |
//! | `many` | commands of many keys, executed as they come |
//! | `read`, `write`, `count`, `decimal`, `expire`, `object`, `memory` | commands of one key |
//! | `together` | MSETNX, RENAME, RENAMENX, COPY: several keys as one |
//! | `absent` | commands that there are not |
//! | `documented` | the tables of commands in the documentation |
//! | `scan`, `keys`, `glob` | SCAN, KEYS and patterns |
//! | `eval`, `script`, `shebang`, `sha1` | EVAL, EVALSHA, SCRIPT |
//! | `script_run`, `script_job`, `script_value` | scripts on their way, as their threads get them, what they answer |
//! | `function` | FCALL, FUNCTION |
//! | `transaction` | MULTI, EXEC, DISCARD, WATCH, UNWATCH |
//! | `connection`, `server`, `config`, `info`, `slow_log` | commands about the rest |
//! | `subcommands` | the commands within CLIENT, CONFIG and their like |
//! | `describe`, `key_specs` | COMMAND: what commands are, and where their keys are |

mod absent;
mod answers;
mod config;
mod connection;
mod count;
mod decimal;
mod describe;
mod documented;
mod eval;
mod execute;
mod expire;
mod function;
mod gather;
mod glob;
mod info;
mod key_specs;
mod keys;
mod many;
mod memory;
mod object;
mod parse;
mod read;
mod reply;
mod scan;
mod script;
mod script_job;
mod script_run;
mod script_value;
mod server;
mod sha1;
mod shebang;
mod slow_log;
mod stretch;
mod subcommands;
mod table;
mod together;
mod transaction;
mod write;

use crate::keyspace::{Fault, Keyspace, Pending};
use crate::session::{Driven, Session, Wants, is_long_enough, is_work_done};
use crate::world::{Role, World};
use answers::Answers;
use connection::Identity;
pub use documented::command_tables;
pub use function::{Function, Libraries};
use gather::{Gathered, Gathering};
use keys::Keys;
use many::Many;
use parse::{LINE_LEN_MAX, Part, ProtocolError};
use reply::Reply;
pub use script_job::{
    JobKind, SCRIPT_MEMORY_MAX, SCRIPT_TIME_MS_MAX, ScriptContext, ScriptHash, ScriptJob, Scripts,
};
use script_run::Run;
pub use script_value::ScriptValue;
use stretch::Stretch;
use table::{Id, lookup};
use transaction::{Replay, Transaction, Watched};
use trefoil_layout::op::Rejection;

/// Less of a value than this is waited for before its command is queued.
const QUEUED_WHOLE_LEN: usize = 16 << 10;

/// One connection that speaks RESP.
#[derive(Debug, Default)]
pub struct RespSession {
    identity: Identity,
    /// The command whose arguments are coming.
    gathering: Gathering,
    /// The command of many keys that is being executed.
    many: Option<Many>,
    /// The list of keys that is being collected.
    keys: Option<Keys>,
    /// The script that is being executed.
    script: Option<Box<Run>>,
    /// What is left of a command that has been answered.
    skip: Skip,
    /// A command that came in one line, in the other form, and how much of it
    /// is done with.
    inline: Vec<u8>,
    inline_at: usize,
    /// Commands that are queued since MULTI.
    transaction: Option<Box<Transaction>>,
    /// Keys that are watched.
    watched: Vec<Watched>,
    /// Commands of a transaction that is being executed.
    replay: Option<Replay>,
    /// A long one that is executed in pieces.
    stretch: Option<Box<Stretch>>,
    /// Its answers, if those were collected, while they leave.
    answers: Option<Box<Answers>>,
    /// The command that is being executed is one of those.
    is_replaying: bool,
    /// They are executed while all other event loops stand still.
    is_alone: bool,
}

/// SHA-1 in hexadecimal, by which Redis names scripts. For nothing secret.
pub fn sha1_hex(bytes: &[u8]) -> String {
    sha1::hex(&sha1::sha1(bytes))
}

/// What is left of a command that has been answered.
#[derive(Clone, Copy, Debug, Default)]
struct Skip {
    /// Bytes of the current argument, with its line end.
    bytes: usize,
    /// Arguments after it.
    arguments: usize,
}

/// What one step came to.
enum Step {
    /// This many bytes are done with; go on.
    Done(usize),
    /// More input is needed, this much in all if known.
    Input(usize),
    /// This many bytes are done with, and an operation is pending.
    Pending(usize),
    /// The end of the connection.
    Close,
    /// The next command cannot be found.
    Lost(ProtocolError),
}

impl RespSession {
    /// A new connection's.
    pub fn new() -> Self {
        Self::default()
    }

    fn reply<'a>(&self, out: &'a mut Vec<u8>) -> Reply<'a> {
        Reply {
            out,
            is_resp3: self.identity.is_resp3(),
        }
    }

    /// Whether the command that was executed last goes on by itself.
    fn goes_on(&self) -> bool {
        let has_answers = self.stretch.is_some() || self.answers.is_some();
        has_answers || self.keys.is_some() || self.script.is_some()
    }

    /// A command's answer begins. Commands of a transaction are a part of EXEC's.
    fn begin_answer(&mut self) {
        if !self.is_replaying {
            self.identity.mute.begin();
        }
    }

    /// A command was refused: the transaction that it was to be part of will not be
    /// executed.
    fn spoil(&mut self) {
        if let Some(open) = &mut self.transaction {
            open.spoil();
        }
    }

    /// Skips what can be skipped of it.
    fn step_over(&mut self, input: &[u8], is_known: bool) -> Step {
        if self.skip.bytes > 0 {
            let len = self.skip.bytes.min(input.len());
            self.skip.bytes -= len;
            return Step::Done(len);
        }
        match parse::bulk_len(input, is_known) {
            Part::Incomplete => Step::Input(0),
            Part::Bad(error) => Step::Lost(error),
            Part::Whole((len, line_len)) => {
                self.skip.arguments -= 1;
                self.skip.bytes = len + 2;
                Step::Done(line_len)
            }
        }
    }

    /// Queues what has come of a command that is queued for its transaction, if nothing but
    /// the rest of a long value is missing: it is not kept elsewhere first, to be copied at
    /// a stretch when it is whole.
    fn queue_in_part<K: Keyspace>(&mut self, input: &[u8], world: &World<'_, K>) -> bool {
        let Some(open) = &mut self.transaction else {
            return false;
        };
        let Some(rest) = self.gathering.rest(input) else {
            return false;
        };
        if rest.arguments > 0 || rest.bytes < QUEUED_WHOLE_LEN {
            return false;
        }
        let Some(spec) = lookup(self.gathering.arguments(input).name()) else {
            return false;
        };
        let is_allowed = self.identity.role(world.settings) >= spec.role();
        if !is_allowed || spec.role() != Role::Write || !spec.takes(self.gathering.count()) {
            return false;
        }
        open.begin_long(input, spec, self.gathering.count(), rest.bytes);
        self.gathering = self.gathering.take().done();
        self.begin_answer();
        true
    }

    /// A command in one line becomes the same in the other form.
    fn step_inline(&mut self, input: &[u8]) -> Step {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            return if input.len() > LINE_LEN_MAX {
                Step::Lost(ProtocolError::InlineTooLong)
            } else {
                Step::Input(0)
            };
        };
        if end > LINE_LEN_MAX {
            return Step::Lost(ProtocolError::InlineTooLong);
        }
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(words) = parse::split(line) else {
            return Step::Lost(ProtocolError::Quotes);
        };
        if !words.is_empty() {
            let mut encoded = Reply {
                out: &mut self.inline,
                is_resp3: false,
            };
            encoded.array(words.len());
            for word in words {
                encoded.bulk(word);
            }
        }
        Step::Done(end + 1)
    }

    /// Does what can be done next with this input, which is not empty unless a command
    /// goes on by itself. Answers that the client does not want are left out.
    fn step<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Step {
        let (mark, was_mute) = (out.len(), self.identity.mute.is_for_good());
        let step = self.step_aloud(input, out, out_len_max, world);
        let mute = self.identity.mute;
        if mute.is_on() && (was_mute || !mute.is_for_good()) {
            out.truncate(mark);
        }
        step
    }

    /// See [`RespSession::step`].
    fn step_aloud<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Step {
        if let Some(mut answers) = self.answers.take() {
            if !answers.give(out) {
                self.answers = Some(answers);
            }
            return Step::Done(0);
        }
        if let Some(stretch) = self.stretch.take() {
            return self.step_stretch(stretch, out, world);
        }
        if let Some(keys) = self.keys.take() {
            return self.step_keys(keys, out, world);
        }
        if let Some(run) = self.script.take() {
            return self.step_script(run, out, world);
        }
        let is_known = self.identity.is_known(world.settings);
        if self.skip.bytes > 0 || self.skip.arguments > 0 {
            return self.step_over(input, is_known);
        }
        if let Some(mut many) = self.many.take() {
            let mut reply = Reply {
                out,
                is_resp3: self.identity.is_resp3(),
            };
            let step = many.step(input, &mut reply, out_len_max, &mut self.skip, world);
            for (key, version) in many.take_seen() {
                if !self.watch(&key, version) {
                    many.refuse_watch();
                }
            }
            if many.is_done() {
                many.finish(&mut self.reply(out));
            } else {
                self.many = Some(many);
            }
            return step;
        }
        if let Some(open) = &mut self.transaction
            && open.is_taking()
        {
            let mut reply = Reply {
                out,
                is_resp3: self.identity.is_resp3(),
            };
            return open.step(input, &mut reply);
        }
        if !self.gathering.is_begun() && input[0] != b'*' {
            return self.step_inline(input);
        }
        match self.gathering.go_on(input, is_known, world) {
            Gathered::Empty(len) => Step::Done(len),
            Gathered::Incomplete(needed) => match self.queue_in_part(input, world) {
                true => Step::Done(input.len()),
                false => Step::Input(needed),
            },
            Gathered::Lost(error) => Step::Lost(error),
            Gathered::Many { spec, count, len } => {
                self.begin_answer();
                let is_allowed = self.identity.role(world.settings) >= spec.role();
                let mut reply = self.reply(out);
                if !is_allowed {
                    reply.no_permission(spec.name);
                    self.spoil();
                    self.skip.arguments = count;
                    return Step::Done(len);
                }
                if let Some(open) = &mut self.transaction {
                    if spec.id == Id::Watch {
                        reply.error("ERR WATCH inside MULTI is not allowed");
                        self.skip.arguments = count;
                    } else {
                        open.begin_many(spec, &input[..len], count);
                    }
                    return Step::Done(len);
                }
                let many = Many::begin(spec, count, &mut reply);
                self.many = Some(many);
                Step::Done(len)
            }
            Gathered::Refused { len, skip, refusal } => {
                self.begin_answer();
                self.spoil();
                self.refuse(input, refusal, out, world);
                self.skip = skip;
                Step::Done(len)
            }
            Gathered::Whole(len) => {
                self.begin_answer();
                let mark = out.len();
                match self.execute(input, len, out, world) {
                    Ok(step) => step,
                    Err(Pending) => {
                        out.truncate(mark);
                        if !self.is_replaying {
                            self.identity.mute.begin_again();
                        }
                        Step::Pending(0)
                    }
                }
            }
        }
    }
}

impl Session for RespSession {
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        // Bytes that are done with: of the input, and of all that was executed.
        let (mut consumed, mut executed) = (0, 0);
        let began = world.keyspace.work();
        let wants = loop {
            let is_inline = self.inline_at < self.inline.len();
            let goes_on = self.replay.is_some() || self.goes_on();
            if !goes_on && self.identity.is_over {
                break Wants::Close;
            }
            if !goes_on && !is_inline && consumed == input.len() {
                break Wants::Input(0);
            }
            if out.len() >= out_len_max {
                break Wants::Output;
            }
            if is_work_done(world.keyspace, began) || is_long_enough(executed) {
                break Wants::Turn;
            }
            let mut replay = self.replay.take();
            self.is_replaying = replay.is_some();
            let step = if let Some(replay) = &replay {
                self.step(&replay.bytes[replay.at..], out, out_len_max, world)
            } else if is_inline {
                let inline = std::mem::take(&mut self.inline);
                let step = self.step(&inline[self.inline_at..], out, out_len_max, world);
                self.inline = inline;
                step
            } else {
                // Done with an earlier one.
                self.inline.clear();
                self.inline_at = 0;
                self.step(&input[consumed..], out, out_len_max, world)
            };
            if let (Some(replay), Step::Done(len) | Step::Pending(len)) = (&mut replay, &step) {
                replay.at += len;
            }
            let is_replay = replay.is_some();
            // Also while its last command goes on by itself.
            let goes_on = self.goes_on();
            let is_left = |replay: &Replay| goes_on || replay.at < replay.bytes.len();
            if let Some(replay) = replay.filter(is_left) {
                self.replay = Some(replay);
            }
            let is_pending = matches!(step, Step::Pending(_));
            if !is_pending {
                world.conclude();
            }
            match step {
                Step::Done(len) | Step::Pending(len) => {
                    executed += len;
                    match (is_replay, is_inline) {
                        (true, _) => {}
                        (false, true) => self.inline_at += len,
                        (false, false) => consumed += len,
                    }
                    if is_pending {
                        break Wants::Operation;
                    }
                }
                Step::Input(needed) => break Wants::Input(needed),
                Step::Close => break Wants::Close,
                Step::Lost(error) => {
                    if !self.identity.mute.is_for_good() {
                        out.extend_from_slice(b"-ERR Protocol error: ");
                        error.put_words(out);
                        out.extend_from_slice(b"\r\n");
                    }
                    break Wants::Close;
                }
            }
        };
        if self.inline_at >= self.inline.len() {
            self.inline = Vec::new();
            self.inline_at = 0;
        }
        if wants == Wants::Close {
            consumed = input.len();
        }
        Driven { consumed, wants }
    }

    fn is_authenticated(&self) -> bool {
        self.identity.is_authenticated()
    }

    #[inline]
    fn key_ahead<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        parse::second_word(input)
    }

    fn is_bound(&self) -> bool {
        self.replay.is_some() || self.is_holding()
    }

    fn is_holding(&self) -> bool {
        let stretch = self.stretch.as_ref();
        stretch.is_some_and(|stretch| stretch.is_holding())
    }

    fn refuse_unfinished(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        let is_between = self.many.is_none() && self.inline.is_empty();
        let rest = match is_between && self.gathering.is_begun() {
            true => self.gathering.rest(input),
            false => None,
        };
        let Some(rest) = rest else {
            return false;
        };
        self.spoil();
        // It has come between two commands: this is one of its own.
        self.identity.mute.begin();
        if !self.identity.mute.is_on() {
            self.reply(out).fault(&Fault::Rejected(Rejection::NoMemory));
        }
        self.gathering = self.gathering.take().done();
        self.skip = rest;
        true
    }

    fn kept(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, Keys::kept);
        let script = self.script.as_ref().map_or(0, |run| run.kept());
        let answers = self.answers.as_ref().map_or(0, |answers| answers.kept());
        let keys = keys + answers;
        let parts = [self.gathering.kept(), self.transaction_kept(), keys, script];
        self.inline.capacity() + parts.iter().sum::<usize>()
    }
}
