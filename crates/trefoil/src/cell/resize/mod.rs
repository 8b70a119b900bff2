//! `cell resize`: a cell gets another number of backends while it serves.
//!
//! The processes of the cell that is to be are started beside those of the cell that is.
//! They copy, one after the other, then follow what is changed. When little is left, all
//! the old ones freeze, the rest is copied, **one swap of the configuration** makes the
//! new ones the cell, the old ones retire, and the new ones begin (`backend/src/resize`
//! says what each side does, docs/operations.md what that means for an operator).
//!
//! Before the swap anything that goes wrong leaves the cell as it was. After it nothing
//! goes back: a process that dies then is a backend that has died.

mod givers;
mod join;
mod order;

pub(super) use join::{Join, await_join, run};
pub(super) use order::{Resizing, ended, replace, set_memory, take};

use crate::cell::home::Home;
use crate::cell::maintenance::look_at;
use crate::cell::order_error::OrderError;
use crate::cell::orders::Event;
use crate::cell::program::{Begins, Program, Starter};
use crate::cell::room::{self, Held};
use givers::{Frozen, Givers};
use join::{Progress, Said, Word};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use trefoil_backend::FROZEN_MAX;
use trefoil_cell::{BackendRegistry, CellConfig, ConfigStoreError, Mode};

/// How long the cell may take to be whole before a resize begins.
const HEALTH_PATIENCE: Duration = Duration::from_secs(300);
const HEALTH_PAUSE: Duration = Duration::from_millis(100);
/// What is left of the time in which backends are frozen when the configuration is swapped
/// at the latest.
const SWAP_RESERVE: Duration = Duration::from_millis(100);
/// How often it is tried to copy the rest in time, and the pause after the first attempt.
const ATTEMPTS_MAX: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a new backend may take to serve after it was told to.
const BEGIN_PATIENCE: Duration = Duration::from_secs(60);
/// How often whoever gave the order is told how far it has come.
const TELL_PERIOD: Duration = Duration::from_millis(500);
/// Between two attempts to find out whether the configuration was swapped.
const UNCLEAR_PAUSE: Duration = Duration::from_millis(100);

/// What a resize that is under way is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    Runs,
    Paused,
    Aborted,
}

/// A backend of the cell of the new size: its process, if it lives.
pub(super) struct Newcomer {
    number: u32,
    program: Arc<Program>,
    child: Option<Child>,
    memory: u64,
}

/// What the one who watches the backends has to know meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    #[default]
    Copies,
    /// Nobody is started: whoever is started now would not know of what is going on.
    Critical,
    /// The old backends end, and that is no death.
    Committed,
}

/// The same, shared.
#[derive(Debug, Default)]
struct Flags {
    critical: AtomicBool,
    committed: AtomicBool,
}

impl Flags {
    fn set_critical(&self, critical: bool) {
        self.critical.store(critical, Ordering::Release);
    }

    fn is_committed(&self) -> bool {
        self.committed.load(Ordering::Acquire)
    }
}

/// A resize that is under way.
struct Resize {
    backends: u32,
    flags: Arc<Flags>,
    control: watch::Sender<Control>,
    task: JoinHandle<Result<Vec<Newcomer>, OrderError>>,
    events: mpsc::Sender<Event>,
}

/// What it needs of the cell.
struct Ground<'g> {
    starter: &'g Arc<Starter>,
    address: &'g str,
    mode: Mode,
    /// Of each new process.
    memory: u64,
    /// What each backend runs.
    programs: Vec<Arc<Program>>,
    /// Most that are possible.
    backends_max: u32,
}

impl Resize {
    /// Begins; an error says why not.
    fn begin(
        (backends, without_room): (u32, bool),
        events: mpsc::Sender<Event>,
        ground: &Ground<'_>,
    ) -> Result<Resize, OrderError> {
        check(backends, ground)?;
        let flags = Arc::<Flags>::default();
        let (control, told) = watch::channel(Control::Runs);
        let work = Work {
            backends,
            without_room,
            home: ground.starter.home.clone(),
            starter: Arc::clone(ground.starter),
            address: ground.address.to_owned(),
            memory: ground.memory,
            programs: ground.programs.clone(),
            flags: Arc::clone(&flags),
            control: told,
            teller: Teller::new(backends, events.clone()),
        };
        Ok(Resize {
            backends,
            flags,
            control,
            task: tokio::spawn(work.run()),
            events,
        })
    }

