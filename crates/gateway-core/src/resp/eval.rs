//! EVAL, EVALSHA, SCRIPT: programs that clients send, over one item. Functions
//! (`function`) are executed in the same way.
//!
//! The item is read; the script is executed over a draft of it, elsewhere
//! ([`Scripts`]), while the connection is parked; what it leaves is stored iff the item
//! has not changed, else all of that again. So a script is atomic for its key on any
//! cell, and one that fails stores nothing.
//!
//! A long transaction on one key is executed in the same way (`transaction`): its
//! commands take the place of the script.
//!
//! | stage | waits for | then |
//! |---|---|---|
//! | `Read` | the item | `Running`, or `Changed` if it was watched and has changed |
//! | `Running` | the script | `Commit`, or the answer if nothing has changed |
//! | `Commit` | the store | the answer, or `Read` if somebody was faster |
//! | `Use` | a read that counts as a use | nothing: its answer has been given |
//!
//! Time is told to a script when its thread begins with it, not when it was sent: what it
//! stores with an expiry lives as long as it says.

use super::execute::Call;
use super::function::{Function, Libraries, LoadedLibrary, library_of};
use super::parse::{Part, bulk_len, count, number};
use super::reply::{NOT_AN_INTEGER, Reply};
use super::sha1::{Digest, from_hex, hex, sha1};
use super::shebang::Shebang;
use super::table::{Id, lookup};
use super::together::key_fault;
use super::transaction::{AtOnce, TooMuch};
use super::{RespSession, Step};
use crate::deferred::OwnedItem;
use crate::draft::{DraftKeyspace, DraftNotes};
use crate::keyspace::{Access, Decision, Fault, Keyspace, Pending, Ready as _};
use crate::world::{Now, Progress, Role, Settings, World};
use std::sync::Arc;
use trefoil_layout::Version;

/// Longest script, in bytes.
pub(super) const SOURCE_LEN_MAX: usize = 256 << 10;
/// Bytes that a script may have, and as many for what it has executed and answers.
pub const SCRIPT_MEMORY_MAX: usize = 32 << 20;
/// Processor time that a script has, in milliseconds.
pub const SCRIPT_TIME_MS_MAX: u64 = 250;
/// How long a script is tried again while others change its item, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

pub(super) const NOT_HERE: &str = "ERR scripts are not available here";

/// What a script is told, and tells.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptValue {
    /// Null.
    Nil,
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// `OK` and its like.
    Status(Vec<u8>),
    /// An error, with its code.
    Error(Vec<u8>),
    /// Several.
    Array(Vec<ScriptValue>),
}

impl ScriptValue {
    fn put(&self, reply: &mut Reply<'_>) {
        match self {
            ScriptValue::Nil => reply.null(),
            ScriptValue::Integer(number) => reply.integer(*number),
            ScriptValue::Bulk(bytes) => reply.bulk(bytes),
            ScriptValue::Error(words) => reply.error(words),
            ScriptValue::Status(words) => {
                let one_line = |byte: &u8| !matches!(byte, b'\r' | b'\n');
                let words: Vec<u8> = words.iter().copied().filter(one_line).collect();
                reply.out.push(b'+');
                reply.out.extend_from_slice(&words);
                reply.out.extend_from_slice(b"\r\n");
            }
            ScriptValue::Array(values) => {
                reply.array(values.len());
                values.iter().for_each(|value| value.put(reply));
            }
        }
    }

    /// Bytes of the answer, about.
    fn len(&self) -> usize {
        /// A letter, a number, and ends of lines.
        const HEAD_LEN: usize = 24;
        HEAD_LEN
            + match self {
                ScriptValue::Nil | ScriptValue::Integer(_) => 0,
                ScriptValue::Bulk(bytes)
                | ScriptValue::Status(bytes)
                | ScriptValue::Error(bytes) => bytes.len(),
                ScriptValue::Array(values) => values.iter().map(ScriptValue::len).sum(),
            }
    }

