//! What a protocol asks of the cell behind it: few operations, each atomic per
//! key, whatever number of copies there are.
//!
//! Everything that reads before it writes (add, append, incr, a conditional
//! delete) is one [`Keyspace::update`]: read the item, decide, and store iff
//! exactly that version, or still nothing, is there; decide again otherwise.
//!
//! **Pending operations.** An operation whose result has to be waited for answers
//! [`Pending`], and its connection is parked. Once the keyspace says that the
//! result is there ([`Keyspace::poll`]), the same request is executed again, from
//! its first byte: the operation then answers at once. Rules that make this exact:
//!
//! 1. A session calls [`Keyspace::conclude`] between two requests, and never
//!    within one but by [`World::advance`](crate::world::World::advance).
//! 2. Until then it asks for the same operations in the same order, and decides
//!    the same on the same item. Time is that of the first execution.
//! 3. What [`Keyspace::get_many`] has handed out is done with: the session asks
//!    for the keys behind it only.
//! 4. A session that reads an item before another operation of the same request
//!    keeps what it saw (`World::advance`), and does not read again.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use trefoil_layout::Version;
use trefoil_layout::copied;
use trefoil_layout::op::Rejection;
use trefoil_layout::size_class::ClassCounts;

/// A value that lies somewhere else until it is asked for, so that it is
/// copied once: into the bytes that go out.
pub trait ValueSource {
    /// Its length in bytes.
    fn len(&self) -> usize;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends all of it.
    fn append_to(&self, out: &mut Vec<u8>);
}

impl ValueSource for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        copied::append(out, self);
    }
}

/// When an item was last asked for, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It has been read since it was written.
    pub hit_before: bool,
    /// Seconds since it was last read or written.
    pub idle_s: u32,
}

/// An item as it was read.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Its bytes.
    pub value: &'a dyn ValueSource,
    /// The mutation that wrote it.
    pub version: Version,
    /// Opaque to the cell (memcached's 32-bit flags).
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
    /// As it was *before* this read; exact in [`Keyspace::get_seen`] only.
    pub seen: Seen,
}

impl Item<'_> {
    /// The CAS unique that clients see: the writer's own, else one derived from
    /// the version. Below 2^63, because some clients read it as a signed number.
    pub fn cas_unique(&self) -> u64 {
        self.unique.unwrap_or_else(|| cas_unique_of(self.version))
    }
}

/// Set in every CAS unique that is derived from a version.
const CAS_DERIVED: u64 = 1 << 62;

/// The CAS unique of a version: 62 well-mixed bits below a set one. Two
/// versions of one key share it with a probability of 2^-62.
pub fn cas_unique_of(version: Version) -> u64 {
    // Finaliser of SplitMix64 (Steele et al., 2014).
    let mix = |mut bits: u64| {
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    };
    let mixed = mix(mix(version.time_ns).wrapping_add(version.origin));
    (mixed & (CAS_DERIVED - 1)) | CAS_DERIVED
}

/// Whether a CAS unique that a client presents, and that is not the item's,
/// may be of an older state of the item. Uniques that clients supply are
/// compared as numbers. Derived ones have no order, but whoever has one got it
/// from an earlier state; a client's own number from 2^62 to 2^63 passes for
/// one.
pub fn cas_is_older(presented: u64, current: u64) -> bool {
    let is_derived = |unique: u64| unique >> 62 == 1;
    presented < current || (is_derived(presented) && is_derived(current))
}

/// What is to be stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewItem<'a> {
    /// Its bytes.
    pub value: &'a [u8],
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// CAS unique that the caller supplies.
    pub unique: Option<u64>,
}

/// What an update does, now that it has seen the item.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// Nothing.
    Keep,
    /// Store this; `scratch` may hold the value.
    Store(NewItem<'a>),
    /// Remove the item.
    Erase,
}

/// Decides over an item; called again if the item changed meanwhile, so it
/// must set anew whatever it leaves behind. `scratch` comes empty and keeps its
/// capacity: a place to build a value in.
pub type Decide<'d> = dyn for<'s> FnMut(Option<&Item<'_>>, &'s mut Vec<u8>) -> Decision<'s> + 'd;

/// [`Decide`] over one of several items: which one comes first.
pub type DecideOf<'d> =
    dyn for<'s> FnMut(usize, Option<&Item<'_>>, &'s mut Vec<u8>) -> Decision<'s> + 'd;

/// What an update came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The last decision was to keep things as they are.
    Kept,
    /// Stored under this version.
    Stored(Version),
    /// Removed.
    Erased,
}

