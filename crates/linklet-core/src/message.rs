//! What servers of one corpus say to each other.
//!
//! A [`Frame`] carries at most one [`Message`]. Frames may be lost, repeated,
//! late and out of order; the link between two servers (`link`) makes of them
//! messages that arrive once and in order for as long as both live, also
//! across broken connections. `Frame::encode` and `Frame::decode` are the
//! bytes on the wire.

use crate::values::{NotStored, VALUE_BYTES_MAX};
use crate::wire::Wire;
use bytes::Bytes;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// The unit of transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the message on its link, from 1; 0 for a bare confirmation and for a
    /// [`Pass`].
    pub sequence: u64,
    /// Everything up to this number has been received from the addressee.
    pub confirmed: u64,
    /// What is said.
    pub message: Option<Message>,
}

/// A value on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the key lies.
    pub point: KeyPoint,
    /// The key.
    pub key: Bytes,
    /// The application's own number (a log position, a revision): not
    /// interpreted here, moves with the value.
    pub version: u64,
    /// The marshalled value; `None` if marshalling failed, which is a loss
    /// that the receiver reports.
    pub value: Option<Bytes>,
}

impl Entry {
    fn is_too_long(&self) -> bool {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        self.key.len() + value > VALUE_BYTES_MAX
    }

    /// Without its value if that is too long.
    pub(crate) fn sendable(mut self) -> Self {
        if self.is_too_long() {
            self.value = None;
        }
        self
    }

    /// As it arrived, if somebody may have sent it.
    pub(crate) fn storable(self) -> Result<Self, NotStored> {
        match self.is_too_long() {
            true => Err(NotStored::Unreadable),
            false => Ok(self),
        }
    }
}

/// What a commit does to a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The key has this value now.
    Put {
        /// As in [`Entry::version`].
        version: u64,
        /// The marshalled value.
        value: Bytes,
    },
    /// The key has no value now.
    Remove,
}

/// Why a chunk is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// The authority over its ranges moves with it.
    Authority,
    /// A copy, to somebody who found that nobody has the authority any more.
    Recovered,
}

/// Values of whole ranges: every key in them, so that what is not in it is
/// absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Number given by the sender; the answer names it.
    pub id: u64,
    /// What it is for.
    pub kind: ChunkKind,
    /// The ranges, ascending and disjoint.
    pub ranges: Vec<Slice>,
    /// Every value in them.
    pub entries: Vec<Entry>,
    /// Who may have copies of which parts.
    pub holders: Vec<(ServerId, Vec<Slice>)>,
    /// Keys whose last commit some holder may not have, or may have although
    /// it was never acknowledged.
    pub unsettled: Vec<(KeyPoint, Bytes)>,
}

/// A request for the authority over ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Number given by the claimant; answers name it.
    pub id: u64,
    /// The assignment that makes the claimant the owner.
    pub version: AssignmentVersion,
    /// What it has not got yet.
    pub ranges: Vec<Slice>,
    /// Who is alive according to the claimant, itself included.
    pub alive: Vec<ServerId>,
}

/// What a server has of what was claimed. Of everything that is in none of the
/// lists it has nothing, and has promised not to accept it under an older
/// assignment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClaimAnswer {
    /// Of which claim.
    pub claim: u64,
    /// It has the authority; chunks follow.
    pub held: Vec<Slice>,
    /// It has sent the authority to somebody else, who has not answered yet.
    pub in_transit: Vec<Slice>,
    /// It knows a newer assignment or claim for this.
    pub refused: Vec<Slice>,
    /// The newest assignment or claim it knows of.
    pub newest: Option<AssignmentVersion>,
    /// It has a copy, made by an owner with this token.
    pub copies: Vec<(Slice, AssignmentVersion)>,
}

/// A frame of one server for another that it cannot reach, through a third one. It is
/// passed on once: by who has it from its sender, to its addressee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Whose frame it is.
    pub from: ServerId,
    /// For whom.
    pub to: ServerId,
    /// Its sender has heard the addressee directly lately.
    pub hears: bool,
    /// Its sender asks for an answer by the same way.
    pub asks: bool,
    /// The frame: who passes it on does not look into it, and may be of another release.
    pub frame: Bytes,
}

