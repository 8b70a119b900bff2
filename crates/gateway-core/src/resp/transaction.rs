//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! Commands are queued as the bytes that they came in. EXEC looks which keys they
//! touch, and executes them in one of three ways:
//!
//! | keys | how | others see |
//! |---|---|---|
//! | one | over a draft of the item, which is stored iff the item has not changed ([`DraftKeyspace`]) | all of it or nothing, everywhere |
//! | several, the store is in this process | at a stretch, all event loops standing still ([`Keyspace::isolate`]); if that takes long, in pieces, while nobody else does anything to these keys (`stretch`) | all of it or nothing, at this front door |
//! | the same, and it may take too long for that, by an estimate | one after another; refused if the operator wants strictness, or a key is watched | parts |
//! | several, any other cell | one after another, each by itself | parts; refused if the operator wants strictness, or a key is watched |
//!
//! A watch is the version that a key had. A version never comes back, so an equal one
//! means that nothing was stored since.

use super::answers::Answers;
use super::connection;
use super::describe;
use super::parse::{Part, bulk_len, count, number};
use super::reply::Reply;
use super::script_job::Queued;
use super::script_run::Run;
use super::stretch::Stretch;
use super::table::{Id, Spec, lookup};
use super::{RespSession, Step};
use crate::draft::{DraftKeyspace, DraftNotes};
use crate::keyspace::{
    Access, Decision, HOME_WORK, Keyspace, Pending, Ready as _, Updated, key_mark,
};
use crate::world::{Command, Ending, Isolation, Now, Progress, Role, Settings, World};
use std::collections::HashMap;
use trefoil_layout::Version;
use trefoil_layout::limits::KEY_LEN_MAX;

/// Most bytes of queued commands of one connection.
const QUEUE_LEN_MAX: usize = 32 << 20;
/// Most queued commands of one connection.
const COMMANDS_MAX: usize = 1 << 16;
/// Most keys that one connection watches.
const WATCHED_MAX: usize = 1024;
/// Keys and commands that are executed at a stretch: others stand still meanwhile.
pub(super) const STRETCH_OPERATIONS_MAX: usize = 4096;
/// Commands of one key whose answers, or values that are read and stored, are longer are
/// executed elsewhere, like a script: other connections wait meanwhile.
const ON_LOOP_LEN_MAX: usize = 128 << 10;
/// Commands, and their bytes, and by an estimate what they read, store and answer, that are
/// executed at a stretch while all others stand still. More of them are executed in pieces,
/// while others stand still that want the same keys: see `stretch`.
const STRETCH_COMMANDS_MAX: usize = 64;
const STRETCH_LEN_MAX: usize = 128 << 10;
/// Bytes that commands which are executed at once may read and store, and as many of
/// their answers: of a stretch by an estimate from above.
const AT_ONCE_LEN_MAX: usize = 64 << 20;
/// What a command about the server answers at most, in that estimate.
const REPORT_LEN: usize = 64 << 10;
/// What it takes, compared with values that are read: some tenths of a millisecond.
const REPORT_WORK_MAX: usize = 1 << 20;
/// What a command about the own connection answers and takes at most.
const CLIENT_LEN: usize = 4 << 10;
/// What each command answers beside values, and each key of it.
const ANSWER_HEAD_LEN: usize = 64;

const REFUSED: &str = "EXECABORT Transaction refused, nothing was applied:";

/// What a connection has queued since MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queue: Vec<u8>,
    commands: usize,
    /// Commands, and keys of those that have many.
    operations: usize,
    /// Some are scripts: those are executed elsewhere, and not at a stretch.
    has_scripts: bool,
    /// Some list all keys.
    lists_keys: bool,
    /// Some are about more than keys and the connection.
    is_about_more: bool,
    /// A command was refused when it was queued: nothing will be executed.
    is_spoilt: bool,
    /// It was refused for its length, which is yet to be said.
    owes_refusal: bool,
    /// That was said in the place of the answer to the command that is coming.
    is_answered: bool,
    /// The item over which the commands were executed last, by its version, and when:
    /// they come to the same if they are executed over it again.
    decided: Option<(Option<Version>, Now)>,
    /// Arguments of a command of many keys that are still to come, and bytes of the
    /// one that is coming.
    left: usize,
    bytes: usize,
}

/// Commands that are executed at once have come to more than they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

