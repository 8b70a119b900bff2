//! The file in which a worker keeps what it does.
//!
//! One record an event, all of one length, little-endian words:
//!
//! | offset | field |
//! |---|---|
//! | 0 | client 4, number 4 |
//! | 8 | key 4, length of the value 4 |
//! | 16 | kind 1, outcome 1, reserved 6 |
//! | 24 | begin 8, end 8 |
//! | 40 | mark: writer 4, sequence 4, count 4, reserved 4 |
//! | 56 | version 16 |
//! | 72 | expected: writer 4, sequence 4, count 4, reserved 4 |
//! | 88 | expected version 16 |
//! | 104 | miss: begin 8, end 8 |
//!
//! A mutation is recorded twice: as begun before it is sent, so that a client
//! that is killed leaves word of what it may have done, and when it has ended.

use crate::event::{Event, Kind, Mark, NEVER, Outcome};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Result, Write};
use std::path::{Path, PathBuf};
use trefoil_layout::Version;

/// Bytes of a record.
pub(crate) const RECORD_LEN: usize = 120;

/// Writes a worker's events.
#[derive(Debug)]
pub struct LogWriter {
    file: BufWriter<File>,
}

impl LogWriter {
    /// Begins a log.
    pub fn create(path: &Path) -> Result<Self> {
        Ok(LogWriter {
            file: BufWriter::with_capacity(64 * RECORD_LEN, File::create(path)?),
        })
    }

    /// A mutation is about to be sent: from now on the record outlives us.
    pub fn begun(&mut self, event: &Event) -> Result<()> {
        self.file.write_all(&encode(event))?;
        self.file.flush()
    }

    /// An operation has ended.
    pub fn ended(&mut self, event: &Event) -> Result<()> {
        self.file.write_all(&encode(event))
    }

    /// Writes out what is still in memory.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

/// Reads a worker's events.
#[derive(Debug)]
pub struct LogReader;

impl LogReader {
    /// All operations of a log, each once. A record that a killed worker left
    /// unfinished is passed over.
    pub fn read(path: &Path) -> Result<Vec<Event>> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut events: Vec<Event> = Vec::new();
        let mut open: HashMap<u32, usize> = HashMap::new();
        let mut record = [0; RECORD_LEN];
        while file.read_exact(&mut record).is_ok() {
            let event = decode(&record).ok_or_else(|| {
                let message = format!("{}: a record makes no sense", path.display());
                std::io::Error::new(std::io::ErrorKind::InvalidData, message)
            })?;
            if event.end_ns == NEVER {
                open.insert(event.number, events.len());
                events.push(event);
            } else if let Some(at) = open.remove(&event.number) {
                events[at] = event;
            } else {
                events.push(event);
            }
        }
        Ok(events)
    }
}

/// Counts, while a worker goes on, how many of its operations have succeeded.
#[derive(Debug)]
pub(crate) struct LogFollower {
    path: PathBuf,
    file: Option<File>,
    /// A record of which the rest is still to come.
    rest: Vec<u8>,
    succeeded: u64,
    records: u64,
}

impl LogFollower {
    /// Of a log that need not be there yet.
    pub(crate) fn new(path: &Path) -> Self {
        LogFollower {
            path: path.to_owned(),
            file: None,
            rest: Vec::new(),
            succeeded: 0,
            records: 0,
        }
    }

    /// The log.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records that were read so far: of operations that have begun or ended, however.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// All that have succeeded by now. What cannot be read yet is read the next time.
    pub(crate) fn look(&mut self) -> u64 {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        if let Some(file) = &mut self.file {
            // What was read before an error is there.
            let _ = file.read_to_end(&mut self.rest);
        }
        let (records, rest) = self.rest.as_chunks::<RECORD_LEN>();
        self.records += records.len() as u64;
        let events = records.iter().filter_map(decode);
        // One that has only begun has not succeeded yet.
        let succeeded = events.filter(|event| event.outcome.has_succeeded());
        self.succeeded += succeeded.count() as u64;
        self.rest.drain(..self.rest.len() - rest.len());
        self.succeeded
    }
}

