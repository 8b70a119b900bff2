//! One file of spilled values, appended to until it is full, and a place in it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | checksum: XXH3-64 of all that follows, seeded with the segment and the place |
//! | 8 | 4 | length of the key, little-endian as all numbers here |
//! | 12 | 4 | length of the value |
//! | 16 | | the key, then the value as the application's marshaller has made it |
//!
//! Records follow each other without gaps. A place in memory says where a record is and how
//! long; what the file says of that is only checked. So no damage of a file leads anywhere
//! but to [`Unreadable`].
//!
//! Whoever holds a [`Record`] can read it, whatever becomes of its entry meanwhile. A file
//! ends with the last record that points into it.

use super::files::Ledger;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// Bytes of a record before its key.
pub(super) const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const _: () = assert!(HEADER_BYTES == CHECKSUM_BYTES + 4 + 4);

/// Why a spilled value cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it cannot be read from disk: {0}")]
    Io(Arc<io::Error>),
    #[error("what is on disk is not what was written there: its checksum is wrong")]
    Checksum,
    #[error("what is on disk is another key's")]
    OtherKey,
    #[error("what was written cannot be unmarshalled: {0}")]
    Marshal(crate::marshal::MarshalError),
}

/// A file of records.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Taken out when the last record has gone.
    file: Option<File>,
    /// Its own among the segments of a linklet.
    number: u64,
    /// Bytes of whole records; only the writer appends.
    len: AtomicU64,
    /// Of these, bytes of values that are nowhere else.
    live: AtomicU64,
    /// Places in it that somebody knows.
    records: AtomicU64,
    /// It was compacted, and holds what could not be moved.
    pub(super) is_done: AtomicBool,
    ledger: Arc<Ledger>,
}