/// What commands that are executed at once may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtOnce {
    /// Bytes that they read and store.
    work: usize,
    /// Bytes of their answers: what one connection may keep, so that none is closed for
    /// an answer after all of it was applied.
    answers: usize,
}

impl AtOnce {
    /// The most.
    pub(super) fn of(settings: &Settings) -> Self {
        AtOnce {
            work: AT_ONCE_LEN_MAX,
            answers: AT_ONCE_LEN_MAX.min(settings.answer_len_max),
        }
    }

    /// As much as this of either.
    pub(super) fn room(len: usize) -> Self {
        AtOnce {
            work: len,
            answers: len,
        }
    }

    /// The same for something with less room for either.
    pub(super) fn up_to(self, len_max: usize) -> Self {
        AtOnce {
            work: self.work.min(len_max),
            answers: self.answers.min(len_max),
        }
    }

    /// Most bytes of answers.
    pub(super) fn answers_len_max(&self) -> usize {
        self.answers
    }

    /// What is said of more where nothing may come in between.
    pub(super) fn too_much_at_a_stretch(&self) -> String {
        format!(
            "{REFUSED} it may come to more than {} bytes of answers, or {} of values, \
             and cannot be executed at a stretch, under WATCH or with \
             --transactions strict",
            self.answers, self.work
        )
    }

    /// What is said of more.
    pub(super) fn too_much(&self) -> String {
        format!(
            "{REFUSED} more than {} bytes of answers, or {} of values that are read and stored",
            self.answers, self.work
        )
    }
}

/// What commands come to at most: see [`Estimating`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    work: usize,
    answers: usize,
}

impl Estimate {
    fn both(len: usize) -> Self {
        Estimate {
            work: len,
            answers: len,
        }
    }

    pub(super) fn fits(&self, at_once: &AtOnce) -> bool {
        self.work <= at_once.work && self.answers <= at_once.answers
    }
}

/// What commands come to at most, one after the other.
#[derive(Debug, Default)]
pub(super) struct Estimating {
    /// Lengths of values, by the marks of their keys.
    lens: HashMap<u64, usize>,
    pub(super) all: Estimate,
}

impl Estimating {
    /// Adds a command of so many bytes.
    pub(super) fn add(
        &mut self,
        words: &[&[u8]],
        len: usize,
        len_of: &mut dyn FnMut(&[u8]) -> usize,
        all_keys: Estimate,
    ) {
        let Estimating {
            lens,
            all: Estimate { work, answers },
        } = self;
        // Some answer their arguments.
        *work = work.saturating_add(len);
        let Some(spec) = words.first().and_then(|name| lookup(name)) else {
            *answers = answers.saturating_add(len + ANSWER_HEAD_LEN);
            return;
        };
        let (first, last, step) = spec.keys;
        if first == 0 {
            let more = match spec.id {
                Id::Keys => all_keys,
                Id::Scan => Estimate::both(super::scan::COME_TO_MAX),
                Id::Command => {
                    let (work, answers) = describe::comes_to_max(words);
                    Estimate { work, answers }
                }
                _ if is_plain_in_draft(spec) => Estimate::both(ANSWER_HEAD_LEN),
                // A second one is too much: each writes to every bucket.
                Id::FlushAll | Id::FlushDb => Estimate {
                    work: AT_ONCE_LEN_MAX / 2,
                    answers: ANSWER_HEAD_LEN,
                },
                Id::Client if connection::is_about_all(words) => Estimate::both(AT_ONCE_LEN_MAX),
                Id::Client => Estimate::both(CLIENT_LEN),
                _ => Estimate {
                    work: REPORT_WORK_MAX,
                    answers: REPORT_LEN,
                },
            };
            *work = work.saturating_add(more.work);
            *answers = answers.saturating_add(len).saturating_add(more.answers);
            return;
        }
        let (first, step) = (first as usize, step as usize);
        let last = match last {
            -1 => words.len() - 1,
            last => last as usize,
        };
        *answers = answers.saturating_add(ANSWER_HEAD_LEN);
        // What it stores takes the place of what was there.
        let replaces = matches!(
            spec.id,
            Id::Set | Id::SetEx | Id::PSetEx | Id::SetNx | Id::GetSet | Id::MSet | Id::MSetNx
        );
        for index in (first..words.len().min(last + 1)).step_by(step) {
            let key = words[index];
            let len = lens.entry(key_mark(key)).or_insert_with(|| len_of(key));
            *work = work.saturating_add(*len);
            // SET answers the value before it if an option says so.
            let is_plain_set = spec.id == Id::Set && words.len() == 3;
            let of_value = match spec.answers_values() && !is_plain_set {
                true => *len,
                false => 0,
            };
            *answers = answers.saturating_add(of_value + ANSWER_HEAD_LEN);
            if spec.role() > Role::Read {
                let given = match step {
                    1 => &words[index + 1..],
                    // One of several pairs.
                    _ => &words[index + 1..words.len().min(index + step)],
                };
                let given = match spec.id {
                    Id::Del | Id::Unlink => 0,
                    // Room for a number.
                    _ => given.iter().map(|word| word.len()).sum::<usize>() + 32,
                };
                let reach = match spec.id {
                    Id::SetRange => words.get(2).and_then(|word| number(word)),
                    _ => None,
                };
                let reach = reach.and_then(|reach| usize::try_from(reach).ok());
                *len = match replaces {
                    // It may also stay as it is.
                    true => (*len).max(given),
                    false => (*len).max(reach.unwrap_or(0)).saturating_add(given),
                };
                *work = work.saturating_add(*len);
            }
        }
        if spec.is_together()
            && let [_, from, to, ..] = *words
            && step == 1
        {
            // What is under the first key may stand under the other one.
            let len = lens.get(&key_mark(from)).copied().unwrap_or_default();
            let there = lens.entry(key_mark(to)).or_default();
            *there = (*there).max(len);
            *work = work.saturating_add(len.saturating_mul(2));
        }
    }
}

