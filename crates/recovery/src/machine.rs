//! One shard's recovery: whom to ask for what next, and what to do with the answer.

use crate::copy::Copy;
use crate::credible;
use crate::mutants::{self, Mutant};
use crate::page::Page;
use crate::repair::Repair;
use trefoil_layout::{KeyHash, Version, epoch};
use trefoil_store::{Now, Store};

/// Rounds of raising the epochs of a cohort until all are the same: others may be
/// raising them, too.
const ROUNDS_MAX: u32 = 16;

/// Calls of maintenance in which an empty index becomes as large as the peer's, and more
/// than that takes.
const MAINTENANCE_MAX: u32 = 32;

/// What to ask a peer. Of each one thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Its standing, after it has raised the shard's epoch; to 0 only asks.
    Standing {
        /// The epoch.
        raise_to: u32,
    },
    /// A page of what stands in its index ([`crate::items`]).
    Items {
        /// The first place.
        from: u64,
        /// The place behind the last.
        until: u64,
        /// With values, or only what is held at which version.
        values: bool,
    },
    /// A long value's data entry, by message.
    Long {
        /// Its key.
        key: Vec<u8>,
        /// Of no use at any other version.
        version: Version,
    },
}

/// What a peer has answered.
#[derive(Clone, Debug)]
pub enum Answer<D> {
    /// To [`Ask::Standing`].
    Standing(Standing),
    /// To [`Ask::Items`].
    Items(Page<D>),
    /// To [`Ask::Long`]; `None` if it is no longer of that version.
    Long(Option<D>),
}

/// What a peer says of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its epoch: no answer and no vote is of an older one any more.
    pub epoch: u32,
    /// It has lost its memory, too, and gives no vote.
    pub is_lost: bool,
    /// Which memory it is.
    pub incarnation: u64,
    /// No bound of any key is higher there.
    pub bound_max: Version,
    /// Buckets of the shard's indexes.
    pub bucket_count: u64,
}

/// An answer that no replica of this release gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it answers nonsense: {0}")]
pub struct Nonsense(pub &'static str);

/// How a recovery has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The shard votes, with all that it lacked.
    Recovered,
    /// The shard votes, and is empty: two of three had lost it.
    Lost,
    /// No epoch is left to raise it to.
    EpochsUsedUp,
}

/// What came of the keys so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Values installed.
    pub items: u64,
    /// Bytes of their data entries.
    pub bytes: u64,
    /// Values that the first peer held and the second did not.
    pub disagreed: u64,
    /// Values installed after the vote.
    pub repaired: u64,
}

impl Counts {
    /// Both together.
    pub const fn plus(self, other: Counts) -> Counts {
        Counts {
            items: self.items + other.items,
            bytes: self.bytes + other.bytes,
            disagreed: self.disagreed + other.disagreed,
            repaired: self.repaired + other.repaired,
        }
    }
}

/// What is called between two values, while no lock is held; nothing by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between(fn());

impl Between {
    pub(crate) fn of(between: fn()) -> Self {
        Between(between)
    }

    pub(crate) fn call(self) {
        (self.0)();
    }
}

impl Default for Between {
    fn default() -> Self {
        Between(|| ())
    }
}

/// See the module. `D` holds the bytes of values.
#[derive(Debug)]
pub struct Recovery<D> {
    /// The backend's own number of the shard.
    shard: usize,
    phase: Phase<D>,
    /// A question is under way.
    asked: [bool; 2],
    /// It is for a long value.
    asked_long: [bool; 2],
    copied: Option<Copied>,
    counts: Counts,
    votes: bool,
    /// Of a mutant: the epochs were raised when everything had been copied.
    has_raised: bool,
    ended: Option<Ended>,
    between: Between,
}

/// What was copied so far.
#[derive(Clone, Copy, Debug)]
struct Copied {
    /// From whose memory.
    memories: [u64; 2],
    /// In which epoch: what is written in it while the copy goes on is kept, or found by the
    /// repair, because it lies above the floor that was taken at its beginning.
    epoch: u32,
    /// Everything before this place.
    place: u64,
}

#[derive(Debug)]
enum Phase<D> {
    /// Both are told the epoch, 0 at first, until all are in the same one.
    Epochs {
        raise_to: u32,
        standings: [Option<Standing>; 2],
        rounds: u32,
    },
    Copy(Copy<D>),
    Repair(Repair),
}

