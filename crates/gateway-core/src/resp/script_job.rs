//! A script, function or transaction on one key as its thread gets it and gives it back: the
//! program, what its commands are executed over, and the answer.
//!
//! Time is told to a script when its thread begins with it, not when it was sent: what it
//! stores with an expiry lives as long as it says.

use super::RespSession;
use super::answers::Answers;
use super::function::{Function, Libraries};
use super::reply::Reply;
use super::script_value::ScriptValue;
use super::table::{Id, lookup};
use super::transaction::{AtOnce, TooMuch};
use crate::draft::{DraftKeyspace, DraftNotes};
use crate::world::{Now, Progress, Role, Settings, World};
use std::sync::Arc;
use trefoil_layout::Version;

/// Bytes that a script may have, and as many for what it has executed and answers.
pub const SCRIPT_MEMORY_MAX: usize = 32 << 20;
/// Processor time that a script has, in milliseconds.
pub const SCRIPT_TIME_MS_MAX: u64 = 250;

/// What a script's commands are executed over.
#[derive(Debug)]
pub struct ScriptContext {
    pub(super) key: Option<Vec<u8>>,
    pub(super) draft: DraftKeyspace,
    pub(super) notes: DraftNotes,
    pub(super) session: RespSession,
    pub(super) settings: Settings,
    pub(super) now: Now,
    pub(super) connection: u64,
    /// Whether commands that write are refused.
    pub(super) is_read_only: bool,
}

impl ScriptContext {
    /// Executes the commands of a transaction; all their answers.
    fn execute(&mut self, queued: &Queued) -> Result<Answers, TooMuch> {
        let mut answers = Answers::default();
        self.session.reply(answers.tail()).array(queued.count);
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
            .execute_all(&queued.bytes, &mut answers, at_once, &mut world)?;
        Ok(answers)
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
        let mut answers = Answers::default();
        let executed = self
            .session
            .execute_all(&bytes, &mut answers, at_once, &mut world);
        if executed.is_err() {
            return error("ERR the answer is too long for a script");
        }
        let answer = ScriptValue::parse(&answers.into_bytes());
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
    pub(super) functions: Vec<Function>,
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
    pub(super) program_at: usize,
    /// In the place of the program: commands that were queued, and their answers.
    pub(super) queued: Option<Arc<Queued>>,
    pub(super) answers: Option<Result<Answers, TooMuch>>,
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
    pub(super) fn answers_len(&self) -> usize {
        let answer = match &self.answer {
            Some(Ok(answer)) => answer.len(),
            _ => 0,
        };
        let answers = match &self.answers {
            Some(Ok(answers)) => answers.kept(),
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
    pub(super) fn has_succeeded(&self) -> bool {
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