/// Where commands of one key are executed.
enum Place {
    /// They have been.
    Here,
    /// They take too long for the event loop.
    Elsewhere,
}

/// A key whose version was taken.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) key: Box<[u8]>,
    version: Option<Version>,
}

/// Commands of a transaction that are being executed one after another.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) bytes: Vec<u8>,
    pub(super) at: usize,
}

/// Keys that a transaction touches.
#[derive(Debug, PartialEq, Eq)]
enum Touched<'a> {
    None,
    One(&'a [u8]),
    Several,
}

impl<'a> Touched<'a> {
    fn add(self, key: &'a [u8]) -> Self {
        match self {
            Touched::None => Touched::One(key),
            Touched::One(known) if known == key => Touched::One(known),
            _ => Touched::Several,
        }
    }
}

impl Transaction {
    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        self.queue.capacity()
    }

    /// A command was refused.
    pub(super) fn spoil(&mut self) {
        self.is_spoilt = true;
        self.queue = Vec::new();
    }

    /// Whether the rest of a command of many keys is still to come.
    pub(super) fn is_taking(&self) -> bool {
        self.left > 0 || self.bytes > 0
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.is_spoilt {
            return;
        }
        if self.queue.len() + bytes.len() > QUEUE_LEN_MAX || self.commands > COMMANDS_MAX {
            self.spoil();
            self.owes_refusal = true;
            return;
        }
        self.queue.extend_from_slice(bytes);
    }

    /// Queues a whole command of so many arguments, its name among them, and answers.
    pub(super) fn queue(
        &mut self,
        bytes: &[u8],
        spec: &Spec,
        argument_count: usize,
        reply: &mut Reply<'_>,
    ) {
        self.note(spec, argument_count);
        self.push(bytes);
        self.answer(reply);
    }

    /// Begins to queue such a command, of which so many bytes are missing. It goes on as one
    /// of many keys does.
    pub(super) fn begin_long(
        &mut self,
        begin: &[u8],
        spec: &Spec,
        argument_count: usize,
        missing: usize,
    ) {
        self.note(spec, argument_count);
        self.bytes = missing;
        self.push(begin);
    }

    fn note(&mut self, spec: &Spec, argument_count: usize) {
        self.has_scripts |= spec.runs_elsewhere();
        self.lists_keys |= spec.id == Id::Keys;
        self.is_about_more |= !is_plain_in_draft(spec);
        self.commands += 1;
        self.operations += match spec.id {
            Id::MSetNx => (argument_count.saturating_sub(1) / 2).max(1),
            Id::Copy | Id::Rename | Id::RenameNx => 2,
            _ => 1,
        };
    }

    /// Whether it takes too long to keep everybody waiting, for all that is known without
    /// a look at items.
    fn is_to_be_cut(&self) -> bool {
        let is_long = self.operations > STRETCH_COMMANDS_MAX || self.queue.len() > STRETCH_LEN_MAX;
        is_long && !self.is_about_more
    }

    fn answer(&mut self, reply: &mut Reply<'_>) {
        match std::mem::take(&mut self.owes_refusal) {
            true => reply.error(format!(
                "ERR a transaction has at most {COMMANDS_MAX} commands and {QUEUE_LEN_MAX} bytes"
            )),
            false => reply.simple("QUEUED"),
        }
    }

    /// Begins to queue a command of many keys, with the bytes up to those.
    pub(super) fn begin_many(&mut self, spec: &Spec, head: &[u8], count: usize) {
        self.commands += 1;
        self.operations += count / spec.keys.2 as usize;
        self.left = count;
        self.push(head);
    }

    /// Goes on with that: see [`RespSession::step`].
    pub(super) fn step(&mut self, input: &[u8], reply: &mut Reply<'_>) -> Step {
        let len = if self.bytes > 0 {
            let len = self.bytes.min(input.len());
            self.bytes -= len;
            len
        } else {
            match bulk_len(input, true) {
                Part::Incomplete => return Step::Input(0),
                Part::Bad(error) => return Step::Lost(error),
                Part::Whole((len, line_len)) => {
                    self.left -= 1;
                    self.bytes = len + 2;
                    line_len
                }
            }
        };
        self.push(&input[..len]);
        if self.owes_refusal {
            // Said once, in the place of the command's answer.
            self.answer(reply);
            self.is_answered = true;
        }
        if !self.is_taking() && !std::mem::take(&mut self.is_answered) {
            self.answer(reply);
        }
        Step::Done(len)
    }

    /// What it comes to at most, if the values under keys have these lengths now, and a
    /// list of all keys comes to that.
    fn estimate(&self, len_of: &mut dyn FnMut(&[u8]) -> usize, all_keys: Estimate) -> Estimate {
        let mut estimating = Estimating::default();
        let mut at = 0;
        while let Some((words, end)) = arguments(&self.queue, at) {
            estimating.add(&words, end - at, len_of, all_keys);
            at = end;
        }
        estimating.all
    }

    /// The commands that were queued, and how many.
    pub(super) fn into_commands(self) -> (Vec<u8>, usize) {
        (self.queue, self.commands)
    }

    /// The keys that it touches; `false`: it also has commands that are about more
    /// than keys and the connection.
    fn touched(&self) -> (Touched<'_>, bool) {
        let mut touched = Touched::None;
        let mut is_plain = true;
        let mut at = 0;
        while let Some((arguments, end)) = arguments(&self.queue, at) {
            let spec = arguments.first().and_then(|name| lookup(name));
            if let Some(spec) = spec {
                is_plain &= is_plain_in_draft(spec);
                let (first, last, step) = spec.keys;
                let last = match last {
                    -1 => arguments.len() - 1,
                    last => last as usize,
                };
                let keys = arguments.iter().take(last + 1).skip(first as usize);
                if first > 0 {
                    for key in keys.step_by(step as usize) {
                        touched = touched.add(key);
                    }
                }
            }
            if touched == Touched::Several {
                break;
            }
            at = end;
        }
        (touched, is_plain)
    }
}

