//! The copy of a shard that does not vote yet.

use crate::machine::{Answer, Ask, Between, Counts, Nonsense};
use crate::mutants::{self, Mutant};
use crate::page::{Data, Item, Page};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHash, KeyHasher, Version};
use trefoil_store::{Now, PLACES, Position, Recency, Store};

/// Whose values are copied; the other one is compared with it.
const FIRST: usize = 0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Copy<D> {
    /// Everything before is done.
    place: u64,
    /// The first peer's page from there on.
    page: Option<Page<D>>,
    /// Its next one.
    ahead: Option<Page<D>>,
    /// The second peer has told what it holds before this place.
    second_place: u64,
    /// Of a page that was compared: long values that both hold, to be looked up. While one
    /// is, others may follow.
    long: VecDeque<(D, Version, Recency)>,
    /// Of whom.
    turn: Turn,
    between: Between,
}

/// Whom a long value that both hold is asked of: one, and the other if that one cannot give
/// it. Without it the shard must not vote: its floor would hide from the repair that it
/// lacks something.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    peer: usize,
    /// The other one could not give it.
    is_last: bool,
}

impl Turn {
    pub(crate) fn is_of(&self, peer: usize) -> bool {
        self.peer == peer
    }

    /// It could not give it. Whether the other one is left to be asked.
    pub(crate) fn passes(&mut self) -> bool {
        self.peer = 1 - self.peer;
        self.is_last = !self.is_last;
        self.is_last
    }

    /// On to the next value, of the one that gave this one.
    pub(crate) fn ends(&mut self) {
        self.is_last = false;
    }
}

impl<D: AsRef<[u8]>> Copy<D> {
    /// From a place on.
    pub(crate) fn from(place: u64, between: Between) -> Self {
        Copy {
            place,
            page: None,
            ahead: None,
            second_place: place,
            long: VecDeque::new(),
            turn: Turn::default(),
            between,
        }
    }

    /// Everything before this place is done.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    pub(crate) fn is_done(&self) -> bool {
        self.place == PLACES.end
    }

    pub(crate) fn ask(&self, peer: usize) -> Option<Ask> {
        let page_end = self.page.as_ref().map_or(self.place, |page| page.next);
        let long = self.long.front().filter(|_| self.turn.is_of(peer));
        if let Some((key, version, _)) = long {
            let (key, version) = (key.as_ref().to_vec(), *version);
            return Some(Ask::Long { key, version });
        }
        if peer != FIRST {
            return (self.second_place < page_end).then_some(Ask::Items {
                from: self.second_place,
                until: page_end,
                values: false,
            });
        }
        // While a page is compared and installed, the next one is on its way.
        (self.ahead.is_none() && page_end < PLACES.end).then_some(Ask::Items {
            from: page_end,
            until: PLACES.end,
            values: true,
        })
    }

    pub(crate) fn answer(
        &mut self,
        peer: usize,
        answer: Answer<D>,
        (store, now): (&Store, Now),
        counts: &mut Counts,
    ) -> Result<(), Nonsense> {
        match answer {
            Answer::Items(page) if peer == FIRST => {
                let begin = self.page.as_ref().map_or(self.place, |page| page.next);
                leads_on(&page, (begin, PLACES.end))?;
                match self.page {
                    None => self.page = Some(page),
                    Some(_) => self.ahead = Some(page),
                }
                self.go_on();
            }
            Answer::Items(page) => {
                let end = self.page.as_ref().map_or(self.place, |page| page.next);
                leads_on(&page, (self.second_place, end))?;
                self.second_place = page.next;
                self.compare(page, (store, now), counts);
                self.go_on();
            }
            Answer::Long(data) => {
                if let (Some((_, version, recency)), Some(data)) = (self.long.front(), data) {
                    match Sound::of(store, *version, &data) {
                        Some(sound) => install(&sound.used(*recency), (store, now), counts),
                        None if self.turn.passes() => return Ok(()),
                        None => counts.disagreed += 1,
                    }
                }
                self.turn.ends();
                self.long.pop_front();
                self.go_on();
            }
            Answer::Standing(_) => {}
        }
        Ok(())
    }

    /// The long value that is looked up could not be asked for. Whether the other one is
    /// left to be asked.
    pub(crate) fn long_failed(&mut self) -> bool {
        !self.long.is_empty() && self.turn.passes()
    }

    /// Installs what both hold of the first peer's page, as far as the second one has told.
    fn compare(&mut self, second: Page<D>, (store, now): (&Store, Now), counts: &mut Counts) {
        let Some(page) = &mut self.page else { return };
        let held: HashMap<KeyHash, Version, Places> = second.held.into_iter().collect();
        let hasher = &store.config().hasher;
        for item in std::mem::take(&mut page.items) {
            self.between.call();
            let (version, recency) = (item.version, item.recency);
            let Some(hash) = item.hash(hasher) else {
                // Damaged there; it may be sound elsewhere, but two have to hold it.
                counts.disagreed += 1;
                continue;
            };
            if Position::place_of(hash) >= second.next {
                page.items.push(item);
                continue;
            }
            // A value that one of them holds alone is no quorum's.
            let is_agreed = held.get(&hash) == Some(&version);
            if !is_agreed && !mutants::is(Mutant::LoneValueCopied) {
                counts.disagreed += 1;
                continue;
            }
            match item.data {
                Data::Whole(data) => match Sound::of(store, version, &data) {
                    Some(sound) => install(&sound.used(recency), (store, now), counts),
                    None => counts.disagreed += 1,
                },
                // One that was fetched in an attempt before is not fetched again.
                Data::Long { key } => {
                    if store.held(hash) != Some(version) {
                        self.long.push_back((key, version, recency));
                    }
                }
            }
        }
    }

    /// To the next page, if nothing of this one is left. Where the first peer holds
    /// nothing, the second need not be asked.
    fn go_on(&mut self) {
        while let Some(page) = &self.page {
            if page.items.is_empty() {
                self.second_place = self.second_place.max(page.next);
            }
            if !self.long.is_empty() || self.second_place < page.next {
                return;
            }
            self.place = page.next;
            self.page = self.ahead.take();
        }
    }
}