    /// The answer at the front of these bytes, in the second version of the protocol,
    /// and its length.
    fn parse(bytes: &[u8]) -> Option<(ScriptValue, usize)> {
        let end = memchr::memchr(b'\n', bytes)?;
        let line = bytes.get(1..end)?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let after = end + 1;
        Some(match bytes.first()? {
            b'+' => (ScriptValue::Status(line.to_vec()), after),
            b'-' => (ScriptValue::Error(line.to_vec()), after),
            b':' => (ScriptValue::Integer(number(line)?), after),
            b'$' if line == b"-1" => (ScriptValue::Nil, after),
            b'$' => {
                let Part::Whole((len, _)) = bulk_len(bytes, true) else {
                    return None;
                };
                let value = bytes.get(after..after + len)?.to_vec();
                (ScriptValue::Bulk(value), after + len + 2)
            }
            b'*' if line == b"-1" => (ScriptValue::Nil, after),
            b'*' => {
                let Part::Whole((count, _)) = count(bytes, true) else {
                    return None;
                };
                let (mut values, mut at) = (Vec::new(), after);
                for _ in 0..count {
                    let (value, len) = ScriptValue::parse(bytes.get(at..)?)?;
                    values.push(value);
                    at += len;
                }
                (ScriptValue::Array(values), at)
            }
            _ => return None,
        })
    }
}

/// What a script's commands are executed over.
#[derive(Debug)]
pub struct ScriptContext {
    key: Option<Vec<u8>>,
    draft: DraftKeyspace,
    notes: DraftNotes,
    session: RespSession,
    settings: Settings,
    now: Now,
    connection: u64,
    /// Whether commands that write are refused.
    is_read_only: bool,
}

impl ScriptContext {
    /// Executes the commands of a transaction; all their answers.
    fn execute(&mut self, queued: &Queued) -> Result<Vec<u8>, TooMuch> {
        let mut out = Vec::new();
        self.session.reply(&mut out).array(queued.count);
        let mut world = World {
            keyspace: &mut self.draft,
            observer: &mut self.notes,
            settings: &self.settings,
            now: self.now,
            next_now: self.now,
            progress: Progress::Begun,
            connection: self.connection,
        };
        let at_once = AtOnce::of(&self.settings);
        self.session
            .execute_all(&queued.bytes, &mut out, at_once, &mut world)?;
        Ok(out)
    }

    /// Bytes that are left for the words of a command, its answer, or that of the
    /// script: they are not in the script's own memory.
    pub fn room(&self) -> usize {
        SCRIPT_MEMORY_MAX.saturating_sub(self.notes.kept())
    }

    /// Executes one command, whose words fit in [`ScriptContext::room`].
    pub fn call(&mut self, words: &[Vec<u8>]) -> ScriptValue {
        let error = |words: &str| ScriptValue::Error(words.as_bytes().to_vec());
        let Some(name) = words.first() else {
            return error("ERR Please specify at least one argument for this redis lib call");
        };
        let Some(spec) = lookup(name) else {
            return match super::absent::kind_of(name) {
                Some(kind) => ScriptValue::Error(super::absent::words(name, kind)),
                None => error("ERR Unknown Redis command called from script"),
            };
        };
        let is_of_keys = spec.keys.0 > 0 && spec.id != Id::Watch;
        if !is_of_keys && !matches!(spec.id, Id::Ping | Id::Echo | Id::Time) {
            return error("ERR This Redis command is not allowed from script");
        }
        if self.is_read_only && spec.role() > Role::Read {
            return error("ERR Write commands are not allowed from read-only scripts.");
        }
        if !spec.takes(words.len()) {
            return error("ERR Wrong number of args calling Redis command from script");
        }
        if is_of_keys {
            let (first, last, step) = spec.keys;
            let last = match last {
                -1 => words.len() - 1,
                last => last as usize,
            };
            let mut keys = words.iter().take(last + 1).skip(first as usize);
            if !keys
                .by_ref()
                .step_by(step as usize)
                .all(|key| Some(key) == self.key.as_ref())
            {
                return error(
                    "ERR Script attempted to access a key that is not the one in KEYS: \
                     it is executed over that item",
                );
            }
        }
        let at_once = AtOnce::room(self.room());
        let mut bytes = Vec::new();
        let mut request = Reply {
            out: &mut bytes,
            is_resp3: false,
        };
        request.array(words.len());
        words.iter().for_each(|word| request.bulk(word));
        let mut world = World {
            keyspace: &mut self.draft,
            observer: &mut self.notes,
            settings: &self.settings,
            now: self.now,
            next_now: self.now,
            progress: Progress::Begun,
            connection: self.connection,
        };
        let mut out = Vec::new();
        let executed = self
            .session
            .execute_all(&bytes, &mut out, at_once, &mut world);
        if executed.is_err() {
            return error("ERR the answer is too long for a script");
        }
        let answer = ScriptValue::parse(&out);
        answer.map_or_else(|| error("ERR no answer"), |(answer, _)| answer)
    }
}