    /// Pauses it, has it go on, or gives it up. An error says why not.
    fn control(&self, control: Control) -> Result<(), OrderError> {
        if self.flags.is_committed() {
            return Err(OrderError::Committed);
        }
        if *self.control.borrow() == control {
            return Err(match control {
                Control::Paused => OrderError::PausesAlready,
                Control::Runs => OrderError::DoesNotPause,
                Control::Aborted => OrderError::IsBeingGivenUp,
            });
        }
        let _ = self.control.send(control);
        Ok(())
    }

    fn stage(&self) -> Stage {
        match (
            self.flags.critical.load(Ordering::Acquire),
            self.flags.is_committed(),
        ) {
            (_, true) => Stage::Committed,
            (true, false) => Stage::Critical,
            (false, false) => Stage::Copies,
        }
    }

    /// Waits for its end.
    async fn ended(&mut self) -> Result<Vec<Newcomer>, OrderError> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(error) => Err(OrderError::Failed(error.to_string())),
        }
    }

    /// Tells whoever gave the order what came of it.
    fn tell(&self, result: &Result<(), OrderError>) {
        let event = match result {
            Ok(()) => Event::of("done"),
            Err(error) => Event::failed(error),
        };
        let events = self.events.clone();
        tokio::spawn(async move { events.send(event).await });
    }
}

impl Drop for Resize {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What cannot be done at all.
fn check(backends: u32, ground: &Ground<'_>) -> Result<(), OrderError> {
    let (mode, count) = (ground.mode, ground.programs.len() as u32);
    let copies = mode.copy_count() as u32;
    if mode == Mode::R2 {
        return Err(OrderError::ImmutableResize);
    }
    if backends < copies {
        return Err(OrderError::TooFew {
            backends,
            mode,
            copies,
        });
    }
    if backends > ground.backends_max {
        return Err(OrderError::TooMany {
            backends,
            copies,
            backends_max: ground.backends_max,
        });
    }
    if backends == count {
        return Err(OrderError::SameSize(count));
    }
    for number in 0..backends {
        let metrics = ground.starter.metrics_of(number);
        metrics.map_err(OrderError::cannot_start)?;
    }
    Ok(())
}

/// A new process.
struct Joiner {
    number: u32,
    program: Arc<Program>,
    child: Child,
    words: Option<ChildStdin>,
    copies: bool,
    standing: Standing,
}

/// What is known of a new process by what it has said.
#[derive(Debug, Default)]
struct Standing {
    /// The last attempt of which it has said that it is near; 0: the first copy is made.
    near: Option<u32>,
    /// The last one of which it has said that it has everything.
    done: Option<u32>,
    serves: bool,
    has_ended: bool,
    progress: Progress,
}

impl Standing {
    /// Takes what process `number` has said; nothing: it has ended. An error says why the
    /// cell stays as it was.
    fn hear(&mut self, number: u32, said: Option<Said>) -> Result<(), OrderError> {
        match said {
            Some(Said::Progress(progress)) => self.progress = progress,
            Some(Said::Near { attempt, progress }) => {
                self.progress = progress;
                self.near = Some(attempt);
            }
            Some(Said::Done { attempt, progress }) => {
                self.progress = progress;
                self.done = Some(attempt);
            }
            Some(Said::Serves) => self.serves = true,
            Some(Said::Failed { why }) => {
                self.has_ended = true;
                return Err(OrderError::NewProcessFailed { number, why });
            }
            None => {
                self.has_ended = true;
                return Err(OrderError::NewProcessEnded(number));
            }
        }
        Ok(())
    }

    /// Whether it is near, as it was asked in this attempt.
    fn is_near(&self, attempt: u32) -> bool {
        self.near == Some(attempt)
    }