/// Key hashes are spread already: hashing them again would cost more than the rest of a
/// look-up.
type Places = BuildHasherDefault<PlaceHasher>;

#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(32) ^ word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn install(found: &Sound<'_>, (store, now): (&Store, Now), counts: &mut Counts) {
    // Otherwise something newer came meanwhile, or there is no room for it.
    if found.install(store, now) == Outcome::Applied {
        counts.items += 1;
        counts.bytes += found.len as u64;
    }
}

/// Whether a page ends behind its begin, and not behind what was asked for.
pub(crate) fn leads_on<D>(page: &Page<D>, (begin, end): (u64, u64)) -> Result<(), Nonsense> {
    match page.next > begin && page.next <= end {
        true => Ok(()),
        false => Err(Nonsense("a page that does not lead on")),
    }
}

impl<D: AsRef<[u8]>> Item<D> {
    /// Of its key, which may be damaged; `None` if there is none to be found.
    pub(crate) fn hash(&self, hasher: &KeyHasher) -> Option<KeyHash> {
        let key = match &self.data {
            Data::Whole(data) => DataEntry::decode(data.as_ref())?.key,
            Data::Long { key } => key.as_ref(),
        };
        Some(hasher.hash(key))
    }
}

/// A data entry whose checksum holds.
pub(crate) struct Sound<'s> {
    version: Version,
    recency: Recency,
    len: usize,
    entry: DataEntry<'s>,
}

impl<'s> Sound<'s> {
    /// `None` if it is damaged.
    pub(crate) fn of(store: &Store, version: Version, data: &'s impl AsRef<[u8]>) -> Option<Self> {
        let data = data.as_ref();
        let entry = DataEntry::decode(data)?;
        let hash = store.config().hasher.hash(entry.key);
        DataEntry::validate(data, hash.tag, version, entry.key).ok()?;
        let len = data.len();
        Some(Sound {
            version,
            recency: Recency::default(),
            len,
            entry,
        })
    }

    /// The same with what is known of its use.
    pub(crate) fn used(mut self, recency: Recency) -> Self {
        self.recency = recency;
        self
    }

    /// Stores it at its own version.
    pub(crate) fn install(&self, store: &Store, now: Now) -> Outcome {
        let mutation = Mutation {
            action: Action::Set,
            version: self.version,
            entry: self.entry,
        };
        store.import(now, &mutation, self.recency).outcome
    }
}
