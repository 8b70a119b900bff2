//! What a replica tells of a shard, a page at a time.

use crate::machine::Standing;
use crate::mutants::{self, Mutant};
use std::ops::Range;
use trefoil_layout::{KeyHash, Pointer, Version, epoch};
use trefoil_store::{Exported, Now, Position, Recency, Store};

/// Bytes of data entries in one page, about. A part of them is copied under one hold of
/// a partition's lock.
const ENTRIES_LEN: usize = 512 << 10;
/// The same of entries that are chosen ([`Copied::items_at`]): whoever tells them looks at
/// many more, and serves on the same core what others wait for.
const CHOSEN_LEN: usize = 128 << 10;
/// The same of entries that are chosen and named ([`Copied::placed_at`]).
const CHOSEN_PLACED_LEN: usize = 256 << 10;
/// The same of entries that are only named ([`Copied::placed`]): nothing of them is copied,
/// but as many as these should stand there still when they are read.
pub const PLACED_LEN: usize = 1 << 20;
/// What a short entry takes of it: its name is that long, about.
const PLACED_ENTRY_LEN: usize = 128;
/// Keys in one page of versions, about. A partition is locked for as long as it takes to look
/// at its part of them.
const HELD_COUNT: usize = 2048;
/// Longer entries are not part of a page.
const LONG_LEN: usize = 64 << 10;

/// What stands in a shard's index at some places. `D` holds bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<D> {
    /// Every key before this place, and not before the first that was asked for, was
    /// told.
    pub next: u64,
    /// The shard's epoch, if it was the same all the time and the shard votes; else
    /// [`epoch::NONE`]: then the page is no vote.
    pub epoch: u32,
    /// Values, if they were asked for.
    pub items: Vec<Item<D>>,
    /// Which keys have a value, and its version, if no values were asked for.
    pub held: Vec<(KeyHash, Version)>,
}

/// A value as a replica holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<D> {
    /// The mutation that wrote it.
    pub version: Version,
    /// How it was used.
    pub recency: Recency,
    /// Its data entry.
    pub data: Data<D>,
}

/// A value that stands in memory that whoever asks can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Of its key.
    pub hash: KeyHash,
    /// The mutation that wrote it.
    pub version: Version,
    /// How it was used.
    pub recency: Recency,
    /// Where its data entry stood; what stands there now has this version, or is of no use.
    pub pointer: Pointer,
}

/// A data entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data<D> {
    /// As it lies in the data region, checksum included.
    Whole(D),
    /// Too long for a page: to be looked up.
    Long {
        /// Its key.
        key: D,
    },
}

/// A replica's standing in a shard, after its epoch was raised to `raise_to` (unless
/// that is 0). Takes as long as rewriting the headers of the shard's buckets. `None` if no
/// such epoch may follow.
pub fn standing(store: &Store, shard: usize, raise_to: u32) -> Option<Standing> {
    let current = store.epoch(shard);
    if raise_to >= current {
        if !epoch::may_follow(current, raise_to) {
            return None;
        }
        // The same again, too: whoever has begun to raise it may still be at work, and
        // what is answered here is in force.
        store.raise_epoch(shard, raise_to);
    }
    Some(Standing {
        epoch: store.epoch(shard),
        is_lost: store.is_recovering(shard),
        incarnation: store.config().incarnation,
        bound_max: match mutants::is(Mutant::FloorNotInherited) {
            true => store.newest(),
            false => store.bound_max(shard),
        },
        bucket_count: store.bucket_count(shard),
    })
}

/// A page, and what it only names.
type Named = (Page<Vec<u8>>, Vec<Placed>);

/// What a range takes of a page's room, however little stands there.
const RANGE_ROOM: usize = 512;
/// What a key takes of a page's room that is not wanted: it was looked at all the same.
const UNWANTED_LEN: usize = 64;

/// A shard of which somebody copies pages.
#[derive(Clone, Copy)]
pub struct Copied<'a> {
    /// It.
    pub store: &'a Store,
    /// The backend's own number of the shard.
    pub shard: usize,
    /// When it is asked.
    pub now: Now,
    /// Called between two parts of a page, when no lock is held: the place to let others
    /// have the core.
    pub between: &'a dyn Fn(),
}

