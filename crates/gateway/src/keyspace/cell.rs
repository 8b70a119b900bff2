//! Any cell as a keyspace, through the client library.
//!
//! What reads before it writes is a CAS that is tried again: on another version
//! than the one that was read, after a pause that differs between contenders.
//! An outcome that is not known is looked for once: if the version that we
//! nominated is there, it was applied; anything else stays unknown, because the
//! message may still be under way.

use super::versions::random_bits;
use std::time::{Duration, Instant};
use trefoil_client::{
    Cell, Client, FlushError, Hit, Lookup, MissReason, Mutated, OpError, Options, SetOptions,
};
use trefoil_gateway_core::keyspace::{
    Access, Decide, Decision, Fault, Item, Keyspace, ListedItem, NewItem, Seen, Totals, Updated,
    ValueSource,
};
use trefoil_layout::Version;
use trefoil_layout::data::EXPIRED_MS;
use trefoil_layout::op::{Expected, ItemUse, Rejection};

/// Patience with one operation: a value of megabytes goes to three replicas by
/// RPC, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(4);
/// Patience with a key of which no two replicas agree: what was under way when a
/// replica died has settled long before, a live replica whose lease was renewed
/// late on a busy machine is back, and the event loop waits, too. Less than the
/// half second that some clients wait at most.
const QUORUM_PATIENCE: Duration = Duration::from_millis(400);
/// How long totals wait for replicas that lag behind.
const SETTLE_PATIENCE: Duration = Duration::from_millis(200);
/// How long totals wait for backends that do not answer: the event loop waits,
/// too.
const STATS_PATIENCE: Duration = Duration::from_millis(200);
/// How long a read waits for what replicas know of an item's use.
const USES_PATIENCE: Duration = Duration::from_millis(100);
/// Longest scratch buffer that is kept between updates, in bytes.
const SCRATCH_LEN_MAX: usize = 1 << 20;
/// First upper limit of the pause between two attempts; it doubles.
const PAUSE_NS_MIN: u64 = 10_000;
/// Last upper limit.
const PAUSE_NS_MAX: u64 = 2_000_000;
/// Below this a sleep would take longer than the pause.
const SLEEP_NS_MIN: u64 = 100_000;
/// Keys looked up before the answer's buffer is asked whether it is full.
const BATCH: usize = 64;

/// How a cell is used.
#[derive(Clone, Copy, Debug)]
pub struct CellOptions {
    /// Of the client.
    pub client: Options,
    /// Patience with one update, all attempts included.
    pub update_patience: Duration,
}

impl Default for CellOptions {
    fn default() -> Self {
        CellOptions {
            client: Options {
                deadline: DEADLINE,
                ..Options::default()
            },
            update_patience: Duration::from_secs(2),
        }
    }
}

/// See the module. One belongs to each event loop.
pub struct CellKeyspace {
    cell: Cell,
    client: Client,
    update_patience: Duration,
    jitter: u64,
    scratch: Vec<u8>,
    /// Somebody has asked how items are used: reads are reported before the next
    /// write, lest they count for what it stores.
    tells_uses: bool,
}

/// What one attempt of an update came to.
enum Attempt {
    Done(Updated),
    /// Nothing was changed, and the same again may succeed.
    Again(Fault),
}

impl CellKeyspace {
    /// A keyspace over `cell`.
    pub fn new(cell: Cell, options: CellOptions) -> Self {
        let client = cell.client(options.client);
        CellKeyspace {
            cell,
            client,
            update_patience: options.update_patience,
            jitter: random_bits() | 1,
            scratch: Vec::new(),
            tells_uses: false,
        }
    }