/// Whether a command needs nothing but its keys, the time and the connection.
fn is_plain_in_draft(spec: &Spec) -> bool {
    spec.keys.0 > 0
        || matches!(
            spec.id,
            Id::Ping | Id::Echo | Id::Select | Id::Time | Id::Unwatch
        )
}

/// Whether all watched keys have the versions that they had.
pub(super) fn are_unchanged<K: Keyspace>(watched: &[Watched], world: &mut World<'_, K>) -> bool {
    watched.iter().all(|watched| {
        let mut version = None;
        let read = world.keyspace.get(&watched.key, Access::Peek, &mut |item| {
            version = item.map(|item| item.version);
        });
        read.is_ok() && version == watched.version
    })
}

/// See [`Estimating`].
fn estimate<K: Keyspace>(open: &Transaction, world: &mut World<'_, K>) -> Estimate {
    let all_keys =
        match open.lists_keys && world.keyspace.isolates() {
            true => world.keyspace.totals().map_or(
                Estimate::both(super::keys::ANSWER_LEN_MAX),
                |totals| Estimate {
                    work: ((totals.items + totals.index_buckets) * HOME_WORK) as usize,
                    answers: totals.entry_bytes as usize,
                },
            ),
            false => Estimate::both(super::keys::ANSWER_LEN_MAX),
        };
    open.estimate(&mut |key| len_of(key, world.keyspace), all_keys)
}

