//! A backend's number moves to another process, while it serves: what its successor asks
//! it for, and what it does with the answers.
//!
//! ```text
//! begin     the predecessor notes from now on which places are changed
//! copy      everything, a page at a time
//! compare   what both hold at which version; what is missing is copied again
//! copy      what was changed meanwhile, again and again, until that is little
//! freeze    the predecessor takes no mutation any more; reads go on
//! copy      what was changed last; floor and epoch
//! ```
//!
//! Then the successor knows all that its predecessor knows, and no bound of any key is
//! lower. It may serve once the predecessor's lease has ended and the predecessor can
//! acknowledge nothing any more: it is the same replica, in the same epoch. So no quorum is
//! involved, and a cell of one copy keeps everything, too. What was refused while the
//! predecessor was frozen has left no trace; where there are three copies the two others
//! may have taken it, so a repair follows.

use crate::copy::Sound;
use crate::credible;
use crate::machine::Nonsense;
use crate::mutants::{self, Mutant};
use crate::page::{Data, Page};
use crate::places;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_layout::{KeyHash, Version};
use trefoil_store::{CHANGED_UNIT, Now, PLACES, Position, Recency, Store};

/// Pages that are asked for at once: while one is installed, another is on its way.
const UNDER_WAY_MAX: usize = 2;
/// Parts of a shard that are walked over apart.
const STRIPS: u64 = 4;
/// Rounds of copying what has changed, at most: somebody writes faster than is copied.
const ROUNDS_MAX: u32 = 8;
/// So many units of places that the predecessor can stand still while they are copied.
const FEW: u64 = 256;
/// The same of places that are written as fast as they are copied: another round would find
/// as many.
const FEW_THAT_STAY: u64 = 4096;
/// Calls of maintenance in which an empty index becomes as large as the predecessor's, and
/// more than that takes.
const MAINTENANCE_MAX: u32 = 32;

/// What to ask the predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// To note what is changed from now on, and what its shards are like.
    Begin,
    /// A page of values, or of what is held at which version ([`crate::items`]).
    Items {
        /// The backend's own number of the shard.
        shard: usize,
        /// Ranges of places: in order, and at least one.
        places: Vec<Range<u64>>,
        /// With values.
        values: bool,
    },
    /// A long value's data entry, by message.
    Long {
        /// Its key.
        key: Vec<u8>,
        /// Of no use at any other version: then another copy of it is under way.
        version: Version,
    },
    /// What has changed since it was asked last.
    Changes,
    /// The same, after it has ceased to take mutations.
    Freeze,
}

/// What the predecessor says.
#[derive(Clone, Debug)]
pub enum Reply<D> {
    /// To [`Question::Begin`], [`Question::Changes`] and [`Question::Freeze`]: each of its shards.
    Shards(Vec<ShardState>),
    /// To [`Question::Items`].
    Items(Page<D>),
    /// To [`Question::Long`].
    Long(Option<D>),
}

/// What the predecessor says of one of its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardState {
    /// Its epoch.
    pub epoch: u32,
    /// No bound of any key is higher.
    pub bound_max: Version,
    /// Buckets of its indexes.
    pub bucket_count: u64,
    /// The places that have changed since it was asked last.
    pub changes: Vec<Range<u64>>,
}

/// What the predecessor answers to [`Question::Begin`], [`Question::Changes`] and, once every
/// shard is frozen, to [`Question::Freeze`].
pub fn shard_states(store: &Store) -> Vec<ShardState> {
    let state = |shard| ShardState {
        // Before the rest: what is changed after it is noted anew.
        changes: store.take_changes(shard),
        epoch: store.epoch(shard),
        bound_max: store.bound_max(shard),
        bucket_count: store.bucket_count(shard),
    };
    (0..store.shard_count()).map(state).collect()
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Values installed, those included that were installed again.
    pub items: u64,
    /// Bytes of their data entries.
    pub bytes: u64,
    /// Values that were damaged there.
    pub damaged: u64,
    /// Values that were told of.
    pub told: u64,
    /// Of these, those that were known in a newer form.
    pub known: u64,
    /// Pages.
    pub pages: u64,
    /// Values that were found to be missing after everything had been copied once.
    pub missed: u64,
    /// Rounds of copying what had changed.
    pub rounds: u32,
    /// Ranges of places that were copied while the predecessor stood still.
    pub last: u64,
    /// Why the store did not take a value that the predecessor holds: it would be lost.
    pub refused: Option<Rejection>,
}

