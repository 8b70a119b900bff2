//! The engine of `cell up`: a process beside this host's backends, started again when it
//! has died. It keeps nothing, so nothing is lost with it.

use crate::args::{Plaintext, Restart, UpArgs};
use crate::backoff::{LIFE_MIN, pause};
use crate::cell::program::{Program, Starter};
use crate::cell::up::{RESTART_DEFAULT, engine_metrics};
use crate::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout};

/// How long it may take to end after it was asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Where it is reached.
#[derive(Clone, Copy)]
struct Addresses {
    listen: SocketAddr,
    /// Of its metrics.
    metrics: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Somebody waits until it serves.
    First,
    /// It has died.
    Again,
}

/// See the module.
pub(super) struct EngineProcess {
    program: Arc<Program>,
    at: Addresses,
    child: Option<(Child, Instant)>,
    /// When it is started again.
    due: Option<Instant>,
    /// Deaths in a row, each soon after its start.
    deaths: u32,
}

impl EngineProcess {
    /// Starts it, and waits until it serves. Its reasons for not doing so have gone to our
    /// stderr, which it shares.
    pub(super) async fn start(
        program: &Arc<Program>,
        starter: &Starter,
        listen: SocketAddr,
    ) -> Result<Self, Failure> {
        let metrics = engine_metrics(&starter.args)?;
        let wanted = Addresses { listen, metrics };
        let mut child = spawn(program, starter, wanted, Start::First)?;
        let Some(at) = served_at(child.stdout.take()).await else {
            return Err(Failure::Failed(format!(
                "the engine at {listen} did not start; its message stands above"
            )));
        };
        Ok(EngineProcess {
            program: Arc::clone(program),
            at,
            child: Some((child, Instant::now())),
            due: None,
            deaths: 0,
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.at.listen
    }

    /// Where its metrics are served.
    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        self.at.metrics
    }

    /// Its process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(|(child, _)| child.id())
    }

    /// Looks whether it has died, and starts it again when its time has come.
    pub(super) fn look(&mut self, now: Instant, starter: &Starter) {
        if let Some((child, since)) = &mut self.child
            && let Ok(Some(status)) = child.try_wait()
        {
            self.deaths = match now.duration_since(*since) >= LIFE_MIN {
                true => 1,
                false => self.deaths + 1,
            };
            self.child = None;
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            let restart = starter.args.restart.unwrap_or(RESTART_DEFAULT);
            if restart == Restart::Always {
                // Its memory is nobody's: there is nothing to wait for, but for a loop.
                self.due = Some(now + pause(self.deaths, false));
            }
            tracing::error!(%status, is_killed, "the engine has died; clients call meanwhile");
        }
        if self.due.is_some_and(|due| now >= due) {
            self.due = None;
            match spawn(&self.program, starter, self.at, Start::Again) {
                Ok(child) => self.child = Some((child, now)),
                Err(error) => {
                    self.deaths += 1;
                    self.due = Some(now + pause(self.deaths.max(2), false));
                    tracing::error!("the engine: {error}");
                }
            }
        }
    }

    /// When it is to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Ends it.
    pub(super) async fn stop(mut self) {
        let Some((child, _)) = &mut self.child else {
            return;
        };
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(STOP_PATIENCE, child.wait())
            .await
            .is_err()
        {
            let _ = child.kill().await;
        }
    }
}

/// Where an engine says that it serves; `None` if it has ended without a word.
async fn served_at(out: Option<ChildStdout>) -> Option<Addresses> {
    let line = BufReader::new(out?).lines().next_line().await.ok()??;
    let said: serde_json::Value = serde_json::from_str(line.strip_prefix("ready ")?).ok()?;
    let at = |name: &str| said[name].as_str()?.parse().ok();
    Some(Addresses {
        listen: at("engine")?,
        metrics: at("metrics"),
    })
}

fn spawn(
    program: &Program,
    starter: &Starter,
    at: Addresses,
    start: Start,
) -> Result<Child, Failure> {
    let UpArgs {
        host,
        engine_size: size,
        ..
    } = &starter.args;
    let mut command = program.command();
    command
        .args(["engine", "--is-bound", "--cell", &starter.home.address()])
        .args(["--listen", &at.listen.to_string()])
        .stdin(Stdio::null())
        // Its ready line is not ours, and nobody waits for that of a later one.
        .stdout(match start {
            Start::First => Stdio::piped(),
            Start::Again => Stdio::null(),
        })
        .kill_on_drop(true);
    if let Some(engines) = size.engines {
        command.arg("--engines").arg(engines.to_string());
    }
    if let Some(sessions) = size.engine_sessions {
        command.arg("--engine-sessions").arg(sessions.to_string());
    }
    if let Some(share) = size.engine_share {
        command.arg("--engine-share").arg(share.to_string());
    }
    if let Some(metrics) = at.metrics {
        command.arg("--metrics").arg(metrics.to_string());
        if start == Start::Again {
            // Clients are not to miss the engine for that.
            command.arg("--metrics-may-come-later");
        }
    }
    if host.plaintext.contains(&Plaintext::Metrics) {
        command.arg("--plaintext-metrics");
    }
    if let Some(certs) = &host.certs {
        command.arg("--certs").arg(certs);
    }
    if let Some(file) = &host.token_file {
        command.arg("--token-file").arg(file);
        command.env(trefoil_cell::TOKEN_FILE_VARIABLE, file);
    }
    if host.plaintext.contains(&Plaintext::Rpc) {
        command.arg("--plaintext");
    }
    command
        .spawn()
        .map_err(|e| Failure::doing("cannot start the engine", e))
}
