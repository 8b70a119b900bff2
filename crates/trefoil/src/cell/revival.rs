//! A backend's process under `cell up`: started again when it has died, after a pause
//! that grows while it dies soon.

use crate::args::{Restart, UpArgs};
use crate::cell::up::RESTART_DEFAULT;
use crate::failure::Failure;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout};
use trefoil_cell::{ConfigStore as _, DirectoryStore, Mode};

/// Before the first restart in a row: none; before the second, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// One that has lived so long has not died soon.
const LIFE_MIN: Duration = Duration::from_secs(60);

/// When a backend that has died is started again.
pub(super) struct Revival {
    restart: Restart,
    store: DirectoryStore,
    /// The configuration whose corpus `--load` names; another file was loaded since if
    /// it has changed.
    corpus_of: Option<u32>,
}

impl Revival {
    pub(super) fn new(args: &UpArgs, dir: &Path) -> Result<Self, Failure> {
        let store = DirectoryStore::open(dir).map_err(Failure::of)?;
        let config = store.load().map_err(Failure::of)?;
        let corpus_of = config
            .filter(|config| config.mode == Mode::R2)
            .map(|config| config.config_id);
        Ok(Revival {
            restart: args.restart.unwrap_or(RESTART_DEFAULT),
            store,
            corpus_of,
        })
    }

    /// Why a backend stays dead, if so.
    fn hindrance(&self) -> Option<&'static str> {
        if self.restart == Restart::Never {
            return Some("it is not restarted (--restart never): restart the whole cell");
        }
        let config_id = self.corpus_of?;
        let current = self.store.load().ok().flatten();
        let is_same = current.is_some_and(|config| config.config_id == config_id);
        (!is_same).then_some(
            "it is not restarted, because another corpus was loaded than the one at the start: restart the whole cell with the new file",
        )
    }
}

/// See the module.
pub(super) struct Backend {
    number: u32,
    state: State,
    /// Deaths in a row, each soon after its start.
    deaths: u32,
}

enum State {
    Runs {
        child: Child,
        since: Instant,
    },
    /// Dead, until then.
    Waits {
        due: Instant,
    },
    /// Dead for good.
    Over,
}

impl Backend {
    pub(super) fn new(number: u32, child: Child) -> Self {
        let since = Instant::now();
        Backend {
            number,
            state: State::Runs { child, since },
            deaths: 0,
        }
    }

    /// Its process; 0 if it has none.
    pub(super) fn pid(&self) -> u32 {
        match &self.state {
            State::Runs { child, .. } => child.id().unwrap_or(0),
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

    pub(super) fn into_child(self) -> Option<(u32, Child)> {
        match self.state {
            State::Runs { child, .. } => Some((self.number, child)),
            _ => None,
        }
    }

    /// Waits for its word that it serves. Its reasons for not doing so have gone to our
    /// stderr, which it shares.
    pub(super) async fn await_ready(&mut self) -> Result<(), Failure> {
        let number = self.number;
        let is_ready = match &mut self.state {
            State::Runs { child, .. } => is_ready(child.stdout.take()).await,
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
        let State::Runs { child, since } = &mut self.state else {
            return;
        };
        let how = match child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let is_soon = now.saturating_duration_since(*since) < LIFE_MIN;
        self.deaths = if is_soon { self.deaths + 1 } else { 1 };
        let backend = self.number;
        if let Some(why) = revival.hindrance() {
            tracing::error!(backend, how, why, "a backend has died");
            self.state = State::Over;
            return;
        }
        let pause = pause(self.deaths);
        let pause_ms = pause.as_millis() as u64;
        tracing::error!(
            backend,
            how,
            pause_ms,
            "a backend has died; it is started again"
        );
        self.state = State::Waits { due: now + pause };
    }

    /// Starts it again, if its time has come.
    pub(super) fn start_if_due(
        &mut self,
        now: Instant,
        start: &dyn Fn(u32) -> Result<Child, Failure>,
    ) {
        let State::Waits { due } = self.state else {
            return;
        };
        if now < due {
            return;
        }
        let number = self.number;
        match start(number) {
            Ok(mut child) => {
                let (pid, out) = (child.id(), child.stdout.take());
                tokio::spawn(async move {
                    if is_ready(out).await {
                        tracing::info!(backend = number, pid, "the backend serves again");
                    }
                });
                self.state = State::Runs { child, since: now };
            }
            Err(error) => {
                tracing::error!(backend = number, %error, "cannot start the backend again");
                self.deaths += 1;
                let due = now + pause(self.deaths);
                self.state = State::Waits { due };
            }
        }
    }
}

/// Before the start after so many deaths in a row.
fn pause(deaths: u32) -> Duration {
    match deaths {
        0 | 1 => Duration::ZERO,
        more => PAUSE_MIN
            .saturating_mul(1 << (more - 2).min(16))
            .min(PAUSE_MAX),
    }
}

/// Whether a backend has said that it serves.
async fn is_ready(out: Option<ChildStdout>) -> bool {
    let Some(out) = out else { return false };
    let line = BufReader::new(out).lines().next_line().await;
    matches!(line, Ok(Some(line)) if line == "ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let ms = |deaths| pause(deaths).as_millis();
        assert_eq!([0, 1, 2, 3, 4].map(ms), [0, 0, 500, 1000, 2000]);
        assert_eq!([20, 1000, u32::MAX].map(ms), [30_000; 3]);
    }
}
