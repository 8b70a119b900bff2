//! The servers that slices are assigned to, as the assigner sees them.

use std::fmt;

/// One life of a server process: a process that was restarted comes back under
/// another id, so that nothing said by or of its former life is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u64);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {}", self.0)
    }
}

/// What a server can carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// CPU-seconds per second (cores) that it may spend on its slices.
    pub cpu: f64,
    /// Resident bytes that its values may take.
    pub bytes: u64,
}

/// What a live server is willing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Gives and takes slices.
    Serving,
    /// Keeps what it has, gives nothing, takes nothing (it is being looked at,
    /// or has just been told so by an operator).
    Frozen,
    /// Is about to stop: gives everything, takes nothing.
    Draining,
}

/// A live server. Who is alive is said by the leases of the coordination
/// store, not by load reports: a server whose reports are lost still serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Which.
    pub id: ServerId,
    /// What it can carry.
    pub capacity: Capacity,
    /// What it is willing to do.
    pub state: MemberState,
}

impl Member {
    /// A serving member.
    pub const fn serving(id: ServerId, capacity: Capacity) -> Self {
        Member {
            id,
            capacity,
            state: MemberState::Serving,
        }
    }
}
