//! The backend of this process as a keyspace: a read is one lookup under its
//! partition's lock, with the value copied once, into the answer; a write is
//! one mutation.

use super::gates::{Gate, Gates, Waits};
use super::versions::Nominator;
use trefoil_backend::LocalStore;
use trefoil_gateway_core::deferred::OwnedItem;
use trefoil_gateway_core::keyspace::{
    Access, Decide, Decision, Evicted, Fault, HOME_WORK, Halt, Item, Keyspace, LOOKUP_WORK,
    ListedItem, NewItem, Pending, Seen, Totals, Updated, ValueSource, Wake, key_mark,
};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Mutation, Outcome, Rejection};
use trefoil_store::{Foreseen, MutationKind, Now, Position, StoredItem};

/// Attempts of one operation. Each lost one means that somebody else's
/// succeeded in between.
const ATTEMPTS_MAX: usize = 1000;

/// Longest scratch buffer that is kept between updates, in bytes.
const SCRATCH_LEN_MAX: usize = 1 << 20;

/// How long others do not hold keys because of connections that were resumed and do not have
/// their turn: their clients read no answers.
const TURN_PATIENCE_NS: u64 = 10_000_000;

/// What a mutation counts as, beside the bytes that it stores: see [`Keyspace::work`].
const MUTATION_WORK: u64 = 1024;

/// Places that a page of the store's listing looks at most, and length from which
/// its keys count as several: see `Store::list`.
const LISTED_HOMES_MAX: u64 = 4096;
const LISTED_KEY_LEN: usize = 256;

/// See the module. One belongs to each event loop; they share the store.
#[derive(Debug)]
pub struct LocalKeyspace {
    local: LocalStore,
    versions: Nominator,
    gate: Gate,
    /// Whose turn it is.
    connection: u64,
    /// Another connection holds keys in this turn, or did when it began.
    is_guarded: bool,
    /// The connection whose turn it is holds keys.
    is_holder: bool,
    /// The time at which it began to: nothing expires while it acts.
    held_now: Option<Now>,
    /// Connections that wait for keys which are held, or for their turn to hold some, each
    /// since which release.
    waiting: Vec<(u64, Waits)>,
    /// The last release that was looked at.
    releases: u64,
    /// The gate knows that somebody here waits, or did.
    is_noted: bool,
    /// Those that were resumed, and have not had their turn yet.
    next: Vec<u64>,
    /// Until when they may have it before others hold keys, while this loop may owe that:
    /// see [`Gate::pay`].
    owes_until_ns: Option<u64>,
    scratch: Vec<u8>,
    keeps_last_use: bool,
    /// See [`Keyspace::work`].
    work: u64,
    /// The time of the event loop's round, by its clock, and by the store's once it was
    /// looked at in it.
    round_ns: Option<u64>,
    round_now: Option<Now>,
    /// The key that was foreseen last.
    foreseen: Option<Foreseen>,
}

impl LocalKeyspace {
    /// A keyspace over the store of this process, for its only event loop.
    pub fn new(local: LocalStore) -> Self {
        LocalKeyspace::beside(local, &Gates::default())
    }

    /// The same for one of several, which have these gates.
    pub fn beside(local: LocalStore, gates: &Gates) -> Self {
        LocalKeyspace {
            gate: gates.gate(),
            connection: 0,
            is_guarded: false,
            is_holder: false,
            held_now: None,
            waiting: Vec::new(),
            releases: 0,
            is_noted: false,
            next: Vec::new(),
            owes_until_ns: None,
            local,
            versions: Nominator::new(),
            scratch: Vec::new(),
            keeps_last_use: false,
            work: 0,
            round_ns: None,
            round_now: None,
            foreseen: None,
        }
    }

    /// The store's time of this round: to look at clocks for each of thousands of
    /// commands would cost as much as some of these.
    #[inline]
    fn now(&mut self) -> Now {
        match (self.round_ns, self.round_now) {
            (Some(_), Some(now)) => now,
            (is_round, _) => {
                let now = self.local.now();
                self.round_now = is_round.map(|_| now);
                now
            }
        }
    }

