//! `serve --restart always`: a small parent that runs the server as its child, and starts
//! another one when that dies.
//!
//! ```text
//! SIGTERM, SIGINT, SIGHUP ─► parent ─► child (the server)
//!                            parent ◄─ how it ended
//!      killed, crashed, panicked ─► another child, after a pause that grows
//!      anything else             ─► the parent ends with the same exit code
//! ```
//!
//! The child says `ready` itself, on the standard output that both share, so the line names
//! the process that serves, and there is one for each start. It does not outlive its parent:
//! the system sends it SIGTERM then.

use crate::backoff::{self, LIFE_MIN};
use crate::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// A program's own word that it has failed inside (EX_SOFTWARE), and what a panic of the
/// main thread ends with.
const CRASHED: [i32; 2] = [70, 101];
/// What a shell says of a process that died by signal 0; others are so much above.
const BY_SIGNAL: i32 = 128;

/// What becomes of a server that has ended.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It has died: another one is started.
    Died { is_killed: bool },
    /// It has ended as it meant to, or was told to: so does the parent.
    Ended { code: u8 },
}

fn fate(status: ExitStatus, was_told: bool) -> Fate {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => BY_SIGNAL + signal.unwrap_or_default(),
    };
    let has_died = status.signal().is_some() || CRASHED.contains(&code);
    match has_died && !was_told {
        true => Fate::Died {
            is_killed: status.signal() == Some(Signal::KILL.as_raw()),
        },
        false => Fate::Ended {
            code: u8::try_from(code).unwrap_or(1),
        },
    }
}

/// In the child: it ends with its parent, which `parent` names.
pub(crate) fn end_with(parent: u32) -> Result<(), Failure> {
    let failed = |e| Failure::doing("cannot be bound to the process that watches this one", e);
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    // It may have died before.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    match now.and_then(|pid| u32::try_from(pid).ok()) == Some(parent) {
        true => Ok(()),
        false => Err(Failure::of("the process that watched this one has ended")),
    }
}

/// Runs `trefoil` with the arguments that this process was given, until it ends and is not
/// to be started again.
pub(crate) fn run() -> Outcome {
    crate::logging::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?;
    // In this very thread, for the child is bound to the thread that has started it.
    runtime.block_on(supervise())
}

async fn supervise() -> Outcome {
    let mut told = Told {
        terminate: signal(SignalKind::terminate()).map_err(Failure::of)?,
        interrupt: signal(SignalKind::interrupt()).map_err(Failure::of)?,
        hangup: signal(SignalKind::hangup()).map_err(Failure::of)?,
        to_end: false,
    };
    let mut deaths = 0;
    loop {
        let begin = Instant::now();
        let mut child = start()?;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                signal = told.next() => pass_on(&child, signal),
            }
        };
        let status = status.map_err(|e| Failure::doing("cannot wait for the server", e))?;
        let is_killed = match fate(status, told.to_end) {
            Fate::Ended { code } => return Ok(ExitCode::from(code)),
            Fate::Died { is_killed } => is_killed,
        };
        let is_soon = begin.elapsed() < LIFE_MIN;
        deaths = if is_soon { deaths + 1 } else { 1 };
        let pause = backoff::pause(deaths, is_killed);
        tracing::error!(
            how = %status,
            pause_ms = pause.as_millis() as u64,
            "the server has died; it is started again, empty"
        );
        if told.comes_within(pause).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The program that runs here, whatever stands at its path by now.
fn start() -> Result<Child, Failure> {
    let mut command = Command::new("/proc/self/exe");
    command
        .as_std_mut()
        .args(std::env::args_os().skip(1))
        .args(["--supervised-by", &std::process::id().to_string()]);
    command.arg0("trefoil").kill_on_drop(true);
    command
        .spawn()
        .map_err(|e| Failure::doing("cannot start the server", e))
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        // One that has just ended is waited for next.
        let _ = kill_process(pid, signal);
    }
}

/// What this process is told.
struct Told {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    /// It is to end.
    to_end: bool,
}

impl Told {
    async fn next(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.hangup.recv() => Signal::HUP,
        };
        self.to_end |= signal != Signal::HUP;
        signal
    }

    /// Whether it is told to end before so long has passed.
    async fn comes_within(&mut self, pause: Duration) -> bool {
        let by = tokio::time::Instant::now() + pause;
        while !self.to_end {
            if tokio::time::timeout_at(by, self.next()).await.is_err() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_death_that_nobody_wanted_is_followed_by_another_start() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw;
        let died = |is_killed| Fate::Died { is_killed };
        let ended = |code| Fate::Ended { code };
        for (status, untold, told) in [
            (exited(0), ended(0), ended(0)),
            (exited(1), ended(1), ended(1)),
            (exited(2), ended(2), ended(2)),
            (exited(70), died(false), ended(70)),
            (exited(101), died(false), ended(101)),
            (killed(9), died(true), ended(137)),
            (killed(11), died(false), ended(139)),
            (killed(15), died(false), ended(143)),
        ] {
            assert_eq!(fate(status, false), untold, "{status}");
            assert_eq!(fate(status, true), told, "{status}, told to end");
        }
    }
}
