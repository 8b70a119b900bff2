//! One operation under way: its machine, what it needs to be sent again, what it
//! waits for.

mod get;

pub(crate) use get::{AnyPlan, GetMachine, suit, waits};

use crate::room::{Lateness, Way};
use trefoil_cell::Cohort;
use trefoil_client_core::cas::Cas;
use trefoil_client_core::fill::Stamps;
use trefoil_client_core::get::GetFailure;
use trefoil_client_core::get::MissReason;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_client_core::mutate::Mutate;
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::Limits;
use trefoil_fabric::Token;
use trefoil_fabric::port::{Port, SendError};
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::Request;
use trefoil_layout::op::{Action, Expected, ItemUse, Mutation};
use trefoil_layout::{KeyHash, TopologyId, Version};
use trefoil_region::WordBuffer;

/// Longest buffer that a free operation keeps, in bytes.
const BUFFER_LEN_KEPT: usize = 16 * 1024;

/// Pauses of a CAS while the topology changes.
const PASSING_PAUSE_NS_MIN: u64 = 1_000_000;
const PASSING_PAUSE_NS_MAX: u64 = 50_000_000;

/// What an item is stored with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item {
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that the caller supplies.
    pub unique: Option<u64>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// A value; its data entry is in the operation's buffer.
    Hit {
        /// The mutation that wrote it.
        version: Version,
    },
    /// None.
    Miss {
        /// Why.
        reason: MissReason,
        /// What it leaves for a fill.
        stamps: Stamps,
    },
    /// It could not be found out.
    Failed {
        /// Why.
        cause: GetFailure,
    },
    /// A mutation's.
    Mutated(MutationOutcome),
    /// What each replica says of an item's use.
    Uses([Option<ItemUse>; REPLICAS_MAX]),
}

/// What decides about the operation's steps.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "slots of a slab: their size is paid once, and a box would be an allocation each"
)]
pub(crate) enum Machine {
    Idle,
    Get(GetMachine),
    Mutate(Mutate),
    Cas {
        machine: Cas,
        /// Its look at what a quorum agrees on.
        look: Option<GetMachine>,
    },
    Uses {
        asked: bool,
        until_ns: u64,
        found: [Option<ItemUse>; REPLICAS_MAX],
    },
}

impl Machine {
    /// Ends no sooner than `deadline_ns`.
    pub(crate) fn extend(&mut self, deadline_ns: u64) {
        match self {
            Machine::Idle => {}
            Machine::Get(get) => get.extend(deadline_ns),
            Machine::Mutate(machine) => machine.extend(deadline_ns),
            Machine::Cas { machine, look } => {
                machine.extend(deadline_ns);
                if let Some(look) = look {
                    look.extend(deadline_ns);
                }
            }
            Machine::Uses { until_ns, .. } => *until_ns = deadline_ns.max(*until_ns),
        }
    }

    /// Whether a replica is known to lack a mutation that is stored.
    pub(crate) fn lacks(&self, replica: usize) -> bool {
        match self {
            Machine::Mutate(machine) => machine.lacks(replica),
            Machine::Cas { machine, .. } => machine.lacks(replica),
            Machine::Idle | Machine::Get(_) | Machine::Uses { .. } => false,
        }
    }
}

/// What a replica was sent, or is to be sent once there is room on the way to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Lookup,
    Use,
    Mutation { action: Action, version: Version },
}

/// What the driver owes the machine for one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Owed {
    #[default]
    Nothing,
    /// A port owes the completion of this token.
    Near(Token),
    Far(Token),
    /// The same of the process before, which has moved, and answers for a moment longer.
    Leaving(Token),
    /// The same of a third copy that is handed on by another process, when two were enough: what
    /// that refuses is called, and so the operation stays until then.
    Last(Token),
    /// The ring was full, or too many calls under way.
    Room(Way),
    /// The backend is being connected to.
    Connection,
    /// The topology is being learned.
    Topology,
}

impl Owed {
    /// Of the completion that a port owes.
    #[inline(always)]
    pub(crate) fn token(self) -> Option<Token> {
        match self {
            Owed::Near(token) | Owed::Far(token) | Owed::Leaving(token) | Owed::Last(token) => {
                Some(token)
            }
            Owed::Nothing | Owed::Room(_) | Owed::Connection | Owed::Topology => None,
        }
    }
}

