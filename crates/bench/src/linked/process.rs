//! Server processes of ours: started, awaited by their ready line, and gone with
//! their guard.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::error::LinkedBenchError;
use crate::hosts::Host;
use crate::peer::procfs;

/// A running server.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    /// Where it serves, once it is awaited.
    pub(super) address: String,
    /// Where it takes frames, if it does.
    pub(super) frames: Option<String>,
}

#[derive(serde::Deserialize)]
struct Ready {
    address: String,
    #[serde(default)]
    frames: Option<String>,
}

impl Process {
    /// Starts a command on a host.
    pub(super) fn start(
        name: &str,
        host: &Host,
        command: &mut Command,
    ) -> Result<Self, LinkedBenchError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = host.enter(|| command.spawn())?;
        Ok(Process {
            name: name.to_owned(),
            child: child.map_err(|error| not_ready(name, error.to_string()))?,
            address: String::new(),
            frames: None,
        })
    }

    /// Waits until it says on one line that it is ready.
    pub(super) fn await_ready(&mut self) -> Result<&str, LinkedBenchError> {
        let mut line = String::new();
        if let Some(out) = self.child.stdout.take() {
            // It says nothing more afterwards.
            let read = BufReader::new(out).read_line(&mut line);
            read.map_err(|error| not_ready(&self.name, error.to_string()))?;
        }
        let ready = line.strip_prefix("ready ");
        match ready.and_then(|json| serde_json::from_str::<Ready>(json).ok()) {
            Some(ready) => (self.address, self.frames) = (ready.address, ready.frames),
            None => {
                let problem = format!("no ready line, but {line:?}");
                return Err(not_ready(&self.name, problem));
            }
        }
        Ok(&self.address)
    }

    pub(super) fn cpu_time(&self) -> Result<Duration, LinkedBenchError> {
        Ok(procfs::cpu_time(self.child.id())?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn not_ready(name: &str, problem: String) -> LinkedBenchError {
    LinkedBenchError::NotReady {
        name: name.to_owned(),
        problem,
    }
}
