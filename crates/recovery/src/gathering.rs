//! A cell gets another number of backends while it serves: what one backend of the cell
//! that is to be asks those of the cell that is.
//!
//! Each replica moves by itself: the backend at some place of a key's new cohort copies
//! what the one at the same place of its old cohort holds. So the three replicas of a key
//! are three [moves](crate::Handover), and what two of three had agreed on before, two of
//! three agree on afterwards. A backend of the new cell has keys of several of the old one,
//! each of which tells it of its own ones alone.
//!
//! ```text
//! begin     everyone asked notes from now on which places are changed
//! copy      everything, a page at a time
//! compare   what both hold at which version; what is missing is copied again
//! copy      what was changed meanwhile, again and again, until that is little
//! near      it waits; more rounds meanwhile
//! last      everyone asked is frozen: what was changed last; floors and epoch
//! ```
//!
//! What was asked before a freeze says nothing of what was changed until that freeze. So a
//! round that is under way then is ended, and the last step follows it.

use crate::copy::Sound;
use crate::credible;
use crate::handover::{Moved, Question, Reply, ShardState, Told, remove_untold};
use crate::machine::{Between, Nonsense};
use crate::mutants::{self, Mutant};
use crate::page::{Data, Page};
use crate::places;
use std::collections::VecDeque;
use std::ops::Range;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_layout::{KeyHash, Placement, ShardMap, Version};
use trefoil_store::{Now, PLACES, Recency, Store};

/// Pages that are asked for at once in the first walk: while one is installed, another is
/// on its way.
const UNDER_WAY_MAX: usize = 2;
/// The same of what has changed, from many at once.
const UNDER_WAY_LAST_MAX: usize = 16;
/// Parts of a shard that are walked over apart.
const STRIPS: u64 = 4;
/// Rounds of copying what has changed, at most, before the first freeze: somebody writes
/// faster than is copied.
const ROUNDS_MAX: u32 = 8;
/// So few ranges that everybody can stand still while they are copied.
const FEW: usize = 512;
/// Calls of maintenance in which an empty index becomes as large as it is to be, and more
/// than that takes.
const MAINTENANCE_MAX: u32 = 32;

/// A backend of the old cell, and what of it the new one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its number in the old cell.
    pub backend: u32,
    /// Shards, as both number them: by the place in a cohort.
    pub locals: Vec<usize>,
}

/// From whom the backend with the map `new` has what it holds.
pub fn sources(old: Placement, new: ShardMap) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for local in 0..new.shard_count() {
        for shard in 0..old.backend_count() {
            if share(old, new, shard, local) == 0.0 {
                continue;
            }
            let backend = old.cohort_of_shard(shard).as_slice()[local];
            match sources.iter_mut().find(|source| source.backend == backend) {
                Some(source) => source.locals.push(local),
                None => sources.push(Source {
                    backend,
                    locals: vec![local],
                }),
            }
        }
    }
    sources.sort_unstable_by_key(|source| source.backend);
    sources
}

/// The part of the old cell's shard number `old_shard` that goes to the new backend's shard
/// `local`. A key that changes its first backend goes to a new one, or comes from one that
/// is to be no more.
fn share(old: Placement, new: ShardMap, old_shard: u32, local: usize) -> f64 {
    let (before, after) = (old.backend_count(), new.placement().backend_count());
    let shard = new.shard(local);
    if old_shard == shard {
        return (f64::from(before) / f64::from(after)).min(1.0);
    }
    match shard >= before || old_shard >= after {
        true => 1.0 / f64::from(after),
        false => 0.0,
    }
}

/// A question, and whom it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The old cell's number of the backend.
    pub backend: u32,
    /// What.
    pub what: What,
}

/// What a backend of the old cell is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// [`Question::Begin`], [`Question::Long`] or [`Question::Changes`].
    Question(Question),
    /// Values, or what is held at which version, at these places, in order: of the keys
    /// that the new backend holds in the same place of their cohort.
    Items {
        /// That place.
        local: usize,
        /// In order.
        ranges: Vec<Range<u64>>,
        /// With values.
        values: bool,
    },
}

/// Places that are to be copied.
#[derive(Clone, Debug)]
struct Strip {
    /// Index of the source.
    source: usize,
    local: usize,
    /// In order, not empty.
    ranges: Vec<Range<u64>>,
    /// What is held there is compared, not copied.
    compares: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first walk, and the comparison.
    First,
    Compare,
    /// A round of what has changed.
    Round,
    Near,
    /// After the freeze.
    Last,
    Done,
}

