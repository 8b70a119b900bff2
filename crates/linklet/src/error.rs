//! Why an operation was not carried out.

use crate::loader::LoaderError;
use crate::marshal::MarshalError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};
use trefoil_freshness_core::position::History;
use trefoil_linklet_core::{Uncertain, VALUE_BYTES_MAX};
use trefoil_sharder::{Assignment, AssignmentVersion, ServerId};

/// Somebody else serves the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Who, if known.
    pub to: Option<ServerId>,
    /// Where that server listens, if known.
    pub address: Option<String>,
    /// By which assignment. A caller that knows an older one learns this one,
    /// or sends the request to `to`, and is not redirected again.
    pub version: Option<AssignmentVersion>,
    /// The newest assignment that this server knows, if the caller's is older.
    pub assignment: Option<Arc<Assignment>>,
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.to, &self.address) {
            (Some(to), Some(address)) => write!(f, "{to} at {address}")?,
            (Some(to), None) => write!(f, "{to}")?,
            (None, _) => write!(f, "somebody else")?,
        }
        match self.version {
            Some(version) => write!(f, ", by {version}"),
            None => Ok(()),
        }
    }
}

/// Why an operation was not carried out. Nothing was changed, except with
/// [`Error::Indeterminate`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else serves the key.
    #[error("the key is served by {0}")]
    NotMine(Redirect),
    /// The value is on its way here and did not arrive in time, or the caller
    /// knows an assignment that this server has not heard of yet: try again.
    #[error("the key is being moved here and has not arrived after {waited:?}: try again")]
    Moving {
        /// For how long it was waited.
        waited: Duration,
    },
    /// The key has been sent to the server that is to own it, which has not answered in time:
    /// it hangs, or cannot be reached. Either has it once that has answered, or is dead: try
    /// again.
    #[error(
        "the key has been sent to {to}, which is to own it and has not answered after \
         {waited:?}: try again"
    )]
    Sent {
        /// The next owner.
        to: ServerId,
        /// For how long it was waited.
        waited: Duration,
    },
    /// This server's lease has run out and the coordination does not renew it.
    #[error(
        "the lease of this server has run out, and the coordination does not renew it: \
         `trefoil assigner status` and the log say why"
    )]
    NoLease,
    /// A strong commit needs more servers than the key has now: one has died,
    /// or too few have joined. The assigner gives the key to another one as soon
    /// as there is one; [`Builder::too_few`](crate::Builder::too_few) is the
    /// other choice.
    #[error(
        "{have} servers have the key, and a strong commit needs {need}: \
         try again when more have joined"
    )]
    TooFewCopies {
        /// Servers that have it, or are to have it; this one counted.
        have: usize,
        /// [`Builder::copies`](crate::Builder::copies).
        need: usize,
    },
    /// A place in the database's log belongs to another history than the one whose
    /// changes are followed here: the database has failed over, or was restored from
    /// a backup, or is another one.
    #[error(
        "the place is of history {asked}, and {}",
        followed.as_ref().map_or_else(
            || "no changes are followed here".to_owned(),
            |followed| format!("the changes followed here are of history {followed}")
        )
    )]
    OtherHistory {
        /// The place's.
        asked: History,
        /// The one that is followed, if any.
        followed: Option<History>,
    },
    /// It is not known whether what is kept was fresh lately
    /// ([`Builder::stale_max`](crate::Builder::stale_max)), and this call loads nothing.
    #[error(
        "what is kept may be older than {max:?} ({}): the relay of the database's changes is away \
         or behind; read_or_load and get_or_load ask the database",
        known.map_or_else(
            || "nothing has been told yet".to_owned(),
            |known| format!("it was known to be fresh {known:?} ago")
        )
    )]
    Stale {
        /// The bound.
        max: Duration,
        /// How old it may be; nothing if no relay has told anything.
        known: Option<Duration>,
    },
    /// This server was taken for dead and replaced, or has left.
    #[error("this server is no member (any more): ask for the newest assignment")]
    NotMember,
    /// The value is larger than the memory that may be used, or nothing may be
    /// evicted for it.
    #[error("there is no room for {weight} bytes: the bound is {bound} bytes")]
    NoRoom {
        /// What the value counts as.
        weight: u64,
        /// The bound.
        bound: u64,
    },
    /// A server that is to have a copy of a new key has no room for it: it has refused
    /// others of the same slice. With strong replication nothing new is begun there
    /// meanwhile; what is there can be changed and removed.
    #[error("{by}, which is to have a copy of the key, has no room for it")]
    NoRoomForCopy {
        /// Which.
        by: ServerId,
    },
    /// The value with its key is longer than servers send each other, so no other one could
    /// ever have it. What counts with strong copies is what it takes marshalled, otherwise what
    /// it weighs ([`Marshal::weigh`](crate::Marshal::weigh)).
    #[error(
        "the value takes {bytes} bytes with its key, and {VALUE_BYTES_MAX} at most are taken: \
         keep it in several parts"
    )]
    TooLong {
        /// What it takes.
        bytes: u64,
    },
    /// The value cannot be sent to the replicas, so it is not committed.
    #[error("the value cannot be marshalled for its replicas: {0}")]
    Marshal(#[source] MarshalError),
    /// The key has been changed since the value was handed out. With strong
    /// replication also where a change of the database, an eviction, a move or
    /// the value's end came between the look at the value and its commit: try
    /// again.
    #[error("the key has been changed since its value was handed out")]
    Conflict,
    /// An earlier commit of the key is on its way to the replicas, and was not
    /// confirmed in time. This one was not begun: try again.
    #[error(
        "an earlier commit of the key has not been confirmed after {waited:?}, by {}",
        Named(by)
    )]
    Unsettled {
        /// For how long it was waited.
        waited: Duration,
        /// Who has not confirmed it.
        by: Vec<ServerId>,
    },
    /// Somebody changes the key ([`Linklet::update_async`](crate::Linklet::update_async)),
    /// and was not done in time. This change was not begun: try again.
    #[error("the key is still being changed after {waited:?}: try again")]
    Busy {
        /// For how long it was waited.
        waited: Duration,
    },
    /// A change took longer than it may ([`Linklet::update_async`](crate::Linklet::update_async)).
    /// Nothing was changed.
    #[error("the change was given up after {limit:?}")]
    Overran {
        /// How long it may take.
        limit: Duration,
    },
    /// It is not known whether the commit will be seen. Whoever changes the key
    /// next, sees it if it is.
    #[error("the commit may be seen or not: {0}")]
    Indeterminate(#[source] Indeterminate),
    /// The loader failed.
    #[error("loading failed: {0}")]
    Load(#[source] LoaderError),
    /// The loader did not answer in time ([`Builder::load_within`](crate::Builder::load_within)),
    /// for this caller or for another one for whose load it waited. The next
    /// call loads again, or finds a value that had been read already and is stored late.
    #[error("the loader has not answered after {limit:?}: is the database away?")]
    LoadOverran {
        /// How long it may take.
        limit: Duration,
    },
    /// The value was spilled to disk ([`Builder::spill`](crate::Builder::spill)) and cannot be
    /// read back: it is lost, and was reported ([`Listener::state_loss`](crate::Listener)). From
    /// now on the key is absent. Of a copy ([`read_copy`](crate::Linklet::read_copy)) it says
    /// nothing of the owner's: ask that one.
    #[error("the value was spilled to disk and cannot be read back: {0}")]
    Unreadable(String),
    /// The key is not here, and there is no loader.
    #[error("there is no loader for keys that are not in memory")]
    NoLoader,
}

/// Why it is not known what became of a commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Indeterminate {
    /// This server lost its lease, was taken for dead or left before every
    /// replica had confirmed.
    #[error("this server's membership ended before every replica had confirmed")]
    Replaced,
    /// Not every replica has confirmed in time. The commit goes on: it is seen
    /// once they have, or are dead.
    #[error("not confirmed after {waited:?} by {}", Named(by))]
    Unconfirmed {
        /// For how long it was waited.
        waited: Duration,
        /// Who has not confirmed it.
        by: Vec<ServerId>,
    },
    /// Copies were lost while it was under way. It is seen, but the next death
    /// may take it.
    #[error("{copies} servers have it, and not {need}")]
    TooFewCopies {
        /// Servers that have it; this one counted.
        copies: usize,
        /// [`Builder::copies`](crate::Builder::copies).
        need: usize,
    },
    /// A replica could not store it, and its key was about to move: it was taken
    /// back. It is seen only if this server dies before that is done.
    #[error("a replica could not store it, and its key moved on without it")]
    TakenBack,
}