    /// Whether it has everything that was there when everybody froze in this attempt. What
    /// it has copied after an older freeze lacks what was written since.
    fn is_done(&self, attempt: u32) -> bool {
        self.done == Some(attempt)
    }
}

impl Joiner {
    async fn tell(&mut self, word: Word) -> Result<(), OrderError> {
        let number = self.number;
        let gone = move || OrderError::NewProcessGone(number);
        let words = self.words.as_mut().ok_or_else(gone)?;
        let mut line = serde_json::to_string(&word).map_err(OrderError::internal)?;
        line.push('\n');
        words.write_all(line.as_bytes()).await.map_err(|_| gone())
    }
}

/// A line of one, or its end.
type Heard = (u32, Option<Said>);

struct Work {
    backends: u32,
    /// Even where there is no room for both cells.
    without_room: bool,
    home: Home,
    starter: Arc<Starter>,
    address: String,
    memory: u64,
    /// What each backend of the cell that is runs.
    programs: Vec<Arc<Program>>,
    flags: Arc<Flags>,
    control: watch::Receiver<Control>,
    teller: Teller,
}

/// What came of an attempt.
enum Attempt {
    Swapped(CellConfig),
    /// Everybody goes on; it may be tried again.
    Late(String),
}

impl Work {
    async fn run(mut self) -> Result<Vec<Newcomer>, OrderError> {
        let held = self.await_whole().await?;
        if !self.without_room {
            let most = self.memory.saturating_mul(self.backends.into());
            room::check(held.values().sum::<u64>().min(most))?;
        }
        let config = self.load().await?;
        if config.backends.len() != self.programs.len() {
            return Err(OrderError::OtherBackends);
        }
        let resize = crate::settings::random_life();
        let givers = Givers::new(resize, &config, &self.home).await?;
        let result = self.change(&givers, resize, &config).await;
        if result.is_err() && !self.flags.is_committed() {
            givers.abandon().await;
        }
        self.flags.set_critical(false);
        result
    }

    /// A cell that is not whole is left as it is.
    async fn await_whole(&mut self) -> Result<Held, OrderError> {
        let begin = Instant::now();
        loop {
            let seen = look_at(self.address.clone(), None).await;
            match seen.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(held) => return Ok(held),
                Err(why) if begin.elapsed() >= HEALTH_PATIENCE => {
                    return Err(OrderError::NotWhole { why, then: "" });
                }
                Err(_) => {}
            }
            self.heed_abort()?;
            tokio::time::sleep(HEALTH_PAUSE).await;
        }
    }

    async fn change(
        &mut self,
        givers: &Givers,
        resize: u64,
        old: &CellConfig,
    ) -> Result<Vec<Newcomer>, OrderError> {
        let next = self.next(old)?;
        let join = Join {
            resize,
            old: old.clone(),
            new: next,
        };
        let (heard_to, mut heard) = mpsc::unbounded_channel();
        let mut joiners = Vec::new();
        for number in 0..self.backends {
            joiners.push(self.start(number, &join, &heard_to).await?);
        }
        drop(heard_to);
        self.teller.say("copying", &joiners);
        self.copy(&mut joiners, &mut heard).await?;
        let config = self.swap(givers, old, &mut joiners, &mut heard).await?;
        self.begin(givers, &config, joiners, &mut heard).await
    }

    /// The cell of the new size, after `config`.
    fn next(&self, config: &CellConfig) -> Result<CellConfig, OrderError> {
        let backends = self.home.backends(self.backends);
        let backends = backends.map_err(OrderError::config_store)?;
        let next = config.resized(backends);
        next.ok_or(OrderError::ConfigIdsUsedUp)
    }