#[derive(Debug)]
enum UnderWay {
    Step(usize),
    Strip(Strip),
    Long(Version, Recency),
}

/// A long value that is to be looked up.
#[derive(Debug)]
struct Long<D> {
    source: usize,
    key: D,
    version: Version,
    recency: Recency,
}

/// See the module. `D` holds the bytes of values.
#[derive(Debug)]
pub struct Gathering<D> {
    old: Placement,
    new: ShardMap,
    sources: Vec<Source>,
    phase: Phase,
    /// Sources that are still to be asked the phase's step.
    steps: Vec<usize>,
    /// What they have answered to it.
    states: Vec<Option<Vec<ShardState>>>,
    strips: VecDeque<Strip>,
    long: Vec<Long<D>>,
    under_way: Vec<(u64, UnderWay)>,
    questions: u64,
    /// Everything was copied once: what is no longer there goes.
    is_again: bool,
    /// Ranges of the round that is under way.
    ranges: usize,
    /// Whether this many evictions had happened before it began.
    evicted_before: u64,
    /// Everybody is frozen: the last step is wanted, and the epoch of all shards then.
    last: Option<u32>,
    /// The epochs of each source's shards, once it has told them.
    epochs: Vec<Vec<u32>>,
    moved: Moved,
    between: Between,
}

impl<D: AsRef<[u8]>> Gathering<D> {
    /// Into `store`, all of whose shards are recovering, of a cell whose keys stood as
    /// `old` says.
    pub fn new(old: Placement, store: &Store) -> Self {
        let new = store.config().shards;
        let sources = sources(old, new);
        Gathering {
            old,
            new,
            phase: Phase::First,
            steps: (0..sources.len()).rev().collect(),
            states: vec![None; sources.len()],
            epochs: vec![Vec::new(); sources.len()],
            sources,
            strips: VecDeque::new(),
            long: Vec::new(),
            under_way: Vec::new(),
            questions: 0,
            is_again: false,
            ranges: 0,
            evicted_before: evicted(store),
            last: None,
            moved: Moved::default(),
            between: Between::default(),
        }
    }

    /// Has this called between any two parts of an answer, while no lock is held: all of one
    /// take milliseconds, and others may want the core.
    #[must_use]
    pub fn between_parts(self, between: fn()) -> Self {
        Gathering {
            between: Between::of(between),
            ..self
        }
    }

    /// Whom it asks.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// What to ask now, and its number, which comes back with the answer; nothing while
    /// enough is under way. If one cannot be answered, everything was in vain.
    pub fn ask(&mut self) -> Option<(u64, Asked)> {
        let most = match self.is_again {
            true => UNDER_WAY_LAST_MAX,
            false => UNDER_WAY_MAX,
        };
        // A step is asked of all at once, beyond what else may be under way: whoever drives this
        // gives it the first answers when all have come, and judges them by the time they tell.
        if self.steps.is_empty() && self.under_way.len() >= most {
            return None;
        }
        let (what, asked) = self.next()?;
        let number = self.questions;
        self.questions += 1;
        self.under_way.push((number, what));
        Some((number, asked))
    }

    fn next(&mut self) -> Option<(UnderWay, Asked)> {
        let asked = |source: usize, what| Asked {
            backend: self.sources[source].backend,
            what,
        };
        if let Some(source) = self.steps.pop() {
            let question = match self.phase {
                Phase::First => Question::Begin,
                _ => Question::Changes,
            };
            let what = What::Question(question);
            return Some((UnderWay::Step(source), asked(source, what)));
        }
        if self.states.iter().any(Option::is_none) {
            return None;
        }
        if let Some(long) = self.long.pop() {
            let what = What::Question(Question::Long {
                key: long.key.as_ref().to_vec(),
                version: long.version,
            });
            let under_way = UnderWay::Long(long.version, long.recency);
            return Some((under_way, asked(long.source, what)));
        }
        let strip = self.strips.pop_front()?;
        let what = What::Items {
            local: strip.local,
            ranges: strip.ranges.clone(),
            values: !strip.compares,
        };
        let asked = asked(strip.source, what);
        Some((UnderWay::Strip(strip), asked))
    }

