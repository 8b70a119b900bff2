//! What a verdict says, being done: a question to one replica after the other.

use super::question::{Order, Question, Reply};
use super::verdict::Verdict;
use crate::mutants::{self, Mutant};
use crate::page::Data;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Expected, Outcome, Rejection};
use trefoil_layout::{KeyHash, KeyHasher, Version};

/// How often a CAS is put to the second replica while that takes none just now, and how long
/// it is waited in between, in nanoseconds: longer together than one that moves to another
/// process stands still.
const PUT_OFF_MAX: u32 = 20;
/// So many scans may end for want of an answer to one key: the others are to be repaired, too.
const SCANS_MAX: u32 = 5;
pub(super) const PUT_OFF_PAUSE_NS: u64 = 100_000_000;

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The third replica has it.
    Installed,
    /// The erasure has reached the third replica.
    Erased,
    /// Nothing is there any more.
    Evicted,
    /// The CAS was stored: over this version, at that one.
    Renewed(Version, Version),
    /// The CAS has failed certainly; its version.
    NotRenewed(Version),
    /// Something else came meanwhile, or the replica has no room.
    Nothing,
}

/// One key's.
#[derive(Debug)]
pub(super) struct Job<D> {
    pub(super) hash: KeyHash,
    verdict: Verdict,
    step: Step<D>,
    /// Of a CAS: the first did not answer, and may have stored it.
    may_be_stored: bool,
    /// How often the first has put it off since.
    put_off: u32,
    /// Scans that ended because nobody answered it.
    scans: u32,
}

#[derive(Debug)]
enum Step<D> {
    /// The item is asked for, or the key.
    Fetch,
    /// A version is wanted for a CAS.
    Nominate(Data<D>),
    /// A mutation is asked for; of a CAS, the first, the second, the SET to the third.
    Mutate(Data<D>, Version, u8),
    /// The first's epoch is known, and the CAS is asked of the second, which has put it off
    /// so many times.
    Second(Data<D>, Version, u32, u32),
    /// What the CAS has left at the first goes.
    TakeBack(Data<D>, Version),
    Over,
}

/// What a job wants next.
pub(super) enum Wants<D> {
    /// This question to be put to this replica.
    Ask(usize, Question<D>),
    /// A version above this one.
    Version(Version),
}

impl<D: AsRef<[u8]> + Clone> Job<D> {
    /// `None` if there is nothing to do. An eviction is of one replica.
    pub(super) fn new(hash: KeyHash, verdict: Verdict) -> Option<Self> {
        let acts = match verdict {
            Verdict::Install { .. } | Verdict::Renew { .. } | Verdict::Erase { .. } => true,
            Verdict::Evict { held } => held.iter().any(Option::is_some),
            Verdict::Clean | Verdict::Full | Verdict::Young | Verdict::Apart => false,
        };
        acts.then_some(Job {
            hash,
            verdict,
            step: Step::Fetch,
            may_be_stored: false,
            put_off: 0,
            scans: 0,
        })
    }

