//! What writes: values that go to disk, and files that are compacted.
//!
//! A step does about a mebibyte of either. A file that is compacted is gone through from its
//! beginning; what is still needed of it is written anew, and it ends with the last reader.
//! Room for that is kept: values that come from memory leave one file's bytes of the bound.
//! A file has no more than these, but for a value that is longer, which is alone in its own.

use super::files::{Files, Ledger};
use super::segment::{Extent, HEADER_BYTES, Record, Segment, Walked};
use crate::damped::Damped;
use crate::marshal::{Marshal, MarshalError, marshal};
use crate::table::{Sent, Table, Victim};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;
use trefoil_layout::hash::KeyHasher;
use trefoil_linklet_core::VALUE_BYTES_MAX;

/// Bytes written at once, or one value.
const STEP_BYTES: usize = 1 << 20;
/// Values written at once: they count as memory meanwhile.
const STEP_COUNT: usize = 4_096;
/// Values for which there is no space, before it is taken for full.
const MISSES_MAX: usize = 4;
/// Files of the bound. Each costs a descriptor, and one of them is kept for compaction.
const SEGMENTS: u64 = 32;
const SEGMENT_BYTES_MIN: u64 = 4 << 10;
/// Above it there are more of them.
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// What of a linklet the writer works on.
pub(super) struct Site<'a, V> {
    pub(super) table: &'a Table<V>,
    pub(super) marshaller: &'a dyn Marshal<V>,
    pub(super) hasher: &'a KeyHasher,
}

/// What a step has come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Bytes of memory that it has freed.
    pub(super) freed: u64,
    /// Values that it has written.
    pub(super) written: usize,
    /// Values copied from a file that is compacted.
    pub(super) copied: usize,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There may be more to do.
    #[default]
    Goes,
    /// No value can go.
    NothingToSpill,
    /// The bound is reached, and nearly all of it is needed.
    DiskFull,
}

/// See the page of this module.
#[derive(Debug)]
pub(super) struct Writer {
    files: Files,
    ledger: Arc<Ledger>,
    bound: u64,
    segment_bytes: u64,
    /// What is written to.
    current: Option<Arc<Segment>>,
    /// Those before it that are still needed.
    older: Vec<Weak<Segment>>,
    /// What is compacted, and from where on.
    compacted: Option<(Arc<Segment>, u64)>,
    next: u64,
    /// Values that cannot be marshalled.
    staying: Damped,
}

impl Writer {
    pub(super) fn new(files: Files, ledger: Arc<Ledger>, bound: u64) -> Self {
        let segment_bytes = (bound / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        Writer {
            files,
            ledger,
            bound,
            segment_bytes,
            current: None,
            older: Vec::new(),
            compacted: None,
            next: 0,
            staying: Damped::default(),
        }
    }

    /// Closes files that nobody needs any more.
    pub(super) fn close(&mut self) {
        // Nobody else makes records of it.
        drop(self.current.take_if(|current| current.is_unused()));
        self.ledger.close();
    }

    /// Does a part of what frees so many bytes of memory.
    pub(super) fn step<V: 'static>(&mut self, site: &Site<'_, V>, wanted: u64) -> io::Result<Step> {
        self.close();
        if self.compacted.is_some() {
            return self.compact(site);
        }
        let mut step = Step::default();
        let segment = self.segment()?;
        let longest = self.bound.saturating_sub(self.segment_bytes);
        let left = self.segment_bytes.saturating_sub(segment.len());
        let mut batch = Batch::new(&segment, left, self.space(), longest);
        batch.gather(site, wanted, &self.staying);
        if batch.is_empty() && batch.misses > 0 {
            // Also those that are there already, if nothing else can be.
            batch.is_full = true;
            batch.gather(site, wanted, &self.staying);
        }
        if batch.is_empty() && batch.is_cut {
            self.end_segment();
            return Ok(step);
        }
        if batch.is_empty() {
            step.outcome = match batch.misses {
                0 => Outcome::NothingToSpill,
                _ if self.begin_compaction() => Outcome::Goes,
                _ => Outcome::DiskFull,
            };
            return Ok(step);
        }
        if !batch.bytes.is_empty() {
            segment.append(&batch.bytes)?;
        }
        for (victim, place) in batch.victims {
            let (record, is_new) = match place {
                Place::Known(record) => (record, false),
                Place::New(extent) => (Arc::new(Record::new(&segment, extent)), true),
            };
            let old = site
                .table
                .visit(victim.key())
                .send_away(&victim.value, record);
            step.written += usize::from(is_new);
            if old.is_some() {
                step.freed += victim.gain;
            }
        }
        Ok(step)
    }

