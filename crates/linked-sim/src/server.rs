//! One life of one server: the real core over values in a map.

use crate::coordination::View;
use crate::profile::Profile;
use crate::turns::Turns;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::mutants::{self, Mutant};
use trefoil_linklet_core::{
    Config, Core, Entry, Limit, NotStored, Operation, Replication, Scan, Table, Ticket, Values,
};
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// Written in every value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Which write.
    pub(crate) write: u64,
    pub(crate) unmarshallable: bool,
    pub(crate) unreadable: bool,
}

impl Stored {
    pub(crate) fn bytes(self) -> Bytes {
        let flags = u64::from(self.unreadable) << 63;
        Bytes::copy_from_slice(&(self.write | flags).to_le_bytes())
    }

    fn read(bytes: &Bytes) -> Stored {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        Stored {
            write: word & !(1 << 63),
            unmarshallable: false,
            unreadable: word >> 63 == 1,
        }
    }
}

/// The values of one server.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    values: BTreeMap<(KeyPoint, Bytes), Stored>,
    /// Proposed and not settled.
    pub(crate) proposed: BTreeMap<Ticket, (KeyPoint, Bytes, Option<Stored>)>,
    pub(crate) table: Option<Arc<Table>>,
    /// Strong: `unreadable` is what cannot be stored while this holds.
    pub(crate) picky: bool,
    /// Strong: keys that there is room for, but for those of commits under way.
    pub(crate) room: Option<usize>,
    strong: bool,
}

impl Memory {
    pub(crate) fn read(&self, point: KeyPoint, key: &Bytes) -> Option<u64> {
        let stored = self.values.get(&(point, key.clone()));
        stored.map(|stored| stored.write)
    }

    /// Whether there is room for a key: where it is already there is.
    pub(crate) fn has_room(&self, point: KeyPoint, key: &Bytes) -> bool {
        self.room.is_none_or(|room| self.values.len() < room)
            || self.values.contains_key(&(point, key.clone()))
    }

    pub(crate) fn write(&mut self, point: KeyPoint, key: &Bytes, stored: Option<Stored>) {
        match stored {
            Some(stored) => self.values.insert((point, key.clone()), stored),
            None => self.values.remove(&(point, key.clone())),
        };
    }
}

fn entry(point: KeyPoint, key: &Bytes, stored: &Stored) -> Entry {
    Entry {
        point,
        key: key.clone(),
        version: stored.write,
        value: (!stored.unmarshallable).then(|| stored.bytes()),
    }
}

impl Values for Memory {
    fn publish(&mut self, table: Arc<Table>) {
        self.table = Some(table);
    }

    fn scan(&mut self, slice: Slice, limit: Limit) -> Scan {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        for ((point, key), stored) in self.values.range((slice.start(), Bytes::new())..) {
            if *point > slice.last() {
                break;
            }
            let before = entries.last().map(|entry| entry.point);
            let is_full = entries.len() >= limit.entries || bytes >= limit.bytes;
            if is_full && before.is_some_and(|before| before != *point) {
                let last = KeyPoint(point.0 - 1);
                return Scan { entries, last };
            }
            let entry = entry(*point, key, stored);
            bytes += key.len() + entry.value.as_ref().map_or(0, Bytes::len);
            entries.push(entry);
        }
        let last = slice.last();
        Scan { entries, last }
    }

    fn get(&mut self, point: KeyPoint, key: &Bytes) -> Option<Entry> {
        let stored = self.values.get(&(point, key.clone()))?;
        Some(entry(point, key, stored))
    }

    fn store(&mut self, entry: Entry) -> Result<(), NotStored> {
        let stored = Stored::read(&entry.value.ok_or(NotStored::Unreadable)?);
        if stored.unreadable && (self.picky || !self.strong) {
            return Err(NotStored::Unreadable);
        }
        if !self.has_room(entry.point, &entry.key) {
            return Err(NotStored::NoRoom);
        }
        self.values.insert((entry.point, entry.key), stored);
        Ok(())
    }

    fn remove(&mut self, point: KeyPoint, key: &Bytes) {
        self.values.remove(&(point, key.clone()));
    }

    fn forget_but(&mut self, slice: Slice, stays: &dyn Fn(KeyPoint, &[u8]) -> bool) {
        let gone = |(point, key): &(KeyPoint, Bytes)| slice.contains(*point) && !stays(*point, key);
        self.values.retain(|key, _| !gone(key));
    }

    fn forget(&mut self, slice: Slice) {
        let keys = self.values.range((slice.start(), Bytes::new())..);
        let keys: Vec<_> = keys
            .map(|(key, _)| key.clone())
            .take_while(|(point, _)| *point <= slice.last())
            .collect();
        for key in keys {
            self.values.remove(&key);
        }
    }

    fn settle(&mut self, ticket: Ticket) {
        let Some((point, key, stored)) = self.proposed.remove(&ticket) else {
            panic!("{ticket:?} was never proposed, or is settled twice");
        };
        self.write(point, &key, stored);
    }
}