    async fn start(
        &self,
        number: u32,
        join: &Join,
        heard: &mpsc::UnboundedSender<Heard>,
    ) -> Result<Joiner, OrderError> {
        let runs = self.programs.get(number as usize);
        let program = runs
            .or(self.programs.first())
            .ok_or_else(|| OrderError::internal("the cell has no backends"))?;
        let child = self
            .starter
            .start(program, Begins::Joins(number), self.memory);
        let mut child = child.map_err(OrderError::cannot_start)?;
        let gone = |_| OrderError::NewProcessGone(number);
        let mut words = child.stdin.take();
        if let Some(words) = &mut words {
            let mut line = serde_json::to_string(join).map_err(OrderError::internal)?;
            line.push('\n');
            words.write_all(line.as_bytes()).await.map_err(gone)?;
        }
        if let Some(out) = child.stdout.take() {
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(out).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let Ok(said) = serde_json::from_str(&line) else {
                        break;
                    };
                    let serves = said == Said::Serves;
                    let is_heard = heard.send((number, Some(said))).is_ok();
                    if serves || !is_heard {
                        return;
                    }
                }
                let _ = heard.send((number, None));
            });
        }
        Ok(Joiner {
            number,
            program: Arc::clone(program),
            child,
            words,
            copies: false,
            standing: Standing::default(),
        })
    }

    /// One after the other: what the cell serves goes first.
    async fn copy(
        &mut self,
        joiners: &mut [Joiner],
        heard: &mut mpsc::UnboundedReceiver<Heard>,
    ) -> Result<(), OrderError> {
        let most = copiers();
        while joiners.iter().any(|joiner| joiner.standing.near.is_none()) {
            let copies = |joiner: &&Joiner| joiner.copies && joiner.standing.near.is_none();
            let mut copying = joiners.iter().filter(copies).count();
            for joiner in joiners.iter_mut() {
                if copying < most && !joiner.copies {
                    joiner.tell(Word::Copy).await?;
                    joiner.copies = true;
                    copying += 1;
                }
            }
            self.hear(joiners, heard, "copying").await?;
        }
        Ok(())
    }

    /// Waits until something is heard, of anybody.
    async fn hear(
        &mut self,
        joiners: &mut [Joiner],
        heard: &mut mpsc::UnboundedReceiver<Heard>,
        phase: &'static str,
    ) -> Result<(), OrderError> {
        tokio::select! {
            said = heard.recv() => {
                let (number, said) = said.ok_or(OrderError::AllNewProcessesGone)?;
                note(joiners, number, said)?;
                self.teller.now_and_then(phase, joiners);
                Ok(())
            }
            changed = self.control.changed() => {
                changed.map_err(|_| OrderError::GivenUp)?;
                self.heed(joiners, heard).await
            }
        }
    }

    fn heed_abort(&self) -> Result<(), OrderError> {
        match *self.control.borrow() {
            Control::Aborted => Err(OrderError::Aborted),
            _ => Ok(()),
        }
    }

    /// While it pauses nothing is copied.
    async fn heed(
        &mut self,
        joiners: &mut [Joiner],
        heard: &mut mpsc::UnboundedReceiver<Heard>,
    ) -> Result<(), OrderError> {
        self.heed_abort()?;
        if *self.control.borrow() != Control::Paused {
            return Ok(());
        }
        for joiner in joiners.iter_mut() {
            joiner.tell(Word::Pause).await?;
        }
        self.teller.pause();
        self.teller.say("paused", joiners);
        loop {
            tokio::select! {
                said = heard.recv() => {
                    let (number, said) = said.ok_or(OrderError::AllNewProcessesGone)?;
                    note(joiners, number, said)?;
                }
                changed = self.control.changed() => {
                    changed.map_err(|_| OrderError::GivenUp)?;
                    self.heed_abort()?;
                    if *self.control.borrow() == Control::Runs {
                        break;
                    }
                }
            }
        }
        for joiner in joiners.iter_mut() {
            joiner.tell(Word::Continue).await?;
        }
        self.teller.go_on();
        self.teller.say("copying", joiners);
        Ok(())
    }

    /// Freezes, copies the rest and swaps the configuration, as often as it takes.
    async fn swap(
        &mut self,
        givers: &Givers,
        old: &CellConfig,
        joiners: &mut [Joiner],
        heard: &mut mpsc::UnboundedReceiver<Heard>,
    ) -> Result<CellConfig, OrderError> {
        let mut late = String::new();
        for attempt in 1..=ATTEMPTS_MAX {
            for joiner in joiners.iter_mut() {
                joiner.tell(Word::Near { attempt }).await?;
            }
            while joiners.iter().any(|of| !of.standing.is_near(attempt)) {
                self.hear(joiners, heard, "following").await?;
            }
            self.heed_abort()?;
            // Before anybody freezes: whoever breaks off swaps it, too.
            let base = self.load().await?;
            check_base(old, &base)?;
            givers.check(&base, &self.home).await?;
            self.flags.set_critical(true);
            let tried = self.attempt(givers, attempt, &base, joiners, heard).await;
            match tried {
                Ok(Attempt::Swapped(config)) => return Ok(config),
                Ok(Attempt::Late(why)) => {
                    tracing::info!(attempt, why, "the last step of the resize is tried again");
                    late = why;
                    givers.thaw(attempt).await;
                }
                Err(why) => {
                    givers.thaw(attempt).await;
                    return Err(why);
                }
            }
            self.flags.set_critical(false);
            for joiner in joiners.iter_mut() {
                joiner.tell(Word::Again).await?;
            }
            tokio::time::sleep(ATTEMPT_PAUSE * attempt.min(10)).await;
        }
        Err(OrderError::TooBusy {
            frozen_ms: FROZEN_MAX.as_millis(),
            attempts: ATTEMPTS_MAX,
            late,
        })
    }

    async fn attempt(
        &mut self,
        givers: &Givers,
        attempt: u32,
        base: &CellConfig,
        joiners: &mut [Joiner],
        heard: &mut mpsc::UnboundedReceiver<Heard>,
    ) -> Result<Attempt, OrderError> {
        let next = self.next(base)?;
        let begin = Instant::now();
        let by = tokio::time::Instant::now() + FROZEN_MAX - SWAP_RESERVE;
        let epoch = match givers.freeze(attempt).await? {
            Frozen::Epoch(epoch) => epoch,
            Frozen::Later(why) => return Ok(Attempt::Late(why)),
        };
        for joiner in joiners.iter_mut() {
            joiner.tell(Word::Last { attempt, epoch }).await?;
        }
        while joiners.iter().any(|of| !of.standing.is_done(attempt)) {
            let said = tokio::time::timeout_at(by, heard.recv()).await;
            let Ok(said) = said else {
                return Ok(Attempt::Late("the rest was not copied in time".into()));
            };
            let (number, said) = said.ok_or(OrderError::AllNewProcessesGone)?;
            note(joiners, number, said)?;
        }
        let copied = begin.elapsed();
        let swapped = self.commit(base, &next).await;
        if let Some(config) = &swapped {
            self.flags.committed.store(true, Ordering::Release);
            tracing::info!(
                config_id = config.config_id,
                backends = self.backends,
                copied_ms = copied.as_millis() as u64,
                frozen_ms = begin.elapsed().as_millis() as u64,
                "the cell is another one"
            );
        }
        Ok(match swapped {
            Some(config) => Attempt::Swapped(config),
            None => Attempt::Late("the configuration was changed meanwhile".into()),
        })
    }

    /// Swaps the configuration, if nobody has done so since `base`. If it is not clear what
    /// came of it, that is found out, however long it takes: the configuration decides.
    async fn commit(&self, base: &CellConfig, next: &CellConfig) -> Option<CellConfig> {
        loop {
            let (registry, from, to) = (self.registry(), base.clone(), next.clone());
            let swap = move || {
                let swapped = registry.compare_and_swap(Some(from.topology_id()), &to);
                match swapped {
                    Ok(()) => Ok(Some(to)),
                    // It may be that the first attempt was carried out, and that somebody
                    // has flushed since.
                    Err(ConfigStoreError::Conflict { .. }) => registry.load().map(|found| {
                        let is_it = |found: &CellConfig| {
                            found.life == to.life && found.backends == to.backends
                        };
                        found.filter(is_it)
                    }),
                    Err(error) => Err(error),
                }
            };
            match tokio::task::spawn_blocking(swap).await {
                Ok(Ok(swapped)) => return swapped,
                Ok(Err(error)) => tracing::warn!(
                    %error,
                    "whether the cell is resized is not known: no write is taken until it is"
                ),
                Err(error) => tracing::error!(%error, "the configuration cannot be swapped"),
            }
            tokio::time::sleep(UNCLEAR_PAUSE).await;
        }
    }

    /// The old ones go, the new ones serve.
    async fn begin(
        &mut self,
        givers: &Givers,
        config: &CellConfig,
        mut joiners: Vec<Joiner>,
        heard: &mut mpsc::UnboundedReceiver<Heard>,
    ) -> Result<Vec<Newcomer>, OrderError> {
        let begin = Instant::now();
        givers.retire(config).await;
        let retired = begin.elapsed();
        for joiner in &mut joiners {
            // One that has died is a backend that has died.
            joiner.standing.has_ended |= joiner.tell(Word::Begin).await.is_err();
        }
        let by = tokio::time::Instant::now() + BEGIN_PATIENCE;
        while joiners
            .iter()
            .any(|of| !of.standing.serves && !of.standing.has_ended)
        {
            let Ok(Some((number, said))) = tokio::time::timeout_at(by, heard.recv()).await else {
                break;
            };
            let _ = note(&mut joiners, number, said);
        }
        tracing::info!(
            retired_ms = retired.as_millis() as u64,
            began_ms = begin.elapsed().as_millis() as u64,
            "the new backends serve"
        );
        let memory = self.memory;
        let newcomer = |joiner: Joiner| {
            if joiner.standing.has_ended {
                tracing::error!(
                    backend = joiner.number,
                    "a new backend has died before it served; it is started again, empty"
                );
            } else if !joiner.standing.serves {
                tracing::error!(
                    backend = joiner.number,
                    "a new backend does not serve yet; it holds what it has copied, and says why it waits"
                );
            }
            Newcomer {
                number: joiner.number,
                program: joiner.program,
                // One that lives holds what nobody else does by now.
                child: (!joiner.standing.has_ended).then_some(joiner.child),
                memory,
            }
        };
        self.teller.say("serving", &joiners);
        Ok(joiners.into_iter().map(newcomer).collect())
    }

    fn registry(&self) -> Arc<dyn BackendRegistry> {
        self.home.registry()
    }

    async fn load(&self) -> Result<CellConfig, OrderError> {
        let registry = self.registry();
        let loaded = tokio::task::spawn_blocking(move || registry.load()).await;
        let loaded = loaded.map_err(OrderError::internal)?;
        let config = loaded.map_err(OrderError::config_store)?;
        config.ok_or(OrderError::ConfigGone)
    }
}