/// What is said between two servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// See [`Claim`].
    Claim(Claim),
    /// See [`ClaimAnswer`].
    ClaimAnswer(ClaimAnswer),
    /// What was `in_transit` has arrived elsewhere or is lost.
    Gone {
        /// Of which claim.
        claim: u64,
        /// What.
        ranges: Vec<Slice>,
    },
    /// Somebody waits for these: send them first.
    Pull {
        /// Of which claim.
        claim: u64,
        /// Where the keys lie.
        points: Vec<KeyPoint>,
    },
    /// Send the copies of these as [`ChunkKind::Recovered`].
    Recover {
        /// Of which claim.
        claim: u64,
        /// What.
        ranges: Vec<Slice>,
    },
    /// See [`Chunk`].
    Chunk(Chunk),
    /// The chunk was taken over: the sender forgets its values.
    Taken {
        /// Which.
        chunk: u64,
    },
    /// The chunk was not taken over: nothing has changed.
    NotTaken {
        /// Which.
        chunk: u64,
    },
    /// The chunk was taken over, but for what could not be stored: nothing has changed
    /// about these points.
    TakenInPart {
        /// Which.
        chunk: u64,
        /// Of another release's form.
        unreadable: Vec<KeyPoint>,
        /// No room for them.
        no_room: Vec<KeyPoint>,
    },
    /// From an owner to a server with copies.
    Copy {
        /// Number on this way from owner to copy, from 1; confirmed in order.
        id: u64,
        /// The owner's fencing token for what this is about.
        token: AssignmentVersion,
        /// What.
        order: CopyOrder,
    },
    /// Answers to [`Message::Copy`].
    CopyDone {
        /// Everything up to this one was carried out.
        id: u64,
    },
    /// Of these points something could not be stored, or was for a copy that is
    /// not here. Nothing of them is confirmed.
    CopyFailed {
        /// Of which order; those before it, and the rest of it, are carried out.
        id: u64,
        /// Where.
        points: Vec<KeyPoint>,
        /// The copies from before the order are still there, and are not served;
        /// else there is no copy of these points.
        kept: bool,
        /// There was no room for any of them.
        no_room: bool,
    },
    /// A newer owner has been heard of: the sender is a former one.
    CopyRefused {
        /// Which; those before it, and the rest of it, are carried out.
        id: u64,
        /// What the newer one goes by.
        newest: AssignmentVersion,
        /// The parts that were refused.
        ranges: Vec<Slice>,
    },
    /// To an attachment: what was not there, and what is unsettled.
    Attached {
        /// Of which order.
        id: u64,
        /// No copy here (any more).
        missing: Vec<Slice>,
        /// Keys changed here by orders that the former owner had not declared
        /// settled.
        unsettled: Vec<(KeyPoint, Bytes)>,
    },
    /// All orders up to this one are settled: acknowledged to whoever asked.
    Settled {
        /// Up to which order.
        id: u64,
    },
    /// See [`Pass`]. Not said in turn, nor confirmed: its frame has no number.
    Pass(Pass),
}

/// What an owner has a server with copies do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOrder {
    /// Take these as the copies of the ranges, instead of what is there.
    Fill {
        /// Ascending and disjoint.
        ranges: Vec<Slice>,
        /// Every value in them.
        entries: Vec<Entry>,
    },
    /// Keep the copies that are there, and follow this owner from now on.
    Attach {
        /// Which.
        ranges: Vec<Slice>,
    },
    /// Drop the copies.
    Exclude {
        /// Which.
        ranges: Vec<Slice>,
    },
    /// A commit.
    Apply {
        /// Where the key lies.
        point: KeyPoint,
        /// The key.
        key: Bytes,
        /// What.
        operation: Operation,
    },
}

impl Message {
    /// Who speaks an earlier version does not know it.
    pub fn since(&self) -> Wire {
        match self {
            Message::TakenInPart { .. } | Message::CopyFailed { no_room: true, .. } => {
                Wire::IN_PART
            }
            Message::Pass(_) => Wire::PASSES,
            _ => Wire::UNSAID,
        }
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let of = |entries: &[Entry]| -> usize {
            entries
                .iter()
                .map(|entry| 32 + entry.key.len() + entry.value.as_ref().map_or(0, Bytes::len))
                .sum()
        };
        64 + match self {
            Message::Chunk(chunk) => of(&chunk.entries),
            Message::Copy {
                order: CopyOrder::Fill { entries, .. },
                ..
            } => of(entries),
            Message::Copy {
                order: CopyOrder::Apply { key, operation, .. },
                ..
            } => {
                key.len()
                    + match operation {
                        Operation::Put { value, .. } => value.len(),
                        Operation::Remove => 0,
                    }
            }
            Message::Pass(pass) => pass.frame.len(),
            _ => 0,
        }
    }
}

impl Frame {
    /// One that carries another.
    pub(crate) fn of_pass(pass: Pass) -> Self {
        Frame {
            sequence: 0,
            confirmed: 0,
            message: Some(Message::Pass(pass)),
        }
    }
}