    /// Bytes that values from memory may still take.
    fn space(&self) -> u64 {
        let disk = self.ledger.disk.load(Ordering::Relaxed);
        self.bound.saturating_sub(self.segment_bytes + disk)
    }

    /// What to write to.
    fn segment(&mut self) -> io::Result<Arc<Segment>> {
        if let Some(current) = &self.current {
            return Ok(Arc::clone(current));
        }
        let file = self.files.make()?;
        let segment = Arc::new(Segment::new(file, self.next, Arc::clone(&self.ledger)));
        self.next += 1;
        self.current = Some(Arc::clone(&segment));
        Ok(segment)
    }

    /// Nothing more is written to this one.
    fn end_segment(&mut self) {
        if let Some(current) = self.current.take() {
            self.older.push(Arc::downgrade(&current));
        }
    }

    /// Chooses what to compact; whether there is something that pays.
    fn begin_compaction(&mut self) -> bool {
        self.older.retain(|segment| segment.strong_count() > 0);
        let older = self.older.iter().filter_map(Weak::upgrade);
        let emptiest = older
            .filter(|segment| !segment.is_done.load(Ordering::Relaxed))
            .filter(|segment| segment.live() <= segment.len() / 4 * 3)
            .min_by_key(|segment| segment.live() * 1_024 / segment.len().max(1));
        let found = emptiest.or_else(|| {
            // What is written to, if it is all there is.
            let current = self.current.clone()?;
            let pays = current.len() > 0 && current.live() <= current.len() / 4 * 3;
            pays.then(|| {
                self.end_segment();
                current
            })
        });
        self.compacted = found.map(|segment| (segment, 0));
        self.compacted.is_some()
    }

    /// Copies a part of what is needed of a file, and gives up what is in memory, too.
    fn compact<V: 'static>(&mut self, site: &Site<'_, V>) -> io::Result<Step> {
        let mut step = Step::default();
        let Some((old, from)) = self.compacted.take() else {
            return Ok(step);
        };
        let walked = match from < old.len() {
            true => old.walk(from, STEP_BYTES),
            false => Ok((Vec::new(), from)),
        };
        let (records, next) = match walked {
            Ok(walked) => walked,
            Err(error) => {
                // Whoever reads what is damaged finds that out; the rest stays as it is.
                tracing::error!(%error, "a file of spilled values cannot be compacted");
                (Vec::new(), old.len())
            }
        };
        match self.copy(site, &old, records) {
            Ok(copied) => step.copied = copied,
            Err(error) => {
                // The same again later; what was copied is passed over.
                self.compacted = Some((old, from));
                return Err(error);
            }
        }
        match next < old.len() {
            true => self.compacted = Some((old, next)),
            false => old.is_done.store(true, Ordering::Relaxed),
        }
        Ok(step)
    }

    /// Copies what is needed of these records; how many.
    fn copy<V: 'static>(
        &mut self,
        site: &Site<'_, V>,
        old: &Arc<Segment>,
        records: Vec<Walked>,
    ) -> io::Result<usize> {
        let mut copied = 0;
        let mut copies = Copies::of(self.segment()?);
        for record in records {
            let mut visit = site.table.visit(site.key(&record.key));
            let known = visit.peek().and_then(|entry| {
                let known = entry.value.record()?;
                known.is_at(old, record.offset).then(|| Arc::clone(known))
            });
            let Some(known) = known else { continue };
            if visit.strip().is_some() {
                continue;
            }
            drop(visit);
            if !copies.fits(known.len(), self.segment_bytes) {
                copied += copies.write(site)?;
                self.end_segment();
                copies = Copies::of(self.segment()?);
            }
            copies.add(record, known);
        }
        Ok(copied + copies.write(site)?)
    }
}

