//! One process of a fleet: this same program, as a server or an assigner.

use crate::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

/// Longer than a process takes to begin, to stop or to end, that does at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: u32,
}

/// What it prints.
pub(crate) type Output = Lines<BufReader<ChildStdout>>;

impl Process {
    pub(crate) fn start(arguments: &[String]) -> Result<(Self, Output), Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("a process has no output")?;
        let pid = child.id().ok_or("a process has ended at once")?;
        Ok((Process { child, pid }, BufReader::new(output).lines()))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        Ok(kill_process(
            pid.ok_or("a process without a number")?,
            signal,
        )?)
    }

    /// SIGSTOP, until none of its threads runs any more: a signal that was sent has not
    /// arrived everywhere yet.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.pid);
        let since = Instant::now();
        loop {
            let is_stopped = std::fs::read_dir(&tasks)?.flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                // The state follows the name, which is in parentheses.
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T'))
            });
            if is_stopped {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("process {} does not stop", self.pid).into());
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// SIGKILL, until it is gone.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        Ok(())
    }

    /// Whether it ends by itself within so long; an error if it ends badly.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> Result<bool, Failure> {
        match timeout(limit, self.child.wait()).await {
            Err(_) => Ok(false),
            Ok(end) => match end? {
                end if end.success() => Ok(true),
                end => Err(format!("process {} that was asked to end: {end}", self.pid).into()),
            },
        }
    }

    /// Whether it has ended though nobody asked it to.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// The next line, which has to begin so.
pub(crate) async fn line(output: &mut Output, word: &str) -> Result<String, Failure> {
    let line = timeout(PATIENCE, output.next_line()).await;
    let line = line.map_err(|_| format!("a process does not say `{word}`"))??;
    let line = line.ok_or_else(|| format!("a process has ended before it said `{word}`"))?;
    match line.strip_prefix(word) {
        Some(rest) => Ok(rest.trim().to_owned()),
        None => Err(format!("a process said {line:?} instead of `{word}`").into()),
    }
}