/// A decision to remove what is there.
pub fn erase_if_there<'s>(item: Option<&Item<'_>>, _scratch: &'s mut Vec<u8>) -> Decision<'s> {
    match item {
        Some(_) => Decision::Erase,
        None => Decision::Keep,
    }
}

/// Whether a read counts as a use of the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does: eviction learns of it.
    Use,
    /// It does not.
    Peek,
}

/// Why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Too few replicas agree on this key for now.
    #[error("no quorum of replicas agrees on this key")]
    Inquorate,
    /// Nobody serves this key for now.
    #[error("{0}")]
    Unavailable(String),
    /// It was sent, and whether it took effect is not known.
    #[error("the outcome is unknown: a replica did not answer in time")]
    Indeterminate,
    /// Other writers of this key were faster, time and again.
    #[error("too many writers of this key")]
    Contended,
    /// The backend refused it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// This kind of keyspace cannot do it.
    #[error("{0} is not available here")]
    Unsupported(&'static str),
}

/// The operation has no result yet. Its connection waits, and executes the same
/// request again when it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending;

/// Why an operation has not come to a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It may yet.
    Pending,
    /// It will not.
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Halt::Fault(fault)
    }
}

impl From<Rejection> for Halt {
    fn from(rejection: Rejection) -> Self {
        Halt::Fault(Fault::Rejected(rejection))
    }
}

impl From<Pending> for Halt {
    fn from(Pending: Pending) -> Self {
        Halt::Pending
    }
}

/// Tells a result that is there from one that is not.
pub trait Ready<T> {
    /// The result, good or bad, unless it is yet to come.
    fn ready(self) -> Result<Result<T, Fault>, Pending>;
}

impl<T> Ready<T> for Result<T, Halt> {
    #[inline]
    fn ready(self) -> Result<Result<T, Fault>, Pending> {
        match self {
            Ok(result) => Ok(Ok(result)),
            Err(Halt::Fault(fault)) => Ok(Err(fault)),
            Err(Halt::Pending) => Err(Pending),
        }
    }
}

/// Wakes an event loop from any thread.
pub type Wake = std::sync::Arc<dyn Fn() + Send + Sync>;

/// What a listing tells of an item.
#[derive(Clone, Copy, Debug)]
pub struct ListedItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Length of its value.
    pub value_len: usize,
    /// Bytes that its data entry takes in memory.
    pub entry_len: usize,
    /// Its version.
    pub version: Version,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// When it was last used.
    pub seen: Seen,
}

/// An item that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<'a> {
    /// Its key; of a long one the beginning.
    pub key: &'a [u8],
    /// Bytes of the whole key.
    pub key_len: usize,
    /// Bytes of its value.
    pub value_len: usize,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// When it was last used.
    pub seen: Seen,
}

/// Totals of the cell, or of the backend behind this door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Items resident.
    pub items: u64,
    /// Bytes of their data entries.
    pub entry_bytes: u64,
    /// Bytes resident for everything.
    pub used_bytes: u64,
    /// The limit on those.
    pub limit_bytes: u64,
    /// Items evicted so far, for whatever room.
    pub evictions: u64,
    /// Items removed because their time was over.
    pub expired: u64,
    /// Mutations refused for lack of memory.
    pub out_of_memory: u64,
    /// Items stored since the start.
    pub stored: u64,
    /// Buckets of all indexes.
    pub index_buckets: u64,
    /// Pages of small items held.
    pub data_pages: u64,
    /// Items and events by size.
    pub classes: ClassCounts,
}

/// What a listing's look at one item, or at one place of an index that holds none,
/// counts as: see [`Keyspace::work`].
pub const HOME_WORK: u64 = 64;

/// What looking an item up by its key counts as, beside the bytes of its value: some 200 ns,
/// in which as many bytes are copied or a few times more. See [`Keyspace::work`].
pub const LOOKUP_WORK: u64 = 512;

/// What a message to somebody else counts as: see [`Keyspace::work`].
pub const MESSAGE_WORK: u64 = 4 << 10;

/// What a report counts as (INFO, `stats`, DBSIZE, SLOWLOG and their like): it looks at
/// every partition, or at every entry of a log. See [`Keyspace::work`].
pub const REPORT_WORK: u64 = 64 << 10;

/// What removing everything counts as: it writes to every bucket. See
/// [`Keyspace::work`].
pub const FLUSH_WORK: u64 = 256 << 10;

/// See [`Keyspace::page_len`]: so many are looked at in one piece of work.
pub const PAGE_LEN: usize = 64;

/// Stands for a key in [`Keyspace::hold`], the same for all of this process. Two keys may
/// have the same.
pub fn key_mark(key: &[u8]) -> u64 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(key)
}