    /// The answer to the question of this number.
    pub fn answer(
        &mut self,
        number: u64,
        reply: Reply<D>,
        store: &Store,
        now: Now,
    ) -> Result<(), Nonsense> {
        let at = self.under_way.iter().position(|(n, _)| *n == number);
        let at = at.ok_or(Nonsense("an answer that nobody asked for"))?;
        let (_, what) = self.under_way.swap_remove(at);
        match (what, reply) {
            (UnderWay::Step(source), Reply::Shards(shards)) => {
                if shards.len() != self.new.shard_count() {
                    return Err(Nonsense("another number of shards"));
                }
                self.check(source, &shards, now)?;
                self.states[source] = Some(shards);
                if self.states.iter().all(Option::is_some) {
                    self.stepped(store, now)?;
                }
            }
            (UnderWay::Strip(strip), Reply::Items(page)) => match strip.compares {
                true => self.compare(strip, page, store)?,
                false => self.copy(strip, page, store, now)?,
            },
            (UnderWay::Long(version, recency), Reply::Long(data)) => {
                // One that is gone has changed, and comes again.
                if let Some(data) = data {
                    self.install(version, recency, &data, store, now);
                }
            }
            _ => return Err(Nonsense("an answer of another kind")),
        }
        self.go_on(store);
        Ok(())
    }

    /// What can be so of its shards, and of all others beside them.
    fn check(&mut self, source: usize, shards: &[ShardState], now: Now) -> Result<(), Nonsense> {
        let epochs: Vec<u32> = shards.iter().map(|shard| shard.epoch).collect();
        let known = &mut self.epochs[source];
        if known
            .iter()
            .zip(&epochs)
            .any(|(known, epoch)| epoch < known)
        {
            return Err(Nonsense("an epoch that has fallen"));
        }
        *known = epochs;
        let bounds = shards.iter().map(|shard| shard.bound_max);
        credible::check(bounds, self.epochs.iter().flatten().copied(), now)
    }

    /// Whether there is little left to copy, and nothing is under way.
    pub fn is_near(&self) -> bool {
        self.phase == Phase::Near
    }

    /// Whether the store knows all that those who were asked know, who are frozen.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Copies what has changed since it was near.
    pub fn round(&mut self) {
        if self.phase == Phase::Near {
            self.step(Phase::Round);
        }
    }

    /// Everybody is frozen, from before this call on; the shards are to be in this epoch.
    pub fn last(&mut self, epoch: u32) {
        self.last = Some(epoch);
        match self.phase {
            Phase::Near | Phase::Done if mutants::is(Mutant::LastSkipped) => {
                self.phase = Phase::Done;
            }
            Phase::Near | Phase::Done => self.step(Phase::Last),
            // Of an older freeze, after which everybody went on: it counts as a round.
            Phase::Last => self.phase = Phase::Round,
            // What these have asked, they have asked before the freeze. The last step
            // follows; beside them it could take away what it has just copied, when an
            // older page comes that does not tell of it.
            Phase::First | Phase::Compare | Phase::Round => {}
        }
    }

    /// They are not frozen any more: what they change is copied.
    pub fn again(&mut self) {
        self.last = None;
        if matches!(self.phase, Phase::Last | Phase::Done) {
            // What was under way of the last copy is of use to the round, too.
            self.phase = Phase::Round;
            if self.is_idle() {
                self.step(Phase::Round);
            }
        }
    }

    fn step(&mut self, phase: Phase) {
        self.phase = phase;
        self.steps = (0..self.sources.len()).rev().collect();
        self.states = vec![None; self.sources.len()];
    }

    fn is_idle(&self) -> bool {
        self.strips.is_empty()
            && self.long.is_empty()
            && self.under_way.is_empty()
            && self.steps.is_empty()
    }

    /// The old cell is no more: the store serves.
    pub fn finish(self, store: &Store) -> Moved {
        for shard in 0..store.shard_count() {
            store.reserve(shard, 0);
            store.set_recovering(shard, false);
        }
        self.moved
    }

    /// What was copied so far.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// The part of the first walk that is done, in thousandths.
    pub fn permille(&self) -> u64 {
        if self.is_again {
            return 1000;
        }
        let pieces: usize = self.sources.iter().map(|s| s.locals.len()).sum();
        // The comparison is the second half.
        let all = 2.0 * pieces as f64 * PLACES.end as f64;
        let under_way = self.under_way.iter().filter_map(|(_, what)| match what {
            UnderWay::Strip(strip) => Some(strip),
            _ => None,
        });
        let strips = self.strips.iter().chain(under_way);
        let places = strips.flat_map(|strip| &strip.ranges);
        let left: f64 = places.map(|range| (range.end - range.start) as f64).sum();
        let left = match (self.phase, self.states.iter().any(Option::is_none)) {
            (_, true) => all,
            (Phase::First, _) => left + all / 2.0,
            _ => left,
        };
        // What is copied again comes on top.
        (1000.0 * (1.0 - left / all)).clamp(0.0, 1000.0) as u64
    }

