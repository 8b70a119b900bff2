//! What is changed, and why.

use crate::key::{KeyPoint, Slice};
use crate::server::ServerId;
use std::fmt;

/// One change to the assignment.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which keys.
    pub slice: Slice,
    /// What happens to them.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// Resident bytes that have to go over the network for it.
    pub bytes: u64,
}

/// What happens to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The keys and their values go from one server to another.
    Move {
        /// The giver.
        from: ServerId,
        /// The taker.
        to: ServerId,
    },
    /// One more server gets a copy.
    AddReplica {
        /// Which.
        to: ServerId,
    },
    /// A server gives up its copy.
    DropReplica {
        /// Which.
        from: ServerId,
    },
    /// A server starts with nothing: all who had the values are gone.
    Replace {
        /// Which server.
        to: ServerId,
    },
    /// The slice is cut in two.
    Split {
        /// First point of the second part.
        at: KeyPoint,
    },
    /// The slice and its neighbour become one.
    Merge {
        /// The neighbour, which follows it.
        with: Slice,
    },
    /// A key gets a slice of its own.
    Isolate {
        /// Which.
        point: KeyPoint,
    },
}

/// Why something is changed. Loads are in fair shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Nobody who served it is alive: its values are lost.
    AllDead,
    /// A replica's server is dead.
    Dead,
    /// The server is about to stop.
    Draining,
    /// A server cannot store its values.
    Unstored {
        /// Which.
        server: ServerId,
    },
    /// It has fewer replicas than it should.
    TooFewReplicas,
    /// It has more replicas than it may.
    TooManyReplicas,
    /// One key is hot: each replica carries this much because of it.
    Hot {
        /// Load of one replica.
        load: f64,
    },
    /// The key is no longer hot.
    Cooled {
        /// Load of one replica.
        load: f64,
    },
    /// The giver has too much, or the taker hardly anything.
    Unbalanced {
        /// The giver's load before.
        from: f64,
        /// The taker's load before.
        to: f64,
    },
    /// Two servers exchange slices, because one has too much CPU for its
    /// memory and the other too much memory for its CPU.
    Exchanged {
        /// The load of the one that had too much.
        from: f64,
        /// The other's.
        with: f64,
    },
    /// There are many slices, and both are cold.
    Cold,
    /// It is too big to be moved well.
    Big {
        /// Its load.
        load: f64,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slice = self.slice;
        match self.action {
            Action::Move { from, to } => write!(f, "{slice} moves from {from} to {to}")?,
            Action::AddReplica { to } => write!(f, "{slice} gets a replica on {to}")?,
            Action::DropReplica { from } => write!(f, "{slice} loses its replica on {from}")?,
            Action::Replace { to } => write!(f, "{slice} starts empty on {to}")?,
            Action::Split { at } => write!(f, "{slice} is cut at {at}")?,
            Action::Merge { with } => write!(f, "{slice} and {with} become one")?,
            Action::Isolate { point } => write!(f, "key point {point} leaves {slice}")?,
        }
        match self.reason {
            Reason::AllDead => write!(f, ": all who served it are dead")?,
            Reason::Dead => write!(f, ": that server is dead")?,
            Reason::Draining => write!(f, ": the server is about to stop")?,
            Reason::Unstored { server } => write!(f, ": {server} cannot store its values")?,
            Reason::TooFewReplicas => write!(f, ": too few replicas")?,
            Reason::TooManyReplicas => write!(f, ": too many replicas")?,
            Reason::Hot { load } => write!(f, ": hot, {load:.2} of a fair share")?,
            Reason::Cooled { load } => write!(f, ": no longer hot, {load:.2} of a fair share")?,
            Reason::Unbalanced { from, to } => {
                write!(
                    f,
                    ": the giver was at {from:.2} of its fair share, the taker at {to:.2}"
                )?;
            }
            Reason::Exchanged { from, with } => write!(
                f,
                ": in exchange between one at {from:.2} of its fair share and one at {with:.2}"
            )?,
            Reason::Cold => write!(f, ": both are cold")?,
            Reason::Big { load } => write!(f, ": {load:.2} of a fair share in one slice")?,
        }
        if self.bytes > 0 {
            write!(f, " ({} bytes)", self.bytes)?;
        }
        Ok(())
    }
}