fn encode(event: &Event) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        record[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for word in [event.client, event.number, event.key, event.len] {
        put(&word.to_le_bytes());
    }
    put(&[event.kind as u8, event.outcome as u8, 0, 0, 0, 0, 0, 0]);
    put(&event.begin_ns.to_le_bytes());
    put(&event.end_ns.to_le_bytes());
    for (mark, version) in [
        (event.mark, event.version),
        (event.expected, event.expected_version),
    ] {
        for word in [mark.writer, mark.sequence, mark.count, 0] {
            put(&word.to_le_bytes());
        }
        put(&version.time_ns.to_le_bytes());
        put(&version.origin.to_le_bytes());
    }
    put(&event.miss_begin_ns.to_le_bytes());
    put(&event.miss_end_ns.to_le_bytes());
    assert_eq!(at, RECORD_LEN, "the table at the top says so");
    record
}

fn decode(record: &[u8; RECORD_LEN]) -> Option<Event> {
    let short = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
    let mark = |at: usize| Mark {
        writer: short(at),
        sequence: short(at + 4),
        count: short(at + 8),
    };
    let version = |at: usize| Version {
        time_ns: long(at),
        origin: long(at + 8),
    };
    Some(Event {
        client: short(0),
        number: short(4),
        key: short(8),
        len: short(12),
        kind: Kind::ALL.into_iter().find(|k| *k as u8 == record[16])?,
        outcome: Outcome::ALL.into_iter().find(|o| *o as u8 == record[17])?,
        begin_ns: long(24),
        end_ns: long(32),
        mark: mark(40),
        version: version(56),
        expected: mark(72),
        expected_version: version(88),
        miss_begin_ns: long(104),
        miss_end_ns: long(112),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u32) -> Event {
        Event {
            end_ns: 9,
            outcome: Outcome::Stored,
            mark: Mark::new(3, number),
            len: 77,
            version: Version::new(5, 6, 7),
            expected: Mark {
                writer: 8,
                sequence: 9,
                count: 10,
            },
            expected_version: Version::new(11, 12, 13),
            miss_begin_ns: 14,
            miss_end_ns: 15,
            ..Event::begun(3, number, 42, Kind::Cas, 4)
        }
    }

    #[test]
    fn events_are_read_as_they_were_written_and_the_killed_leave_theirs_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::create(&path).unwrap();
        let open = |number| Event {
            end_ns: NEVER,
            outcome: Outcome::Unknown,
            ..event(number)
        };
        log.begun(&open(1)).unwrap();
        log.ended(&event(1)).unwrap();
        log.begun(&open(2)).unwrap();
        log.ended(&event(3)).unwrap();
        // Nothing is written out any more: the worker is killed.
        std::mem::forget(log);
        assert_eq!(LogReader::read(&path).unwrap(), [event(1), open(2)]);
        std::fs::write(&path, [&encode(&event(5))[..], &[1; 40]].concat()).unwrap();
        assert_eq!(LogReader::read(&path).unwrap(), [event(5)]);
        std::fs::write(&path, [0xff; RECORD_LEN]).unwrap();
        assert!(LogReader::read(&path).is_err());
    }

    #[test]
    fn only_operations_that_have_succeeded_are_progress() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut follower = LogFollower::new(&path);
        assert_eq!(follower.look(), 0);
        let mut log = LogWriter::create(&path).unwrap();
        let begun = Event::begun(3, 1, 42, Kind::Set, 4);
        log.begun(&begun).unwrap();
        assert_eq!(follower.look(), 0);
        log.ended(&event(1)).unwrap();
        for (number, outcome) in [
            (2, Outcome::Failed),
            (3, Outcome::Denied),
            (4, Outcome::Unknown),
        ] {
            let failed = Event {
                outcome,
                ..event(number)
            };
            log.ended(&failed).unwrap();
        }
        log.flush().unwrap();
        assert_eq!((follower.look(), follower.look()), (1, 1));
        // Half of a record, and then the rest of it.
        let mut file = File::options().append(true).open(&path).unwrap();
        let record = encode(&event(5));
        file.write_all(&record[..50]).unwrap();
        assert_eq!(follower.look(), 1);
        file.write_all(&record[50..]).unwrap();
        assert_eq!(follower.look(), 2);
    }
}
