//! What was seen, or not done, and why.

use crate::config::Freeze;
use crate::key::KeyPoint;
use crate::report::ReportError;
use crate::server::ServerId;
use crate::version::AssignmentVersion;
use std::fmt;
use std::time::Duration;

/// What was seen, or not done, and why.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The switch for deployments is on.
    Freeze {
        /// How far.
        freeze: Freeze,
        /// Servers that are dead and still have slices.
        dead: Vec<ServerId>,
    },
    /// A new assigner waits for first reports before it moves anything.
    Waiting {
        /// Who has not been heard.
        servers: Vec<ServerId>,
    },
    /// A server has not reported for a while and is left as it is.
    Silent {
        /// Which.
        server: ServerId,
        /// How long; `None` if it was never heard.
        for_: Option<Duration>,
    },
    /// A report was refused.
    Report(ReportError),
    /// A report came from somebody who is no member.
    Stranger(ServerId),
    /// Somebody goes by a newer assignment: this assigner has been replaced,
    /// or the store has lost what it had acknowledged. Nothing is proposed.
    Ahead {
        /// Who.
        server: ServerId,
        /// By which.
        version: AssignmentVersion,
    },
    /// A draining server still has slices.
    StillDraining {
        /// Which.
        server: ServerId,
        /// How many.
        slices: usize,
    },
    /// Servers cannot store what is theirs of some slices, and nobody else can take it.
    CannotStore {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Slices have fewer replicas than they should, and no server can take more.
    StillTooFew {
        /// How many slices.
        slices: usize,
    },
    /// A server is still above its share.
    StillAbove {
        /// Which.
        server: ServerId,
        /// Its load in fair shares.
        load: f64,
        /// What kept its slices where they are.
        obstacles: Obstacles,
    },
    /// One key is more than a fair share and may have no more replicas.
    Indivisible {
        /// Which.
        point: KeyPoint,
        /// What each of its servers carries because of it, in fair shares.
        load: f64,
        /// How many they are.
        replicas: usize,
    },
    /// The limit on the number of slices was reached.
    TooManySlices {
        /// The limit.
        limit: usize,
    },
}

/// Why the slices of a server were not moved, by number of slices. A slice is
/// counted once, under what came closest to allowing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// They have changed servers a short while ago.
    pub cooling: usize,
    /// A hot key in them gets its own slice first.
    pub isolating: usize,
    /// Every taker would have too much.
    pub too_big: usize,
    /// Every taker's memory is too full.
    pub no_memory: usize,
    /// Whoever could take them gave them away not long ago.
    pub no_return: usize,
    /// The rest of this round's budget is smaller.
    pub budget: usize,
}

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.cooling, "moved a short while ago"),
            (self.isolating, "contain a hot key that is isolated first"),
            (self.too_big, "would be too much for any other server"),
            (self.no_memory, "fit in no other server's memory"),
            (self.no_return, "would return to where they were"),
            (self.budget, "exceed what may still move in this round"),
        ];
        let mut any = false;
        for (count, what) in parts.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{}{count} slice(s) {what}", if any { ", " } else { "" })?;
            any = true;
        }
        if any {
            Ok(())
        } else {
            f.write_str("it has no slice that could be moved")
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Freeze { freeze, dead } => {
                f.write_str(match freeze {
                    Freeze::All => "frozen: nothing is changed",
                    _ => "frozen: only slices of dead servers are placed",
                })?;
                if !dead.is_empty() {
                    write!(f, "; dead and still assigned: {}", List(dead))?;
                }
                Ok(())
            }
            Note::Waiting { servers } => write!(
                f,
                "nothing is moved before the first reports of {}",
                List(servers)
            ),
            Note::Silent { server, for_ } => match for_ {
                Some(for_) => write!(
                    f,
                    "{server} has not reported for {:.1} s: it is left as it is",
                    for_.as_secs_f64()
                ),
                None => write!(f, "{server} has not reported yet: it is left as it is"),
            },
            Note::Report(error) => error.fmt(f),
            Note::Stranger(server) => {
                write!(f, "a report of {server} is not used: it is no member")
            }
            Note::Ahead { server, version } => write!(
                f,
                "{server} goes by {version}, which is newer than what is known here: load the assignment again"
            ),
            Note::StillDraining { server, slices } => {
                write!(f, "{server} still has {slices} slice(s) to give")
            }
            Note::CannotStore { servers } => write!(
                f,
                "values that cannot be stored (no room, or another release), and that nobody \
                 else can take: at {}",
                List(servers)
            ),
            Note::StillTooFew { slices } => write!(
                f,
                "{slices} slice(s) still have too few replicas: no server can take more"
            ),
            Note::StillAbove {
                server,
                load,
                obstacles,
            } => write!(
                f,
                "{server} stays at {load:.2} of its fair share: {obstacles}"
            ),
            Note::Indivisible {
                point,
                load,
                replicas,
            } => write!(
                f,
                "key point {point} alone is {load:.2} of a fair share on each of its {replicas} server(s), and may not have more"
            ),
            Note::TooManySlices { limit } => {
                write!(f, "nothing more is split: {limit} slices are the limit")
            }
        }
    }
}

struct List<'a>(&'a [ServerId]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, server) in self.0.iter().enumerate() {
            write!(f, "{}{server}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
