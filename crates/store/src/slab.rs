//! A partition's pages, each cut into equal slots of one size class.
//!
//! Private metadata: one bit a slot and some seventy bytes a page. Pages with
//! free slots of a class form a list; the page that got a free slot last is
//! used first, so that overwriting keeps to warm memory.
//!
//! A class may *borrow* free slots of larger ones: where many sizes share
//! little memory, the half-empty last page of each class would otherwise be a
//! large part of it. From its near neighbours it borrows whatever they have
//! free, from somewhat larger ones a page's worth at most. Likewise a page is
//! emptied when it and its near neighbours have a page's worth of slots free.
//! What is near depends on how many pages a class has: the fewer, the more its
//! half-empty one costs, and the more of a longer slot may be wasted to fill it.

use crate::classes::Classes;
use crate::shared::PageTable;

const NONE: u32 = u32::MAX;
/// Private bytes that a page costs elsewhere: in the page table and the pool.
const SHARED_LEN: usize = 16;
/// How long a borrowed slot may be, as a multiple of the borrower's own.
const BORROWED_LEN_MAX: (u64, u64) = (3, 2);
/// Where any number may be borrowed, a slot is longer by one part of the borrower's own
/// in as many as its class has pages, within these bounds. Measured with lengths from
/// 50 B to 8 KB in 64 and 256 MiB.
const NEAR_PARTS_MIN: u32 = 8;
const NEAR_PARTS_MAX: u32 = 24;

#[derive(Debug)]
struct Page {
    /// Number in the region; [`NONE`] if this record is vacant.
    number: u32,
    class: u8,
    listed: bool,
    used: u16,
    before: u32,
    after: u32,
    /// One bit a slot, set if free.
    free: Box<[u64]>,
}

#[derive(Debug, Clone, Copy)]
struct ClassState {
    /// First page with a free slot.
    first: u32,
    page_count: u32,
    free_slots: u32,
    /// Entries of this class that stand in slots of larger ones.
    borrowed: u32,
}

/// The pages of one partition.
#[derive(Debug)]
pub(crate) struct Slab {
    pages: Vec<Page>,
    vacant: Vec<u32>,
    classes: Vec<ClassState>,
    bitmap_words: usize,
}

impl Slab {
    pub(crate) fn new(classes: &Classes) -> Self {
        let state = ClassState {
            first: NONE,
            page_count: 0,
            free_slots: 0,
            borrowed: 0,
        };
        Slab {
            pages: Vec::new(),
            vacant: Vec::new(),
            classes: vec![state; classes.count()],
            bitmap_words: 0,
        }
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        (self.pages.capacity() * (size_of::<Page>() + SHARED_LEN)
            + self.vacant.capacity() * 4
            + self.classes.capacity() * size_of::<ClassState>()
            + self.bitmap_words * 8) as u64
    }

    /// Longest slot that counts as near to those of a class.
    fn near_len(&self, classes: &Classes, class: usize) -> u64 {
        let len = classes.slot_len(class);
        let pages = self.classes[class].page_count;
        len + len / u64::from(pages.clamp(NEAR_PARTS_MIN, NEAR_PARTS_MAX))
    }

    /// Bytes of free slots.
    pub(crate) fn free_len(&self, classes: &Classes) -> u64 {
        let of = |(class, state): (usize, &ClassState)| {
            u64::from(state.free_slots) * classes.slot_len(class)
        };
        self.classes.iter().enumerate().map(of).sum()
    }