    pub(super) fn wants(&self) -> Option<Wants<D>> {
        let hash = self.hash;
        let item = |version, key_only| Question::Item {
            hash,
            version,
            key_only,
        };
        Some(match (&self.step, self.verdict) {
            (Step::Fetch, Verdict::Install { from, version, .. }) => {
                Wants::Ask(from, item(version, false))
            }
            (Step::Fetch, Verdict::Renew { pair, version, .. }) => {
                Wants::Ask(pair[0], item(version, false))
            }
            (Step::Fetch, Verdict::Erase { at, held, .. }) => Wants::Ask(at, item(held, true)),
            (Step::Fetch, Verdict::Evict { held }) => {
                let (at, held) = first(held)?;
                Wants::Ask(at, item(held, true))
            }
            (Step::Nominate(_), Verdict::Renew { version, above, .. }) => {
                Wants::Version(version.max(above))
            }
            (Step::Mutate(data, version, number), verdict) => {
                let order = |action| {
                    let (version, item) = (*version, data.clone());
                    Question::Mutate(Order {
                        action,
                        version,
                        item,
                    })
                };
                match verdict {
                    Verdict::Install { to, .. } => Wants::Ask(to, order(Action::Set)),
                    Verdict::Erase { at, .. } => Wants::Ask(at, order(Action::Erase)),
                    Verdict::Evict { held } => Wants::Ask(first(held)?.0, order(Action::Erase)),
                    Verdict::Renew { third, .. } if *number == 2 => {
                        Wants::Ask(third, order(Action::Set))
                    }
                    Verdict::Renew { pair, version, .. } => {
                        Wants::Ask(pair[0], order(swap(version)))
                    }
                    _ => return None,
                }
            }
            (Step::Second(data, fresh, ..), Verdict::Renew { pair, version, .. }) => {
                let order = Order {
                    action: swap(version),
                    version: *fresh,
                    item: data.clone(),
                };
                Wants::Ask(pair[1], Question::Mutate(order))
            }
            (Step::TakeBack(data, fresh), Verdict::Renew { pair, .. }) => {
                let order = Order {
                    action: Action::Erase,
                    version: *fresh,
                    item: data.clone(),
                };
                Wants::Ask(pair[0], Question::Mutate(order))
            }
            _ => return None,
        })
    }

    /// Whether the replica that is asked next has just put it off.
    pub(super) fn is_put_off(&self) -> bool {
        match self.step {
            Step::Second(.., put_off) => put_off > 0,
            Step::Mutate(..) => self.put_off > 0,
            _ => false,
        }
    }

    /// Whether one of a pair may hold what the other one does not. The value had a quorum,
    /// which it may have no more until both have answered: so who has not is asked again, in
    /// another scan if need be.
    pub(super) fn is_half_done(&self) -> bool {
        let is_cas = matches!(self.verdict, Verdict::Renew { .. });
        match self.step {
            Step::Second(..) => true,
            Step::Mutate(_, _, number) => is_cas && number == 0,
            _ => false,
        }
    }

    /// It was not answered. Whether it is asked again.
    pub(super) fn asks_again(&mut self) -> bool {
        self.may_be_stored |= matches!(self.step, Step::Mutate(..));
        self.is_half_done() && self.scans < SCANS_MAX && !mutants::is(Mutant::TakenBackAtOnce)
    }

    /// The scan ends, because nobody answers it.
    pub(super) fn ends_a_scan(&mut self) {
        self.scans += 1;
    }

    /// A version that was wanted.
    pub(super) fn nominated(&mut self, version: Version) {
        if let Step::Nominate(data) = &self.step {
            self.step = Step::Mutate(data.clone(), version, 0);
        }
    }

    /// A replica's answer; how it has ended, if it has.
    pub(super) fn answer(&mut self, reply: Reply<D>, hasher: &KeyHasher) -> Option<Done> {
        let step = std::mem::replace(&mut self.step, Step::Over);
        match (step, reply) {
            (Step::Fetch, Reply::Item(Some(data))) => self.fetched(data, hasher),
            (Step::Mutate(data, version, number), Reply::Ack(ack)) => {
                self.mutated(data, version, number, ack)
            }
            (Step::Second(data, version, first_epoch, put_off), Reply::Ack(ack)) => match ack
                .outcome
            {
                outcome if is_stored(outcome, version) && ack.epoch == first_epoch => {
                    self.step = Step::Mutate(data, version, 2);
                    None
                }
                // Of two epochs: nobody can say whether it was stored.
                outcome if is_stored(outcome, version) => Some(Done::Nothing),
                // It has done nothing yet. To take it back would leave the value, which had a
                // quorum, at one replica.
                Outcome::Rejected(rejection) if puts_off(rejection) && put_off < PUT_OFF_MAX => {
                    self.step = Step::Second(data, version, first_epoch, put_off + 1);
                    None
                }
                _ => {
                    self.step = Step::TakeBack(data, version);
                    None
                }
            },
            (Step::TakeBack(_, version), _) => Some(Done::NotRenewed(version)),
            _ => Some(Done::Nothing),
        }
    }