/// A server and what has happened to its machine.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) core: Core,
    pub(crate) memory: Memory,
    pub(crate) crashed: bool,
    /// Told to stop, and empty: it has left.
    pub(crate) left: bool,
    pub(crate) replaced: bool,
    pub(crate) draining: bool,
    pub(crate) paused: bool,
    pub(crate) paused_at: Duration,
    pub(crate) resumed_at: Duration,
    /// The coordination cannot be reached.
    pub(crate) cut: bool,
    /// Taken for dead by the coordination, whether it knows or not.
    pub(crate) expired: bool,
    drift_ppm: i64,
    offset: Duration,
    /// How long its machine was suspended, of which its clock must not know nothing.
    pub(crate) suspended: Duration,
    /// Whose turn it is to change a key.
    pub(crate) turns: Turns,
    /// When its core has something to do by itself, on its clock: as it was after the last
    /// step of it.
    pub(crate) due: Option<Duration>,
    /// The earliest tick that is scheduled.
    pub(crate) tick_at: Option<Duration>,
    pub(crate) lease_until: Duration,
    /// Its last lease, as it was granted.
    pub(crate) granted: Option<Duration>,
    /// It has asked for a lease, whatever it heard, where there are several assigners.
    pub(crate) has_asked: bool,
    /// Which assigner it asks, where there are several.
    pub(crate) asks: usize,
    /// The newest view that it was told.
    pub(crate) knows: Option<Arc<View>>,
    /// The number of the newest view.
    pub(crate) view: u64,
    /// The newest map it was told, for callers.
    pub(crate) map: Option<Arc<Assignment>>,
    /// Commits acknowledged after it was replaced without knowing.
    pub(crate) void: Vec<usize>,
}

impl Server {
    pub(crate) fn new(id: ServerId, profile: &Profile, drift_ppm: i64, offset: Duration) -> Self {
        let config = Config {
            lease_required: profile.lease_required,
            copies_min: profile.copies_min,
            chunk_entries: profile.chunk_entries,
            chunk_bytes: Config::default().chunk_bytes.min(profile.window_bytes),
            // Alone, with some neighbours, with all that a chunk takes.
            pull_bytes: [0, 40, 64 << 10][profile.keys % 3],
            window_bytes: profile.window_bytes,
            // More than there ever is, a few messages, one.
            bulk_bytes: [256 << 10, 200, 1][profile.keys / 3 % 3],
            bytes_per_second: profile.bytes_per_second,
            resend_after: Duration::from_millis(80),
            retry_max: Duration::from_millis(1_000),
            ..Config::new(profile.replication)
        };
        let core = match Core::new(id, config) {
            Ok(core) => core,
            Err(error) => panic!("{error}"),
        };
        Server {
            id,
            core,
            memory: Memory {
                strong: profile.replication == Replication::Strong,
                room: profile
                    .room
                    .filter(|_| profile.replication == Replication::Strong),
                ..Memory::default()
            },
            crashed: false,
            left: false,
            replaced: false,
            draining: false,
            paused: false,
            paused_at: Duration::ZERO,
            resumed_at: Duration::ZERO,
            cut: false,
            expired: false,
            drift_ppm,
            offset,
            suspended: Duration::ZERO,
            turns: Turns::default(),
            due: None,
            tick_at: None,
            lease_until: Duration::ZERO,
            granted: None,
            has_asked: false,
            asks: 0,
            knows: None,
            view: 0,
            map: None,
            void: Vec::new(),
        }
    }

    /// Time of which its clock knows nothing.
    fn unseen(&self) -> Duration {
        match mutants::is(Mutant::ClockStopsAsleep) {
            true => self.suspended,
            false => Duration::ZERO,
        }
    }

    /// What its clock shows.
    pub(crate) fn clock(&self, now: Duration) -> Duration {
        let micros = now.saturating_sub(self.unseen()).as_micros() as i64;
        self.offset + Duration::from_micros((micros + micros * self.drift_ppm / 1_000_000) as u64)
    }

    /// When its clock will show this, or a little later.
    pub(crate) fn when(&self, clock: Duration) -> Duration {
        let micros = clock.saturating_sub(self.offset).as_micros() as i64;
        let micros = micros * 1_000_000 / (1_000_000 + self.drift_ppm);
        self.unseen() + Duration::from_micros(micros as u64 + 2)
    }

    pub(crate) fn learn(&mut self, map: &Arc<Assignment>) {
        let newer = |known: &Arc<Assignment>| known.version() < map.version();
        if self.map.as_ref().is_none_or(newer) {
            self.map = Some(Arc::clone(map));
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        !self.crashed && !self.left && !self.replaced
    }

    /// The token with which it serves a key, if it does.
    pub(crate) fn token(&self, point: KeyPoint) -> Option<AssignmentVersion> {
        self.core.token(point)
    }

    pub(crate) fn operation(stored: Option<Stored>) -> Operation {
        match stored {
            Some(stored) => Operation::Put {
                version: stored.write,
                value: stored.bytes(),
            },
            None => Operation::Remove,
        }
    }
}