    fn attempt(
        &mut self,
        key: &[u8],
        decide: &mut Decide<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Attempt, Fault> {
        scratch.clear();
        let (expected, decision) = match self.client.peek(key).map_err(fault)? {
            Lookup::Hit(hit) => {
                let value = HitValue(hit);
                let expected = Expected::Version(value.0.version);
                (expected, decide(Some(&value.item()), scratch))
            }
            Lookup::Miss(miss) if miss.reason == MissReason::Inquorate => {
                return Ok(Attempt::Again(Fault::Inquorate));
            }
            Lookup::Miss(_) => (Expected::Absent, decide(None, scratch)),
        };
        match (decision, expected) {
            (Decision::Keep, _) => Ok(Attempt::Done(Updated::Kept)),
            (Decision::Store(item), _) => {
                let stored = self.cas(key, expected, &item)?;
                Ok(stored.map_or(Attempt::Again(Fault::Contended), |version| {
                    Attempt::Done(Updated::Stored(version))
                }))
            }
            (Decision::Erase, Expected::Absent) => Ok(Attempt::Done(Updated::Erased)),
            (Decision::Erase, expected) => {
                // A conditional erase is a CAS to an item whose time is over:
                // every rule of CAS and of expiry holds for it.
                let nothing = NewItem {
                    expiry_ms: EXPIRED_MS,
                    ..NewItem::default()
                };
                let stored = self.cas(key, expected, &nothing)?;
                Ok(stored.map_or(Attempt::Again(Fault::Contended), |_| {
                    Attempt::Done(Updated::Erased)
                }))
            }
        }
    }

    /// One CAS; `None` if it certainly was not applied and another may be.
    fn cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        item: &NewItem<'_>,
    ) -> Result<Option<Version>, Fault> {
        self.check_len(item)?;
        let result = self.client.cas(key, expected, item.value, options(item));
        let version = self.client.last_version();
        match result {
            Ok(Mutated::Stored { version }) => Ok(Some(version)),
            Ok(Mutated::Exists { .. } | Mutated::Superseded { .. }) => Ok(None),
            Err(OpError::Rejected(Rejection::WrongShard | Rejection::Recovering)) => Ok(None),
            Err(OpError::Indeterminate(_)) => match self.is_there(key, item, version) {
                true => Ok(Some(version)),
                false => Err(Fault::Indeterminate),
            },
            Err(error) => Err(fault(error)),
        }
    }

    /// Whether a quorum holds what we have tried to store under `version`.
    fn is_there(&mut self, key: &[u8], item: &NewItem<'_>, version: Version) -> bool {
        // What has expired is not shown, whoever wrote it.
        item.expiry_ms != EXPIRED_MS
            && matches!(self.client.peek(key), Ok(Lookup::Hit(hit)) if hit.version == version)
    }

    fn check_len(&self, item: &NewItem<'_>) -> Result<(), Fault> {
        if item.value.len() as u64 > self.client.config().value_len_max {
            return Err(Fault::Rejected(Rejection::ValueTooLong));
        }
        Ok(())
    }

    /// Reports what was read, before something is written, if anybody cares.
    fn report_uses(&mut self) {
        if self.tells_uses {
            self.client.flush_touches();
        }
    }

    /// Waits for less than `limit_ns`, differently from other contenders.
    fn pause(&mut self, limit_ns: u64) {
        // Marsaglia's xorshift.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let pause = Duration::from_nanos(self.jitter % limit_ns);
        if pause.as_nanos() as u64 >= SLEEP_NS_MIN {
            std::thread::sleep(pause);
            return;
        }
        let begin = Instant::now();
        while begin.elapsed() < pause {
            std::thread::yield_now();
        }
    }

    fn update_with(
        &mut self,
        key: &[u8],
        decide: &mut Decide<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Updated, Fault> {
        if self.client.config().mode.is_immutable() {
            return Err(Fault::Rejected(Rejection::Immutable));
        }
        let begin = Instant::now();
        let mut limit_ns = PAUSE_NS_MIN;
        // What contenders cost does not count as a loss of quorum.
        let mut agreed_at = begin;
        loop {
            let fault = match self.attempt(key, decide, scratch)? {
                Attempt::Done(updated) => return Ok(updated),
                Attempt::Again(fault) => fault,
            };
            let now = Instant::now();
            if fault != Fault::Inquorate {
                agreed_at = now;
            }
            if now - agreed_at >= QUORUM_PATIENCE || now - begin >= self.update_patience {
                return Err(fault);
            }
            self.pause(limit_ns);
            limit_ns = (limit_ns * 2).min(PAUSE_NS_MAX);
        }
    }
}

impl Keyspace for CellKeyspace {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Fault> {
        let found = match access {
            Access::Use => self.client.get(key),
            Access::Peek => self.client.peek(key),
        };
        hand_out(found, |item| with(item))
    }

