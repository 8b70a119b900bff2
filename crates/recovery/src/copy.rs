//! The copy of a shard that does not vote yet.

use crate::machine::{Answer, Ask, Counts, Nonsense};
use crate::mutants::{self, Mutant};
use crate::page::{Data, Page};
use std::collections::HashMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHash, Version};
use trefoil_store::{Now, PLACES, Store};

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
    /// What the second peer holds at the page's places, before `second_place`.
    second: HashMap<KeyHash, Version>,
    second_place: u64,
    /// Of a page that was compared: long values that both hold, to be looked up.
    long: Vec<(D, Version)>,
}

impl<D: AsRef<[u8]>> Copy<D> {
    /// From a place on.
    pub(crate) fn from(place: u64) -> Self {
        Copy {
            place,
            page: None,
            ahead: None,
            second: HashMap::new(),
            second_place: place,
            long: Vec::new(),
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
        if peer != FIRST {
            return (self.second_place < page_end).then_some(Ask::Items {
                from: self.second_place,
                until: page_end,
                values: false,
            });
        }
        if let Some((key, version)) = self.long.last() {
            let (key, version) = (key.as_ref().to_vec(), *version);
            return Some(Ask::Long { key, version });
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
                leads_on(&page, begin)?;
                match self.page {
                    None => self.page = Some(page),
                    Some(_) => self.ahead = Some(page),
                }
            }
            Answer::Items(page) => {
                leads_on(&page, self.second_place)?;
                self.second.extend(page.held);
                self.second_place = page.next;
                self.compare((store, now), counts)?;
            }
            Answer::Long(data) => {
                if let (Some((_, version)), Some(data)) = (self.long.pop(), data) {
                    install(&Sound::of(store, version, &data)?, (store, now), counts);
                }
                self.go_on();
            }
            Answer::Standing(_) => {}
        }
        Ok(())
    }

    /// Installs the page, if the second peer has told all that it holds there.
    fn compare(&mut self, into: (&Store, Now), counts: &mut Counts) -> Result<(), Nonsense> {
        let Some(page) = &mut self.page else {
            return Ok(());
        };
        if self.second_place < page.next {
            return Ok(());
        }
        for item in page.items.drain(..) {
            let version = item.version;
            let (sound, hash) = match &item.data {
                Data::Whole(data) => {
                    let sound = Sound::of(into.0, version, data)?;
                    let hash = sound.hash;
                    (Some(sound), hash)
                }
                Data::Long { key } => (None, into.0.config().hasher.hash(key.as_ref())),
            };
            // A value that one of them holds alone is no quorum's.
            let is_agreed = self.second.get(&hash) == Some(&version);
            if !is_agreed && !mutants::is(Mutant::LoneValueCopied) {
                counts.disagreed += 1;
                continue;
            }
            match sound {
                Some(sound) => install(&sound, into, counts),
                None => {
                    if let Data::Long { key } = item.data {
                        self.long.push((key, version));
                    }
                }
            }
        }
        self.second.clear();
        self.go_on();
        Ok(())
    }

    /// To the next page, if nothing of this one is left.
    fn go_on(&mut self) {
        let Some(page) = &self.page else { return };
        if self.long.is_empty() && self.second_place >= page.next {
            self.place = page.next;
            self.page = self.ahead.take();
        }
    }
}

fn install(found: &Sound<'_>, (store, now): (&Store, Now), counts: &mut Counts) {
    // Otherwise something newer came meanwhile, or there is no room for it.
    if found.install(store, now) == Outcome::Applied {
        counts.items += 1;
        counts.bytes += found.len as u64;
    }
}

/// Whether a page ends behind its begin.
pub(crate) fn leads_on<D>(page: &Page<D>, begin: u64) -> Result<(), Nonsense> {
    match page.next > begin && page.next <= PLACES.end {
        true => Ok(()),
        false => Err(Nonsense("a page that does not lead on")),
    }
}

/// A data entry whose checksum holds.
pub(crate) struct Sound<'s> {
    pub(crate) hash: KeyHash,
    version: Version,
    len: usize,
    entry: DataEntry<'s>,
}

impl<'s> Sound<'s> {
    pub(crate) fn of(
        store: &Store,
        version: Version,
        data: &'s impl AsRef<[u8]>,
    ) -> Result<Self, Nonsense> {
        let data = data.as_ref();
        let entry = DataEntry::decode(data).ok_or(Nonsense("an item without a key"))?;
        let hash = store.config().hasher.hash(entry.key);
        if DataEntry::validate(data, hash.tag, version, entry.key).is_err() {
            return Err(Nonsense("an item whose checksum fails"));
        }
        let len = data.len();
        Ok(Sound {
            hash,
            version,
            len,
            entry,
        })
    }

    /// Stores it at its own version.
    pub(crate) fn install(&self, store: &Store, now: Now) -> Outcome {
        let mutation = Mutation {
            action: Action::Set,
            version: self.version,
            entry: self.entry,
        };
        store.import(now, &mutation).outcome
    }
}
