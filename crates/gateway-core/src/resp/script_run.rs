//! Scripts on their way: programs that clients send, over one item. Functions (`function`)
//! are executed in the same way.
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

use super::function::{LoadedLibrary, library_of};
use super::script_job::{JobKind, Queued, ScriptContext, ScriptJob};
use super::sha1::{Digest, hex};
use super::transaction::{AtOnce, TooMuch};
use super::{RespSession, Step};
use crate::deferred::OwnedItem;
use crate::draft::{DraftKeyspace, DraftNotes};
use crate::keyspace::{Access, Decision, Fault, Keyspace, Pending, Ready as _};
use crate::world::{Now, World};
use std::sync::Arc;
use trefoil_layout::Version;

/// How long a script is tried again while others change its item, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

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

    /// A script, whose program begins behind so many bytes; it may have to be kept, once it
    /// has been compiled.
    pub(super) fn of_script(
        source: Arc<[u8]>,
        digest: Digest,
        program_at: usize,
        is_to_be_kept: bool,
        now: Now,
    ) -> Self {
        Run {
            program_at,
            is_to_be_kept,
            ..Run::new(source, digest, now)
        }
    }

    /// A script that is compiled, to be kept.
    pub(super) fn of_load(source: Arc<[u8]>, digest: Digest, program_at: usize, now: Now) -> Self {
        Run {
            task: Task::Load,
            ..Run::of_script(source, digest, program_at, true, now)
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
                Some(Ok(answers)) => self.answers = Some(Box::new(answers)),
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
