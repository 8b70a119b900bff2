//! A backend's process under `cell up`: started again when it has died, after a pause
//! that grows while it dies soon.

use crate::args::{Restart, UpArgs};
use crate::backoff::{LIFE_MIN, pause};
use crate::cell::home::Home;
use crate::cell::order_error::OrderError;
use crate::cell::program::{Begins, Program, Starter};
use crate::cell::up::RESTART_DEFAULT;
use crate::failure::Failure;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout};
use trefoil_cell::CellConfig;

/// The signal's number.
const KILL: i32 = rustix::process::Signal::KILL.as_raw();
/// How long a process whose backend has moved may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// When one that does not say that it serves is told of, and how often.
const SILENCE: Duration = Duration::from_secs(10);

/// Between two looks whether a configuration that was put back still lies there.
const PUT_BACK_PAUSE: Duration = Duration::from_secs(10);

/// When a backend that has died is started again.
pub(super) struct Revival {
    restart: Restart,
    home: Home,
    /// The cell's life; there may be another one by now.
    life: u64,
    /// The configuration at the beginning: one with a lower id was put back.
    config_id: u32,
}

impl Revival {
    /// Of a cell that was begun, or found, with this configuration.
    pub(super) fn new(args: &UpArgs, home: &Home, config: &CellConfig) -> Self {
        Revival {
            restart: args.restart.unwrap_or(RESTART_DEFAULT),
            home: home.clone(),
            life: config.life,
            config_id: config.config_id,
        }
    }

    /// Why a backend is not started, if so.
    fn hindrance(&self, number: u32) -> Option<Hindrance> {
        if self.restart == Restart::Never {
            return Some(Hindrance::ForGood(
                "it is not restarted (--restart never): restart the whole cell",
            ));
        }
        // Whoever cannot read it now will not start either, and says why.
        let config = self.home.registry().load().ok().flatten()?;
        // Whoever is started by it would be a backend of the cell as it was then.
        if config.config_id < self.config_id {
            return Some(Hindrance::ForNow(
                "an older configuration was put back in the place of the cell's: put the newer one there again",
            ));
        }
        if config.life != self.life {
            return Some(Hindrance::ForGood(
                "it is not restarted: the cell was started anew, by another `cell up`",
            ));
        }
        if self.home.other_holder(&config, number).is_some() {
            return Some(Hindrance::ForGood(
                "it is not restarted: a spare has taken its place, and goes on as this backend",
            ));
        }
        None
    }
}

/// Why a backend is not started.
enum Hindrance {
    /// It stays dead.
    ForGood(&'static str),
    /// It is looked again.
    ForNow(&'static str),
}

/// See the module.
pub(super) struct Backend {
    number: u32,
    program: Arc<Program>,
    state: State,
    /// What came of its last move.
    moved: Option<Result<(), String>>,
    /// Deaths in a row, each soon after its start.
    deaths: u32,
}

enum State {
    Runs {
        child: Child,
        since: Instant,
        /// When it said that it serves.
        served: Arc<OnceLock<Instant>>,
        /// When its silence is told of next.
        tell_at: Instant,
    },
    /// The second process takes the backend over from the first.
    Moves {
        old: Child,
        next: Child,
        program: Arc<Program>,
        since: Instant,
        /// When the second said that it serves.
        served: Arc<OnceLock<Instant>>,
        /// When it is told of next that the first has ended and the second does not serve.
        tell_at: Option<Instant>,
    },
    /// Dead, until then.
    Waits { due: Instant },
    /// Dead for good.
    Over,
}

impl State {
    fn runs(child: Child, since: Instant) -> Self {
        State::Runs {
            child,
            since,
            served: Arc::default(),
            tell_at: since + SILENCE,
        }
    }
}

impl Backend {
    pub(super) fn new(number: u32, program: &Arc<Program>, child: Child) -> Self {
        Backend {
            number,
            program: Arc::clone(program),
            moved: None,
            state: State::runs(child, Instant::now()),
            deaths: 0,
        }
    }

    /// One that serves since a resize; no process: it has died meanwhile.
    pub(super) fn joined(number: u32, program: &Arc<Program>, child: Option<Child>) -> Self {
        let now = Instant::now();
        let state = match child {
            Some(child) => State::runs(child, now),
            None => State::Waits { due: now },
        };
        if let State::Runs { served, .. } = &state {
            let _ = served.set(now);
        }
        Backend {
            number,
            program: Arc::clone(program),
            moved: None,
            state,
            deaths: 0,
        }
    }

    /// Which it is.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Its process; 0 if it has none.
    pub(super) fn pid(&self) -> u32 {
        match &self.state {
            State::Runs { child, .. } | State::Moves { old: child, .. } => child.id().unwrap_or(0),
            _ => 0,
        }
    }

    /// It is dead and stays so.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// When it is to be started again.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Waits { due } => Some(due),
            _ => None,
        }
    }