impl From<Uncertain> for Indeterminate {
    fn from(uncertain: Uncertain) -> Self {
        match uncertain {
            Uncertain::Replaced => Indeterminate::Replaced,
            Uncertain::TooFewCopies { copies, need } => {
                Indeterminate::TooFewCopies { copies, need }
            }
            Uncertain::TakenBack => Indeterminate::TakenBack,
        }
    }
}

/// Servers in a sentence.
struct Named<'a>(&'a [ServerId]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => write!(f, "its replicas"),
            [first, others @ ..] => {
                write!(f, "{first}")?;
                others.iter().try_for_each(|server| write!(f, ", {server}"))
            }
        }
    }
}

/// For tonic handlers: `?` answers with the right status. A redirect is one
/// that routers follow.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NotMine(redirect) => {
                return trefoil_router::Redirect {
                    to: redirect.to,
                    address: redirect.address.clone(),
                    version: redirect.version,
                    assignment: redirect.assignment.as_deref().cloned(),
                }
                .status();
            }
            Error::Moving { .. }
            | Error::Sent { .. }
            | Error::NoLease
            | Error::TooFewCopies { .. }
            | Error::NotMember
            | Error::Stale { .. }
            | Error::Busy { .. }
            | Error::Unsettled { .. } => Code::Unavailable,
            Error::NoRoom { .. } | Error::NoRoomForCopy { .. } => Code::ResourceExhausted,
            Error::TooLong { .. } => Code::InvalidArgument,
            Error::Conflict | Error::OtherHistory { .. } => Code::FailedPrecondition,
            Error::Overran { .. }
            | Error::LoadOverran { .. }
            | Error::Indeterminate(Indeterminate::Unconfirmed { .. }) => Code::DeadlineExceeded,
            Error::Indeterminate(
                Indeterminate::Replaced
                | Indeterminate::TooFewCopies { .. }
                | Indeterminate::TakenBack,
            ) => Code::Unknown,
            Error::Unreadable(_) => Code::DataLoss,
            Error::Marshal(_) | Error::Load(_) | Error::NoLoader => Code::Internal,
        };
        Status::new(code, error.to_string())
    }
}