/// Records that are copied together.
struct Copies {
    segment: Arc<Segment>,
    base: u64,
    bytes: Vec<u8>,
    moved: Vec<(Vec<u8>, Arc<Record>, Extent)>,
}

impl Copies {
    fn of(segment: Arc<Segment>) -> Self {
        Copies {
            base: segment.len(),
            segment,
            bytes: Vec::new(),
            moved: Vec::new(),
        }
    }

    fn fits(&self, count: u64, segment_bytes: u64) -> bool {
        let at = self.base + self.bytes.len() as u64;
        at == 0 || at + count <= segment_bytes
    }

    fn add(&mut self, record: Walked, known: Arc<Record>) {
        let Walked { key, value, .. } = record;
        let extent = self
            .segment
            .encode(self.base, &mut self.bytes, &key, &value);
        self.moved.push((key, known, extent));
    }

    fn write<V>(self, site: &Site<'_, V>) -> io::Result<usize> {
        if !self.bytes.is_empty() {
            self.segment.append(&self.bytes)?;
        }
        let count = self.moved.len();
        for (key, from, extent) in self.moved {
            let to = Arc::new(Record::new(&self.segment, extent));
            site.table.visit(site.key(&key)).relocate(&from, to);
        }
        Ok(count)
    }
}

impl<V> Site<'_, V> {
    fn key<'a>(&self, bytes: &'a [u8]) -> crate::table::Key<'a> {
        crate::table::Key {
            bytes,
            hash: self.hasher.hash(bytes),
        }
    }
}

/// Where the value of a victim is, or will be.
enum Place {
    Known(Arc<Record>),
    New(Extent),
}

/// Values that go to disk together.
struct Batch<'a, V> {
    segment: &'a Arc<Segment>,
    base: u64,
    /// Bytes that its segment should still take.
    left: u64,
    /// The next one is for another segment.
    is_cut: bool,
    /// Bytes that the disk may still take.
    space: u64,
    /// Bytes of a record that fits if nothing else is there.
    longest: u64,
    sent: Sent,
    bytes: Vec<u8>,
    victims: Vec<(Victim<V>, Place)>,
    freed: u64,
    /// Values for which there was no space.
    misses: usize,
    /// Takes nothing that has to be written.
    is_full: bool,
}

impl<'a, V: 'static> Batch<'a, V> {
    fn new(segment: &'a Arc<Segment>, left: u64, space: u64, longest: u64) -> Self {
        Batch {
            segment,
            base: segment.len(),
            left,
            is_cut: false,
            space,
            longest,
            sent: Sent::default(),
            bytes: Vec::new(),
            victims: Vec::new(),
            freed: 0,
            misses: 0,
            is_full: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.victims.is_empty()
    }

    fn gather(&mut self, site: &Site<'_, V>, wanted: u64, staying: &Damped) {
        while self.freed < wanted
            && self.bytes.len() < STEP_BYTES
            && self.victims.len() < STEP_COUNT
            && (self.is_full || self.misses < MISSES_MAX)
        {
            let Some(victim) = site.table.victim(&mut self.sent, self.is_full) else {
                return;
            };
            let place = match &victim.record {
                Some(record) => Place::Known(Arc::clone(record)),
                None => match marshalled(site.marshaller, &victim, self.longest) {
                    Ok(value) => {
                        let count = HEADER_BYTES + victim.key.len() + value.len();
                        let after = (self.bytes.len() + count) as u64;
                        if after > self.space {
                            self.misses += 1;
                            continue;
                        }
                        let is_first = self.base == 0 && self.bytes.is_empty();
                        if after > self.left && !is_first {
                            self.is_cut = true;
                            return;
                        }
                        let (base, out) = (self.base, &mut self.bytes);
                        Place::New(self.segment.encode(base, out, &victim.key, &value))
                    }
                    Err(error) => {
                        if let Some(count) = staying.tell(Instant::now()) {
                            tracing::error!(
                                key = %String::from_utf8_lossy(&victim.key),
                                %error,
                                count,
                                "a value cannot be spilled, and stays in memory"
                            );
                        }
                        let mut visit = site.table.visit(victim.key());
                        let same = |value: &Arc<V>| Arc::ptr_eq(value, &victim.value);
                        if let Some(entry) = visit.peek()
                            && entry.value.here().is_some_and(same)
                        {
                            entry.stays = true;
                        }
                        continue;
                    }
                },
            };
            self.freed += victim.gain;
            self.victims.push((victim, place));
        }
    }
}