    /// Pages held.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len() - self.vacant.len()
    }

    fn list(&mut self, at: u32) {
        let class = usize::from(self.pages[at as usize].class);
        let first = self.classes[class].first;
        let page = &mut self.pages[at as usize];
        page.listed = true;
        page.before = NONE;
        page.after = first;
        if first != NONE {
            self.pages[first as usize].before = at;
        }
        self.classes[class].first = at;
    }

    fn unlist(&mut self, at: u32) {
        let page = &mut self.pages[at as usize];
        let (class, before, after) = (usize::from(page.class), page.before, page.after);
        page.listed = false;
        match before {
            NONE => self.classes[class].first = after,
            before => self.pages[before as usize].after = after,
        }
        if after != NONE {
            self.pages[after as usize].before = before;
        }
    }

    /// A free slot of `class`: its offset in the region.
    #[inline]
    pub(crate) fn take(&mut self, classes: &Classes, class: usize, page_len: u64) -> Option<u64> {
        let at = self.classes[class].first;
        let page = self.pages.get_mut(at as usize)?;
        let word = page.free.iter().position(|word| *word != 0)?;
        let bit = page.free[word].trailing_zeros() as usize;
        page.free[word] &= page.free[word] - 1;
        page.used += 1;
        let offset =
            u64::from(page.number) * page_len + (word * 64 + bit) as u64 * classes.slot_len(class);
        let full = usize::from(page.used) == classes.slots(class);
        self.classes[class].free_slots -= 1;
        if full {
            self.unlist(at);
        }
        Some(offset)
    }

    /// A free slot of a class above `class`: of a near one, or of a farther
    /// one if `class` has not borrowed enough.
    pub(crate) fn borrow(&mut self, classes: &Classes, class: usize, page_len: u64) -> Option<u64> {
        let len_max = if (self.classes[class].borrowed as usize) < classes.slots(class) {
            classes.slot_len(class) * BORROWED_LEN_MAX.0 / BORROWED_LEN_MAX.1
        } else {
            self.near_len(classes, class)
        };
        let lender = (class + 1..classes.count())
            .take_while(|lender| classes.slot_len(*lender) <= len_max)
            .find(|lender| self.classes[*lender].free_slots > 0)?;
        let offset = self.take(classes, lender, page_len)?;
        self.classes[class].borrowed += 1;
        Some(offset)
    }

    /// Cuts the page `number` of the region into slots of `class`.
    pub(crate) fn add_page(
        &mut self,
        classes: &Classes,
        table: &PageTable,
        class: usize,
        number: u32,
    ) {
        let slots = classes.slots(class);
        let mut free = vec![u64::MAX; slots.div_ceil(64)].into_boxed_slice();
        if !slots.is_multiple_of(64) {
            free[slots / 64] = (1 << (slots % 64)) - 1;
        }
        self.bitmap_words += free.len();
        let page = Page {
            number,
            class: class as u8,
            listed: false,
            used: 0,
            before: NONE,
            after: NONE,
            free,
        };
        let at = match self.vacant.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        table.set(number, at);
        self.classes[class].page_count += 1;
        self.classes[class].free_slots += slots as u32;
        self.list(at);
    }

    fn locate(
        &self,
        classes: &Classes,
        table: &PageTable,
        page_len: u64,
        offset: u64,
    ) -> (u32, usize) {
        let at = table.get(offset / page_len);
        let class = usize::from(self.pages[at as usize].class);
        let within = (offset % page_len) as u32;
        (at, (within / classes.slot_len(class) as u32) as usize)
    }

    /// Whether `offset` is a slot in use, for the invariant checker.
    pub(crate) fn is_used(
        &self,
        classes: &Classes,
        table: &PageTable,
        page_len: u64,
        offset: u64,
        len: u64,
    ) -> bool {
        let number = offset / page_len;
        let at = table.get(number);
        let Some(page) = self.pages.get(at as usize) else {
            return false;
        };
        let slot_len = classes.slot_len(usize::from(page.class));
        let slot = offset % page_len / slot_len;
        u64::from(page.number) == number
            && (offset % page_len).is_multiple_of(slot_len)
            && len <= slot_len
            && (slot as usize) < classes.slots(usize::from(page.class))
            && page.free[slot as usize / 64] & 1 << (slot % 64) == 0
    }

    /// Slots in use, for the invariant checker.
    pub(crate) fn used_slots(&self) -> u64 {
        let used = |page: &Page| u64::from(page.used);
        let present = |page: &&Page| page.number != NONE;
        self.pages.iter().filter(present).map(used).sum()
    }

    /// Frees the slot at `offset`, which holds an entry of `len` bytes. Returns the number of its page if that is
    /// now empty and its class can do without it; the page is then no longer
    /// this partition's.
    #[inline]
    pub(crate) fn free(
        &mut self,
        classes: &Classes,
        table: &PageTable,
        page_len: u64,
        offset: u64,
        len: usize,
    ) -> Option<u32> {
        let (at, slot) = self.locate(classes, table, page_len, offset);
        if let Some(own) = classes.of(len)
            && own != usize::from(self.pages[at as usize].class)
        {
            self.classes[own].borrowed -= 1;
        }
        let page = &mut self.pages[at as usize];
        debug_assert!(page.free[slot / 64] & 1 << (slot % 64) == 0, "freed twice");
        page.free[slot / 64] |= 1 << (slot % 64);
        page.used -= 1;
        let (class, empty, listed) = (usize::from(page.class), page.used == 0, page.listed);
        self.classes[class].free_slots += 1;
        if !listed {
            self.list(at);
        }
        let slots = classes.slots(class) as u32;
        if empty && self.classes[class].free_slots > slots {
            return Some(self.drop_page(classes, at));
        }
        None
    }

    /// Forgets an empty page.
    fn drop_page(&mut self, classes: &Classes, at: u32) -> u32 {
        if self.pages[at as usize].listed {
            self.unlist(at);
        }
        let page = &mut self.pages[at as usize];
        debug_assert_eq!(page.used, 0);
        let class = usize::from(page.class);
        let number = std::mem::replace(&mut page.number, NONE);
        self.bitmap_words -= page.free.len();
        page.free = Box::default();
        self.vacant.push(at);
        self.classes[class].page_count -= 1;
        self.classes[class].free_slots -= classes.slots(class) as u32;
        number
    }

    /// The page that costs least to empty: the emptiest of the class with the
    /// most free bytes, among classes whose other pages, or else those of their
    /// near neighbours, can take what it holds. It is taken off its class's list,
    /// so that nothing is allocated from it.
    pub(crate) fn begin_emptying(&mut self, classes: &Classes) -> Option<Emptying> {
        let mut found = None;
        // Those that have the room themselves go before all others.
        let mut most = 0;
        for (class, state) in self.classes.iter().enumerate() {
            if state.first == NONE {
                continue;
            }
            let (own, slots) = (state.free_slots as usize, classes.slots(class));
            let enough = own >= slots;
            let free = (u64::from(enough) << 63) | (own as u64 * classes.slot_len(class));
            if free >= most && (enough || self.free_near(classes, class) >= slots) {
                (found, most) = (Some(class), free);
            }
        }
        let class = found?;
        let mut at = self.classes[class].first;
        let mut emptiest = at;
        while at != NONE {
            if self.pages[at as usize].used < self.pages[emptiest as usize].used {
                emptiest = at;
            }
            at = self.pages[at as usize].after;
        }
        self.unlist(emptiest);
        Some(Emptying {
            at: emptiest,
            class,
        })
    }

    /// Free slots of a class and its near neighbours, as far as a page has slots.
    fn free_near(&self, classes: &Classes, class: usize) -> usize {
        let len_max = self.near_len(classes, class);
        let mut free = 0;
        for near in class..classes.count() {
            if free >= classes.slots(class) || classes.slot_len(near) > len_max {
                break;
            }
            free += self.classes[near].free_slots as usize;
        }
        free
    }

    /// A slot for an entry of `len` bytes that moves out of a page of `class`.
    pub(crate) fn take_for_move(
        &mut self,
        classes: &Classes,
        class: usize,
        len: usize,
        page_len: u64,
    ) -> Option<u64> {
        let own = classes.of(len).unwrap_or(class);
        let len_max = self.near_len(classes, class);
        for near in own..classes.count() {
            if classes.slot_len(near) > len_max {
                break;
            }
            if let Some(offset) = self.take(classes, near, page_len) {
                self.classes[own].borrowed += u32::from(near != own);
                self.classes[own].borrowed -= u32::from(class != own);
                return Some(offset);
            }
        }
        None
    }

    /// The class of the page `number` of the region, if it is one of these, and
    /// whether the class's other pages can take what it holds.
    pub(crate) fn page_class(
        &self,
        classes: &Classes,
        table: &PageTable,
        number: u32,
    ) -> Option<(usize, bool)> {
        let page = self.pages.get(table.get(u64::from(number)) as usize)?;
        if page.number != number {
            return None;
        }
        let class = usize::from(page.class);
        let enough = self.classes[class].free_slots as usize >= classes.slots(class);
        Some((class, enough))
    }

    /// Begins to empty one of these pages, whose class's other pages can take
    /// what it holds.
    pub(crate) fn begin_emptying_page(&mut self, table: &PageTable, number: u32) -> Emptying {
        let at = table.get(u64::from(number));
        if self.pages[at as usize].listed {
            self.unlist(at);
        }
        let class = usize::from(self.pages[at as usize].class);
        Emptying { at, class }
    }

    /// The first slots in use of a page that is being emptied.
    pub(crate) fn slots_in_use(
        &self,
        classes: &Classes,
        page_len: u64,
        emptying: &Emptying,
        count_max: usize,
        out: &mut Vec<u64>,
    ) {
        let page = &self.pages[emptying.at as usize];
        let base = u64::from(page.number) * page_len;
        let in_use = |slot: &usize| page.free[slot / 64] & 1 << (slot % 64) == 0;
        out.clear();
        out.extend(
            (0..classes.slots(emptying.class))
                .filter(in_use)
                .take(count_max)
                .map(|slot| base + slot as u64 * classes.slot_len(emptying.class)),
        );
    }

    /// Marks a slot of a page that is being emptied as free, after its entry moved.
    pub(crate) fn vacate(
        &mut self,
        classes: &Classes,
        table: &PageTable,
        page_len: u64,
        offset: u64,
    ) {
        let (at, slot) = self.locate(classes, table, page_len, offset);
        let page = &mut self.pages[at as usize];
        page.free[slot / 64] |= 1 << (slot % 64);
        page.used -= 1;
        self.classes[usize::from(page.class)].free_slots += 1;
    }

    /// Ends emptying: the page's number in the region.
    pub(crate) fn end_emptying(&mut self, classes: &Classes, emptying: Emptying) -> u32 {
        self.drop_page(classes, emptying.at)
    }

    /// Forgets every page; returns their numbers.
    pub(crate) fn drain(&mut self) -> Vec<u32> {
        let pages = std::mem::take(&mut self.pages);
        self.vacant = Vec::new();
        self.bitmap_words = 0;
        for class in &mut self.classes {
            *class = ClassState {
                first: NONE,
                page_count: 0,
                free_slots: 0,
                borrowed: 0,
            };
        }
        let present = |number: &u32| *number != NONE;
        pages
            .into_iter()
            .map(|page| page.number)
            .filter(present)
            .collect()
    }
}

/// A page whose entries are moving out.
#[derive(Debug)]
pub(crate) struct Emptying {
    at: u32,
    pub(crate) class: usize,
}