    fn get_seen(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Fault> {
        self.tells_uses = true;
        let uses = self.client.item_uses(key, USES_PATIENCE).map_err(fault)?;
        self.get(key, access, &mut |item| match item {
            None => with(None),
            Some(item) => with(Some(&Item {
                seen: seen_by(&uses, item.version),
                ..*item
            })),
        })
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) {
        let mut wants_more = true;
        for (number, batch) in keys.chunks(BATCH).enumerate() {
            let first = number * BATCH;
            if access == Access::Peek {
                for (at, key) in batch.iter().enumerate() {
                    let read = self.get(key, access, &mut |item| {
                        wants_more = each(first + at, Ok(item));
                    });
                    if let Err(fault) = read {
                        wants_more = each(first + at, Err(fault));
                    }
                    if !wants_more {
                        return;
                    }
                }
                continue;
            }
            self.client.get_many(batch, |at, found| {
                if !wants_more {
                    return;
                }
                let handed = hand_out(found, |item| wants_more = each(first + at, Ok(item)));
                if let Err(fault) = handed {
                    wants_more = each(first + at, Err(fault));
                }
            });
            if !wants_more {
                return;
            }
        }
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Fault> {
        self.check_len(item)?;
        self.report_uses();
        match self.client.set(key, item.value, options(item)) {
            Ok(Mutated::Stored { version }) => Ok(version),
            Ok(Mutated::Superseded { .. } | Mutated::Exists { .. }) => Err(Fault::Contended),
            Err(error) => Err(fault(error)),
        }
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Fault> {
        self.report_uses();
        let mut scratch = std::mem::take(&mut self.scratch);
        let updated = self.update_with(key, decide, &mut scratch);
        if scratch.capacity() <= SCRATCH_LEN_MAX {
            self.scratch = scratch;
        }
        updated
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Fault> {
        self.cell.flush(at_ms).map_err(|error| match error {
            FlushError::Immutable => Fault::Rejected(Rejection::Immutable),
            FlushError::Incomplete { .. } => Fault::Indeterminate,
            error => Fault::Unavailable(error.to_string()),
        })?;
        self.client.refresh();
        Ok(())
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Fault> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let listed = self.cell.list(cursor, count, &mut |item| {
            let version = item.version.unwrap_or_default();
            let version = Version {
                time_ns: version.time_ns,
                origin: version.origin,
            };
            each(&ListedItem {
                key: &item.key,
                value_len: item.value_len as usize,
                entry_len: item.entry_len as usize,
                version,
                unique: item.unique,
                client_flags: item.client_flags,
                expiry_ms: item.expiry_ms,
                seen: unknown(version),
            });
        });
        listed.map_err(|error| Fault::Unavailable(error.to_string()))
    }

    fn settle(&mut self) {
        self.client.settle(SETTLE_PATIENCE);
    }

    fn totals(&mut self) -> Result<Totals, Fault> {
        self.settle();
        let mut totals = Totals::default();
        let mut processes = Vec::new();
        let mut answered = 0;
        let mut reason = None;
        for backend in self.cell.stats_soon(STATS_PATIENCE) {
            let stats = match backend.stats {
                Ok(stats) => stats,
                Err(error) => {
                    reason = Some(error);
                    continue;
                }
            };
            let process = stats.process.unwrap_or_default();
            // A process that is several backends answers for each of them.
            if processes.contains(&process.pid) {
                continue;
            }
            processes.push(process.pid);
            totals.limit_bytes += process.memory_limit_bytes;
            answered += stats.members.len() as u64;
            for member in &stats.members {
                let evictions = member.evictions.unwrap_or_default();
                totals.items += member.items;
                totals.entry_bytes += member.entry_bytes;
                totals.used_bytes += member.resident.map_or(0, |resident| resident.total);
                totals.evictions += evictions.capacity + evictions.associativity;
                totals.expired += evictions.expired;
                let applied = member.mutations.iter().filter(|of| {
                    of.outcome == "applied" && matches!(of.kind.as_str(), "set" | "cas")
                });
                totals.stored += applied.map(|of| of.count).sum::<u64>();
                for class in &member.size_classes {
                    if let Some(sum) = totals.classes.get_mut(class.number as usize) {
                        sum.items += class.items;
                        sum.entry_bytes += class.entry_bytes;
                        sum.evicted += class.evicted;
                        sum.expired += class.expired;
                        sum.no_memory += class.no_memory;
                    }
                }
            }
        }
        match reason {
            Some(reason) if processes.is_empty() => Err(Fault::Unavailable(reason)),
            _ => {
                // Every item is counted once, however many copies there are.
                // Who does not answer is taken to hold as much as the others.
                let config = self.client.config();
                let (all, copies) = (
                    config.backends.len() as u64,
                    config.mode.copy_count() as u64,
                );
                let once = |sum: &mut u64| *sum = (*sum * all).div_ceil(answered.max(1) * copies);
                for sum in [
                    &mut totals.items,
                    &mut totals.entry_bytes,
                    &mut totals.stored,
                ] {
                    once(sum);
                }
                for class in totals.classes.iter_mut() {
                    for sum in [
                        &mut class.items,
                        &mut class.entry_bytes,
                        &mut class.evicted,
                        &mut class.expired,
                        &mut class.no_memory,
                    ] {
                        once(sum);
                    }
                }
                Ok(totals)
            }
        }
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Fault> {
        for (number, result) in self.cell.set_memory_limit(bytes) {
            result.map_err(|error| Fault::Unavailable(format!("backend {number}: {error}")))?;
        }
        Ok(())
    }

    fn value_len_max(&self) -> usize {
        self.client.config().value_len_max as usize
    }

    fn tend(&mut self) {
        self.client.flush_touches();
    }
}

impl std::fmt::Debug for CellKeyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellKeyspace")
            .field("cell", &self.cell.address())
            .finish_non_exhaustive()
    }
}

/// A value in the client's own memory.
struct HitValue<'a>(Hit<'a>);

impl HitValue<'_> {
    #[inline]
    fn item(&self) -> Item<'_> {
        let hit = &self.0;
        Item {
            value: self,
            version: hit.version,
            client_flags: hit.client_flags,
            item_flags: hit.item_flags,
            expiry_ms: hit.expiry_ms,
            unique: hit.unique,
            seen: unknown(hit.version),
        }
    }
}

impl ValueSource for HitValue<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.value.len()
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.value);
    }
}