/// What is to be done with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// It is a script, to be executed.
    Script,
    /// It is a script, to be compiled and no more.
    Load,
    /// It is a library, to be executed for what it registers.
    Library,
    /// It is a library, of which the function is to be executed that the job is named after.
    Function,
}

/// A script to be executed, and then what it came to.
#[derive(Debug)]
pub struct ScriptJob {
    /// The program.
    pub source: Arc<[u8]>,
    /// Its digest, in hexadecimal; of a function its name.
    pub hash: String,
    /// What is to be done with it.
    pub kind: JobKind,
    /// Functions that it has registered: see [`ScriptJob::register`].
    functions: Vec<Function>,
    /// KEYS.
    pub keys: Vec<Vec<u8>>,
    /// ARGV.
    pub arguments: Vec<Vec<u8>>,
    /// What `redis.call` is about.
    pub context: ScriptContext,
    /// What it has answered. `Err`: it has failed, and nothing of it is stored.
    pub answer: Option<Result<ScriptValue, Vec<u8>>>,
    /// It was found to be a program.
    pub is_compiled: bool,
    /// Where the program begins in its source.
    program_at: usize,
    /// In the place of the program: commands that were queued, and their answers.
    queued: Option<Arc<Queued>>,
    answers: Option<Result<Vec<u8>, TooMuch>>,
}

impl ScriptJob {
    /// The program, without a first line that says what it is.
    pub fn program(&self) -> &[u8] {
        self.source.get(self.program_at..).unwrap_or_default()
    }

    /// The program has registered a function; an error that it is told.
    pub fn register(&mut self, function: Function) -> Result<(), &'static str> {
        super::function::register(&mut self.functions, function)
    }

    /// Whether its program has registered any.
    pub fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    /// Whether it is a program, and not commands that were queued.
    pub fn is_program(&self) -> bool {
        self.queued.is_none()
    }

    /// Its thread begins with it: this is the time of all that it does.
    pub fn begin_at(&mut self, now: Now) {
        self.context.now = now;
        self.context.draft.set_now(now.unix_ms);
    }

    /// Bytes of its answer, or of those of a transaction.
    fn answers_len(&self) -> usize {
        let answer = match &self.answer {
            Some(Ok(answer)) => answer.len(),
            _ => 0,
        };
        let answers = match &self.answers {
            Some(Ok(answers)) => answers.capacity(),
            _ => 0,
        };
        answer + answers
    }

    /// Executes the commands of a transaction, if it is one; whether it is.
    pub fn execute_queued(&mut self) -> bool {
        let Some(queued) = self.queued.clone() else {
            return false;
        };
        self.answers = Some(self.context.execute(&queued));
        true
    }

    /// Whether it was executed as a whole.
    fn has_succeeded(&self) -> bool {
        matches!(self.answer, Some(Ok(_))) || matches!(self.answers, Some(Ok(_)))
    }
}

/// Commands of a transaction on one key.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// The version that the key must have, if it is watched.
    pub(super) watched: Option<Option<Version>>,
}

/// A program by its digest.
pub type ScriptHash = [u8; 20];

/// Keeps scripts, and executes them for one connection.
pub trait Scripts {
    /// Lends the libraries of functions, which all connections share.
    fn libraries(&mut self, act: &mut dyn FnMut(&mut Libraries));

    /// The script of this digest, if it is kept.
    fn find(&mut self, hash: &ScriptHash) -> Option<Arc<[u8]>>;

    /// Keeps one; others may be forgotten for it.
    fn keep(&mut self, hash: ScriptHash, source: Arc<[u8]>);

    /// Forgets all.
    fn forget(&mut self);

    /// Ends all scripts that are being executed; whether there are any. What a script
    /// stores is stored when it has ended, so nothing of theirs is.
    fn kill(&mut self) -> bool;

    /// Has one executed elsewhere; gives it back if there are too many. Its connection
    /// is told as of an operation of the keyspace.
    fn begin(&mut self, job: Box<ScriptJob>) -> Result<(), Box<ScriptJob>>;