impl<D: AsRef<[u8]>> Recovery<D> {
    /// Of a shard that the store numbers `shard` and that is recovering. Of its two
    /// peers, values come from the first one.
    pub fn new(shard: usize) -> Self {
        Recovery {
            shard,
            phase: Phase::begin(),
            asked: [false; 2],
            asked_long: [false; 2],
            copied: None,
            counts: Counts::default(),
            votes: false,
            has_raised: false,
            ended: None,
            between: Between::default(),
        }
    }

    /// Has this called between any two values of an answer, while no lock is held: all of one
    /// take milliseconds, and others may want the core.
    #[must_use]
    pub fn between_values(self, between: fn()) -> Self {
        Recovery {
            between: Between::of(between),
            ..self
        }
    }

    /// What to ask a peer now; nothing while another answer is waited for. An answer, or
    /// [`Recovery::unanswered`], or [`Recovery::failed`], has to follow.
    pub fn ask(&mut self, peer: usize) -> Option<Ask> {
        if self.asked[peer] || self.ended.is_some() {
            return None;
        }
        let ask = match &mut self.phase {
            Phase::Epochs {
                raise_to,
                standings,
                ..
            } => standings[peer].is_none().then_some(Ask::Standing {
                raise_to: *raise_to,
            }),
            Phase::Copy(copy) => copy.ask(peer),
            Phase::Repair(repair) => repair.ask(peer),
        };
        self.asked[peer] = ask.is_some();
        self.asked_long[peer] = matches!(ask, Some(Ask::Long { .. }));
        ask
    }

    /// A peer could not be asked, or did not answer. Whether the other one can be asked
    /// instead, as it can for a long value that both hold; if not, it has
    /// [failed](Recovery::failed).
    pub fn unanswered(&mut self, peer: usize) -> bool {
        let other_is_left = self.asked_long[peer]
            && match &mut self.phase {
                Phase::Copy(copy) => copy.long_failed(),
                Phase::Repair(repair) => repair.long_failed(),
                Phase::Epochs { .. } => false,
            };
        if other_is_left {
            self.asked[peer] = false;
        }
        other_is_left
    }

    /// A peer could not be asked, or did not answer: everything begins again with the
    /// epochs, and the copy goes on where it was if both memories and the epoch are still the
    /// same.
    pub fn failed(&mut self, peer: usize) {
        self.asked[peer] = false;
        if self.ended.is_none() {
            self.phase = Phase::begin();
        }
    }

    /// Of a shard that votes: once more, what was written without it.
    pub fn look_again(&mut self) {
        if self.ended.take().is_some() {
            self.phase = Phase::begin();
        }
    }

    /// A peer's answer to what it was asked last.
    pub fn answer(
        &mut self,
        peer: usize,
        answer: Answer<D>,
        store: &Store,
        now: Now,
    ) -> Result<(), Nonsense> {
        self.asked[peer] = false;
        let counts = &mut self.counts;
        match (&mut self.phase, answer) {
            (Phase::Epochs { standings, .. }, Answer::Standing(standing)) => {
                // The floor of a shard that votes is not raised any more.
                let bound = store
                    .is_recovering(self.shard)
                    .then_some(standing.bound_max);
                // One that has lost its memory begins far behind the others, perhaps.
                let other = standings[1 - peer].filter(|other| !other.is_lost && !standing.is_lost);
                let epochs = other.into_iter().chain([standing]);
                credible::check(bound, epochs.map(|standing| standing.epoch), now)?;
                standings[peer] = Some(standing);
                self.look_at_epochs(store, now);
            }
            (Phase::Copy(copy), answer) => {
                copy.answer(peer, answer, (store, now), counts)?;
                self.look_at_copy(store);
            }
            (Phase::Repair(repair), answer) => {
                repair.answer(peer, answer, (store, now), counts)?;
                if repair.is_done() {
                    self.ended = Some(Ended::Recovered);
                }
            }
            // To a question of before a failure of the other one.
            (Phase::Epochs { .. }, _) => {}
        }
        Ok(())
    }

    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Whether the shard votes.
    pub fn votes(&self) -> bool {
        self.votes
    }

    /// The place before which everything was copied.
    pub fn place(&self) -> u64 {
        self.copied.map_or(0, |copied| copied.place)
    }