/// Places of a shard that are to be copied.
#[derive(Clone, Debug)]
struct Strip {
    shard: usize,
    /// In order, not empty.
    ranges: Vec<Range<u64>>,
    /// What is held there is compared, not copied.
    compares: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    /// Everything, for the first time; then what both hold is compared.
    First,
    Compare,
    /// What has changed: so many units of places.
    Copy {
        units: u64,
    },
    Changes,
    Freeze,
    /// What has changed before it was frozen.
    Last,
    Done,
}

#[derive(Debug)]
enum UnderWay {
    Step,
    Strip(Strip),
    Long(Version, Recency),
}

/// See the module. `D` holds the bytes of values.
#[derive(Debug)]
pub struct Handover<D> {
    phase: Phase,
    strips: VecDeque<Strip>,
    long: Vec<(D, Version, Recency)>,
    under_way: Vec<(u64, UnderWay)>,
    questions: u64,
    /// In one question.
    ranges_max: usize,
    /// What had changed in the round before: so many units of places.
    units_before: u64,
    /// Of a store that holds what was copied before: what is no longer there goes.
    is_again: bool,
    moved: Moved,
}

impl<D: AsRef<[u8]>> Default for Handover<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: AsRef<[u8]>> Handover<D> {
    /// Into a store all of whose shards are recovering.
    pub fn new() -> Self {
        Handover {
            phase: Phase::Begin,
            strips: VecDeque::new(),
            long: Vec::new(),
            under_way: Vec::new(),
            questions: 0,
            ranges_max: places::RANGES_MAX,
            units_before: u64::MAX,
            is_again: false,
            moved: Moved::default(),
        }
    }

    /// From one that knows one range in each question only.
    pub fn one_range_at_a_time(self) -> Self {
        Handover {
            ranges_max: 1,
            ..self
        }
    }