    /// The one that has been executed, once.
    fn take(&mut self) -> Option<Box<ScriptJob>>;
}

/// What a script on its way is.
#[derive(Debug)]
pub(super) enum Task {
    /// One that is executed.
    Script,
    /// One that is compiled, and no more.
    Load,
    /// A library that is executed for what it registers.
    Library(LoadedLibrary),
    /// A function of a library, by its name.
    Function(String),
}

impl Task {
    fn kind(&self) -> JobKind {
        match self {
            Task::Script => JobKind::Script,
            Task::Load => JobKind::Load,
            Task::Library(_) => JobKind::Library,
            Task::Function(_) => JobKind::Function,
        }
    }
}

/// A script on its way.
#[derive(Debug)]
pub(super) struct Run {
    source: Arc<[u8]>,
    digest: Digest,
    hash: String,
    /// Where the program begins in its source.
    program_at: usize,
    /// It is kept once it has been compiled.
    is_to_be_kept: bool,
    task: Task,
    /// Bytes of answers that have come.
    answers_len: usize,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
    stage: Stage,
    /// Bytes of the job, once it is on its way.
    job_len: usize,
    /// The version that the item had when it was read.
    version: Option<Version>,
    is_read_only: bool,
    began_ns: u64,
    /// In the place of the script.
    queued: Option<Arc<Queued>>,
}

#[derive(Debug)]
enum Stage {
    Read,
    Changed,
    Running,
    Commit(Box<ScriptJob>),
    Use,
}

impl Run {
    fn new(source: Arc<[u8]>, digest: Digest, now: Now) -> Self {
        Run {
            hash: hex(&digest),
            source,
            digest,
            program_at: 0,
            is_to_be_kept: false,
            task: Task::Script,
            answers_len: 0,
            keys: Vec::new(),
            arguments: Vec::new(),
            stage: Stage::Read,
            job_len: 0,
            version: None,
            is_read_only: false,
            began_ns: now.monotonic_ns,
            queued: None,
        }
    }

    /// One of a library.
    pub(super) fn of_task(source: Arc<[u8]>, program_at: usize, task: Task, now: Now) -> Self {
        let hash = match &task {
            Task::Library(library) => library.name.clone(),
            Task::Function(name) => name.clone(),
            Task::Script | Task::Load => String::new(),
        };
        Run {
            hash,
            program_at,
            task,
            ..Run::new(source, Digest::default(), now)
        }
    }

    /// The same with KEYS and ARGV; `is_read_only`: without commands that write.
    pub(super) fn over(
        self,
        keys: Vec<Vec<u8>>,
        arguments: Vec<Vec<u8>>,
        is_read_only: bool,
    ) -> Self {
        Run {
            keys,
            arguments,
            is_read_only,
            ..self
        }
    }

    /// One of a transaction on this key.
    pub(super) fn of_queued(key: Vec<u8>, queued: Queued, now: Now) -> Box<Self> {
        Box::new(Run {
            keys: vec![key],
            queued: Some(Arc::new(queued)),
            ..Run::new(Arc::default(), Digest::default(), now)
        })
    }

    /// The end of a transaction that has been answered, and has read this key.
    pub(super) fn of_use(key: Vec<u8>, now: Now) -> Box<Self> {
        Box::new(Run {
            keys: vec![key],
            stage: Stage::Use,
            ..Run::new(Arc::default(), Digest::default(), now)
        })
    }

    /// Its job has come back: keeps the script if it is one, and refuses an answer that
    /// is longer than one connection may keep, before anything is stored.
    fn take_note_of<K: Keyspace>(
        &mut self,
        mut job: Box<ScriptJob>,
        world: &mut World<'_, K>,
    ) -> Box<ScriptJob> {
        if job.is_compiled
            && std::mem::take(&mut self.is_to_be_kept)
            && let Some(scripts) = world.observer.scripts()
        {
            scripts.keep(self.digest, Arc::clone(&self.source));
        }
        if let Task::Library(library) = &self.task
            && matches!(job.answer, Some(Ok(_)))
            && let Some(scripts) = world.observer.scripts()
        {
            let made = library_of(library, std::mem::take(&mut job.functions));
            let mut made = Some(made);
            scripts.libraries(&mut |libraries| {
                if let Some(made) = made.take()
                    && let Err(words) = libraries.add(made, library.replaces)
                {
                    job.answer = Some(Err(words));
                }
            });
        }
        let len_max = AtOnce::of(world.settings).answers_len_max();
        if job.queued.is_none() && job.answers_len() > len_max {
            let words = format!(
                "ERR the script's answer is longer than {len_max} bytes; nothing was stored"
            );
            job.answer = Some(Err(words.into_bytes()));
        }
        self.answers_len = job.answers_len();
        job
    }

    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        let words = self.keys.iter().chain(&self.arguments);
        let words: usize = words.map(|word| word.len() + size_of::<Vec<u8>>()).sum();
        let queued = self.queued.as_ref().map_or(0, |queued| queued.bytes.len());
        words + self.source.len() + queued + self.job_len + self.answers_len
    }
}

