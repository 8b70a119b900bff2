//! What a run found wrong.

use crate::many::{Ends, Runs};
use std::fmt;

/// Which part of the promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// A read at the owner, or any read in strong mode, returned something
    /// else than the newest commit.
    Fresh,
    /// A strong commit, acknowledged when several servers had it, was lost
    /// though at most one of them died.
    Undone,
    /// A strong commit was acknowledged though a server that is alive, and to have
    /// a copy, had none.
    Copied,
    /// Two servers served one key at once.
    OneOwner,
    /// A change that was computed from a value took the place of another one.
    Lost,
    /// A fencing token did not grow with a new owner.
    Token,
    /// An acknowledged commit was lost and not reported exactly once.
    Reported,
    /// A value that only moved was lost.
    Moved,
    /// What was committed by a server that had been replaced was not named.
    Named,
    /// A request was redirected more than once while the maps were stable.
    Redirected,
    /// Keys had no owner 5 s after a crash, or requests were not answered.
    OwnedAgain,
    /// A request waited for a server that could be reached through another one.
    Held,
    /// A draining server was not emptied.
    Drained,
    /// A server has not looked at something that had changed.
    Overlooked,
    /// A server was told what its release does not know.
    Former,
    /// Somebody who did not lead has put something in force.
    Leader,
    /// A server gave everything up though nobody had struck it off.
    Struck,
    /// Something panicked.
    Panic,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Property::Fresh => "fresh",
            Property::Undone => "undone",
            Property::Copied => "copied",
            Property::OneOwner => "one owner",
            Property::Lost => "lost update",
            Property::Token => "token",
            Property::Reported => "reported",
            Property::Moved => "moved",
            Property::Named => "named",
            Property::Redirected => "redirected",
            Property::OwnedAgain => "owned again",
            Property::Held => "held up",
            Property::Drained => "drained",
            Property::Overlooked => "overlooked",
            Property::Former => "former",
            Property::Leader => "leader",
            Property::Struck => "struck off",
            Property::Panic => "panic",
        })
    }
}

/// A history that breaks the promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The run.
    pub seed: u64,
    /// Of which kind.
    pub runs: Runs,
    /// When it was to end.
    pub ends: Ends,
    /// What was broken.
    pub property: Property,
    /// How, in one sentence.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: property \"{}\" is violated: {}",
            self.seed, self.property, self.message
        )?;
        let runs = match self.runs {
            Runs::Any => "",
            Runs::Pauses => "--pauses ",
            Runs::Assigners => "--assigners ",
            Runs::Rush => "--rush ",
            Runs::Windows => "--windows ",
            Runs::Updates => "--updates ",
            Runs::Stays => "--stays ",
            Runs::Cuts => "--cuts ",
            Runs::Hangs => "--hangs ",
            Runs::Crowd => "--crowd ",
            Runs::Elections => "--elections ",
        };
        let early = match self.ends {
            Ends::Early => "--early ",
            Ends::Late => "",
        };
        write!(
            f,
            "replay: cargo run --release -p trefoil-linked-sim -- {runs}{early}--seed {}",
            self.seed
        )
    }
}

impl std::error::Error for Violation {}
