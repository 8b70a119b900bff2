//! What a process tells at its endpoint.

use crate::samples::Samples;
use std::fmt;

/// A process, or a part of one. Of several parts the process is alive and ready
/// if all of them are, and drained when all of them are.
pub trait Process: Send + Sync + 'static {
    /// Adds its metrics.
    ///
    /// # Errors
    /// It does not answer: the page is refused, rather than being told in part.
    fn collect(&self, samples: &mut Samples) -> fmt::Result;

    /// Whether it gets on.
    ///
    /// # Errors
    /// Why it has to be started anew.
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it is of use to others.
    ///
    /// # Errors
    /// What it waits for, or why it is not any more.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    /// Begins to give everything away; does nothing if that has begun.
    fn drain(&self) {}

    /// How far that is; `None` where there is nothing to give.
    fn drained(&self) -> Option<Drain> {
        None
    }
}

/// How far a process is that gives everything away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Nobody has asked for it.
    NotBegun,
    /// Something is left; what, for people.
    UnderWay(String),
    /// Nothing is left: it is safe to stop the process.
    Done,
    /// Likewise, but it did not give everything away itself; why, for people.
    Lost(String),
}