/// A commit that was not carried out, with the object: it is the caller's to
/// bring it to where the key is served now.
#[derive(Debug)]
pub struct CommitError<V> {
    /// Why.
    pub error: Error,
    /// What was to be committed.
    pub held: crate::Held<V>,
}

impl<V> fmt::Display for CommitError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not committed: {}", self.error)
    }
}

impl<V: fmt::Debug> std::error::Error for CommitError<V> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Why a linklet could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The assigner could not be joined.
    #[error(transparent)]
    Coordination(#[from] trefoil_coordination::CoordinationError),
    /// The limits of the protocol contradict each other.
    #[error(transparent)]
    Config(#[from] trefoil_linklet_core::ConfigError),
    /// The port for the other servers could not be opened.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It would be advertised at an address that is every host's own.
    #[error(
        "{address} is no address at which others reach this server: say which with \
         `Builder::advertise`, or `join` with it"
    )]
    Unspecified {
        /// The address.
        address: String,
    },
    /// No files can be made where values are to be spilled to.
    #[error(
        "values cannot be spilled to {}: {source}; it has to be a directory in which this user \
         may create files",
        directory.display()
    )]
    Spill {
        /// Where.
        directory: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Values would cross the network in the clear.
    #[error(transparent)]
    Exposed(#[from] trefoil_channel::ExposedError),
}