/// Whether the cell is what it was when the resize began, but for flushes.
fn check_base(old: &CellConfig, base: &CellConfig) -> Result<(), OrderError> {
    let is_other = base.life != old.life || base.backends.len() != old.backends.len();
    // One that was put back would give the cell of the new size an id that is over.
    if is_other || base.is_older_than(old) {
        return Err(OrderError::ChangedByOthers);
    }
    let mut both = old.backends.iter().zip(&base.backends);
    // What was copied is another process's than the one that is to freeze.
    match both.find(|(before, now)| before != now) {
        Some((before, _)) => Err(OrderError::PlaceGiven(before.number)),
        None => Ok(()),
    }
}

/// How many processes copy at once: each takes a part of a processor of its own, and as
/// much of those that it asks.
fn copiers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    (processors / 8).max(1)
}

/// Takes what one has said.
fn note(joiners: &mut [Joiner], number: u32, said: Option<Said>) -> Result<(), OrderError> {
    let joiner = joiners.iter_mut().find(|joiner| joiner.number == number);
    joiner.map_or(Ok(()), |joiner| joiner.standing.hear(number, said))
}

/// Tells whoever gave the order how far it has come. Nobody waits for them.
struct Teller {
    backends: u32,
    events: mpsc::Sender<Event>,
    told: Instant,
    /// When copying began, and for how long it has paused.
    began: Instant,
    paused: Duration,
    paused_at: Option<Instant>,
}