    fn fetched(&mut self, data: Data<D>, hasher: &KeyHasher) -> Option<Done> {
        let version = match self.verdict {
            Verdict::Install { version, .. } => {
                if !is_sound(&data, hasher, self.hash, version) {
                    return Some(Done::Nothing);
                }
                version
            }
            Verdict::Renew { version, .. } => {
                if !is_sound(&data, hasher, self.hash, version) {
                    return Some(Done::Nothing);
                }
                self.step = Step::Nominate(data);
                return None;
            }
            Verdict::Erase { version, .. } => version,
            Verdict::Evict { held } => first(held)?.1,
            _ => return Some(Done::Nothing),
        };
        self.step = Step::Mutate(data, version, 0);
        None
    }

    fn mutated(&mut self, data: Data<D>, fresh: Version, number: u8, ack: Ack) -> Option<Done> {
        let is_applied = ack.outcome == Outcome::Applied;
        match self.verdict {
            Verdict::Install { .. } if is_applied => Some(Done::Installed),
            Verdict::Erase { .. } if is_applied => Some(Done::Erased),
            Verdict::Evict { held } => {
                // The next replica, if one more holds something.
                let rest = without_first(held);
                if let Some(next) = Job::<D>::new(self.hash, Verdict::Evict { held: rest }) {
                    *self = next;
                    return None;
                }
                Some(Done::Evicted)
            }
            Verdict::Renew { version, .. } if number == 2 => Some(Done::Renewed(version, fresh)),
            Verdict::Renew { .. } if is_stored(ack.outcome, fresh) => {
                self.step = Step::Second(data, fresh, ack.epoch, 0);
                None
            }
            Verdict::Renew { .. }
                if self.may_be_stored
                    && self.put_off < PUT_OFF_MAX
                    && matches!(ack.outcome, Outcome::Rejected(rejection) if puts_off(rejection)) =>
            {
                self.put_off += 1;
                self.step = Step::Mutate(data, fresh, number);
                None
            }
            Verdict::Renew { .. } => Some(Done::NotRenewed(fresh)),
            _ => Some(Done::Nothing),
        }
    }
}

/// Whether the CAS of a repair, which nobody else knows of, was stored: now, or when it was
/// asked before and the answer was lost.
fn is_stored(outcome: Outcome, fresh: Version) -> bool {
    match outcome {
        Outcome::Applied => true,
        Outcome::Mismatch { present, .. } => present == Some(fresh),
        Outcome::Superseded { .. } | Outcome::Rejected(_) => false,
    }
}

/// Whether a replica that refuses for this has left no trace and may take the same later: it
/// is frozen, serves another configuration, has no room just now, or a clock that is behind.
fn puts_off(rejection: Rejection) -> bool {
    use Rejection::{ClockAhead, NoMemory, StaleConfig, UnknownConfig, WrongShard};
    matches!(
        rejection,
        StaleConfig | UnknownConfig | WrongShard | NoMemory | ClockAhead
    ) && !mutants::is(Mutant::TakenBackAtOnce)
}

/// The CAS of a repair.
fn swap(expected: Version) -> Action {
    match mutants::is(Mutant::RenewedBlindly) {
        true => Action::Set,
        false => Action::Cas(Expected::Version(expected)),
    }
}

fn first(held: [Option<Version>; 3]) -> Option<(usize, Version)> {
    let mut found = held.into_iter().enumerate();
    found.find_map(|(at, held)| held.map(|held| (at, held)))
}

fn without_first(mut held: [Option<Version>; 3]) -> [Option<Version>; 3] {
    if let Some((at, _)) = first(held) {
        held[at] = None;
    }
    held
}

/// Whether it is a whole data entry of that key and version.
fn is_sound<D: AsRef<[u8]>>(
    data: &Data<D>,
    hasher: &KeyHasher,
    hash: KeyHash,
    version: Version,
) -> bool {
    let Data::Whole(data) = data else {
        return false;
    };
    let data = data.as_ref();
    DataEntry::decode(data).is_some_and(|entry| {
        hasher.hash(entry.key) == hash
            && DataEntry::validate(data, hash.tag, version, entry.key).is_ok()
    })
}