    /// Keys that both others hold, and that this shard, which votes, lacks and does not take
    /// at their version: to be named to whoever repairs the cohort
    /// ([`crate::scan::Scan::of_keys`]). Of the walk that has ended last, or goes on; each
    /// time only those that are new.
    pub fn take_hidden(&mut self) -> Vec<KeyHash> {
        match &mut self.phase {
            Phase::Repair(repair) => repair.take_hidden(),
            Phase::Epochs { .. } | Phase::Copy(_) => Vec::new(),
        }
    }

    /// What came of the keys so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Both have answered, perhaps.
    fn look_at_epochs(&mut self, store: &Store, now: Now) {
        let Phase::Epochs {
            raise_to,
            standings,
            rounds,
        } = &mut self.phase
        else {
            return;
        };
        let [Some(first), Some(second)] = *standings else {
            return;
        };
        let has_lost = first.is_lost || second.is_lost;
        let memories = [first.incarnation, second.incarnation];
        if mutants::is(Mutant::EpochRaisedLate) && *raise_to == 0 && self.copied.is_none() {
            self.copied = Some(Copied {
                memories,
                epoch: store.epoch(self.shard),
                place: 0,
            });
            self.phase = Phase::Copy(Copy::from(0, self.between));
            return;
        }
        if mutants::is(Mutant::VotesAtOnce) {
            store.set_recovering(self.shard, false);
        } else if !store.is_recovering(self.shard) {
            // It was interrupted after it had voted, or has everything from its
            // predecessor. What a peer has lost has no quorum.
            self.votes = true;
            match has_lost {
                true => self.ended = Some(Ended::Recovered),
                false => self.phase = Phase::Repair(Repair::new(self.between)),
            }
            return;
        }
        store.raise_epoch(self.shard, *raise_to);
        let own = store.epoch(self.shard);
        let resumed = self.copied.filter(|copied| copied.memories == memories);
        let resumed = resumed.filter(|copied| copied.epoch == own);
        let is_resumed = resumed.is_some();
        let is_agreed = (*raise_to > 0 || is_resumed) && first.epoch == own && second.epoch == own;
        if !is_agreed {
            let highest = first.epoch.max(second.epoch).max(own);
            let next = match *raise_to {
                0 => epoch::shared_above(highest),
                // Somebody else raises them, too.
                _ => Some(highest),
            };
            let is_in_time = *rounds < ROUNDS_MAX;
            match next.filter(|_| is_in_time) {
                Some(next) => {
                    (*raise_to, *standings) = (next, [None; 2]);
                    *rounds += 1;
                }
                None if is_in_time => self.ended = Some(Ended::EpochsUsedUp),
                None => self.phase = Phase::begin(),
            }
            return;
        }
        // Whatever was acknowledged in an older epoch is no newer.
        let floor = first.bound_max.max(second.bound_max);
        if has_lost {
            store.reserve(self.shard, 0);
            store.raise_floor(self.shard, floor);
            store.set_recovering(self.shard, false);
            self.votes = true;
            self.ended = Some(Ended::Lost);
            return;
        }
        // One that is resumed has its floor. A higher one would hide what was written since
        // at places that are copied already.
        if !is_resumed && !mutants::is(Mutant::FloorForgotten) {
            store.keep_writes(self.shard, floor);
        }
        let place = resumed.map_or(0, |copied| copied.place);
        self.copied = Some(Copied {
            memories,
            epoch: own,
            place,
        });
        store.reserve(self.shard, first.bucket_count);
        for _ in 0..MAINTENANCE_MAX {
            let done = store.maintain_in_parts(now, &mut || self.between.call());
            if !done.more {
                break;
            }
        }
        self.phase = Phase::Copy(Copy::from(place, self.between));
        self.look_at_copy(store);
    }

    /// Whether everything is copied: then it votes.
    fn look_at_copy(&mut self, store: &Store) {
        let Phase::Copy(copy) = &self.phase else {
            return;
        };
        if let Some(copied) = &mut self.copied {
            copied.place = copy.place();
        }
        if !copy.is_done() {
            return;
        }
        if mutants::is(Mutant::EpochRaisedLate) && !std::mem::replace(&mut self.has_raised, true) {
            self.phase = Phase::begin();
            return;
        }
        store.reserve(self.shard, 0);
        store.set_recovering(self.shard, false);
        self.votes = true;
        self.phase = Phase::Repair(Repair::new(self.between));
    }
}

impl<D> Phase<D> {
    fn begin() -> Self {
        Phase::Epochs {
            raise_to: 0,
            standings: [None; 2],
            rounds: 0,
        }
    }
}
