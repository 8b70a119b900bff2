//! GET: one machine for every mode and every lookup strategy. The number of
//! copies is a parameter of the type, so that R=1 does not pay for a quorum.
//!
//! # Calling order
//!
//! ```text
//! let mut get = Get::<N>::new(&plan, hash, limits, now);   // N copies: 1, 2, 3
//! loop {
//!     match get.poll(now) {
//!         ReadIndex { replica }  => scan the bucket        -> handle_index, or handle_failure
//!         ReadData { replica, .. } => check the pointer against the window
//!                                   outside: handle_out_of_window
//!                                   inside:  copy the bytes -> handle_data, or handle_failure
//!         Scan { replica }       => SCAR, both in one      -> handle_scar, or handle_failure
//!         Vote { replica }       => its first half         -> handle_index, or handle_failure
//!         Ask { replica, .. }    => lookup by message      -> handle_answer, or handle_failure,
//!                                   or handle_refused, if whoever was asked ends or moves and
//!                                   says so
//!         Refresh { replica, .. } => windows by RPC or from the control region
//!                                                          -> handle_refreshed, or handle_failure
//!         Reconnect { replica }  => a new connection       -> handle_reconnected, or handle_failure
//!         Await { replica }      => the same, if its silence may be a pause that is over, or
//!                                   a move to another process; otherwise handle_failure at once
//!         Pause { ns }           => spin, yield or sleep that long
//!         Wait { until_ns }      => nothing to start: feed a completion, or poll again at that time
//!         Done(outcome)          => ends it
//!     }
//! }
//! ```
//!
//! * Every step but `Pause`, `Wait` and `Done` is answered exactly once, at any
//!   time, in any order; until then it is outstanding. A driver that completes
//!   everything at once (shared memory) never sees `Wait`. One that wants to
//!   overlap takes steps until `Wait` before it executes them: under R=3.2 the
//!   first two indexes come one behind the other, so both can be prefetched.
//! * A fabric checks the backend's lease *after* it has copied, and reports
//!   [`Failure::Lease`] instead of the bytes if it had run out.
//! * Bytes given to `handle_data`, `handle_scar` and `handle_answer` are judged
//!   here. The driver keeps each replica's latest bytes until `Done`: a hit
//!   names the replica whose bytes are the value (`DataEntry::decode`).
//! * A `Reconnect` or `Await` at a replica that has moved to another process, which is still
//!   to come: `handle_late` first, beside the step's answer. Where there is nothing that tells
//!   when it has come, `handle_late_again` is the answer, after a pause.
//! * After `Done` the machine may be dropped, outstanding steps and all.
//! * If a refresh finds another topology, the driver calls [`Get::restart`] with
//!   the new plan and the key's new hash, or makes a machine for another number
//!   of copies with [`Get::limits`]; deadline and budget go on.
//!
//! # Replicas that disagree
//!
//! Three votes that differ are looked at again: a mutation on its way is
//! through within microseconds. A replica that gives no vote (it is down,
//! recovering, or its lease is over) and two that differ are a miss after one
//! more look: there is no third vote to wait for, and replicas of a full cell
//! evict by themselves. So a GET beside a SET of the same key that has reached
//! one survivor and not yet the other would say `inquorate`, with one replica
//! down, although the SET may have been acknowledged: by the survivor, and by the
//! one that died after it. So where one of them holds what is young, it is looked at
//! again, and asked by message, as long as the retries last: some 12 ms, unless a
//! survivor does not get to run, or the third has moved to another process, which is
//! waited for. Then it is a miss: a loss of quorum turns hits into
//! misses. Who writes on the strength of it asks carefully ([`Plan::careful`]): the
//! survivors have to say the same by message, and one that is alone says nothing at all.
//!
//! A lease that is over says that its backend is dead or hangs, unless this whole
//! machine has paused: then every lease is over, each backend renews its own when
//! it gets to run, and the survivors may differ by what was stored a moment before.
//! So whoever finds a lease over asks the survivors by message, and before any such
//! miss the driver is asked whether the missing replica is worth waiting for.

mod machine;
mod rounds;

pub use machine::Get;

use crate::cas::AT_REST_NS;
use crate::mode::Mode;
use crate::retry::{GiveUp, RetryCause};
use trefoil_layout::op::Rejection;
use trefoil_layout::{Pointer, Version};

/// After this many torn or unstable one-sided reads of one replica within one
/// GET, that replica is asked by message, which waits for its writers instead
/// of racing them.
pub const ONE_SIDED_FAULTS_MAX: u8 = 4;

/// How one replica is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Two one-sided reads: bucket, then data.
    #[default]
    TwoReads,
    /// One request to a software NIC, which scans the bucket and reads the data.
    Scar,
    /// The same without the data: its vote alone comes. If the data turn out to be wanted
    /// of this replica, it is asked again by `Scar`.
    Vote,
    /// Two reads by way of a software NIC: its vote, which names what is to be read, and then
    /// the data, if they are wanted of this replica.
    VoteThenRead,
    /// A message to the backend over the fabric.
    Message,
    /// An RPC to the backend.
    Rpc,
    /// Known to be down: not asked, unless no quorum is left without it; then
    /// it is reconnected first and looked up by two reads.
    Down,
}