    /// Everybody has answered the phase's step.
    fn stepped(&mut self, store: &Store, now: Now) -> Result<(), Nonsense> {
        let states: Vec<Vec<ShardState>> = self.states.iter().flatten().cloned().collect();
        if self.phase == Phase::First {
            for local in 0..self.new.shard_count() {
                let mut buckets = 0.0;
                for (source, states) in self.sources.iter().zip(&states) {
                    if source.locals.contains(&local) {
                        let old_shard = ShardMap::new(self.old, source.backend).shard(local);
                        let part = share(self.old, self.new, old_shard, local);
                        buckets += part * states[local].bucket_count as f64;
                    }
                }
                store.reserve(local, buckets.ceil() as u64);
            }
            self.walk_over_all(false);
            for _ in 0..MAINTENANCE_MAX {
                if !store.maintain(now).more {
                    break;
                }
            }
            return Ok(());
        }
        self.is_again = true;
        self.ranges = 0;
        for (index, states) in states.iter().enumerate() {
            for &local in &self.sources[index].locals {
                let changes = &states[local].changes;
                places::check(changes)?;
                self.ranges += changes.len();
                self.strips
                    .extend(changes.chunks(places::RANGES_MAX).map(|ranges| Strip {
                        source: index,
                        local,
                        ranges: ranges.to_vec(),
                        compares: false,
                    }));
            }
        }
        if self.phase != Phase::Last {
            self.moved.rounds += 1;
            return Ok(());
        }
        self.moved.last = self.ranges as u64;
        for local in 0..self.new.shard_count() {
            for (source, states) in self.sources.iter().zip(&states) {
                if source.locals.contains(&local) && !mutants::is(Mutant::FloorLeftBehind) {
                    store.raise_floor(local, states[local].bound_max);
                }
            }
            if let Some(epoch) = self.last
                && store.epoch(local) < epoch
            {
                store.raise_epoch(local, epoch);
            }
        }
        Ok(())
    }

    fn walk_over_all(&mut self, compares: bool) {
        let part = PLACES.end / STRIPS;
        for (source, of) in self.sources.iter().enumerate() {
            for &local in &of.locals {
                self.strips.extend((0..STRIPS).map(|strip| Strip {
                    source,
                    local,
                    ranges: std::iter::once(strip * part..(strip + 1) * part).collect(),
                    compares,
                }));
            }
        }
    }

    /// What is left of a strip behind `next`.
    fn left(strip: &Strip, next: u64) -> Option<Strip> {
        let ranges = places::left(&strip.ranges, next);
        (!ranges.is_empty()).then(|| Strip {
            ranges,
            ..strip.clone()
        })
    }

    /// Copies the places of a page again of which something is not held here. What has
    /// changed since is copied in vain.
    fn compare(&mut self, strip: Strip, page: Page<D>, store: &Store) -> Result<(), Nonsense> {
        places::check_page(&strip.ranges, &page)?;
        let lacks = |(hash, version): &&(KeyHash, Version)| {
            store.held(*hash).is_none_or(|held| held < *version)
        };
        let missed = page.held.iter().filter(lacks).count() as u64;
        // A store that is full has evicted what it lacks.
        if missed > 0 && evicted(store) == self.evicted_before {
            self.moved.missed += missed;
            self.strips.push_back(Strip {
                ranges: places::told(&strip.ranges, page.next).collect(),
                compares: false,
                ..strip.clone()
            });
        }
        self.strips.extend(Self::left(&strip, page.next));
        Ok(())
    }