    /// Lets the connection whose turn it is wait if another one holds such keys.
    #[cold]
    fn wait_for(
        &mut self,
        look: impl FnOnce(&mut Gate) -> Result<(), Waits>,
    ) -> Result<(), Pending> {
        let Err(since) = look(&mut self.gate) else {
            return Ok(());
        };
        self.waiting
            .retain(|(connection, _)| *connection != self.connection);
        self.waiting.push((self.connection, since));
        self.is_noted = true;
        Err(Pending)
    }

    /// The same of one key.
    #[inline]
    fn wait_for_key(&mut self, key: &[u8]) -> Result<(), Pending> {
        match self.is_guarded {
            true => self.wait_for(|gate| gate.waits_for_key(key_mark(key))),
            false => Ok(()),
        }
    }

    /// The same of any key.
    fn wait_for_all(&mut self) -> Result<(), Pending> {
        match self.is_guarded {
            true => self.wait_for(|gate| gate.waits_for(|_| true)),
            false => Ok(()),
        }
    }

    /// One mutation, whose version is the next one.
    fn mutate(
        local: &LocalStore,
        versions: &mut Nominator,
        now: Now,
        key: &[u8],
        action: Action,
        item: &NewItem<'_>,
    ) -> (Version, Outcome) {
        let version = versions.next(now.unix_ns);
        let mutation = Mutation {
            action,
            version,
            entry: DataEntry {
                expiry_ms: item.expiry_ms,
                client_flags: item.client_flags,
                item_flags: item.item_flags,
                unique: item.unique,
                key,
                value: item.value,
            },
        };
        (version, local.store().mutate(now, &mutation).outcome)
    }

    /// Takes note of what stood against a mutation; an error if that is final.
    fn refused(versions: &mut Nominator, outcome: Outcome) -> Result<(), Fault> {
        match outcome {
            Outcome::Applied => {}
            Outcome::Superseded { bound } | Outcome::Mismatch { bound, .. } => {
                versions.observe(bound);
            }
            Outcome::Rejected(rejection) => return Err(fault(rejection)),
        }
        Ok(())
    }

    fn update_with(
        &mut self,
        key: &[u8],
        decide: &mut Decide<'_>,
        scratch: &mut Vec<u8>,
        is_apart: bool,
    ) -> Result<Updated, Fault> {
        let held_now = self.held_now.filter(|_| self.is_holder);
        let LocalKeyspace {
            local,
            versions,
            work,
            ..
        } = self;
        *work += MUTATION_WORK;
        let _turn = local.turn(key);
        for _ in 0..ATTEMPTS_MAX {
            scratch.clear();
            let now = held_now.unwrap_or_else(|| local.now());
            let mut copy = None;
            let read = local
                .store()
                .read(now, key, trefoil_store::Access::Peek, |stored| {
                    let expected =
                        stored.map_or(Expected::Absent, |stored| Expected::Version(stored.version));
                    let value = stored.map(StoredValue);
                    *work += value.as_ref().map_or(0, StoredValue::work);
                    let item = value.as_ref().map(|value| value.item(now));
                    // The partition's lock is held here.
                    if is_apart {
                        copy = item.as_ref().map(OwnedItem::of);
                        return (expected, None);
                    }
                    (expected, Some(decide(item.as_ref(), &mut *scratch)))
                });
            let (expected, decision) = read.map_err(fault)?;
            let decision = match decision {
                Some(decision) => decision,
                None => decide(copy.as_ref().map(OwnedItem::item).as_ref(), &mut *scratch),
            };
            // It may be newer than `now`, which was told before the lock was waited for.
            if let Expected::Version(version) = expected {
                versions.observe(version);
            }
            match (decision, expected) {
                (Decision::Keep, _) => return Ok(Updated::Kept),
                (Decision::Store(item), _) => {
                    *work += item.value.len() as u64;
                    let (version, outcome) =
                        Self::mutate(local, versions, now, key, Action::Cas(expected), &item);
                    if outcome == Outcome::Applied {
                        return Ok(Updated::Stored(version));
                    }
                    Self::refused(versions, outcome)?;
                }
                // Nothing is there already.
                (Decision::Erase, Expected::Absent) => return Ok(Updated::Erased),
                (Decision::Erase, Expected::Version(expected)) => {
                    let version = versions.next(now.unix_ns);
                    let store = local.store();
                    let ack = store.erase_if(now, key, expected, version);
                    if ack.outcome == Outcome::Applied {
                        return Ok(Updated::Erased);
                    }
                    Self::refused(versions, ack.outcome)?;
                }
            }
        }
        Err(Fault::Contended)
    }
}