/// The cell behind a listener. One belongs to each event loop.
pub trait Keyspace {
    /// Reads one item; `with` is called exactly once if there is a result.
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt>;

    /// [`Keyspace::get`] for those who look at [`Item::seen`]: what the cell knows
    /// of it may have to be asked for first.
    fn get_seen(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.get(key, access, with)
    }

    /// Reads many items, calling `each` once for every key in order, with
    /// memory latencies overlapped where the keyspace can. Stops early when
    /// `each` returns `false`: the answer's buffer is full. Stops, too, before the
    /// first key whose item is not there yet.
    #[allow(
        clippy::type_complexity,
        reason = "an alias would tie lifetimes together"
    )]
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        for (index, key) in keys.iter().enumerate() {
            let mut wants_more = true;
            let read = self.get(key, access, &mut |item| wants_more = each(index, Ok(item)));
            if let Err(fault) = read.ready()? {
                wants_more = each(index, Err(fault));
            }
            if !wants_more {
                break;
            }
        }
        Ok(())
    }

    /// Stores an item, whatever is there.
    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt>;

    /// The same for who has no use for its version. Then a keyspace may acknowledge it before it
    /// is executed, when no read that begins later misses it.
    fn put(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<(), Halt> {
        self.set(key, item).map(drop)
    }

    /// Reads, decides and stores, atomically. Does not count as a use of the
    /// item unless it stores. `decide` is called at least once if there is a
    /// result, and last over the item that the result came from.
    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt>;

    /// Stores items under different keys like [`Keyspace::put`], at the same time where
    /// the keyspace can. `each` is called once for every item, in order, when all have
    /// results; the request asks for nothing else then.
    #[allow(clippy::type_complexity, reason = "as in `get_many`")]
    fn set_many(
        &mut self,
        items: &[(&[u8], NewItem<'_>)],
        each: &mut dyn FnMut(usize, Result<(), Fault>),
    ) -> Result<(), Pending> {
        self.ready_for(&mut items.iter().map(|(key, _)| *key))?;
        for (index, (key, item)) in items.iter().enumerate() {
            let stored = self.put(key, item).ready()?;
            each(index, stored);
        }
        Ok(())
    }

    /// Removes items of different keys, like [`Keyspace::set_many`]; `each` is told
    /// whether there was one.
    fn erase_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Result<bool, Fault>),
    ) -> Result<(), Pending> {
        self.ready_for(&mut keys.iter().copied())?;
        for (index, key) in keys.iter().enumerate() {
            let erased = self.update(key, &mut erase_if_there).ready()?;
            each(index, erased.map(|erased| erased == Updated::Erased));
        }
        Ok(())
    }

    /// Updates items of different keys, each like [`Keyspace::update`], at the same time
    /// like [`Keyspace::set_many`]. Over the items that the results came from `decide` is
    /// called last, in order.
    fn update_many(
        &mut self,
        keys: &[&[u8]],
        decide: &mut DecideOf<'_>,
        each: &mut dyn FnMut(usize, Result<Updated, Fault>),
    ) -> Result<(), Pending> {
        self.ready_for(&mut keys.iter().copied())?;
        for (index, key) in keys.iter().enumerate() {
            let updated = self.update(key, &mut |item, scratch| decide(index, item, scratch));
            each(index, updated.ready()?);
        }
        Ok(())
    }

    /// Makes everything that was stored before `at_ms` (milliseconds since the
    /// Unix epoch, not in the future) invisible, in the whole cell; done once no
    /// reader can see it any more.
    fn flush(&mut self, at_ms: u64) -> Result<(), Halt>;

    /// Lists items in no particular order. `cursor` 0 begins; the cursor that
    /// is returned goes on, 0 means that all were listed. Looks at about
    /// `count` items at a time. An item that stays throughout is listed at
    /// least once.
    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt>;

    /// How many items a listing had best ask for at a time: many where each time is a
    /// call to somebody else.
    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    /// Totals for reports, with what this keyspace has stored counted at all its
    /// copies.
    fn totals(&mut self) -> Result<Totals, Halt>;

    /// Sets the memory limit.
    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt>;

    /// Longest value that the cell takes, in bytes.
    fn value_len_max(&self) -> usize;

    /// The eviction policy, in the cell's own word.
    fn eviction(&self) -> &str {
        "lru"
    }

    /// Keeps the time of every read from now on, where that can be kept:
    /// [`Seen::idle_s`] counts from the last write otherwise. It takes memory, so
    /// it is for the first command that wants to know.
    fn keep_last_use(&mut self) {}

    /// Whether evictions are to be kept for [`Keyspace::take_evicted`].
    fn watch_evictions(&mut self, _wanted: bool) {}

    /// Shows what was evicted since the last time, where that is known, and
    /// returns how many more there were.
    fn take_evicted(&mut self, _each: &mut dyn FnMut(&Evicted<'_>)) -> u64 {
        0
    }

    /// Does what was put off (reports of touches, for one). Called when an
    /// event loop has served everybody and is about to sleep, and about once a
    /// second while it never does.
    fn tend(&mut self) {}

    /// Work done so far on the thread that asked: bytes of the values that were
    /// looked at, copied or stored, [`LOOKUP_WORK`] for every key that was looked up,
    /// [`HOME_WORK`] for every place of an index that a listing looked at, and [`MESSAGE_WORK`] for every operation that somebody else
    /// is asked to do. Whoever serves many counts what one of them has cost the
    /// others. It only grows, and wraps.
    fn work(&self) -> u64 {
        0
    }

    /// Counts work that was done for it elsewhere: see [`Keyspace::work`].
    fn charge(&mut self, _work: u64) {}

    /// [`Keyspace::update`] for a decision that takes long: nobody is kept from the
    /// item meanwhile.
    fn update_apart(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.update(key, decide)
    }

    /// Whether [`Keyspace::isolate`] and [`Keyspace::hold`] keep others out. Operations of
    /// such a keyspace are pending only while somebody else holds their keys.
    fn isolates(&self) -> bool {
        false
    }

    /// Until [`Keyspace::end_isolation`], no event loop of this front door but the
    /// caller's executes anything. Called within a turn, between two operations. Pending
    /// while somebody holds keys.
    fn isolate(&mut self) -> Result<(), Pending> {
        Ok(())
    }

    /// The others go on.
    fn end_isolation(&mut self) {}

    /// Until [`Keyspace::release`], also over many turns, nobody of this front door but the
    /// caller's connection does anything to the keys with these marks ([`key_mark`]), or to
    /// all keys; that is pending meanwhile. The caller is told that nothing has expired
    /// since. Called within a turn, between two operations. Pending while somebody else
    /// holds keys.
    fn hold(&mut self, _keys: Vec<u64>) -> Result<(), Pending> {
        Ok(())
    }

    /// Others do what they want to these keys.
    fn release(&mut self) {}

    /// Whether operations on each of these keys can be begun now, where one that is pending
    /// would leave others of the same request done.
    fn ready_for(&mut self, _keys: &mut dyn Iterator<Item = &[u8]>) -> Result<(), Pending> {
        Ok(())
    }

    /// Whether [`Keyspace::foresee`] does anything.
    fn foresees(&self) -> bool {
        false
    }

    /// Something may be asked of this key soon: its memory can be fetched meanwhile.
    /// Nothing but speed depends on it.
    fn foresee(&mut self, _key: &[u8]) {}

    // What follows is for keyspaces whose operations may be pending.

    /// Until [`Keyspace::leave`], operations are this connection's.
    fn enter(&mut self, _connection: u64, _now_ns: u64) {}

    /// The request has been answered: nothing of it is asked for again. An
    /// operation that is pending is given up.
    fn conclude(&mut self) {}

    /// The connection's turn is over.
    fn leave(&mut self) {}

    /// The connection has ended; an operation of its that is pending goes on, but
    /// its result is nobody's.
    fn forget(&mut self, _connection: u64) {}

    /// Says whose results have come.
    fn poll(&mut self, _now_ns: u64, _resume: &mut dyn FnMut(u64)) {}

    /// When to call [`Keyspace::poll`] though nobody wakes the loop, by the
    /// monotonic clock.
    fn due_ns(&mut self) -> Option<u64> {
        None
    }

    /// Becomes readable when [`Keyspace::poll`] would do something, after
    /// [`Keyspace::arm`] has asked for it. The same one for the life of the
    /// keyspace; the event loop waits for it, edge-triggered.
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called before the event loop sleeps. `false`: there is something to poll
    /// already.
    fn arm(&mut self) -> bool {
        true
    }

    /// Bytes of keys and values that are kept for a parked connection: what its
    /// operation needs, and what its operations have come to.
    fn held(&self, _connection: u64) -> usize {
        0
    }

    /// Copies of keys and values that are kept for all parked connections may take so
    /// many bytes: an operation that would need more is not begun, and waits its turn.
    fn limit_held(&mut self, _bytes: usize) {}

    /// Is told how to wake the loop that it belongs to.
    fn attach(&mut self, _wake: Wake) {}
}