    /// Installs a page, and takes away what it does not tell of.
    fn copy(
        &mut self,
        strip: Strip,
        page: Page<D>,
        store: &Store,
        now: Now,
    ) -> Result<(), Nonsense> {
        places::check_page(&strip.ranges, &page)?;
        let hasher = &store.config().hasher;
        let mut told = Told::default();
        self.moved.pages += 1;
        self.moved.told += page.items.len() as u64;
        for item in page.items {
            self.between.call();
            let hash = item.hash(hasher);
            told.add(hash, item.version);
            if hash.is_none() {
                self.moved.damaged += 1;
                continue;
            }
            match item.data {
                Data::Whole(data) => {
                    self.install(item.version, item.recency, &data, store, now);
                }
                Data::Long { key } => {
                    // One that was copied in a round before is not fetched again.
                    if store.held(hasher.hash(key.as_ref())) != Some(item.version) {
                        self.long.push(Long {
                            source: strip.source,
                            key,
                            version: item.version,
                            recency: item.recency,
                        });
                    }
                }
            }
        }
        if self.is_again && !mutants::is(Mutant::ErasedStays) {
            let of = ShardMap::new(self.old, self.sources[strip.source].backend);
            let old_shard = of.shard(strip.local);
            let is_theirs = |hash: KeyHash| self.old.first(hash) == old_shard;
            for places in places::told(&strip.ranges, page.next) {
                self.between.call();
                remove_untold(store, strip.local, places, &told, &is_theirs);
            }
        }
        if let Some(left) = Self::left(&strip, page.next) {
            self.strips.push_front(left);
        }
        Ok(())
    }

    fn install(&mut self, version: Version, recency: Recency, data: &D, store: &Store, now: Now) {
        let Some(sound) = Sound::of(store, version, data) else {
            self.moved.damaged += 1;
            return;
        };
        match sound.used(recency).install(store, now) {
            Outcome::Applied => {
                self.moved.items += 1;
                self.moved.bytes += data.as_ref().len() as u64;
            }
            Outcome::Rejected(why) => self.moved.refused = Some(why),
            // It is known in a newer form.
            Outcome::Superseded { .. } | Outcome::Mismatch { .. } => self.moved.known += 1,
        }
    }

    /// Why the store did not take a value that is held elsewhere.
    pub fn refused(&self) -> Option<Rejection> {
        self.moved.refused
    }

    /// To the next phase, if nothing of this one is left.
    fn go_on(&mut self, store: &Store) {
        if !self.is_idle() || self.states.iter().any(Option::is_none) {
            return;
        }
        match self.phase {
            Phase::First => {
                self.walk_over_all(true);
                self.phase = Phase::Compare;
            }
            Phase::Compare => {
                // Ahead of the last step, which is to be short: it takes as long as
                // rewriting the headers of all buckets.
                let highest = self.states.iter().flatten().flatten();
                let highest = highest.map(|state| state.epoch).max().unwrap_or_default();
                for local in 0..store.shard_count() {
                    if store.epoch(local) < highest {
                        store.raise_epoch(local, highest);
                    }
                }
                self.step(Phase::Round);
            }
            Phase::Round if self.last.is_some() => match mutants::is(Mutant::LastSkipped) {
                true => self.phase = Phase::Done,
                false => self.step(Phase::Last),
            },
            Phase::Round if self.ranges <= FEW || self.moved.rounds >= ROUNDS_MAX => {
                self.phase = Phase::Near;
            }
            Phase::Round => self.step(Phase::Round),
            Phase::Last => self.phase = Phase::Done,
            Phase::Near | Phase::Done => {}
        }
    }
}

/// Items that the store has evicted because it was full.
fn evicted(store: &Store) -> u64 {
    store.stats().counts.evicted_capacity
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::KeyHasher;

    /// Every key is told by exactly those that held it, at the same place of its cohort.
    #[test]
    fn every_replica_has_one_source() {
        let hasher = KeyHasher::default();
        for (copies, before, after) in [
            (3, 3, 5),
            (3, 5, 4),
            (3, 4, 3),
            (3, 3, 12),
            (3, 12, 3),
            (1, 1, 3),
            (1, 3, 2),
            (1, 2, 1),
        ] {
            let old = Placement::new(copies, before);
            let new = Placement::new(copies, after);
            for key in 0..2_000u32 {
                let hash = hasher.hash(&key.to_le_bytes());
                let (from, to) = (old.cohort(hash), new.cohort(hash));
                for local in 0..copies {
                    let map = ShardMap::new(new, to.as_slice()[local]);
                    assert_eq!(map.local(hash), Some(local));
                    let of = sources(old, map);
                    let source = of.iter().find(|s| s.backend == from.as_slice()[local]);
                    let source = source.unwrap_or_else(|| panic!("{before} {after} {key}"));
                    assert!(source.locals.contains(&local), "{before} {after} {key}");
                }
            }
            for backend in 0..after {
                let map = ShardMap::new(new, backend);
                for local in 0..copies {
                    let all: f64 = (0..before).map(|shard| share(old, map, shard, local)).sum();
                    let expected = f64::from(before) / f64::from(after);
                    assert!((all - expected).abs() < 1e-9, "{before} {after} {all}");
                }
            }
        }
    }
}