/// The length of what is under a key.
pub(super) fn len_of<K: Keyspace>(key: &[u8], keyspace: &mut K) -> usize {
    let mut len = 0;
    // What cannot be read is not answered either.
    let _ = keyspace.get(key, Access::Peek, &mut |item| {
        len = item.map_or(0, |item| item.value.len());
    });
    len
}

/// The arguments of the whole command at this place, and where the next one begins.
pub(super) fn arguments(queue: &[u8], at: usize) -> Option<(Vec<&[u8]>, usize)> {
    let Part::Whole((count, len)) = count(queue.get(at..)?, true) else {
        return None;
    };
    let mut at = at + len;
    let mut found = Vec::new();
    for _ in 0..count {
        let Part::Whole((len, line_len)) = bulk_len(queue.get(at..)?, true) else {
            return None;
        };
        found.push(queue.get(at + line_len..at + line_len + len)?);
        at += line_len + len + 2;
    }
    Some((found, at))
}

impl RespSession {
    /// Bytes that transactions keep.
    pub(super) fn transaction_kept(&self) -> usize {
        let queued = self.transaction.as_ref().map_or(0, |open| open.kept());
        let replayed = self
            .replay
            .as_ref()
            .map_or(0, |replay| replay.bytes.capacity());
        let watched = self
            .watched
            .iter()
            .map(|watched| watched.key.len() + size_of::<Watched>());
        let stretch = self.stretch.as_ref().map_or(0, |stretch| stretch.kept());
        queued + replayed + stretch + watched.sum::<usize>()
    }

    /// MULTI.
    pub(super) fn multi(&mut self, reply: &mut Reply<'_>) {
        if self.transaction.is_some() {
            return reply.error("ERR MULTI calls can not be nested");
        }
        self.transaction = Some(Box::default());
        reply.simple("OK");
    }

    /// DISCARD.
    pub(super) fn discard(&mut self, reply: &mut Reply<'_>) {
        if self.transaction.take().is_none() {
            return reply.error("ERR DISCARD without MULTI");
        }
        self.watched.clear();
        reply.simple("OK");
    }

    /// UNWATCH.
    pub(super) fn unwatch(&mut self, reply: &mut Reply<'_>) {
        self.watched.clear();
        reply.simple("OK");
    }

    /// Takes note of a key's version; a key that is watched already keeps the first
    /// one. `false`: there are too many.
    pub(super) fn watch(&mut self, key: &[u8], version: Option<Version>) -> bool {
        if self.watched.iter().any(|watched| *watched.key == *key) {
            return true;
        }
        if self.watched.len() >= WATCHED_MAX {
            return false;
        }
        self.watched.push(Watched {
            key: key.into(),
            version,
        });
        true
    }

    /// EXEC with arguments: the transaction is gone.
    pub(super) fn exec_wrong_arity(&mut self, reply: &mut Reply<'_>) {
        self.transaction = None;
        self.watched.clear();
        reply.error(
            "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' \
             command",
        );
    }