    /// What to ask now, and its number, which comes back with the answer; nothing while
    /// enough is under way. If one cannot be answered, everything was in vain.
    pub fn ask(&mut self) -> Option<(u64, Question)> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let (what, question) = self.next()?;
        let number = self.questions;
        self.questions += 1;
        self.under_way.push((number, what));
        Some((number, question))
    }

    fn next(&mut self) -> Option<(UnderWay, Question)> {
        if let Some((key, version, recency)) = self.long.pop() {
            let key = key.as_ref().to_vec();
            let what = UnderWay::Long(version, recency);
            return Some((what, Question::Long { key, version }));
        }
        if let Some(strip) = self.strips.pop_front() {
            let question = Question::Items {
                shard: strip.shard,
                places: strip.ranges.clone(),
                values: !strip.compares,
            };
            return Some((UnderWay::Strip(strip), question));
        }
        if !self.under_way.is_empty() {
            return None;
        }
        let question = match self.phase {
            Phase::Begin => Question::Begin,
            Phase::Changes => Question::Changes,
            Phase::Freeze if mutants::is(Mutant::NeverFrozen) => Question::Changes,
            Phase::Freeze => Question::Freeze,
            Phase::First | Phase::Compare | Phase::Copy { .. } | Phase::Last | Phase::Done => {
                return None;
            }
        };
        Some((UnderWay::Step, question))
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
            (UnderWay::Step, Reply::Shards(shards)) => self.step(shards, store, now)?,
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

    /// Whether the store knows all that the predecessor knows, while that is frozen.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// What is left has to be copied soon after it has begun: the predecessor takes no mutation
    /// meanwhile.
    pub fn is_in_haste(&self) -> bool {
        self.phase == Phase::Freeze && self.under_way.is_empty()
    }

    /// What has changed while the last round was copied in the background is copied before the
    /// predecessor is frozen, too: so that less is left.
    pub fn once_more(&mut self) {
        if self.is_in_haste() {
            self.phase = Phase::Changes;
            self.units_before = u64::MAX;
        }
    }

    /// Everything is copied, and the predecessor is about to be asked to go: makes the store
    /// ready to serve, which rewrites the header of each bucket. Operations wait from when the
    /// predecessor goes. Nobody reads or writes this store yet.
    pub fn make_ready(&self, store: &Store) {
        for shard in 0..store.shard_count() {
            store.set_recovering(shard, false);
        }
    }

    /// The predecessor has gone: the store serves.
    pub fn finish(self, store: &Store) -> Moved {
        for shard in 0..store.shard_count() {
            store.reserve(shard, 0);
        }
        self.make_ready(store);
        self.moved
    }

    /// It took too long: the predecessor takes mutations again. What they change is copied.
    pub fn again(&mut self, store: &Store) {
        for shard in 0..store.shard_count() {
            store.set_recovering(shard, true);
        }
        self.phase = Phase::Changes;
        self.units_before = u64::MAX;
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
        let ranges = self.strips.iter().flat_map(|strip| &strip.ranges);
        let left: u64 = ranges.map(|range| range.end - range.start).sum();
        match self.phase {
            Phase::Begin => 0,
            _ => 1000 - (left / (PLACES.end / 1000)).min(1000),
        }
    }

    fn step(&mut self, shards: Vec<ShardState>, store: &Store, now: Now) -> Result<(), Nonsense> {
        if shards.len() != store.shard_count() {
            return Err(Nonsense("another number of shards"));
        }
        let bounds = shards.iter().map(|shard| shard.bound_max);
        credible::check(bounds, shards.iter().map(|shard| shard.epoch), now)?;
        // Nobody reads this store yet, and to do it again costs nothing: while the predecessor
        // is frozen, no header is left to be rewritten.
        for (shard, state) in shards.iter().enumerate() {
            store.raise_epoch(shard, state.epoch);
        }
        if self.phase == Phase::Begin {
            for (shard, state) in shards.iter().enumerate() {
                store.reserve(shard, state.bucket_count);
            }
            self.walk_over_all(store, false);
            for _ in 0..MAINTENANCE_MAX {
                if !store.maintain(now).more {
                    break;
                }
            }
            self.phase = Phase::First;
            return Ok(());
        }
        self.is_again = true;
        let (mut ranges, mut units) = (0, 0);
        for (shard, state) in shards.iter().enumerate() {
            places::check(&state.changes)?;
            ranges += state.changes.len();
            let places = state.changes.iter().map(|range| range.end - range.start);
            units += places.sum::<u64>().div_ceil(CHANGED_UNIT);
            self.push(shard, &state.changes);
        }
        if self.phase != Phase::Freeze {
            self.moved.rounds += 1;
            self.phase = Phase::Copy { units };
            return Ok(());
        }
        self.moved.last = ranges as u64;
        self.phase = Phase::Last;
        for (shard, state) in shards.iter().enumerate() {
            if !mutants::is(Mutant::FloorLeftBehind) {
                store.raise_floor(shard, state.bound_max);
            }
        }
        if mutants::is(Mutant::LastSkipped) {
            self.strips.clear();
        }
        Ok(())
    }

    /// Has these ranges copied.
    fn push(&mut self, shard: usize, ranges: &[Range<u64>]) {
        let strips = ranges.chunks(self.ranges_max).map(|ranges| Strip {
            shard,
            ranges: ranges.to_vec(),
            compares: false,
        });
        self.strips.extend(strips);
    }

    fn walk_over_all(&mut self, store: &Store, compares: bool) {
        let part = PLACES.end / STRIPS;
        for shard in 0..store.shard_count() {
            self.strips.extend((0..STRIPS).map(|strip| Strip {
                shard,
                ranges: std::iter::once(strip * part..(strip + 1) * part).collect(),
                compares,
            }));
        }
    }

    /// Copies the places again at which something is not held here. What has changed since,
    /// or was evicted here for lack of room, is copied in vain.
    fn compare(&mut self, strip: Strip, page: Page<D>, store: &Store) -> Result<(), Nonsense> {
        places::check_page(&strip.ranges, &page)?;
        let lacks = |(hash, version): &&(KeyHash, Version)| {
            store.held(*hash).is_none_or(|held| held < *version)
        };
        let missed = page.held.iter().filter(lacks);
        let missed: Vec<u64> = missed.map(|(hash, _)| Position::place_of(*hash)).collect();
        self.moved.missed += missed.len() as u64;
        let ranges = match self.ranges_max {
            1 if !missed.is_empty() => places::told(&strip.ranges, page.next).collect(),
            _ => places::ranges_of(missed),
        };
        self.push(strip.shard, &ranges);
        self.go_on_behind(strip, page.next);
        Ok(())
    }

    /// What is left of a strip comes next.
    fn go_on_behind(&mut self, strip: Strip, next: u64) {
        let ranges = places::left(&strip.ranges, next);
        if !ranges.is_empty() {
            self.strips.push_front(Strip { ranges, ..strip });
        }
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
                        self.long.push((key, item.version, item.recency));
                    }
                }
            }
        }
        if self.is_again && !mutants::is(Mutant::ErasedStays) {
            for places in places::told(&strip.ranges, page.next) {
                remove_untold(store, strip.shard, places, &told, &|_| true);
            }
        }
        self.go_on_behind(strip, page.next);
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

    /// To the next phase, if nothing of this one is left.
    fn go_on(&mut self, store: &Store) {
        if !self.strips.is_empty() || !self.long.is_empty() || !self.under_way.is_empty() {
            return;
        }
        self.phase = match self.phase {
            Phase::First if mutants::is(Mutant::CompareSkipped) => Phase::Changes,
            Phase::First => {
                self.walk_over_all(store, true);
                Phase::Compare
            }
            Phase::Compare => Phase::Changes,
            Phase::Copy { units } => {
                let stays =
                    units >= self.units_before && units <= FEW_THAT_STAY && self.ranges_max > 1;
                self.units_before = units;
                match units <= FEW || stays || self.moved.rounds >= ROUNDS_MAX {
                    true => Phase::Freeze,
                    false => Phase::Changes,
                }
            }
            Phase::Last => Phase::Done,
            phase => phase,
        };
    }
}