impl Teller {
    fn new(backends: u32, events: mpsc::Sender<Event>) -> Self {
        let now = Instant::now();
        Teller {
            backends,
            events,
            told: now,
            began: now,
            paused: Duration::ZERO,
            paused_at: None,
        }
    }

    fn pause(&mut self) {
        self.paused_at = Some(Instant::now());
    }

    fn go_on(&mut self) {
        if let Some(at) = self.paused_at.take() {
            self.paused += at.elapsed();
        }
    }

    fn now_and_then(&mut self, phase: &str, joiners: &[Joiner]) {
        if self.told.elapsed() >= TELL_PERIOD {
            self.say(phase, joiners);
        }
    }

    fn say(&mut self, phase: &str, joiners: &[Joiner]) {
        self.told = Instant::now();
        let sum = |of: fn(&Progress) -> u64| {
            joiners
                .iter()
                .map(|j| of(&j.standing.progress))
                .sum::<u64>()
        };
        let permille = sum(|progress| progress.permille) / joiners.len().max(1) as u64;
        let took = self.began.elapsed().saturating_sub(self.paused);
        let left = (phase == "copying" && permille > 0)
            .then(|| took.as_millis() as u64 * (1000 - permille.min(1000)) / permille);
        let _ = self.events.try_send(Event {
            phase: Some(phase.to_owned()),
            backends: Some(self.backends),
            permille: Some(permille),
            items: Some(sum(|progress| progress.items)),
            bytes: Some(sum(|progress| progress.bytes)),
            took_ms: Some(self.began.elapsed().as_millis() as u64),
            left_ms: left,
            ..Event::of("progress")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_cell::{BackendConfig, RpcAddress};
    use trefoil_layout::{KeyHasher, Version};

    #[test]
    fn who_resizes_swaps_only_the_cell_that_was_copied() {
        let address = |name: &str| RpcAddress::Unix(format!("/cell/{name}").into());
        let backend = |number: u32| BackendConfig {
            number,
            addresses: vec![address(&number.to_string())],
            fabric_socket: None,
            place: None,
        };
        let old = CellConfig {
            life: 7,
            config_id: 3,
            cell: "test".to_owned(),
            mode: Mode::R32,
            backends: (0..3).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        let flushed = old.flushed(Version::new(9, 9, 9)).unwrap();
        assert_eq!(check_base(&old, &old), Ok(()));
        assert_eq!(check_base(&old, &flushed), Ok(()));
        let moved = flushed.with_place(1, &[address("spare")], None).unwrap();
        let why = check_base(&old, &moved).unwrap_err();
        assert_eq!(why, OrderError::PlaceGiven(1));
        let resized = old.resized((0..4).map(backend).collect()).unwrap();
        let anew = CellConfig {
            life: 8,
            ..old.clone()
        };
        for other in [resized, anew] {
            let why = check_base(&old, &other).unwrap_err();
            assert_eq!(why, OrderError::ChangedByOthers);
        }
    }

    #[test]
    fn what_comes_late_of_an_attempt_says_nothing_of_the_next() {
        let progress = Progress::default();
        let near = |attempt| Some(Said::Near { attempt, progress });
        let done = |attempt| Some(Said::Done { attempt, progress });
        let mut standing = Standing::default();
        let mut hear = |said| {
            standing.hear(3, said).unwrap();
            (standing.is_near(2), standing.is_done(2))
        };
        assert_eq!(hear(near(0)), (false, false));
        // In attempt 2, that of attempt 1 comes.
        assert_eq!(hear(near(1)), (false, false));
        assert_eq!(hear(done(1)), (false, false));
        assert_eq!(hear(near(2)), (true, false));
        assert_eq!(hear(done(2)), (true, true));
        assert!(!standing.is_done(3));
        let ended = standing.hear(3, None).unwrap_err();
        assert_eq!(ended, OrderError::NewProcessEnded(3));
        assert!(standing.has_ended);
    }
}