/// The value's bytes, as they go to a peer.
fn marshalled<V: 'static>(
    marshaller: &dyn Marshal<V>,
    victim: &Victim<V>,
    longest: u64,
) -> Result<Vec<u8>, MarshalError> {
    let bytes = marshal(marshaller, &victim.key, &victim.value)?;
    let count = HEADER_BYTES + victim.key.len() + bytes.len();
    let max = longest.min(VALUE_BYTES_MAX as u64);
    match count as u64 <= max {
        true => Ok(bytes),
        false => Err(MarshalError::new(format!(
            "it takes {count} bytes on disk, and {max} at most are taken"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainMarshal;
    use crate::lifetime::Lifetimes;
    use crate::table::{Brought, Found};
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt as _;
    use trefoil_freshness_core::table::Stamp;

    const VALUE_BYTES: usize = 1_000;

    struct Rig<M> {
        table: Arc<Table<Vec<u8>>>,
        hasher: KeyHasher,
        marshaller: M,
        writer: Writer,
        _directory: tempfile::TempDir,
    }

    fn name(n: u64) -> Vec<u8> {
        format!("key {n}").into_bytes()
    }

    fn value(n: u64) -> Vec<u8> {
        let mut value = n.to_le_bytes().to_vec();
        value.resize(VALUE_BYTES, n as u8);
        value
    }

    fn table() -> Arc<Table<Vec<u8>>> {
        Arc::new(Table::new(100 << 20, Lifetimes::default()))
    }

    impl Rig<PlainMarshal> {
        fn new(disk: u64) -> Self {
            Rig::with(table(), PlainMarshal, disk)
        }
    }

    impl<M: Marshal<Vec<u8>>> Rig<M> {
        fn with(table: Arc<Table<Vec<u8>>>, marshaller: M, disk: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let files = Files::open(directory.path()).unwrap();
            Rig {
                table,
                hasher: KeyHasher::default(),
                marshaller,
                writer: Writer::new(files, Arc::default(), disk),
                _directory: directory,
            }
        }

        fn put(&self, n: u64, value: Vec<u8>) {
            put(&self.table, &self.hasher, n, value);
        }

        fn remove(&self, n: u64) {
            let name = name(n);
            let key = self.site().key(&name);
            self.table.visit(key).remove().expect("it is there");
        }

        fn site(&self) -> Site<'_, Vec<u8>> {
            Site {
                table: &self.table,
                marshaller: &self.marshaller,
                hasher: &self.hasher,
            }
        }

        fn step(&mut self, wanted: u64) -> io::Result<Step> {
            // Not by `site`: that borrows the writer, too.
            let site = Site {
                table: &self.table,
                marshaller: &self.marshaller,
                hasher: &self.hasher,
            };
            self.writer.step(&site, wanted)
        }

        /// Spills all that can be.
        fn spill(&mut self) -> Outcome {
            loop {
                let step = self.step(u64::MAX).unwrap();
                let disk = self.writer.ledger.disk.load(Ordering::Relaxed);
                assert!(disk <= self.writer.bound, "{disk} bytes on disk");
                if step.outcome != Outcome::Goes {
                    return step.outcome;
                }
            }
        }

        fn found(&self, n: u64) -> Option<Found<Vec<u8>>> {
            let name = name(n);
            let mut visit = self.table.visit(self.site().key(&name));
            visit.peek().map(|entry| entry.value.found())
        }

        fn is_away(&self, n: u64) -> bool {
            matches!(self.found(n), Some(Found::There(_)))
        }

        /// What a key has, wherever it is.
        fn read(&self, n: u64) -> Option<Vec<u8>> {
            match self.found(n)? {
                Found::Here(value) => Some(value.to_vec()),
                Found::There(record) => Some(record.read(&name(n)).unwrap().to_vec()),
            }
        }

        fn bring_back(&self, n: u64) {
            let Some(Found::There(record)) = self.found(n) else {
                panic!("{n} is not on disk");
            };
            let value = Arc::new(self.read(n).unwrap());
            let weight = Table::<Vec<u8>>::weight(&name(n), value.len());
            let weight = weight + Table::<Vec<u8>>::weight_of_place();
            let room = self.table.reserve_free(weight, 0).unwrap();
            let (name, brought) = (name(n), Brought { record, value });
            let key = self.site().key(&name);
            assert!(self.table.visit(key).bring_back(&brought, room));
        }
    }

    fn put(table: &Table<Vec<u8>>, hasher: &KeyHasher, n: u64, value: Vec<u8>) {
        let name = name(n);
        let weight = Table::<Vec<u8>>::weight(&name, value.len());
        let room = table.reserve_free(weight, 0).unwrap();
        let key = crate::table::Key {
            bytes: &name,
            hash: hasher.hash(&name),
        };
        table.visit(key).put(Arc::new(value), Stamp::UNKNOWN, room);
    }

    #[test]
    fn what_was_spilled_is_as_it_was_and_its_memory_is_free() {
        let mut rig = Rig::new(100 << 20);
        for n in 0..3_000 {
            rig.put(n, value(n));
        }
        let before = rig.table.bytes();
        let step = rig.step(10_000).unwrap();
        assert!((10_000..20_000).contains(&step.freed), "{step:?}");
        assert_eq!(before - rig.table.bytes(), step.freed);
        assert_eq!(rig.table.away(), step.written as u64);
        assert_eq!(rig.spill(), Outcome::NothingToSpill);
        assert_eq!(rig.table.away(), 3_000);
        let keys: u64 = (0..3_000).map(|n| Table::<()>::weight_away(&name(n))).sum();
        assert_eq!(rig.table.bytes(), keys);
        // What moves with a slice is on disk, too.
        let disk = rig.writer.ledger.live.load(Ordering::Relaxed);
        let all = trefoil_sharder::Slice::ALL;
        assert_eq!(rig.table.bytes_in(all), keys + disk);
        for n in 0..3_000 {
            assert_eq!(rig.read(n), Some(value(n)));
        }
        for n in 0..3_000 {
            rig.remove(n);
        }
        rig.writer.close();
        assert_eq!(rig.table.bytes_in(all), 0);
        assert_eq!((rig.table.bytes(), rig.table.away()), (0, 0));
        assert_eq!(rig.writer.ledger.disk.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_not_changed_is_not_written_again() {
        let mut rig = Rig::new(100 << 20);
        for n in 0..100 {
            rig.put(n, value(n));
        }
        rig.spill();
        let (bytes, disk) = (
            rig.table.bytes(),
            rig.writer.ledger.disk.load(Ordering::Relaxed),
        );
        for n in 0..50 {
            rig.bring_back(n);
        }
        assert_eq!(rig.table.away(), 50);
        rig.put(7, value(1_007));
        let step = rig.step(u64::MAX).unwrap();
        assert_eq!(step.written, 1);
        rig.spill();
        assert_eq!((rig.table.bytes(), rig.table.away()), (bytes, 100));
        let more = rig.writer.ledger.disk.load(Ordering::Relaxed) - disk;
        assert_eq!(more, disk / 100);
        assert_eq!(rig.read(7), Some(value(1_007)));
        assert_eq!(rig.read(8), Some(value(8)));
    }

    /// Changes the value while it is being marshalled.
    struct Meddling(Arc<Table<Vec<u8>>>);

    impl Marshal<Vec<u8>> for Meddling {
        fn marshal(
            &self,
            _: &[u8],
            value: &Vec<u8>,
            out: &mut Vec<u8>,
        ) -> Result<(), MarshalError> {
            let n = u64::from_le_bytes(*value.first_chunk().unwrap());
            if n == 3 {
                put(&self.0, &KeyHasher::default(), 3, value_of_another());
            }
            if n == 4 {
                return Err(MarshalError::new("four"));
            }
            out.extend_from_slice(value);
            Ok(())
        }

        fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Vec<u8>, MarshalError> {
            Ok(bytes.to_vec())
        }
    }

    fn value_of_another() -> Vec<u8> {
        value(1_003)
    }

    #[test]
    fn what_is_changed_or_held_or_cannot_be_marshalled_stays() {
        let table = table();
        let mut rig = Rig::with(Arc::clone(&table), Meddling(table), 100 << 20);
        for n in 0..8 {
            rig.put(n, value(n));
        }
        let five = name(5);
        let key = rig.site().key(&five);
        rig.table.visit(key).peek().unwrap().pinned = true;
        // The new one may go, too, and nothing else may stand for it.
        assert_eq!(rig.spill(), Outcome::NothingToSpill);
        let away: Vec<_> = (0..8).filter(|&n| rig.is_away(n)).collect();
        assert_eq!(away, [0, 1, 2, 3, 6, 7]);
        assert_eq!(rig.read(3), Some(value_of_another()));
    }

    #[test]
    fn the_bound_on_disk_holds_and_compaction_finds_room() {
        let mut rig = Rig::new(1 << 20);
        for n in 0..3_000 {
            rig.put(n, value(n));
        }
        assert_eq!(rig.spill(), Outcome::DiskFull);
        let full = rig.table.away();
        assert!((900..1_024).contains(&full), "{full}");
        let away: Vec<u64> = (0..3_000).filter(|&n| rig.is_away(n)).collect();
        // Every third stays, in every file.
        let (stay, go): (Vec<u64>, Vec<u64>) = away.iter().partition(|&&n| n % 3 == 0);
        for &n in &go {
            rig.remove(n);
        }
        assert_eq!(rig.spill(), Outcome::DiskFull);
        let again = rig.table.away();
        assert!(again > full * 3 / 4, "{again} of {full}");
        for &n in &stay {
            assert!(rig.is_away(n));
        }
        for n in (0..3_000).filter(|n| !go.contains(n)) {
            assert_eq!(rig.read(n), Some(value(n)), "{n}");
        }
    }

    /// Values of all lengths that come, change, go and are read, on a disk that is always full.
    #[test]
    fn the_bound_on_disk_holds_whatever_comes_and_goes() {
        let mut rig = Rig::new(1 << 20);
        let mut model = std::collections::BTreeMap::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..6_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let n = random % 300;
            match random >> 60 {
                0..9 => {
                    // Some are longer than a file, which has 32 KiB.
                    let most = if random >> 32 & 15 == 0 {
                        100_000
                    } else {
                        9_000
                    };
                    let len = 8 + (random >> 20) as usize % most;
                    let mut value = random.to_le_bytes().to_vec();
                    value.resize(len, round as u8);
                    rig.put(n, value.clone());
                    model.insert(n, value);
                }
                9..13 if rig.is_away(n) => rig.bring_back(n),
                13.. if model.remove(&n).is_some() => rig.remove(n),
                _ => {}
            }
            if round % 8 == 0 {
                rig.spill();
            }
            if round % 500 == 0 {
                for n in 0..300 {
                    assert_eq!(rig.read(n).as_ref(), model.get(&n), "{n}");
                }
            }
        }
        assert!(rig.table.away() > 100, "{}", rig.table.away());
        for n in model.keys() {
            rig.remove(*n);
        }
        rig.writer.compacted = None;
        rig.writer.close();
        let ledger = &rig.writer.ledger;
        let left = [&ledger.disk, &ledger.live, &ledger.segments];
        assert_eq!(left.map(|count| count.load(Ordering::Relaxed)), [0; 3]);
        assert_eq!((rig.table.bytes(), rig.table.away()), (0, 0));
    }

    /// What is in memory, too, is given up on disk before anything is full.
    #[test]
    fn what_was_brought_back_keeps_no_place_that_others_need() {
        let mut rig = Rig::new(1 << 20);
        for n in 0..900 {
            rig.put(n, value(n));
        }
        assert_eq!(rig.spill(), Outcome::NothingToSpill);
        for n in 0..900 {
            rig.bring_back(n);
            let name = name(n);
            rig.table
                .visit(rig.site().key(&name))
                .peek()
                .unwrap()
                .pinned = true;
        }
        for n in 900..1_800 {
            rig.put(n, value(n));
        }
        assert_eq!(rig.spill(), Outcome::NothingToSpill);
        assert_eq!(rig.table.away(), 900);
        for n in 0..1_800 {
            assert_eq!(rig.is_away(n), n >= 900);
            assert_eq!(rig.read(n), Some(value(n)), "{n}");
        }
        let weight = |n| Table::<()>::weight(&name(n), VALUE_BYTES);
        let mut here: u64 = (0..900).map(weight).sum();
        here += (900..1_800)
            .map(|n| Table::<()>::weight_away(&name(n)))
            .sum::<u64>();
        let places = rig.table.bytes() - here;
        assert!(places < 900 * Table::<()>::weight_of_place(), "{places}");
    }

    #[test]
    fn a_value_that_is_longer_than_the_disk_is_in_nobodys_way() {
        let mut rig = Rig::new(100_000);
        rig.put(0, vec![0; 200_000]);
        for n in 1..50 {
            rig.put(n, value(n));
        }
        assert_eq!(rig.spill(), Outcome::NothingToSpill);
        assert_eq!(rig.table.away(), 49);
        assert!(!rig.is_away(0));
    }

    #[test]
    fn what_could_not_be_written_stays_and_is_written_later() {
        let mut rig = Rig::new(100 << 20);
        for n in 0..10 {
            rig.put(n, value(n));
        }
        // Takes nothing, like a disk that is full.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ledger = Arc::clone(&rig.writer.ledger);
        rig.writer.current = Some(Arc::new(Segment::new(full, 99, ledger)));
        for _ in 0..3 {
            let error = rig.step(u64::MAX).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(rig.table.away(), 0);
        }
        rig.writer.current = None;
        rig.spill();
        assert_eq!(rig.table.away(), 10);
        for n in 0..10 {
            assert_eq!(rig.read(n), Some(value(n)));
        }
    }

    #[test]
    fn a_damaged_file_is_not_compacted_and_the_rest_can_be_read() {
        let mut rig = Rig::new(1 << 20);
        for n in 0..2_000 {
            rig.put(n, value(n));
        }
        assert_eq!(rig.spill(), Outcome::DiskFull);
        let away: Vec<u64> = (0..2_000).filter(|&n| rig.is_away(n)).collect();
        let segments: Vec<_> = rig.writer.older.iter().filter_map(Weak::upgrade).collect();
        for segment in &segments {
            // A header: nothing is known of what comes after it.
            segment.overwrite(8, &[0xff; 4]);
        }
        drop(segments);
        for n in away.iter().filter(|&n| n % 2 == 0) {
            rig.remove(*n);
        }
        assert_eq!(rig.spill(), Outcome::DiskFull);
        let (mut read, mut damaged) = (0, 0);
        for &n in away.iter().filter(|&n| n % 2 == 1) {
            let Some(Found::There(record)) = rig.found(n) else {
                continue;
            };
            match record.read(&name(n)) {
                Ok(bytes) => {
                    assert_eq!(bytes, value(n), "{n}");
                    read += 1;
                }
                Err(_) => damaged += 1,
            }
        }
        assert!(read > 300 && damaged <= 32, "{read}, {damaged}");
    }

    impl Segment {
        fn overwrite(&self, at: u64, bytes: &[u8]) {
            self.file().write_all_at(bytes, at).unwrap();
        }
    }
}