/// Where an operation goes when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Somebody waits for this very one.
    Waiter,
    /// Somebody waits for it after others that are under way beside it: whichever of them is
    /// waited for, its hedges and its deadline have their time.
    Batch,
    /// It is handed out with the caller's token.
    Token(u64),
    /// Nobody wants to know any more; what was sent goes on.
    Nobody,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) machine: Machine,
    pub(crate) owner: Owner,
    /// Raised with every use of this place: timers of earlier ones are stale.
    pub(crate) life: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) item: Item,
    pub(crate) action: Action,
    pub(crate) limits: Limits,
    pub(crate) begun_ns: u64,
    pub(crate) hash: KeyHash,
    pub(crate) cohort: Cohort,
    /// The driver's count of topologies that it works under.
    pub(crate) topology: u64,
    pub(crate) flush_floor: Version,
    pub(crate) now_ms: u64,
    pub(crate) reports_use: bool,
    /// A lookup on whose strength something is written.
    pub(crate) is_careful: bool,
    /// A retry for the topology's sake is due; a CAS begins anew after it.
    pub(crate) passing_pause_ns: u64,
    pub(crate) buffers: [WordBuffer; REPLICAS_MAX],
    pub(crate) owed: [Owed; REPLICAS_MAX],
    pub(crate) messages: [Message; REPLICAS_MAX],
    /// The key's stamps as answers to a lookup brought them.
    pub(crate) stamps: [Option<u64>; REPLICAS_MAX],
    /// Replicas whose answer did not fit a message, as a bit set: they are called.
    pub(crate) too_large: u8,
    /// Of one message that waits for room.
    pub(crate) lateness: Lateness,
    /// A backend is reached by other means than the plan says.
    pub(crate) needs_plan: bool,
    /// When it is stepped at the latest.
    pub(crate) wake_ns: u64,
    /// Not to be stepped before this time.
    pub(crate) pause_until_ns: u64,
    pub(crate) is_queued: bool,
    /// Why a message did not get through, for people.
    pub(crate) reason: Option<String>,
    pub(crate) outcome: Option<Outcome>,
    /// It ends so, as soon as less is waiting where its last message waits.
    pub(crate) held: Option<Outcome>,
    /// The replica whose buffer holds a hit's data.
    pub(crate) hit_replica: usize,
}

impl Op {
    pub(crate) fn new(cohort: Cohort) -> Self {
        Op {
            machine: Machine::Idle,
            owner: Owner::Nobody,
            life: 0,
            key: Vec::new(),
            value: Vec::new(),
            item: Item::default(),
            action: Action::Set,
            limits: Limits::until(0),
            begun_ns: 0,
            hash: KeyHash { place: 0, tag: 0 },
            cohort,
            topology: 0,
            flush_floor: Version::ZERO,
            now_ms: 0,
            reports_use: false,
            is_careful: false,
            passing_pause_ns: 0,
            buffers: std::array::from_fn(|_| WordBuffer::default()),
            owed: [Owed::Nothing; REPLICAS_MAX],
            messages: [Message::Lookup; REPLICAS_MAX],
            stamps: [None; REPLICAS_MAX],
            too_large: 0,
            lateness: Lateness::default(),
            needs_plan: false,
            wake_ns: u64::MAX,
            pause_until_ns: 0,
            is_queued: false,
            reason: None,
            outcome: None,
            held: None,
            hit_replica: 0,
        }
    }