impl Segment {
    pub(super) fn new(file: File, number: u64, ledger: Arc<Ledger>) -> Self {
        ledger.segments.fetch_add(1, Ordering::Relaxed);
        Segment {
            file: Some(file),
            number,
            len: AtomicU64::new(0),
            live: AtomicU64::new(0),
            records: AtomicU64::new(0),
            is_done: AtomicBool::new(false),
            ledger,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Whether nobody needs anything of it.
    pub(super) fn is_unused(&self) -> bool {
        self.len() > 0 && self.records.load(Ordering::Acquire) == 0
    }

    pub(super) fn file(&self) -> &File {
        // Taken out when it is dropped, and nobody has it any more.
        self.file.as_ref().expect("a segment has its file")
    }

    /// Appends whole records that were encoded for this place. If it fails the next attempt
    /// begins at the same place.
    pub(super) fn append(&self, records: &[u8]) -> io::Result<()> {
        self.file().write_all_at(records, self.len())?;
        let count = records.len() as u64;
        self.len.fetch_add(count, Ordering::Relaxed);
        self.ledger.disk.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// What a record at this place is seeded with.
    fn seed(&self, offset: u64) -> u64 {
        self.number.rotate_left(40) ^ offset
    }

    /// Appends a record to what is to be written at `base`; where it will be.
    pub(super) fn encode(&self, base: u64, out: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Extent {
        let begin = out.len();
        let offset = base + begin as u64;
        out.reserve(HEADER_BYTES + key.len() + value.len());
        out.extend_from_slice(&[0; CHECKSUM_BYTES]);
        out.extend_from_slice(&length(key).to_le_bytes());
        out.extend_from_slice(&length(value).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
        let record = &mut out[begin..];
        let sum = XxHash3_64::oneshot_with_seed(self.seed(offset), &record[CHECKSUM_BYTES..]);
        record[..CHECKSUM_BYTES].copy_from_slice(&sum.to_le_bytes());
        Extent {
            offset,
            len: record.len() as u32,
        }
    }

    /// Key and value of a record that was read from this place.
    fn decode<'a>(&self, offset: u64, record: &'a [u8]) -> Result<Decoded<'a>, Unreadable> {
        let (sum, rest) = record
            .split_first_chunk::<CHECKSUM_BYTES>()
            .ok_or(Unreadable::Checksum)?;
        if XxHash3_64::oneshot_with_seed(self.seed(offset), rest) != u64::from_le_bytes(*sum) {
            return Err(Unreadable::Checksum);
        }
        let lengths = Lengths::of(record).filter(|lengths| lengths.record() == record.len());
        let lengths = lengths.ok_or(Unreadable::Checksum)?;
        let (key, value) = record[HEADER_BYTES..].split_at(lengths.key);
        Ok(Decoded { key, value })
    }

    /// Records from a place on, about so many bytes of them, and where the next ones begin.
    pub(super) fn walk(&self, from: u64, bytes: usize) -> Result<(Vec<Walked>, u64), Unreadable> {
        let left = usize::try_from(self.len() - from).unwrap_or(usize::MAX);
        let mut chunk = self.read(from, bytes.max(HEADER_BYTES).min(left))?;
        let first = Lengths::of(&chunk).map_or(usize::MAX, |lengths| lengths.record());
        if first > left {
            return Err(Unreadable::Checksum);
        }
        if first > chunk.len() {
            chunk = self.read(from, first)?;
        }
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(lengths) = Lengths::of(&chunk[at..]) {
            let Some(record) = chunk.get(at..at + lengths.record()) else {
                break;
            };
            let offset = from + at as u64;
            let Decoded { key, value } = self.decode(offset, record)?;
            found.push(Walked {
                offset,
                key: key.to_vec(),
                value: value.to_vec(),
            });
            at += record.len();
        }
        Ok((found, from + at as u64))
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; len];
        let read = self.file().read_exact_at(&mut bytes, offset);
        read.map_err(|error| Unreadable::Io(Arc::new(error)))?;
        Ok(bytes)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.ledger.bury(file, self.len());
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("keys and values are shorter than VALUE_BYTES_MAX")
}

struct Decoded<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

struct Lengths {
    key: usize,
    value: usize,
}

impl Lengths {
    /// What a header says; nothing is known of whether it is true.
    fn of(record: &[u8]) -> Option<Self> {
        let (_, rest) = record.split_first_chunk::<CHECKSUM_BYTES>()?;
        let (key, rest) = rest.split_first_chunk::<4>()?;
        let (value, _) = rest.split_first_chunk::<4>()?;
        Some(Lengths {
            key: u32::from_le_bytes(*key) as usize,
            value: u32::from_le_bytes(*value) as usize,
        })
    }

    fn record(&self) -> usize {
        HEADER_BYTES + self.key + self.value
    }
}

/// Where a record is in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// A record that a walk has come to.
pub(super) struct Walked {
    pub(super) offset: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// Where a value is on disk.
#[derive(Debug)]
pub(crate) struct Record {
    segment: Arc<Segment>,
    offset: u64,
    len: u32,
    /// The value is nowhere else.
    is_live: AtomicBool,
}

impl Record {
    /// One whose value is in memory, too, until [`Record::set_live`].
    pub(super) fn new(segment: &Arc<Segment>, extent: Extent) -> Self {
        segment.records.fetch_add(1, Ordering::AcqRel);
        Record {
            segment: Arc::clone(segment),
            offset: extent.offset,
            len: extent.len,
            is_live: AtomicBool::new(false),
        }
    }

    /// Bytes that it takes on disk.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.len)
    }

    pub(super) fn is_at(&self, segment: &Arc<Segment>, offset: u64) -> bool {
        Arc::ptr_eq(&self.segment, segment) && self.offset == offset
    }

    /// Whether the value is nowhere else: under the lock of its part.
    pub(crate) fn set_live(&self, live: bool) {
        let was = self.is_live.swap(live, Ordering::Relaxed);
        let (segment, ledger) = (&self.segment, &self.segment.ledger);
        if live && !was {
            segment.live.fetch_add(self.len(), Ordering::Relaxed);
            ledger.live.fetch_add(self.len(), Ordering::Relaxed);
        }
        if was && !live {
            ledger.live.fetch_sub(self.len(), Ordering::Relaxed);
            segment.live.fetch_sub(self.len(), Ordering::Relaxed);
        }
    }

    /// Reads the value's bytes, which have to be this key's. This takes as long as the disk
    /// takes.
    pub(crate) fn read(&self, key: &[u8]) -> Result<Bytes, Unreadable> {
        let record = self.segment.read(self.offset, self.len as usize)?;
        let decoded = self.segment.decode(self.offset, &record)?;
        if decoded.key != key {
            return Err(Unreadable::OtherKey);
        }
        let value = HEADER_BYTES + key.len();
        Ok(Bytes::from(record).slice(value..))
    }

    /// Has the kernel begin to read it: it will be wanted in a moment.
    pub(crate) fn prefetch(&self) {
        let len = std::num::NonZeroU64::new(self.len());
        let wanted = rustix::fs::Advice::WillNeed;
        // Whoever reads it finds out what is wrong.
        let _ = rustix::fs::fadvise(self.segment.file(), self.offset, len, wanted);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.set_live(false);
        if self.segment.records.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Perhaps the writer can do without it.
            self.segment.ledger.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u64) -> Arc<Segment> {
        let file = tempfile::tempfile().unwrap();
        Arc::new(Segment::new(file, number, Arc::default()))
    }

    fn write(segment: &Arc<Segment>, key: &[u8], value: &[u8]) -> Record {
        let mut bytes = Vec::new();
        let extent = segment.encode(segment.len(), &mut bytes, key, value);
        segment.append(&bytes).unwrap();
        Record::new(segment, extent)
    }

    #[test]
    fn what_was_written_comes_back() {
        let segment = segment(1);
        let records: Vec<_> = (0..100u8)
            .map(|n| write(&segment, &[n], &vec![n; usize::from(n) * 7]))
            .collect();
        for (n, record) in (0..100u8).zip(&records) {
            record.prefetch();
            let value = record.read(&[n]).unwrap();
            assert_eq!(value, vec![n; usize::from(n) * 7]);
            let other = record.read(&[n + 1]);
            assert!(matches!(other, Err(Unreadable::OtherKey)), "{other:?}");
        }
    }

    #[test]
    fn a_walk_sees_every_record_also_one_longer_than_its_chunk() {
        let segment = segment(1);
        let lens = [5, 5_000, 0, 70_000, 1, 1];
        for (n, &len) in (0u8..).zip(&lens) {
            write(&segment, &[n], &vec![n; len]);
        }
        for chunk in [1, 100, 6_000, 1 << 20] {
            let (mut found, mut at) = (Vec::new(), 0);
            while at < segment.len() {
                let (more, next) = segment.walk(at, chunk).unwrap();
                assert!(next > at, "it gets on");
                found.extend(more);
                at = next;
            }
            let seen: Vec<_> = found
                .iter()
                .map(|record| (record.key[0], record.value.len()))
                .collect();
            let expected: Vec<_> = (0u8..).zip(lens).collect();
            assert_eq!(seen, expected, "{chunk}");
        }
    }

    /// Every byte of a record is either checked or not looked at.
    #[test]
    fn any_byte_that_is_changed_is_found_out() {
        let segment = segment(7);
        write(&segment, b"before", b"1");
        let record = write(&segment, b"key", b"value");
        write(&segment, b"after", b"2");
        let file = segment.file();
        for at in record.offset..record.offset + record.len() {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let read = record.read(b"key");
            assert!(matches!(read, Err(Unreadable::Checksum)), "{at}: {read:?}");
            let walked = (0..2).try_fold(0, |from, _| segment.walk(from, 1).map(|(_, to)| to));
            assert!(walked.is_err(), "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(record.read(b"key").unwrap(), &b"value"[..]);
    }

    #[test]
    fn a_record_that_is_elsewhere_or_gone_is_found_out() {
        let (one, two) = (segment(1), segment(2));
        let there = write(&one, b"key", b"value");
        let mut bytes = vec![0; there.len as usize];
        one.file().read_exact_at(&mut bytes, 0).unwrap();
        // The same bytes at another place, and in another file.
        one.append(&bytes).unwrap();
        two.append(&bytes).unwrap();
        let extent = |offset| Extent {
            offset,
            len: there.len,
        };
        for (segment, offset) in [(&one, there.len()), (&two, 0)] {
            let read = Record::new(segment, extent(offset)).read(b"key");
            assert!(matches!(read, Err(Unreadable::Checksum)), "{read:?}");
        }
        one.file().set_len(there.len() - 1).unwrap();
        assert!(matches!(there.read(b"key"), Err(Unreadable::Io(_))));
    }

    #[test]
    fn live_bytes_are_those_of_records_whose_values_are_nowhere_else() {
        let segment = segment(1);
        let ledger = Arc::clone(&segment.ledger);
        let live = || (segment.live(), ledger.live.load(Ordering::Relaxed));
        let (a, b) = (write(&segment, b"a", b"1"), write(&segment, b"b", b"2"));
        assert_eq!(live(), (0, 0));
        a.set_live(true);
        a.set_live(true);
        b.set_live(true);
        assert_eq!(live(), (segment.len(), segment.len()));
        b.set_live(false);
        drop(b);
        assert_eq!(live(), (a.len(), a.len()));
        drop(a);
        assert_eq!(live(), (0, 0));
        assert_eq!(ledger.disk.load(Ordering::Relaxed), segment.len());
        drop(segment);
        ledger.close();
        assert_eq!(ledger.disk.load(Ordering::Relaxed), 0);
        assert_eq!(ledger.segments.load(Ordering::Relaxed), 0);
    }
}
