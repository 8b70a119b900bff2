//! Processes that stand by to take a backend over.

use crate::cell::backend::TakeOver;
use crate::cell::order_error::OrderError;
use crate::cell::program::{Begins, Program, Starter};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

/// After one was started for one that has died or was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Spares {
    program: Arc<Program>,
    waiting: Vec<Child>,
    /// How many there are to be, with those that have taken a backend over.
    wanted: usize,
    not_before: Instant,
}

impl Spares {
    /// None yet, of so many.
    pub(super) fn new(program: Arc<Program>, wanted: usize) -> Self {
        Spares {
            program,
            waiting: Vec::new(),
            wanted,
            not_before: Instant::now(),
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
    pub(super) fn add(
        &mut self,
        starter: &Starter,
        memory: u64,
    ) -> Result<Option<u32>, OrderError> {
        let child = starter.start(&self.program, Begins::Spare, memory);
        let child = child.map_err(OrderError::cannot_start)?;
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
    ) -> Result<(), OrderError> {
        if self.program.is_same(program) {
            return Ok(());
        }
        self.program = Arc::clone(program);
        // Those of before end when their standard input does.
        let count = std::mem::take(&mut self.waiting).len();
        (0..count).try_for_each(|_| self.add(starter, memory).map(drop))
    }

    /// Starts others for those that have died or were lost: in a move that came to nothing, or
    /// in place of a backend that the cell, resized, has no longer. So many have `taken` a
    /// backend over, or are about to.
    pub(super) fn look(&mut self, now: Instant, starter: &Starter, memory: u64, taken: usize) {
        self.waiting.retain_mut(|child| match child.try_wait() {
            Ok(Some(status)) => {
                tracing::warn!(how = %status, "a spare has died");
                false
            }
            _ => true,
        });
        if self.waiting.len() + taken >= self.wanted || now < self.not_before {
            return;
        }
        self.not_before = now + PAUSE;
        match self.add(starter, memory) {
            Ok(pid) => tracing::info!(pid, "another spare is started"),
            Err(error) => tracing::error!(%error, "no other spare can be started"),
        }
    }

    /// Tells one which backend to take over.
    pub(super) async fn take(
        &mut self,
        number: u32,
        starter: &Starter,
        memory: u64,
    ) -> Result<Child, OrderError> {
        let mut child = self.waiting.pop().ok_or(OrderError::NoSpare)?;
        let word = TakeOver {
            number,
            metrics: starter
                .metrics_of(number)
                .map_err(OrderError::cannot_start)?,
            memory,
        };
        let mut line = serde_json::to_string(&word).map_err(OrderError::internal)?;
        line.push('\n');
        let mut stdin = child.stdin.take().ok_or(OrderError::SpareDeaf)?;
        let told = stdin.write_all(line.as_bytes()).await;
        told.map_err(|error| OrderError::SpareGone(error.to_string()))?;
        Ok(child)
    }
}