/// What a page told of that stands there.
#[derive(Debug, Default)]
pub(crate) struct Told {
    held: HashMap<KeyHash, Version>,
    /// Of entries that are damaged there, so that nobody knows their keys. What was copied of
    /// one before that has the same version, for no other mutation has it.
    nameless: HashSet<Version>,
}

impl Told {
    /// A value, whose key is known unless it is damaged.
    pub(crate) fn add(&mut self, hash: Option<KeyHash>, version: Version) {
        match hash {
            Some(hash) => {
                self.held.insert(hash, version);
            }
            None => {
                self.nameless.insert(version);
            }
        }
    }

    /// Whether it told of a value that is held here, and of none that is newer: that could
    /// not be had, or not yet.
    fn is_of(&self, hash: KeyHash, version: Version) -> bool {
        let held = self.held.get(&hash);
        held.is_some_and(|held| *held <= version) || self.nameless.contains(&version)
    }
}

/// Removes what stands at `places` and was not told of by those who hold it: it was erased
/// or replaced there. At which version is not known; the floor stands for it, which is
/// raised before anybody is answered. That holds for what has expired or was flushed here,
/// too: while it stands, its version is its bound.
pub(crate) fn remove_untold(
    store: &Store,
    shard: usize,
    places: Range<u64>,
    told: &Told,
    is_theirs: &dyn Fn(KeyHash) -> bool,
) {
    store.forget_unless(shard, places, &|hash, version| {
        told.is_of(hash, version) || !is_theirs(hash)
    });
}