impl Keyspace for LocalKeyspace {
    #[inline]
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.wait_for_key(key)?;
        let now = self.now();
        let store = self.local.store();
        let work = &mut self.work;
        let read = store.read(now, key, store_access(access), |stored| {
            let value = stored.map(StoredValue);
            *work += LOOKUP_WORK + value.as_ref().map_or(0, StoredValue::work);
            with(value.as_ref().map(|value| value.item(now)).as_ref());
        });
        Ok(read.map_err(fault)?)
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        // Up to the first one that somebody holds.
        let mut end = Ok(());
        let mut count = keys.len();
        if self.is_guarded {
            for (index, key) in keys.iter().enumerate() {
                end = self.wait_for_key(key);
                if end.is_err() {
                    count = index;
                    break;
                }
            }
        }
        let mut wants_more = true;
        let now = self.now();
        let store = self.local.store();
        let work = &mut self.work;
        store.read_many(
            now,
            &keys[..count],
            store_access(access),
            &mut |index, read| {
                wants_more = match read {
                    Ok(stored) => {
                        let value = stored.map(StoredValue);
                        *work += LOOKUP_WORK + value.as_ref().map_or(0, StoredValue::work);
                        each(
                            index,
                            Ok(value.as_ref().map(|value| value.item(now)).as_ref()),
                        )
                    }
                    Err(rejection) => each(index, Err(fault(rejection))),
                };
                wants_more
            },
        );
        match wants_more {
            true => end,
            // It does not wait: to be resumed would meet whatever it does by then.
            false => {
                self.waiting
                    .retain(|(connection, _)| *connection != self.connection);
                Ok(())
            }
        }
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.wait_for_key(key)?;
        self.work += MUTATION_WORK + item.value.len() as u64;
        let mut now = self.now();
        for _ in 0..ATTEMPTS_MAX {
            let (version, outcome) =
                Self::mutate(&self.local, &mut self.versions, now, key, Action::Set, item);
            if outcome == Outcome::Applied {
                return Ok(version);
            }
            Self::refused(&mut self.versions, outcome)?;
            now = self.local.now();
        }
        Err(Fault::Contended.into())
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.wait_for_key(key)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let updated = self.update_with(key, decide, &mut scratch, false);
        if scratch.capacity() <= SCRATCH_LEN_MAX {
            self.scratch = scratch;
        }
        Ok(updated?)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.wait_for_all()?;
        let floor = self
            .local
            .flush(at_ms)
            .map_err(|error| Fault::Unavailable(error.to_string()))?;
        self.versions.observe(floor);
        Ok(())
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        let now = self.local.now();
        let from = Position::from_number(cursor);
        let mut listed_count = 0;
        let next = self
            .local
            .store()
            .list(now, 0, (from, None), count, &mut |listed| {
                listed_count += 1 + listed.key.len() / LISTED_KEY_LEN;
                let value = StoredValue(&listed.item);
                let item = value.item(now);
                each(&ListedItem {
                    key: listed.key,
                    value_len: listed.item.value_len(),
                    entry_len: listed.item.entry_len,
                    version: item.version,
                    unique: item.unique,
                    client_flags: item.client_flags,
                    expiry_ms: item.expiry_ms,
                    seen: item.seen,
                });
            });
        // A page that ends before it is full has looked at as many places as it may.
        let looked_at = match next {
            Some(_) if listed_count < count => LISTED_HOMES_MAX,
            _ => listed_count as u64,
        };
        self.work += looked_at * HOME_WORK;
        Ok(next.map_or(0, Position::to_number))
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        // They would count a part of a transaction.
        self.wait_for_all()?;
        let stats = self.local.store().stats();
        let counts = &stats.counts;
        let mutations = MutationKind::ALL.map(|kind| counts.of(kind));
        let stored = |kind| counts.of(kind).applied;
        Ok(Totals {
            items: stats.items,
            entry_bytes: stats.entry_bytes,
            used_bytes: stats.resident.total(),
            limit_bytes: self.local.memory_limit(),
            evictions: counts.evicted_capacity + counts.evicted_associativity,
            expired: counts.expired,
            out_of_memory: mutations.iter().map(|of| of.no_memory).sum(),
            stored: stored(MutationKind::Set) + stored(MutationKind::Cas),
            index_buckets: stats.index_buckets,
            data_pages: stats.data_pages,
            classes: stats.classes,
        })
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.local
            .set_memory_limit(bytes)
            .map_err(|error| Fault::Unavailable(error.to_string()))?;
        Ok(())
    }

    fn value_len_max(&self) -> usize {
        self.local.store().config().value_len_max
    }

    fn eviction(&self) -> &str {
        self.local.store().config().policy.name()
    }

    fn watch_evictions(&mut self, wanted: bool) {
        self.local.store().watch_evictions(wanted);
    }

    fn take_evicted(&mut self, each: &mut dyn FnMut(&Evicted<'_>)) -> u64 {
        let now_s = self.local.now().unix_ms() / 1000;
        let (all, lost) = self.local.store().take_evicted();
        for evicted in &all {
            each(&Evicted {
                key: &evicted.key,
                key_len: evicted.key_len,
                value_len: evicted.value_len,
                expiry_ms: evicted.expiry_ms,
                seen: Seen {
                    hit_before: evicted.hit_before,
                    idle_s: idle_s(now_s, evicted.version, evicted.last_use_s),
                },
            });
        }
        lost
    }

    #[inline]
    fn work(&self) -> u64 {
        self.work
    }

    fn charge(&mut self, work: u64) {
        self.work += work;
    }

    fn update_apart(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.wait_for_key(key)?;
        let mut scratch = Vec::new();
        Ok(self.update_with(key, decide, &mut scratch, true)?)
    }

    fn isolates(&self) -> bool {
        true
    }

    fn isolate(&mut self) -> Result<(), Pending> {
        self.wait_for(|gate| gate.isolate())
    }

    fn end_isolation(&mut self) {
        self.gate.end_isolation();
    }

    fn hold(&mut self, keys: Vec<u64>) -> Result<(), Pending> {
        let connection = self.connection;
        let is_next = self.next.contains(&connection);
        self.wait_for(|gate| gate.hold(connection, keys, is_next))?;
        (self.is_holder, self.held_now) = (true, Some(self.now()));
        // Whoever held keys when this turn began has released them: these are its own.
        self.is_guarded = false;
        Ok(())
    }

    fn release(&mut self) {
        (self.is_holder, self.held_now, self.round_now) = (false, None, None);
        self.gate.release();
    }

    fn ready_for(&mut self, keys: &mut dyn Iterator<Item = &[u8]>) -> Result<(), Pending> {
        if self.is_guarded {
            for key in keys {
                self.wait_for_key(key)?;
            }
        }
        Ok(())
    }

    fn attach(&mut self, wake: Wake) {
        self.gate.attach(wake);
    }

    fn poll(&mut self, now_ns: u64, resume: &mut dyn FnMut(u64)) {
        let is_over = |until_ns: u64| self.next.is_empty() || until_ns <= now_ns;
        if self.owes_until_ns.is_some_and(is_over) {
            self.owes_until_ns = None;
            self.next.clear();
            self.gate.pay(self.releases);
        }
        let releases = self.gate.releases();
        if !self.is_noted || releases == self.releases {
            return;
        }
        self.releases = releases;
        // Who began to wait after that is not meant. Whoever holds keys next may have all of
        // them wait once more.
        let begun_before = |(_, since): &mut (u64, Waits)| since.0 < releases;
        for (connection, _) in self.waiting.extract_if(.., begun_before) {
            self.next.push(connection);
            resume(connection);
        }
        self.is_noted = !self.waiting.is_empty();
        self.owes_until_ns = Some(now_ns + TURN_PATIENCE_NS);
    }

    fn due_ns(&mut self) -> Option<u64> {
        if self.is_noted && self.gate.releases() != self.releases {
            return Some(0);
        }
        self.owes_until_ns
            .map(|until_ns| if self.next.is_empty() { 0 } else { until_ns })
    }

    fn forget(&mut self, connection: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != connection);
        self.next.retain(|next| *next != connection);
        if self.gate.holder() == connection && connection != 0 {
            self.release();
        }
    }

    fn foresees(&self) -> bool {
        true
    }

    #[inline]
    fn foresee(&mut self, key: &[u8]) {
        let store = self.local.store();
        if let Some(before) = self.foreseen.take() {
            store.foresee_item(before);
        }
        self.foreseen = store.foresee(key);
    }

    #[inline]
    fn enter(&mut self, connection: u64, now_ns: u64) {
        self.gate.enter();
        let holder = self.gate.holder();
        let was_holder = self.is_holder;
        self.connection = connection;
        self.is_holder = holder != 0 && holder == connection;
        self.is_guarded = holder != 0 && !self.is_holder;
        if self.round_ns != Some(now_ns) || was_holder {
            (self.round_ns, self.round_now) = (Some(now_ns), None);
        }
        if self.is_holder {
            self.round_now = self.held_now;
        }
    }

    #[inline]
    fn leave(&mut self) {
        if !self.next.is_empty() {
            self.next.retain(|next| *next != self.connection);
        }
        self.gate.leave();
    }

    fn keep_last_use(&mut self) {
        // Once for each loop: it takes every partition's lock.
        if !std::mem::replace(&mut self.keeps_last_use, true) {
            self.local.store().keep_last_use();
        }
    }
}