/// KEYS, or ARGV.
pub(super) type Words = Vec<Vec<u8>>;

/// KEYS and ARGV of a script or a function, or answers what is wrong with them.
pub(super) fn keys_of<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    no_number: &str,
) -> Option<(Words, Words)> {
    let arguments = call.arguments;
    let Some(key_count) = number(arguments.get(2)) else {
        call.reply.error(no_number);
        return None;
    };
    let refusal = match usize::try_from(key_count) {
        Err(_) => Some("ERR Number of keys can't be negative"),
        Ok(count) if count > arguments.len() - 3 => {
            Some("ERR Number of keys can't be greater than number of args")
        }
        Ok(_) => None,
    };
    if let Some(refusal) = refusal {
        call.reply.error(refusal);
        return None;
    }
    let (keys, rest) = (3..3 + key_count as usize, 3 + key_count as usize);
    let keys: Vec<Vec<u8>> = keys.map(|at| arguments.get(at).to_vec()).collect();
    if keys.iter().any(|key| *key != keys[0]) {
        call.reply.error(
            "ERR a script is about one key here: this is a cache, and several keys cannot be \
             changed as one",
        );
        return None;
    }
    if let Some(fault) = keys.first().and_then(|key| key_fault(key)) {
        call.reply.fault(&fault);
        return None;
    }
    Some((keys, arguments.from(rest).map(<[u8]>::to_vec).collect()))
}

/// EVAL, EVALSHA: begins one, or answers what is wrong.
pub(super) fn eval<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let (keys, arguments) = keys_of(call, NOT_AN_INTEGER)?;
    let given = call.arguments.get(1);
    let Some(scripts) = call.world.observer.scripts() else {
        call.reply.error(NOT_HERE);
        return None;
    };
    let is_by_hash = matches!(call.spec.id, Id::EvalSha | Id::EvalShaRo);
    let found = match is_by_hash {
        true => from_hex(given).and_then(|digest| Some((digest, scripts.find(&digest)?, true))),
        false if given.len() > SOURCE_LEN_MAX => {
            call.reply
                .error(format!("ERR a script has at most {SOURCE_LEN_MAX} bytes"));
            return None;
        }
        false => Some(given_script(scripts, given)),
    };
    let Some((digest, source, is_kept)) = found else {
        call.reply
            .error("NOSCRIPT No matching script. Please use EVAL.");
        return None;
    };
    let shebang = match Shebang::of(&source) {
        Ok(shebang) => shebang,
        Err(words) => {
            call.reply.error(words);
            return None;
        }
    };
    let reads_only = matches!(call.spec.id, Id::EvalRo | Id::EvalShaRo);
    if reads_only && shebang.is_there() && !shebang.is_read_only {
        call.reply
            .error("ERR Can not execute a script with write flag using *_ro command.");
        return None;
    }
    Some(Box::new(Run {
        keys,
        arguments,
        program_at: shebang.len,
        is_to_be_kept: !is_kept,
        is_read_only: reads_only || shebang.is_read_only,
        ..Run::new(source, digest, call.world.now)
    }))
}

/// A script that was sent, and whether it is kept already.
fn given_script(scripts: &mut dyn Scripts, source: &[u8]) -> (Digest, Arc<[u8]>, bool) {
    let digest = sha1(source);
    match scripts.find(&digest) {
        Some(kept) => (digest, kept, true),
        None => (digest, source.into(), false),
    }
}

