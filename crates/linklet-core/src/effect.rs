//! What the protocol asks of its driver, and what it answers to requests.

use crate::loss::Loss;
use crate::message::Frame;
use crate::values::{NotStored, VALUE_BYTES_MAX};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Names a request or a proposed commit of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send it. It may get lost.
    Send {
        /// To whom.
        to: ServerId,
        /// What.
        frame: Frame,
    },
    /// The request that was told to wait should be tried again.
    Wake(Ticket),
    /// A proposed commit has come to its end. If it is done, its value was
    /// made visible by [`Values::settle`](crate::Values::settle) just before.
    Settled {
        /// Which.
        ticket: Ticket,
        /// How.
        result: Result<Commit, Uncertain>,
    },
    /// Values are lost: tell the application.
    Loss(Loss),
    /// A server that is to have copies could not store these. Commits of them are
    /// not acknowledged; it is sent them again from time to time
    /// ([`Core::refusals`](crate::Core::refusals)). What could not be marshalled here is
    /// not told.
    NotCopied {
        /// Who.
        to: ServerId,
        /// Where the keys lie.
        points: Vec<KeyPoint>,
    },
    /// A server that is to own these could not store them: they are where they were, and
    /// are served there. They are sent again from time to time. Both servers say so; what
    /// nobody owned only who is to take over, and nobody serves that.
    NotMoved {
        /// Who has them.
        from: ServerId,
        /// Who is to own them.
        to: ServerId,
        /// Why it could not.
        why: NotStored,
        /// Where the keys lie.
        points: Vec<KeyPoint>,
    },
    /// A server that is alive and cannot be reached directly, or does not reach this one, is
    /// reached through another one from now on; `None`: directly again, as far as is known.
    Detour {
        /// Who.
        to: ServerId,
        /// Through whom.
        via: Option<ServerId>,
    },
    /// This server is now the owner of these (all of their values are here).
    Gained(Vec<Slice>),
    /// This server is not the owner of these any more.
    Gave(Vec<Slice>),
    /// Somebody goes by this newer assignment: ask the coordination for it.
    Learn(AssignmentVersion),
    /// Told to drain, and nothing is left: it is safe to stop.
    Drained,
    /// The others have taken this server for dead and replaced it. It serves
    /// nothing any more; the driver joins again under another id, with
    /// another core.
    Replaced,
}

/// What a request wants to do with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read the newest value.
    Read,
    /// Read a value that may be a little old.
    ReadCopy,
    /// Change it, so that the change lasts.
    Commit,
    /// Put in or take out what can be had again, a loaded value for one: like a
    /// commit, but nobody relies on there being copies of it.
    Refresh,
}

/// A request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Named by [`Effect::Wake`] if it has to wait.
    pub ticket: Ticket,
    /// Where the key lies.
    pub point: KeyPoint,
    /// What for.
    pub access: Access,
    /// The assignment that the caller goes by, if any.
    pub known: Option<AssignmentVersion>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The key is this server's: serve it. Commits carry the token, so that a
    /// database can refuse those of a former owner.
    Serve {
        /// Higher than that of every former owner of the key.
        token: AssignmentVersion,
    },
    /// Serve it from the copy, which may be a little old.
    ServeCopy,
    /// Its value is on its way, or the caller knows a newer assignment: the
    /// request is tried again at [`Effect::Wake`].
    Wait,
    /// Somebody else has it.
    Redirect {
        /// Who, if known.
        to: Option<ServerId>,
        /// By which assignment.
        version: Option<AssignmentVersion>,
    },
    /// It cannot be served.
    Refused(Refused),
}

/// Why a request cannot be served here now; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The coordination has not renewed this server's lease.
    #[error("the lease of this server has run out: the coordination cannot be reached")]
    NoLease,
    /// The others have replaced this server.
    #[error("this server was taken for dead and replaced: ask for the newest assignment")]
    Replaced,
    /// A strong commit needs more servers than the key has now.
    #[error("{have} servers have the key, and a commit needs {need}")]
    TooFewCopies {
        /// Those that are alive and have it, or are to have it; this one counted.
        have: usize,
        /// [`Config::copies_min`](crate::Config::copies_min).
        need: usize,
    },
    /// A server that is to have a copy has no room for new keys of this slice of the map:
    /// it has refused some of them. A commit of another one would wait until it has.
    #[error("{by}, which is to have a copy of the key, has no room for it")]
    NoRoom {
        /// Which.
        by: ServerId,
    },
    /// The value with its key is longer than servers send each other.
    #[error("the value takes {bytes} bytes with its key, and {VALUE_BYTES_MAX} at most are taken")]
    TooLong {
        /// As marshalled.
        bytes: usize,
    },
}

/// A commit that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The owner's fencing token.
    pub token: AssignmentVersion,
    /// Servers that have it, the owner counted.
    pub copies: usize,
}

/// A commit of which it is not known whether it will be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncertain {
    /// The lease ran out, or the server was replaced, before every copy had
    /// confirmed.
    #[error("this server lost its lease before every copy had confirmed")]
    Replaced,
    /// Copies were lost while it was under way. It can be seen, but fewer
    /// servers have it than [`Config::copies_min`](crate::Config::copies_min).
    #[error("{copies} servers have it, and not {need}")]
    TooFewCopies {
        /// Those that do, the owner counted.
        copies: usize,
        /// Those that should.
        need: usize,
    },
    /// Its key was to be given away, and a server that has a copy could not store
    /// it: all copies are made what they were before. It is seen only if this
    /// server dies before that is done.
    #[error("a server could not store it, and its key moved on without it")]
    TakenBack,
}
