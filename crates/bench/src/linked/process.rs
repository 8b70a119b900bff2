//! Server processes of ours: started, awaited by their ready line, and gone with
//! their guard.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::error::LinkedBenchError;
use super::network::Host;
use crate::peer::procfs;

/// A running server.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// Where it serves.
    pub(super) address: String,
}

#[derive(serde::Deserialize)]
struct Ready {
    address: String,
}

impl Process {
    /// Runs a command on a host until it says on one line that it is ready.
    pub(super) fn start(
        name: &str,
        host: &Host,
        command: &mut Command,
    ) -> Result<Self, LinkedBenchError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let not_ready = |problem: String| LinkedBenchError::NotReady {
            name: name.to_owned(),
            problem,
        };
        let child = host.enter(|| command.spawn())?;
        let mut process = Process {
            child: child.map_err(|error| not_ready(error.to_string()))?,
            address: String::new(),
        };
        let mut line = String::new();
        if let Some(out) = process.child.stdout.take() {
            // It says nothing more, or closes its end when it stops.
            let read = BufReader::new(out).read_line(&mut line);
            read.map_err(|error| not_ready(error.to_string()))?;
        }
        let ready = line.strip_prefix("ready ");
        match ready.and_then(|json| serde_json::from_str::<Ready>(json).ok()) {
            Some(ready) => process.address = ready.address,
            None => return Err(not_ready(format!("no ready line, but {line:?}"))),
        }
        Ok(process)
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