/// Who is asked, and how.
#[derive(Clone, Copy, Debug)]
pub struct Plan<const N: usize> {
    /// The replica (its place in the cohort) to be asked first; the data comes
    /// from it if it agrees. Rotated where all are equally near.
    pub preferred: usize,
    /// By place in the cohort.
    pub strategies: [Strategy; N],
    /// Replicas asked at once: at least the quorum is. Over shared memory each
    /// read costs CPU, so as few as possible; over a network all three.
    pub fan_out: usize,
    /// If the answers do not decide it for this long, one more replica is
    /// asked; `u64::MAX` for never.
    pub hedge_after_ns: u64,
    /// What counts as at rest: entries whose version is older than this, in
    /// nanoseconds since the Unix epoch. Where a replica gives no vote and the
    /// others disagree, what is at rest is a miss at once; what may be a mutation
    /// on its way is looked at again, until budget or deadline end. `u64::MAX` for
    /// who does not mind: everything is at rest.
    pub at_rest_ns: u64,
    /// Something is written on the strength of what is found: what may be on its way
    /// is no miss, however long it takes.
    pub is_careful: bool,
    /// A version that is known to be at rest: a failed CAS's own.
    pub own: Version,
}

impl<const N: usize> Plan<N> {
    /// As few reads as possible, by two reads from each replica.
    pub const fn frugal(preferred: usize) -> Self {
        Plan {
            preferred,
            strategies: [Strategy::TwoReads; N],
            fan_out: Mode::of(N).quorum(),
            hedge_after_ns: u64::MAX,
            at_rest_ns: u64::MAX,
            is_careful: false,
            own: Version::ZERO,
        }
    }

    /// For a reader who begins now: what may still be on its way is not a miss at once.
    pub const fn at(self, now_unix_ns: u64) -> Self {
        Plan {
            at_rest_ns: now_unix_ns.saturating_sub(AT_REST_NS),
            ..self
        }
    }

    /// For whoever is going to write on the strength of what is found: tells
    /// survivors that disagree from a mutation on its way. `own` is the version
    /// of a CAS that looks, or zero.
    pub const fn careful(self, now_unix_ns: u64, own: Version) -> Self {
        Plan {
            is_careful: true,
            own,
            ..self.at(now_unix_ns)
        }
    }
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetStep {
    /// Scan the key's bucket at this replica.
    ReadIndex {
        /// Place in the cohort.
        replica: usize,
    },
    /// Copy a data entry.
    ReadData {
        /// Place in the cohort.
        replica: usize,
        /// Not yet checked against the data window.
        pointer: Pointer,
    },
    /// Scan and read by the software NIC.
    Scan {
        /// Place in the cohort.
        replica: usize,
    },
    /// Scan by the software NIC, without reading.
    Vote {
        /// Place in the cohort.
        replica: usize,
    },
    /// Look up by message.
    Ask {
        /// Place in the cohort.
        replica: usize,
        /// By RPC rather than by a message over the fabric.
        by_rpc: bool,
    },
    /// Learn the backend's configuration and windows anew.
    Refresh {
        /// Place in the cohort.
        replica: usize,
        /// What was wrong with the old ones.
        cause: RetryCause,
    },
    /// Establish the connection anew.
    Reconnect {
        /// Place in the cohort.
        replica: usize,
    },
    /// The replica gives no vote, and without it there is no quorum. If it may have
    /// paused together with this process, wait until it is connected again;
    /// otherwise it is gone, and that is a [`Failure::Connection`] at once.
    Await {
        /// Place in the cohort.
        replica: usize,
    },
    /// Let others finish what they are at.
    Pause {
        /// Nanoseconds.
        ns: u64,
    },
    /// Nothing to start before a completion or this time.
    Wait {
        /// On the caller's monotonic clock; `u64::MAX` if there is no such time.
        until_ns: u64,
    },
    /// Finished; any further poll says the same.
    Done(GetOutcome),
}

/// How a GET ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// A value.
    Hit {
        /// The mutation that wrote it.
        version: Version,
        /// Whose bytes are the value.
        replica: usize,
    },
    /// No value that could be returned.
    Miss {
        /// Why.
        reason: MissReason,
    },
    /// It could not be found out.
    Failed {
        /// Why.
        cause: GetFailure,
    },
}

/// Why a GET found no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// No value is known.
    Absent,
    /// There is one, past its expiry.
    Expired,
    /// There is one, older than the cell's last flush.
    Flushed,
    /// No two replicas agreed: the survivors disagree, or it could not be found
    /// out within deadline and budget.
    Inquorate,
}

impl MissReason {
    /// Every reason.
    pub const ALL: [MissReason; 4] = [
        MissReason::Absent,
        MissReason::Expired,
        MissReason::Flushed,
        MissReason::Inquorate,
    ];

    /// The name in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            MissReason::Absent => "absent",
            MissReason::Expired => "expired",
            MissReason::Flushed => "flushed",
            MissReason::Inquorate => "inquorate",
        }
    }
}

impl std::fmt::Display for MissReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a GET failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetFailure {
    /// Deadline or budget ended before any replica had a usable answer.
    #[error(transparent)]
    GaveUp(#[from] GiveUp),
    /// A replica refused the lookup itself.
    #[error(transparent)]
    Rejected(Rejection),
}

/// Why a step could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The lease had run out: what was read may be a dead process's memory.
    Lease,
    /// No connection, or it broke.
    Connection,
    /// The window or configuration that the step relied on is not valid any
    /// more (for a fabric that notices before it reads).
    Stale,
}