    /// EXEC. Until it is done the transaction stays: the same EXEC may be executed
    /// again.
    pub(super) fn exec<K: Keyspace>(
        &mut self,
        len: usize,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<Step, Pending> {
        let Some(mut open) = self.transaction.take() else {
            self.reply(out).error("ERR EXEC without MULTI");
            return Ok(Step::Done(len));
        };
        if open.is_spoilt {
            self.watched.clear();
            self.reply(out)
                .error("EXECABORT Transaction discarded because of previous errors.");
            return Ok(Step::Done(len));
        }
        let (mut touched, is_plain) = open.touched();
        for watched in &self.watched {
            touched = touched.add(&watched.key);
        }
        let is_strict = world.settings.transactions == Isolation::Strict;
        let is_long = open.operations > STRETCH_OPERATIONS_MAX;
        // Nothing may come in between, or nothing is executed at all.
        let is_held = is_strict || !self.watched.is_empty();
        let isolates = world.keyspace.isolates() && !open.has_scripts;
        match touched {
            // Nothing to wait for, nothing to be seen.
            Touched::None if is_plain => self.begin_replay(*open, out),
            // There is no item of such a key, and there never was: commands say so.
            Touched::One(key) if is_plain && !(1..=KEY_LEN_MAX).contains(&key.len()) => {
                match self.watched.iter().all(|watched| watched.version.is_none()) {
                    true => self.begin_replay(*open, out),
                    false => self.reply(out).null_array(),
                }
            }
            Touched::One(key) if is_plain => {
                let key = key.to_vec();
                match self.exec_one_key(&key, &mut open, out, world) {
                    Err(Pending) => {
                        self.transaction = Some(open);
                        return Err(Pending);
                    }
                    Ok(Place::Here) => {}
                    Ok(Place::Elsewhere) => {
                        let queued = Queued {
                            count: open.commands,
                            bytes: open.queue,
                            watched: self.watched.first().map(|watched| watched.version),
                        };
                        self.script = Some(Run::of_queued(key, queued, world.now));
                    }
                }
            }
            _ if isolates && !is_long && open.is_to_be_cut() => {
                let watched = std::mem::take(&mut self.watched);
                self.stretch = Some(Stretch::of(*open, watched, is_held));
            }
            _ if isolates && !is_long => {
                let at_once = AtOnce::of(world.settings);
                if let Err(Pending) = world.keyspace.isolate() {
                    self.transaction = Some(open);
                    return Err(Pending);
                }
                let may_be_cut = !open.is_about_more;
                let is_unchanged = are_unchanged(&self.watched, world);
                let estimate = is_unchanged.then(|| estimate(&open, world));
                let is_short = |of: &Estimate| of.fits(&AtOnce::room(STRETCH_LEN_MAX));
                if !is_unchanged {
                    self.reply(out).null_array();
                } else if may_be_cut && !estimate.is_some_and(|of| is_short(&of)) {
                    let watched = std::mem::take(&mut self.watched);
                    self.stretch = Some(Stretch::of(*open, watched, is_held));
                } else if estimate.is_some_and(|of| of.fits(&at_once)) {
                    let mark = out.len();
                    self.begin_replay(*open, out);
                    self.stretch(mark, at_once, out, world);
                } else if is_held {
                    self.reply(out).error(at_once.too_much_at_a_stretch());
                } else {
                    self.begin_replay(*open, out);
                }
                world.keyspace.end_isolation();
            }
            _ if isolates && !is_held => self.begin_replay(*open, out),
            _ if isolates => self.reply(out).error(format!(
                "{REFUSED} more than {STRETCH_OPERATIONS_MAX} keys or commands cannot be \
                 executed at a stretch, under WATCH or with --transactions strict"
            )),
            _ if !self.watched.is_empty() => self.reply(out).error(format!(
                "{REFUSED} before a replicated cell, or with scripts, a transaction under WATCH \
                 is about one key, the watched one"
            )),
            _ if is_strict => self.reply(out).error(format!(
                "{REFUSED} before a replicated cell, or with scripts, a transaction is atomic \
                 for one key only, and --transactions is strict"
            )),
            _ => self.begin_replay(*open, out),
        }
        self.watched.clear();
        Ok(Step::Done(len))
    }

    /// Has the commands executed one after another.
    fn begin_replay(&mut self, open: Transaction, out: &mut Vec<u8>) {
        let (bytes, commands) = open.into_commands();
        self.begin_replay_of(bytes, commands, out);
    }

    pub(super) fn begin_replay_of(&mut self, bytes: Vec<u8>, commands: usize, out: &mut Vec<u8>) {
        self.reply(out).array(commands);
        if commands > 0 {
            self.replay = Some(Replay { bytes, at: 0 });
        }
    }

    /// Executes the commands that are being replayed, at a stretch: all of them.
    /// What is answered begins at this place.
    fn stretch<K: Keyspace>(
        &mut self,
        mark: usize,
        at_once: AtOnce,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) {
        (self.is_alone, self.is_replaying) = (true, true);
        if self.identity.mute.is_on() {
            // The head, too: one of the commands may want answers from then on.
            out.truncate(mark);
        }
        let len_max = at_once.answers.saturating_add(ANSWER_HEAD_LEN);
        self.execute_alone(mark.saturating_add(len_max), out, world);
        (self.is_alone, self.is_replaying) = (false, false);
    }

    /// The output does not grow beyond this but for one answer: what an estimate has
    /// missed is executed one after another, once others have had their turn.
    fn execute_alone<K: Keyspace>(
        &mut self,
        out_len_max: usize,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) {
        while let Some(mut replay) = self.replay.take() {
            if out.len() > out_len_max {
                debug_assert!(false, "a stretch answers more than was estimated");
                self.replay = Some(replay);
                return;
            }
            let step = self.step(&replay.bytes[replay.at..], out, out_len_max, world);
            let is_done = match step {
                Step::Done(len) => {
                    world.conclude();
                    replay.at += len;
                    replay.at >= replay.bytes.len() && self.keys.is_none()
                }
                Step::Pending(len) => {
                    // A keyspace that isolates is always ready.
                    debug_assert!(false, "pending at a stretch");
                    replay.at += len;
                    self.replay = Some(replay);
                    return;
                }
                // What was queued was whole.
                Step::Input(_) | Step::Lost(_) | Step::Close => true,
            };
            if is_done {
                return;
            }
            self.replay = Some(replay);
        }
    }

    /// Executes commands of one key, unless that takes long: see the module.
    fn exec_one_key<K: Keyspace>(
        &mut self,
        key: &[u8],
        open: &mut Transaction,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<Place, Pending> {
        let most = AtOnce::of(world.settings);
        let at_once = match world.observer.scripts() {
            Some(_) => most.up_to(ON_LOOP_LEN_MAX),
            None => most,
        };
        let watched = self.watched.first().map(|watched| watched.version);
        let value_len_max = world.keyspace.value_len_max();
        let (settings, connection) = (world.settings, world.connection);
        let attempt_now = world.next_now;
        let mut answers = Answers::default();
        let mut notes = DraftNotes::default();
        let (mut is_stale, mut is_used) = (false, false);
        let (mut executed, mut work) = (Ok(()), 0);
        let identity = &self.identity;
        let Transaction {
            queue,
            commands,
            decided,
            ..
        } = open;
        let updated = world.keyspace.update_apart(key, &mut |item, scratch| {
            answers.clear();
            notes.clear();
            let version = item.map(|item| item.version);
            is_stale = watched.is_some_and(|watched| watched != version);
            // The time of the attempt: expiries count from it.
            let now = match *decided {
                // Of nothing there are no versions to tell.
                Some((before, now)) if before == version && version.is_some() => now,
                _ => attempt_now,
            };
            *decided = Some((version, now));
            let mut draft = DraftKeyspace::new(key, item, now.unix_ms, value_len_max);
            if !is_stale {
                let mut session = RespSession {
                    identity: identity.for_draft(),
                    ..RespSession::default()
                };
                session.reply(answers.tail()).array(*commands);
                let mut world = World {
                    keyspace: &mut draft,
                    observer: &mut notes,
                    settings,
                    now,
                    next_now: now,
                    progress: Progress::Begun,
                    connection,
                };
                executed = session.execute_all(queue, &mut answers, at_once, &mut world);
            }
            work += draft.work();
            is_used = draft.is_used();
            match executed {
                Ok(()) => draft.decision(scratch),
                Err(TooMuch) => Decision::Keep,
            }
        });
        world.keyspace.charge(work);
        match updated.ready()? {
            Ok(_) if is_stale => self.reply(out).null_array(),
            Ok(_) if executed.is_err() && at_once != most => {
                return Ok(Place::Elsewhere);
            }
            Ok(_) if executed.is_err() => self.reply(out).error(most.too_much()),
            Ok(updated) => {
                out.extend_from_slice(&answers.into_bytes());
                notes.tell(key, world.observer);
                if updated == Updated::Kept && is_used {
                    // It counts as used: by a request of its own, for this one has had
                    // its operation.
                    self.script = Some(Run::of_use(key.to_vec(), world.now));
                }
            }
            Err(fault) => {
                self.reply(out).fault(&fault);
                world.observer.done(&crate::world::Done {
                    command: Command::Other,
                    ending: Ending::ServerError,
                    key,
                    value_len: 0,
                });
            }
        }
        Ok(Place::Here)
    }

    /// Executes whole commands over a keyspace that is always ready, as far as they come
    /// to no more than this: one value beyond that is noticed, two are not kept.
    pub(super) fn execute_all<K: Keyspace>(
        &mut self,
        commands: &[u8],
        answers: &mut Answers,
        at_once: AtOnce,
        world: &mut World<'_, K>,
    ) -> Result<(), TooMuch> {
        let (mut at, began) = (0, world.keyspace.work());
        let len_max = answers.len().saturating_add(at_once.answers);
        while at < commands.len() {
            let out = answers.tail();
            match self.step(&commands[at..], out, len_max, world) {
                Step::Done(len) => at += len,
                _ => {
                    debug_assert!(false, "what is executed at once is whole and ready");
                    return Ok(());
                }
            }
            world.conclude();
            answers.cut();
            let work = world.keyspace.work().wrapping_sub(began);
            if answers.len() > len_max || work > at_once.work as u64 {
                return Err(TooMuch);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(lines: &[&str]) -> Transaction {
        let mut open = Transaction::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let argument_count = words.len();
            let mut bytes = format!("*{argument_count}\r\n");
            for word in words {
                bytes += &format!("${}\r\n{word}\r\n", word.len());
            }
            let mut out = Vec::new();
            let mut reply = Reply {
                out: &mut out,
                is_resp3: false,
            };
            let name = line.split(' ').next().unwrap_or_default();
            let spec = lookup(name.as_bytes()).expect("a command");
            open.queue(bytes.as_bytes(), spec, argument_count, &mut reply);
            assert_eq!(out, b"+QUEUED\r\n");
        }
        open
    }

    #[test]
    fn commands_that_are_told_of_count_by_their_names() {
        let names = |count| format!("COMMAND INFO{}", " client".repeat(count));
        let estimate = |line: &str| {
            let all_keys = Estimate::default();
            transaction(&[line; 100]).estimate(&mut |_| 0, all_keys)
        };
        let at_once = AtOnce::room(AT_ONCE_LEN_MAX);
        assert!(estimate("COMMAND").fits(&at_once));
        assert!(estimate(&names(10)).fits(&at_once));
        assert!(!estimate(&names(256)).fits(&at_once));
    }

    #[test]
    fn what_takes_long_is_not_executed_at_a_stretch() {
        let fits = |line: &str, count| {
            let lines = vec![line; count];
            let estimate = transaction(&lines).estimate(&mut |_| 0, Estimate::default());
            estimate.fits(&AtOnce::room(AT_ONCE_LEN_MAX))
        };
        for line in [
            "PING",
            "ECHO a",
            "SELECT 0",
            "CLIENT ID",
            "CLIENT INFO",
            "CLIENT GETNAME",
            "CLIENT SETNAME a",
            "CLIENT SETINFO lib-name a",
        ] {
            assert!(fits(line, 1000), "{line}");
        }
        assert!(fits("INFO", 20) && !fits("INFO", 100));
        assert!(fits("FLUSHALL", 1) && !fits("FLUSHALL", 2));
        assert!(fits("FLUSHDB", 1) && !fits("FLUSHDB", 2));
        // As many lines, or looks, as there are connections.
        assert!(!fits("CLIENT LIST", 1) && !fits("client list ID 1", 1));
        assert!(!fits("CLIENT KILL USER a", 1));
    }

    #[test]
    fn keys_that_are_touched() {
        let cases: [(&[&str], _, bool); 10] = [
            (&[], Touched::None, true),
            (&["PING", "TIME"], Touched::None, true),
            (&["DBSIZE"], Touched::None, false),
            (&["SET a 1", "INCR a", "PING"], Touched::One(b"a"), true),
            (&["MSET a 1 a 2", "DEL a a"], Touched::One(b"a"), true),
            (&["SET a 1", "FLUSHALL"], Touched::One(b"a"), false),
            (&["MSET a 1 b 2"], Touched::Several, true),
            (&["RENAME a a", "MSETNX a 1"], Touched::One(b"a"), true),
            (&["COPY a b"], Touched::Several, true),
            (&["GET a", "GET b"], Touched::Several, true),
        ];
        for (lines, touched, is_plain) in cases {
            assert_eq!(
                transaction(lines).touched(),
                (touched, is_plain),
                "{lines:?}"
            );
        }
    }
}