/// SCRIPT LOAD, EXISTS, FLUSH, KILL. One that is to be loaded is compiled first.
pub(super) fn script<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let known = [("load", 3), ("exists", -3), ("flush", -2), ("kill", 2)];
    let name = super::connection::subcommand(call, &known)?;
    let arguments = call.arguments;
    let now = call.world.now;
    let Some(scripts) = call.world.observer.scripts() else {
        call.reply.error(NOT_HERE);
        return None;
    };
    match name {
        "load" if arguments.get(2).len() > SOURCE_LEN_MAX => call
            .reply
            .error(format!("ERR a script has at most {SOURCE_LEN_MAX} bytes")),
        "load" => {
            let (digest, source, is_kept) = given_script(scripts, arguments.get(2));
            match Shebang::of(&source) {
                Err(words) => call.reply.error(words),
                Ok(_) if is_kept => call.reply.bulk(hex(&digest)),
                Ok(shebang) => {
                    return Some(Box::new(Run {
                        program_at: shebang.len,
                        is_to_be_kept: true,
                        task: Task::Load,
                        ..Run::new(source, digest, now)
                    }));
                }
            }
        }
        "exists" => {
            call.reply.array(arguments.len() - 2);
            for text in arguments.from(2) {
                let found = from_hex(text).and_then(|hash| scripts.find(&hash));
                call.reply.integer(i64::from(found.is_some()));
            }
        }
        "kill" => match scripts.kill() {
            true => call.reply.simple("OK"),
            false => call
                .reply
                .error("NOTBUSY No scripts in execution right now."),
        },
        _ if arguments.len() == 2 || arguments.is(2, "sync") || arguments.is(2, "async") => {
            scripts.forget();
            call.reply.simple("OK");
        }
        _ => call
            .reply
            .error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
    }
    None
}

