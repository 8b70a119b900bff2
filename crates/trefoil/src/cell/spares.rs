//! Processes that stand by to take a backend over.

use crate::cell::backend::TakeOver;
use crate::cell::program::{Begins, Program, Starter};
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

/// See the module.
pub(super) struct Spares {
    program: Arc<Program>,
    waiting: Vec<Child>,
}

impl Spares {
    pub(super) fn new(program: Arc<Program>) -> Self {
        Spares {
            program,
            waiting: Vec::new(),
        }
    }

    /// What they run.
    pub(super) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Another one; its process.
    pub(super) fn add(&mut self, starter: &Starter, memory: u64) -> Result<Option<u32>, String> {
        let child = starter.start(&self.program, Begins::Spare, memory);
        let child = child.map_err(|error| error.to_string())?;
        let pid = child.id();
        self.waiting.push(child);
        Ok(pid)
    }

    /// As many of another program.
    pub(super) fn renew(
        &mut self,
        program: &Arc<Program>,
        starter: &Starter,
        memory: u64,
    ) -> Result<(), String> {
        if self.program.is_same(program) {
            return Ok(());
        }
        self.program = Arc::clone(program);
        // Those of before end when their standard input does.
        let count = std::mem::take(&mut self.waiting).len();
        (0..count).try_for_each(|_| self.add(starter, memory).map(drop))
    }

    /// Starts those again that have died.
    pub(super) fn look(&mut self, starter: &Starter, memory: u64) {
        for child in &mut self.waiting {
            let Ok(Some(status)) = child.try_wait() else {
                continue;
            };
            tracing::warn!(how = %status, "a spare has died; another one is started");
            match starter.start(&self.program, Begins::Spare, memory) {
                Ok(another) => *child = another,
                Err(error) => tracing::error!(%error, "no other spare can be started"),
            }
        }
    }

    /// Tells one which backend to take over.
    pub(super) async fn take(
        &mut self,
        number: u32,
        starter: &Starter,
        memory: u64,
    ) -> Result<Child, String> {
        let mut child = self.waiting.pop().ok_or("no spare stands by")?;
        let word = TakeOver {
            number,
            metrics: starter.metrics_of(number).map_err(|e| e.to_string())?,
            memory,
        };
        let mut line = serde_json::to_string(&word).map_err(|e| e.to_string())?;
        line.push('\n');
        let mut stdin = child.stdin.take().ok_or("the spare cannot be spoken to")?;
        let told = stdin.write_all(line.as_bytes()).await;
        told.map_err(|error| format!("the spare has gone: {error}"))?;
        Ok(child)
    }
}