/// An item that lies in the store, lent under its lock.
struct StoredValue<'a>(&'a StoredItem<'a>);

impl StoredValue<'_> {
    /// See [`Keyspace::work`].
    #[inline]
    fn work(&self) -> u64 {
        self.0.value_len() as u64
    }

    #[inline]
    fn item(&self, now: Now) -> Item<'_> {
        let stored = self.0;
        let now_s = now.unix_ms() / 1000;
        Item {
            value: self,
            version: stored.version,
            client_flags: stored.client_flags,
            item_flags: stored.item_flags,
            expiry_ms: stored.expiry_ms,
            unique: stored.unique,
            seen: Seen {
                hit_before: stored.hit_before,
                idle_s: idle_s(now_s, stored.version, stored.last_use_s),
            },
        }
    }
}

/// Seconds since an item was last read, as far as that is known, or written.
#[inline]
fn idle_s(now_s: u64, version: Version, last_use_s: Option<u32>) -> u32 {
    let written_s = version.time_ns / 1_000_000_000;
    let used_s = last_use_s.map_or(0, u64::from).max(written_s);
    now_s.saturating_sub(used_s) as u32
}

impl ValueSource for StoredValue<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.value_len()
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        self.0.append_value(out);
    }
}

fn store_access(access: Access) -> trefoil_store::Access {
    match access {
        Access::Use => trefoil_store::Access::Use,
        Access::Peek => trefoil_store::Access::Peek,
    }
}

/// A store says that a key is somebody else's only once it has ended.
fn fault(rejection: Rejection) -> Fault {
    match rejection {
        Rejection::WrongShard => Fault::Unavailable("the server is shutting down".into()),
        other => Fault::Rejected(other),
    }
}
