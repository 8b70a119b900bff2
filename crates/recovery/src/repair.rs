//! Repair of a shard that votes: what was written while it was copied, and did not reach
//! it.
//!
//! A value that both others hold at one version, in one epoch, is a quorum's; it is
//! stored here at its own version, under the rules of any SET (rule 11). Nothing else is
//! changed.
//!
//! One that both hold below this one's floor is not stored here: the floor stands for what
//! this one may have said of the key. A write that was on its way to the second of them when
//! the floor was taken is such a one, and so is a writer's whose clock is behind. Such keys
//! are named to whoever repairs the cohort, who stores them anew (rule 12). Where this one
//! is full, it may have evicted them: then nobody is told.

use crate::copy::{Sound, Turn, leads_on};
use crate::machine::{Answer, Ask, Between, Counts, Nonsense};
use crate::mutants::{self, Mutant};
use crate::page::Data;
use std::collections::HashMap;
use trefoil_layout::op::Outcome;
use trefoil_layout::{KeyHash, Version, epoch};
use trefoil_store::{Now, PLACES, Position, Store};

/// Who is asked first, and for values.
const FIRST: usize = 0;
/// Keys that are named in one walk.
const HIDDEN_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    /// Everything before is done.
    place: u64,
    /// The end of the first peer's page from there on, and its epoch.
    page: Option<(u64, u32)>,
    /// What the first holds there and this one lacks.
    lacking: HashMap<KeyHash, Version>,
    /// Of these, what the second holds, too, before `second_place`.
    agreed: Vec<(KeyHash, Version)>,
    /// What the first holds there, and this one's floor hides.
    below: HashMap<KeyHash, Version>,
    /// Of these, what the second holds, too, of the whole walk so far.
    hidden: Vec<KeyHash>,
    second_place: u64,
    /// A long value that is being looked up.
    long: Option<(Vec<u8>, Version)>,
    /// Of whom.
    turn: Turn,
    between: Between,
}

impl Repair {
    pub(crate) fn new(between: Between) -> Self {
        Repair {
            between,
            ..Repair::default()
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.place == PLACES.end
    }

    /// Keys that both others hold, and this one lacks for good.
    pub(crate) fn take_hidden(&mut self) -> Vec<KeyHash> {
        std::mem::take(&mut self.hidden)
    }

    pub(crate) fn ask(&self, peer: usize) -> Option<Ask> {
        let Some((end, _)) = self.page else {
            return (peer == FIRST && !self.is_done()).then_some(Ask::Items {
                from: self.place,
                until: PLACES.end,
                values: false,
            });
        };
        if let Some((key, version)) = self.long.as_ref().filter(|_| self.turn.is_of(peer)) {
            let (key, version) = (key.clone(), *version);
            return Some(Ask::Long { key, version });
        }
        let is_compared = self.second_place == end;
        if peer != FIRST {
            return (!is_compared).then_some(Ask::Items {
                from: self.second_place,
                until: end,
                values: false,
            });
        }
        let wanted = self.agreed.last();
        let wanted = wanted.filter(|_| is_compared && self.long.is_none());
        wanted.map(|(hash, _)| {
            let from = Position::place_of(*hash);
            Ask::Items {
                from,
                until: from + 1,
                values: true,
            }
        })
    }

    pub(crate) fn answer<D: AsRef<[u8]>>(
        &mut self,
        peer: usize,
        answer: Answer<D>,
        (store, now): (&Store, Now),
        counts: &mut Counts,
    ) -> Result<(), Nonsense> {
        match (answer, self.page) {
            (Answer::Items(page), None) => {
                leads_on(&page, (self.place, PLACES.end))?;
                let is_vote = page.epoch != epoch::NONE;
                let may_hide = !store.is_full();
                for (hash, version) in page.held.into_iter().filter(|_| is_vote) {
                    self.between.call();
                    if store.bound(hash).is_some_and(|bound| bound < version) {
                        self.lacking.insert(hash, version);
                    } else if may_hide && store.held(hash).is_none_or(|held| held < version) {
                        self.below.insert(hash, version);
                    }
                }
                self.page = Some((page.next, page.epoch));
                if mutants::is(Mutant::RepairedByOne) {
                    self.agreed = self.lacking.drain().collect();
                    // In any order that is the same each time: a seed has to say the same again.
                    self.agreed.sort_unstable_by_key(|(_, version)| *version);
                }
                self.second_place = match self.lacking.is_empty() && self.below.is_empty() {
                    true => page.next,
                    false => self.place,
                };
            }
            (Answer::Items(page), Some((end, epoch))) if peer != FIRST => {
                leads_on(&page, (self.second_place, end))?;
                for (hash, version) in page.held.into_iter().filter(|_| page.epoch == epoch) {
                    if self.lacking.get(&hash) == Some(&version) {
                        self.agreed.push((hash, version));
                    }
                    let is_hidden = self.below.get(&hash) == Some(&version);
                    if is_hidden && self.hidden.len() < HIDDEN_MAX {
                        self.hidden.push(hash);
                    }
                }
                self.second_place = page.next;
            }
            (Answer::Items(page), Some(_)) => {
                let wanted = self.agreed.pop();
                for item in page.items {
                    if wanted.is_none_or(|(_, version)| version != item.version) {
                        continue;
                    }
                    match item.data {
                        Data::Long { key } => {
                            self.long = Some((key.as_ref().to_vec(), item.version));
                        }
                        Data::Whole(data) => {
                            install(Sound::of(store, item.version, &data), (store, now), counts);
                        }
                    }
                }
            }
            (Answer::Long(data), _) => {
                if let (Some((_, version)), Some(data)) = (&self.long, data) {
                    let sound = Sound::of(store, *version, &data);
                    if sound.is_none() && self.turn.passes() {
                        return Ok(());
                    }
                    install(sound, (store, now), counts);
                }
                self.turn.ends();
                self.long = None;
            }
            _ => {}
        }
        self.go_on();
        Ok(())
    }

    /// The long value that is looked up could not be asked for. Whether the other one is
    /// left to be asked.
    pub(crate) fn long_failed(&mut self) -> bool {
        self.long.is_some() && self.turn.passes()
    }

    /// To the next page, if nothing of this one is left.
    fn go_on(&mut self) {
        let Some((end, _)) = self.page else { return };
        if self.second_place == end && self.agreed.is_empty() && self.long.is_none() {
            self.place = end;
            self.page = None;
            self.lacking.clear();
            self.below.clear();
        }
    }
}

fn install(found: Option<Sound<'_>>, (store, now): (&Store, Now), counts: &mut Counts) {
    if found.is_some_and(|found| found.install(store, now) == Outcome::Applied) {
        counts.repaired += 1;
    }
}