    /// Gives back what is large, and forgets the rest.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.machine = Machine::Idle;
        self.owner = Owner::Nobody;
        self.life = self.life.wrapping_add(1);
        for bytes in [&mut self.key, &mut self.value] {
            bytes.clear();
            if bytes.capacity() > BUFFER_LEN_KEPT {
                *bytes = Vec::new();
            }
        }
        for buffer in &mut self.buffers {
            if buffer.capacity() > BUFFER_LEN_KEPT {
                *buffer = WordBuffer::default();
            }
        }
        self.owed = [Owed::Nothing; REPLICAS_MAX];
        self.stamps = [None; REPLICAS_MAX];
        self.too_large = 0;
        self.lateness = Lateness::default();
        self.needs_plan = false;
        self.passing_pause_ns = 0;
        self.wake_ns = u64::MAX;
        self.pause_until_ns = 0;
        self.reason = None;
        self.outcome = None;
        self.held = None;
    }

    /// The message to a replica.
    #[inline]
    pub(crate) fn request(&self, message: Message) -> Request<'_> {
        match message {
            Message::Lookup => Request::Lookup { key: &self.key },
            Message::Use => Request::Use { key: &self.key },
            Message::Mutation { action, version } => {
                let entry = match action {
                    Action::Erase => DataEntry {
                        key: &self.key,
                        ..DataEntry::default()
                    },
                    Action::Set | Action::Cas(_) | Action::Fill { .. } => DataEntry {
                        expiry_ms: self.item.expiry_ms,
                        client_flags: self.item.client_flags,
                        item_flags: self.item.item_flags,
                        unique: self.item.unique,
                        key: &self.key,
                        value: &self.value,
                    },
                };
                Request::Mutate(Mutation {
                    action,
                    version,
                    entry,
                })
            }
        }
    }

    /// Sends a message by a call, which ends with this operation if it is a question.
    pub(crate) fn call(
        &self,
        far: &mut impl Port,
        token: Token,
        under: TopologyId,
        message: Message,
    ) -> Result<(), SendError> {
        let request = self.request(message);
        match message {
            Message::Mutation { .. } => far.send(token, under, &request),
            Message::Lookup | Message::Use => {
                far.ask(token, under, &request, self.limits.deadline_ns)
            }
        }
    }

    /// Whether one of its messages still waits for room.
    #[inline]
    pub(crate) fn waits_for_room(&self) -> bool {
        self.owed.iter().any(|owed| matches!(owed, Owed::Room(_)))
    }

    /// Whether its place is not free although it is over: a message may still have to be sent.
    #[inline]
    pub(crate) fn keeps_its_place(&self) -> bool {
        let is_kept = |owed: &Owed| matches!(owed, Owed::Room(_) | Owed::Last(_));
        self.owed.iter().any(is_kept)
    }

    /// Whether it is a mutation that two of three replicas hold.
    pub(crate) fn is_stored(&self) -> bool {
        let outcome = self.outcome.or(self.held);
        self.cohort.as_slice().len() == REPLICAS_MAX
            && matches!(
                outcome,
                Some(Outcome::Mutated(MutationOutcome::Stored { .. }))
            )
    }

    /// Whether the other replicas are enough for this mutation, as far as is known.
    pub(crate) fn can_do_without(&self, replica: usize) -> bool {
        let is_other_room =
            |(place, owed): (usize, &Owed)| place != replica && matches!(owed, Owed::Room(_));
        matches!(self.machine, Machine::Mutate(_))
            && self.cohort.as_slice().len() == REPLICAS_MAX
            && !self.owed.iter().enumerate().any(is_other_room)
    }

    /// What waits for room is not sent.
    pub(crate) fn forget_room(&mut self) {
        for owed in &mut self.owed {
            if let Owed::Room(_) = owed {
                *owed = Owed::Nothing;
            }
        }
    }

    /// The place in the cohort that this token was given for.
    #[inline]
    pub(crate) fn place_of(&self, token: Token) -> Option<usize> {
        self.owed
            .iter()
            .position(|owed| owed.token() == Some(token))
    }

    /// A place that an answer is owed for, whatever its token: what a mutant takes
    /// an answer to an earlier attempt for.
    pub(crate) fn place_of_any(&self) -> Option<usize> {
        self.owed.iter().position(|owed| owed.token().is_some())
    }

    /// Tells the machine that a message has no answer.
    pub(crate) fn no_answer(&mut self, replica: usize, failure: SendFailure, why: &str) {
        if !why.is_empty() {
            self.reason = Some(why.to_owned());
        }
        let version = match self.messages[replica] {
            Message::Mutation { version, .. } => version,
            Message::Lookup | Message::Use => Version::ZERO,
        };
        match &mut self.machine {
            Machine::Get(get) => get.lost(replica),
            Machine::Cas {
                look: Some(get), ..
            } => get.lost(replica),
            Machine::Mutate(machine) => machine.handle_failure(replica, version, failure),
            Machine::Cas { machine, .. } => machine.handle_failure(replica, version, failure),
            Machine::Idle | Machine::Uses { .. } => {}
        }
    }

    /// How long to wait until the topology may be another one.
    pub(crate) fn passing_pause(&mut self) -> u64 {
        self.passing_pause_ns = match self.passing_pause_ns {
            0 => PASSING_PAUSE_NS_MIN,
            ns => (2 * ns).min(PASSING_PAUSE_NS_MAX),
        };
        self.passing_pause_ns
    }

    /// What a CAS expects, if it is one.
    pub(crate) fn expected(&self) -> Option<Expected> {
        match self.action {
            Action::Cas(expected) => Some(expected),
            Action::Set | Action::Erase | Action::Fill { .. } => None,
        }
    }
}
