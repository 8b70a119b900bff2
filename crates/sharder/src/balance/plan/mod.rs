//! What a step of the balancer proposes, and why: for machines and for people.

mod change;
mod note;
mod overloaded;

pub use change::{Action, Change, Reason};
pub use note::{Note, Obstacles};
pub use overloaded::{Metric, Overloaded};

use crate::assignment::Assignment;
use crate::key::Slice;
use crate::server::ServerId;
use crate::version::AssignmentVersion;
use std::fmt;

/// How much a plan moves. A key counts once for every server that newly gets
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Churn {
    /// Part of the key space.
    pub keys: f64,
    /// Resident bytes.
    pub bytes: f64,
    /// Part of the key space that got a server because death had left it with none, or
    /// with too few: no budget limits that.
    pub forced_keys: f64,
}

/// A server's believed load, in fair shares (the larger of both metrics).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerLoad {
    /// Which.
    pub server: ServerId,
    /// Before the plan.
    pub before: f64,
    /// When the plan has been carried out.
    pub after: f64,
}

/// The outcome of a step: nothing is in force before the store has taken
/// `next`, and [`crate::Balancer::commit`] was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it starts from.
    pub base: AssignmentVersion,
    /// The assignment to put in force; `None` if everything stays as it is.
    pub next: Option<Assignment>,
    /// How it comes about.
    pub changes: Vec<Change>,
    /// How much moves.
    pub churn: Churn,
    /// What does not fit anywhere.
    pub overloaded: Vec<Overloaded>,
    /// What was seen, or not done, and why.
    pub notes: Vec<Note>,
    /// Who carries how much; only servers that take part in balancing.
    pub loads: Vec<ServerLoad>,
}

impl Plan {
    /// How many changes send values over the network.
    pub fn move_count(&self) -> usize {
        self.changes
            .iter()
            .filter(|change| {
                matches!(
                    change.action,
                    Action::Move { .. } | Action::AddReplica { .. }
                )
            })
            .count()
    }

    /// The key ranges whose values are lost because all who had them are dead.
    pub fn lost(&self) -> impl Iterator<Item = Slice> + '_ {
        self.changes
            .iter()
            .filter(|change| change.reason == Reason::AllDead)
            .map(|change| change.slice)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.next {
            Some(next) => writeln!(
                f,
                "{} -> {}: {} move(s), {:.2} % of the key space, {:.0} bytes",
                self.base,
                next.version(),
                self.move_count(),
                self.churn.keys * 100.0,
                self.churn.bytes
            )?,
            None => writeln!(f, "{} stays", self.base)?,
        }
        for change in &self.changes {
            writeln!(f, "  {change}")?;
        }
        for overloaded in &self.overloaded {
            writeln!(f, "  {overloaded}")?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}
