//! What a server or a caller knows: the map, and where its servers are.

use std::collections::BTreeMap;
use trefoil_sharder::coordination::Told;
use trefoil_sharder::{
    AssignedSlice, Assignment, AssignmentVersion, Capacity, KeyPoint, Member, MemberState,
    ServerId, Slice,
};

/// What is said of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerInfo {
    /// `host:port` at which it serves.
    pub address: String,
    /// What it can carry.
    pub capacity: Capacity,
    /// What it is willing to do.
    pub state: MemberState,
    /// Servers that are to have each of its keys, itself counted. The assigner
    /// gives every slice of a corpus as many replicas as the member that asks
    /// for most, whatever its own thresholds say; at most
    /// [`COPIES_MIN_MAX`](crate::limits::COPIES_MIN_MAX).
    pub copies_min: usize,
}

impl ServerInfo {
    /// A serving one.
    pub fn new(address: impl Into<String>, capacity: Capacity) -> Self {
        ServerInfo {
            address: address.into(),
            capacity,
            state: MemberState::Serving,
            copies_min: 1,
        }
    }

    /// As the balancer sees it.
    pub(crate) fn member(&self, id: ServerId) -> Member {
        Member {
            id,
            capacity: self.capacity,
            state: self.state,
        }
    }
}

/// The newest assignment that is known and the servers that are members.
///
/// A member's lease has ended before it disappears from here, and nobody ever
/// gets one again under its id: see [`View::is_gone`].
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Who serves which keys. Before there is a first assignment: version 0.0,
    /// with nobody.
    pub assignment: Assignment,
    /// Who is a member, whether it serves anything or not.
    pub servers: BTreeMap<ServerId, ServerInfo>,
    /// `servers` has everybody who had slices up to this assignment and still
    /// is a member. It may be older than `assignment` where that was learned
    /// from somebody else than the assigner.
    pub servers_as_of: AssignmentVersion,
}

impl View {
    /// Nothing is known yet.
    pub fn empty() -> Self {
        View {
            assignment: nobody(),
            servers: BTreeMap::new(),
            servers_as_of: UNASSIGNED,
        }
    }

    /// Whether a server that had slices in this or an earlier assignment is a
    /// member no more: its lease has ended, it serves nothing and cannot be
    /// asked for anything. `false` while that is not known for certain.
    pub fn is_gone(&self, former_owner: ServerId) -> bool {
        self.servers_as_of >= self.assignment.version() && !self.servers.contains_key(&former_owner)
    }

    /// All of it, for an assigner that has forgotten it; `None` if the members
    /// are not known that belong to the assignment.
    pub(crate) fn told(&self) -> Option<Told> {
        let whole = self.is_assigned() && self.servers_as_of >= self.assignment.version();
        whole.then(|| Told {
            map: self.assignment.clone(),
            members: self.servers.keys().copied().collect(),
        })
    }

    /// Whether there is an assignment.
    pub fn is_assigned(&self) -> bool {
        self.assignment.version() > UNASSIGNED
    }

    /// Its version; `None` before the first assignment.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.is_assigned().then(|| self.assignment.version())
    }

    /// The servers of a key, the primary first, as far as they are members.
    pub fn servers_of(&self, point: KeyPoint) -> impl Iterator<Item = (ServerId, &ServerInfo)> {
        self.assignment
            .slice_of(point)
            .servers
            .iter()
            .filter_map(|&id| Some((id, self.servers.get(&id)?)))
    }
}

/// Older than every assignment.
const UNASSIGNED: AssignmentVersion = AssignmentVersion {
    incarnation: 0,
    generation: 0,
};

fn nobody() -> Assignment {
    let all = AssignedSlice {
        slice: Slice::ALL,
        servers: Vec::new(),
    };
    Assignment::new(UNASSIGNED, vec![all]).expect("one slice tiles the key space")
}