impl RespSession {
    /// Goes on with a script: see the module.
    pub(super) fn step_script<K: Keyspace>(
        &mut self,
        mut run: Box<Run>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Step {
        let step = match run.stage {
            Stage::Read => self.read_for_script(&mut run, world),
            Stage::Changed => {
                self.reply(out).null_array();
                return Step::Done(0);
            }
            Stage::Use => {
                let used = world
                    .keyspace
                    .get(&run.keys[0], Access::Use, &mut |_| {})
                    .ready();
                if used.is_err() {
                    self.script = Some(run);
                    return Step::Pending(0);
                }
                // What was answered stands, whatever has come of this.
                return Step::Done(0);
            }
            Stage::Running => match world.observer.scripts().and_then(|scripts| scripts.take()) {
                Some(job) => {
                    let job = run.take_note_of(job, world);
                    run.stage = Stage::Commit(job);
                    Ok(Step::Done(0))
                }
                None => Err(Fault::Unavailable(
                    "the script broke off; the server's log says why".to_owned(),
                )),
            },
            Stage::Commit(job) => {
                run.stage = Stage::Running;
                return self.commit_script(run, job, out, world);
            }
        };
        match step {
            Ok(step) => {
                self.script = Some(run);
                step
            }
            Err(fault) => {
                self.reply(out).fault(&fault);
                Step::Done(0)
            }
        }
    }

    fn read_for_script<K: Keyspace>(
        &mut self,
        run: &mut Run,
        world: &mut World<'_, K>,
    ) -> Result<Step, Fault> {
        let mut item = None;
        if let Some(key) = run.keys.first() {
            let read = world.keyspace.get(key, Access::Peek, &mut |found| {
                item = found.map(OwnedItem::of);
            });
            match read.ready() {
                Ok(read) => read?,
                Err(_) => return Ok(Step::Pending(0)),
            }
            world.conclude();
        }
        (run.job_len, run.answers_len) = (0, 0);
        let item_len = item.as_ref().map_or(0, OwnedItem::value_len);
        run.job_len = item_len + run.kept();
        let item = item.as_ref().map(OwnedItem::item);
        run.version = item.map(|item| item.version);
        let watched = run.queued.as_ref().and_then(|queued| queued.watched);
        if watched.is_some_and(|version| version != run.version) {
            run.stage = Stage::Changed;
            return Ok(Step::Done(0));
        }
        let identity = match run.queued {
            Some(_) => self.identity.for_draft(),
            None => self.identity.for_scripts(),
        };
        let key = run.keys.first().map_or(b"".as_slice(), Vec::as_slice);
        let value_len_max = world.keyspace.value_len_max();
        let job = Box::new(ScriptJob {
            source: Arc::clone(&run.source),
            hash: run.hash.clone(),
            keys: run.keys.clone(),
            arguments: run.arguments.clone(),
            context: ScriptContext {
                key: run.keys.first().cloned(),
                draft: DraftKeyspace::new(key, item.as_ref(), world.now.unix_ms, value_len_max),
                notes: DraftNotes::default(),
                session: RespSession {
                    identity,
                    ..RespSession::default()
                },
                settings: world.settings.clone(),
                now: world.now,
                connection: world.connection,
                is_read_only: run.is_read_only,
            },
            answer: None,
            kind: run.task.kind(),
            functions: Vec::new(),
            is_compiled: false,
            program_at: run.program_at,
            queued: run.queued.clone(),
            answers: None,
        });
        let begun = world.observer.scripts().map(|scripts| scripts.begin(job));
        match begun {
            Some(Ok(())) => {
                run.stage = Stage::Running;
                Ok(Step::Pending(0))
            }
            Some(Err(_)) => Err(Fault::Unavailable(
                "too many scripts are being executed".to_owned(),
            )),
            None => Err(Fault::Unsupported("a script")),
        }
    }

    fn commit_script<K: Keyspace>(
        &mut self,
        mut run: Box<Run>,
        mut job: Box<ScriptJob>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Step {
        let has_changed = job.has_succeeded() && job.context.draft.has_changed();
        let mut is_stale = false;
        if let Some(key) = run.keys.first().filter(|_| has_changed) {
            let draft = &job.context.draft;
            let stored = world.keyspace.update(key, &mut |item, scratch| {
                is_stale = item.map(|item| item.version) != run.version;
                match is_stale {
                    true => Decision::Keep,
                    false => draft.decision(scratch),
                }
            });
            match stored.ready() {
                Err(Pending) => {
                    run.stage = Stage::Commit(job);
                    self.script = Some(run);
                    return Step::Pending(0);
                }
                Ok(Err(fault)) => {
                    self.reply(out).fault(&fault);
                    return Step::Done(0);
                }
                Ok(Ok(_)) => {}
            }
        }
        let is_read = job.has_succeeded() && job.context.draft.is_used();
        if let Some(key) = run.keys.first().filter(|_| is_read && !has_changed) {
            // It counts as used; what was answered stands, whatever comes of this.
            let used = world.keyspace.get(key, Access::Use, &mut |_| {});
            if let Err(Pending) = used.ready() {
                run.stage = Stage::Commit(job);
                self.script = Some(run);
                return Step::Pending(0);
            }
        }
        let waited_ns = world.next_now.monotonic_ns.saturating_sub(run.began_ns);
        if is_stale && waited_ns > PATIENCE_NS {
            self.reply(out).fault(&Fault::Contended);
        } else if is_stale {
            run.stage = Stage::Read;
            self.script = Some(run);
        } else {
            let mut reply = self.reply(out);
            match job.answers.take() {
                Some(Ok(answers)) => reply.out.extend_from_slice(&answers),
                Some(Err(TooMuch)) => {
                    reply.error(AtOnce::of(world.settings).too_much());
                }
                None => {}
            }
            let is_script = run.queued.is_none();
            match job.answer.take().filter(|_| is_script) {
                Some(Ok(answer)) => answer.put(&mut reply),
                Some(Err(error)) => reply.error(error),
                None if is_script => reply.error("ERR the script was not executed"),
                None => {}
            }
            let key = run.keys.first().map_or(b"".as_slice(), Vec::as_slice);
            job.context.notes.tell(key, world.observer);
        }
        Step::Done(0)
    }
}

#[cfg(test)]
mod tests {
    use super::ScriptValue::{self, *};

    #[test]
    fn answers_are_read_as_they_are_written() {
        let value = Array(vec![
            Nil,
            Integer(-5),
            Bulk(b"a\r\nb".to_vec()),
            Status(b"OK".to_vec()),
            Error(b"ERR no".to_vec()),
            Array(vec![]),
        ]);
        let mut out = Vec::new();
        value.put(&mut super::Reply {
            out: &mut out,
            is_resp3: false,
        });
        assert_eq!(ScriptValue::parse(&out), Some((value, out.len())));
        assert_eq!(ScriptValue::parse(b"$5\r\nab"), None);
        assert_eq!(ScriptValue::parse(b""), None);
    }
}
