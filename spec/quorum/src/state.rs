//! What the model remembers: three replicas of one key, the mutations, and what
//! clients have been told.

/// Most mutations of one run.
pub const MUTATIONS_MAX: usize = 4;
pub const REPLICAS: usize = 3;

/// What a replica knows of the key.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Known {
    #[default]
    Nothing,
    Present(u8),
    Erased(u8),
}

/// A replica's view of the key: what it knows, and the floor for keys of which
/// it knows nothing.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct View {
    pub known: Known,
    pub floor: u8,
}

impl View {
    /// Rule 1's bound.
    pub fn bound(&self) -> u8 {
        match self.known {
            Known::Nothing => self.floor,
            Known::Present(version) | Known::Erased(version) => version,
        }
    }

    pub fn present(&self) -> Option<u8> {
        match self.known {
            Known::Present(version) => Some(version),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Replica {
    pub view: View,
    pub epoch: u8,
    pub recovering: bool,
    /// What it has copied from each peer since it began to recover.
    pub copied: [Option<View>; REPLICAS],
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Kind {
    /// Not used in this run.
    #[default]
    None,
    Set,
    Erase,
    /// Expects this version, or absence (0).
    Cas(u8),
}

impl Kind {
    pub fn is_cas(self) -> bool {
        matches!(self, Kind::Cas(_))
    }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Answer {
    /// None yet, or it was lost.
    #[default]
    None,
    /// Applied in this epoch.
    Applied(u8),
    Refused,
}

/// Mutation `i` carries version `i + 1`. Versions stand for values, and the
/// mutations may be issued in any order: clocks are arbitrary.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mutation {
    pub kind: Kind,
    /// Replicas that have received it, as a bit set; 0 where that does not matter.
    pub delivered: u8,
    pub answer: [Answer; REPLICAS],
}

/// The first vote of a GET, and what was known when it was fetched.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vote {
    pub replica: u8,
    pub version: u8,
    pub epoch: u8,
    /// Highest version acknowledged, and hit, before the GET began.
    pub acknowledged: u8,
    pub hit: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    pub replicas: [Replica; REPLICAS],
    pub mutations: [Mutation; MUTATIONS_MAX],
    pub vote: Option<Vote>,
    /// Bit sets over mutations: acknowledged to their client; returned by a GET
    /// that has ended; reported as failed (CAS only).
    pub acknowledged: u8,
    pub hit: u8,
    pub failed: u8,
    /// Crashes that may still come.
    pub crashes: u8,
    /// A hit was older than what was acknowledged, or hit, before its GET began.
    pub is_stale: bool,
    pub went_back: bool,
}

impl State {
    pub fn newest_epoch(&self) -> u8 {
        self.replicas.iter().map(|r| r.epoch).max().unwrap_or(0)
    }
}

/// The highest version in a bit set of mutations; 0 for none.
pub fn highest(bits: u8) -> u8 {
    (u8::BITS - bits.leading_zeros()) as u8
}