impl std::fmt::Debug for Copied<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copied")
            .field("shard", &self.shard)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<'a> Copied<'a> {
    /// One that nobody else waits for.
    pub fn new(store: &'a Store, now: Now, shard: usize) -> Self {
        Copied {
            store,
            shard,
            now,
            between: &|| {},
        }
    }

    /// A page of what stands in the index of the shard at `places`. `None`, here as in what
    /// follows: the store was revoked, and tells nothing more.
    pub fn items(self, places: Range<u64>, values: bool) -> Option<Page<Vec<u8>>> {
        self.wanted(places, (values, ENTRIES_LEN), &|_| true)
    }

    /// The same of the keys that are wanted, at ranges of places in order: as far as one page
    /// goes.
    pub fn items_at(
        self,
        ranges: &[Range<u64>],
        values: bool,
        is_wanted: &dyn Fn(KeyHash) -> bool,
    ) -> Option<Page<Vec<u8>>> {
        let page = self.at(ranges, CHOSEN_LEN, &|range| {
            let page = self.wanted(range, (values, CHOSEN_LEN), is_wanted)?;
            Some((page, Vec::new()))
        });
        page.map(|(page, _)| page)
    }

    /// The same for one who can read the replica's memory: where values stand. Only long ones
    /// are items of the page.
    pub fn placed_at(
        self,
        ranges: &[Range<u64>],
        is_wanted: &dyn Fn(KeyHash) -> bool,
    ) -> Option<Named> {
        self.at(ranges, CHOSEN_PLACED_LEN, &|range| {
            self.wanted_placed(range, CHOSEN_PLACED_LEN, is_wanted)
        })
    }

    /// One page of several ranges, each of which `page` tells of, until it has no more room.
    fn at(
        self,
        ranges: &[Range<u64>],
        room: usize,
        page: &dyn Fn(Range<u64>) -> Option<Named>,
    ) -> Option<Named> {
        let mut whole: Option<Page<Vec<u8>>> = None;
        let mut all_placed = Vec::new();
        let (mut len, mut looked) = (0, 0);
        for range in ranges {
            let (page, placed) = page(range.clone())?;
            let is_cut = page.next < range.end;
            len += page.items.iter().map(Item::len).sum::<usize>();
            len += placed.iter().map(Placed::room).sum::<usize>();
            looked += RANGE_ROOM;
            all_placed.extend(placed);
            let so_far = match whole.take() {
                None => page,
                Some(mut so_far) => {
                    so_far.items.extend(page.items);
                    so_far.held.extend(page.held);
                    so_far.next = page.next;
                    if so_far.epoch != page.epoch {
                        so_far.epoch = epoch::NONE;
                    }
                    so_far
                }
            };
            let is_full = len >= room || so_far.held.len() >= HELD_COUNT;
            whole = Some(so_far);
            if is_cut || is_full || looked >= room {
                break;
            }
        }
        Some((whole.unwrap_or_default(), all_placed))
    }

    fn wanted(
        self,
        places: Range<u64>,
        (values, values_room): (bool, usize),
        is_wanted: &dyn Fn(KeyHash) -> bool,
    ) -> Option<Page<Vec<u8>>> {
        let (mut items, mut held) = (Vec::new(), Vec::new());
        let room = if values { values_room } else { HELD_COUNT };
        let (next, epoch) = self.walk(places, room, &mut |exported| {
            let Exported { hash, item, .. } = &exported;
            if !is_wanted(*hash) {
                return if values { UNWANTED_LEN } else { 1 };
            }
            if !values {
                held.push((*hash, item.version));
                return 1;
            }
            let place = Position::place_of(*hash);
            let (item, len) = copied(&exported);
            items.push((place, item));
            len
        })?;
        held.retain(|(hash, _)| Position::place_of(*hash) < next);
        Some(Page {
            next,
            epoch,
            items: before(next, items),
            held,
        })
    }

    /// [`items`](Self::items) for one who can read the replica's memory: where values stand.
    /// Only long ones are items of the page.
    pub fn placed(self, places: Range<u64>) -> Option<Named> {
        self.wanted_placed(places, PLACED_LEN, &|_| true)
    }

    fn wanted_placed(
        self,
        places: Range<u64>,
        room: usize,
        is_wanted: &dyn Fn(KeyHash) -> bool,
    ) -> Option<Named> {
        let (mut items, mut placed) = (Vec::new(), Vec::new());
        let (next, epoch) = self.walk(places, room, &mut |exported| {
            let Exported { hash, item, .. } = &exported;
            if !is_wanted(*hash) {
                return UNWANTED_LEN;
            }
            if item.entry_len > LONG_LEN {
                let (item, len) = copied(&exported);
                items.push((Position::place_of(*hash), item));
                return len.max(PLACED_ENTRY_LEN);
            }
            let one = Placed {
                hash: *hash,
                version: item.version,
                recency: exported.recency,
                pointer: exported.pointer,
            };
            placed.push(one);
            one.room()
        })?;
        placed.retain(|placed| Position::place_of(placed.hash) < next);
        let page = Page {
            next,
            epoch,
            items: before(next, items),
            held: Vec::new(),
        };
        Some((page, placed))
    }

    /// The place before which everything was told, and the epoch of the page.
    fn walk(
        self,
        places: Range<u64>,
        room: usize,
        each: &mut dyn FnMut(Exported<'_>) -> usize,
    ) -> Option<(u64, u32)> {
        let Copied {
            store,
            shard,
            now,
            between,
        } = self;
        let before = store.epoch(shard);
        let next = store.export_in_parts(now, shard, (places, room), each, between)?;
        let votes = store.epoch(shard) == before && !store.is_recovering(shard);
        Some((next, if votes { before } else { epoch::NONE }))
    }
}

impl Placed {
    /// What it takes of a page's room.
    fn room(&self) -> usize {
        self.pointer.len().max(PLACED_ENTRY_LEN)
    }
}

impl Item<Vec<u8>> {
    /// Bytes of its entry, or of its key.
    fn len(&self) -> usize {
        match &self.data {
            Data::Whole(data) => data.len(),
            Data::Long { key } => key.len(),
        }
    }
}

/// What lies behind comes with the next page.
fn before(next: u64, items: Vec<(u64, Item<Vec<u8>>)>) -> Vec<Item<Vec<u8>>> {
    let items = items.into_iter().filter(|(place, _)| *place < next);
    items.map(|(_, item)| item).collect()
}

/// An item and what it takes of a page's room.
fn copied(exported: &Exported<'_>) -> (Item<Vec<u8>>, usize) {
    let (item, recency) = (&exported.item, exported.recency);
    let mut bytes = Vec::new();
    let is_long = item.entry_len > LONG_LEN;
    match is_long {
        true => item.append_key(&mut bytes),
        false => {
            bytes.reserve_exact(item.entry_len);
            item.append_entry(&mut bytes);
        }
    }
    let len = bytes.len();
    let data = match is_long {
        true => Data::Long { key: bytes },
        false => Data::Whole(bytes),
    };
    let version = item.version;
    let item = Item {
        version,
        recency,
        data,
    };
    (item, len)
}