/// Reads leave no trace that other readers could see without asking for it: an
/// item counts as never hit, and as idle since it was written.
fn unknown(version: Version) -> Seen {
    seen_by(&[], version)
}

/// What replicas say of the use of an item, all together.
fn seen_by(uses: &[Option<ItemUse>], version: Version) -> Seen {
    let of_version = |found: &&ItemUse| found.version == version;
    let uses = || uses.iter().flatten().filter(of_version);
    let written_s = version.time_ns / 1_000_000_000;
    let used_s = uses().map(|found| u64::from(found.last_use_s)).max();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_s = since.map_or(0, |since| since.as_secs());
    Seen {
        hit_before: uses().any(|found| found.hit_before),
        idle_s: now_s.saturating_sub(used_s.unwrap_or(0).max(written_s)) as u32,
    }
}

#[inline]
fn hand_out(
    found: Result<Lookup<'_>, OpError>,
    with: impl FnOnce(Option<&Item<'_>>),
) -> Result<(), Fault> {
    match found.map_err(fault)? {
        Lookup::Hit(hit) => {
            with(Some(&HitValue(hit).item()));
            Ok(())
        }
        Lookup::Miss(miss) if miss.reason == MissReason::Inquorate => Err(Fault::Inquorate),
        Lookup::Miss(_) => {
            with(None);
            Ok(())
        }
    }
}

fn options(item: &NewItem<'_>) -> SetOptions {
    SetOptions {
        ttl: None,
        expiry_ms: Some(item.expiry_ms),
        client_flags: item.client_flags,
        item_flags: item.item_flags,
        unique: item.unique,
    }
}

fn fault(error: OpError) -> Fault {
    match error {
        OpError::Failed(reason) => Fault::Unavailable(reason),
        OpError::Rejected(rejection) => Fault::Rejected(rejection),
        OpError::Indeterminate(_) => Fault::Indeterminate,
    }
}