    /// Its processes.
    pub(super) fn into_children(self) -> Vec<(u32, Child)> {
        let number = self.number;
        match self.state {
            State::Runs { child, .. } => vec![(number, child)],
            State::Moves { old, next, .. } => vec![(number, next), (number, old)],
            State::Waits { .. } | State::Over => Vec::new(),
        }
    }

    /// What it runs.
    pub(super) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Has a process that was started for it take it over.
    pub(super) fn move_to(
        &mut self,
        mut next: Child,
        program: &Arc<Program>,
        now: Instant,
    ) -> Result<(), OrderError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Runs { child: old, .. } => {
                self.moved = None;
                let served = serves(self.number, next.id(), next.stdout.take());
                self.state = State::Moves {
                    old,
                    next,
                    program: Arc::clone(program),
                    since: now,
                    served,
                    tell_at: None,
                };
                Ok(())
            }
            state => {
                self.state = state;
                Err(OrderError::NotRunning(self.number))
            }
        }
    }

    /// What came of its move, once.
    pub(super) fn take_moved(&mut self) -> Option<Result<(), String>> {
        self.moved.take()
    }

    /// Looks how far a move has come.
    fn look_at_move(&mut self, now: Instant) {
        let State::Moves {
            old,
            next,
            since,
            served,
            tell_at,
            ..
        } = &mut self.state
        else {
            return;
        };
        let (has_served, seconds) = (served.get().copied(), now.saturating_duration_since(*since));
        let old_has_ended = !matches!(old.try_wait(), Ok(None));
        if let Ok(None) = next.try_wait() {
            let Some(at) = has_served else {
                if old_has_ended {
                    let due = tell_at.get_or_insert(now + SILENCE);
                    if now >= *due {
                        *due = now + SILENCE;
                        tracing::error!(
                            backend = self.number,
                            pid = next.id().unwrap_or_default(),
                            seconds = seconds.as_secs(),
                            "its former process has ended, and the one that takes it over does not serve: that one may hold all that is left of it. What it waits for stands in the log; if it hangs, kill it, and the backend is started anew"
                        );
                    }
                }
                return;
            };
            if !old_has_ended {
                if now.saturating_duration_since(at) >= END_PATIENCE {
                    tracing::error!(
                        backend = self.number,
                        "its former process does not end; killing it"
                    );
                    let _ = old.start_kill();
                }
                return;
            }
        } else if old_has_ended {
            // Both: as any death.
            self.moved = Some(Err("both processes have died".into()));
            if let State::Moves { old, since, .. } = std::mem::replace(&mut self.state, State::Over)
            {
                self.state = State::runs(old, since);
            }
            return;
        } else {
            self.moved = Some(Err(format!(
                "the process that was to take it over has ended after {:.1} s; its message stands in the log of `cell up`",
                seconds.as_secs_f64()
            )));
            if let State::Moves { old, since, .. } = std::mem::replace(&mut self.state, State::Over)
            {
                let state = State::runs(old, since);
                if let State::Runs { served, .. } = &state {
                    let _ = served.set(since);
                }
                self.state = state;
            }
            return;
        }
        if let State::Moves {
            next,
            program,
            served,
            ..
        } = std::mem::replace(&mut self.state, State::Over)
        {
            self.program = program;
            self.deaths = 0;
            self.moved = Some(Ok(()));
            self.state = State::Runs {
                child: next,
                since: now,
                served,
                tell_at: now + SILENCE,
            };
        }
    }

    /// Waits for its word that it serves. Its reasons for not doing so have gone to our
    /// stderr, which it shares.
    pub(super) async fn await_ready(&mut self) -> Result<(), Failure> {
        let number = self.number;
        let is_ready = match &mut self.state {
            State::Runs { child, served, .. } => {
                let is_ready = is_ready(child.stdout.take()).await;
                let _ = served.set(Instant::now());
                is_ready
            }
            _ => false,
        };
        match is_ready {
            true => Ok(()),
            false => Err(Failure::Failed(format!(
                "backend {number} did not start; its message stands above"
            ))),
        }
    }

    /// Notices its death.
    pub(super) fn look(&mut self, now: Instant, revival: &Revival) {
        self.look_at_move(now);
        let State::Runs {
            child,
            since,
            served,
            tell_at,
        } = &mut self.state
        else {
            return;
        };
        let (how, is_killed) = match child.try_wait() {
            Ok(None) => {
                if served.get().is_none() && now >= *tell_at {
                    let seconds = now.saturating_duration_since(*since).as_secs();
                    *tell_at = now + LIFE_MIN;
                    tracing::warn!(
                        backend = self.number,
                        seconds,
                        "the backend does not serve yet"
                    );
                }
                return;
            }
            Ok(Some(status)) => (status.to_string(), status.signal() == Some(KILL)),
            Err(error) => (error.to_string(), false),
        };
        let life = served
            .get()
            .map(|served| now.saturating_duration_since(*served));
        let is_soon = life.is_none_or(|life| life < LIFE_MIN);
        self.deaths = if is_soon { self.deaths + 1 } else { 1 };
        let backend = self.number;
        if let Some(Hindrance::ForGood(why)) = revival.hindrance(self.number) {
            tracing::error!(backend, how, why, "a backend has died");
            self.state = State::Over;
            return;
        }
        let pause = pause(self.deaths, is_killed);
        let pause_ms = pause.as_millis() as u64;
        tracing::error!(
            backend,
            how,
            pause_ms,
            "a backend has died; it is started again"
        );
        self.state = State::Waits { due: now + pause };
    }

    /// Starts it again, if its time has come; which backend that is.
    pub(super) fn start_if_due(
        &mut self,
        now: Instant,
        revival: &Revival,
        starter: &Starter,
        memory: u64,
    ) -> Option<u32> {
        let State::Waits { due } = self.state else {
            return None;
        };
        if now < due {
            return None;
        }
        let number = self.number;
        // Something may have changed while it waited.
        match revival.hindrance(self.number) {
            None => {}
            Some(Hindrance::ForGood(why)) => {
                tracing::error!(backend = number, why, "the backend stays dead");
                self.state = State::Over;
                return None;
            }
            Some(Hindrance::ForNow(why)) => {
                tracing::error!(backend = number, why, "the backend is not started yet");
                let due = now + PUT_BACK_PAUSE;
                self.state = State::Waits { due };
                return None;
            }
        }
        match starter.start(&self.program, Begins::Alone(number), memory) {
            Ok(mut child) => {
                let served = serves(number, child.id(), child.stdout.take());
                self.state = State::Runs {
                    child,
                    since: now,
                    served,
                    tell_at: now + SILENCE,
                };
                Some(number)
            }
            Err(error) => {
                tracing::error!(backend = number, %error, "cannot start the backend again");
                self.deaths += 1;
                let due = now + pause(self.deaths, false);
                self.state = State::Waits { due };
                None
            }
        }
    }
}

/// When a process says that it serves, which is noted when it does.
fn serves(number: u32, pid: Option<u32>, out: Option<ChildStdout>) -> Arc<OnceLock<Instant>> {
    let served = Arc::<OnceLock<Instant>>::default();
    let notes = Arc::clone(&served);
    tokio::spawn(async move {
        if is_ready(out).await {
            let _ = notes.set(Instant::now());
            tracing::info!(backend = number, pid, "the backend serves again");
        }
    });
    served
}

/// Whether a backend has said that it serves.
async fn is_ready(out: Option<ChildStdout>) -> bool {
    let Some(out) = out else { return false };
    let line = BufReader::new(out).lines().next_line().await;
    matches!(line, Ok(Some(line)) if line == "ready")
}
