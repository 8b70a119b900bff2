//! A durable queue over a disk, and before a service, that fail: what is acknowledged and
//! executed before and after, and who is told.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use trefoil_journal::disk::{BLOCK_LEN, Disk};
use trefoil_journal::{JournalError, Log};
use trefoil_ordered::words::Mapped;
use trefoil_ordered::{
    Answer, Committed, DurableError, DurableService, DurableWorker, NoAnswer, Options, Queue,
    Refused, Request, Service, SetUpError, lane,
};
use trefoil_region::Mapping;

const QUEUE: u64 = 8;
const BLOCKS: usize = 132;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write,
    Flush,
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    accesses: Vec<Access>,
    fails_at: Option<Access>,
    /// The lane, and the sequence that is under way in it.
    under_way: Option<(Mapped, u64)>,
}

/// A disk in memory. Clones are the same one.
#[derive(Clone)]
struct Memory(Rc<RefCell<Inner>>);

impl Memory {
    fn access(&self, access: Access) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.accesses.push(access);
        if let Some((lane, sequence)) = &inner.under_way {
            let (acknowledged, executed) = (lane::acknowledged(lane), lane::executed(lane));
            assert!(acknowledged < *sequence, "acknowledged before {access:?}");
            assert!(executed < *sequence, "executed before {access:?}");
        }
        match inner.fails_at == Some(access) {
            true => {
                // Once: a later one would succeed.
                inner.fails_at = None;
                Err(io::Error::from_raw_os_error(5))
            }
            false => Ok(()),
        }
    }
}

impl Disk for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn block_count(&mut self) -> io::Result<u64> {
        Ok(BLOCKS as u64)
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let first = block as usize * BLOCK_LEN;
        into.copy_from_slice(&self.0.borrow().bytes[first..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        self.access(Access::Write)?;
        let first = block as usize * BLOCK_LEN;
        self.0.borrow_mut().bytes[first..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.access(Access::Flush)
    }
}

/// Counts.
#[derive(Default)]
struct Count {
    executed: u64,
    persistent: u64,
    fails: bool,
}

impl Service for Count {
    fn execute(&mut self, _: Request<'_>, _: &mut Answer) {
        self.executed += 1;
    }
}

impl DurableService for Count {
    type Error = io::Error;

    fn persistent_position(&self) -> u64 {
        self.persistent
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), io::Error> {
        if self.fails {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.persistent = position;
        Ok(())
    }
}

struct Both {
    disk: Memory,
    service: Count,
    worker: DurableWorker<Memory>,
    lane: Mapped,
    queue: Queue,
}

fn both() -> Both {
    let disk = Memory(Rc::new(RefCell::new(Inner {
        bytes: vec![0; BLOCKS * BLOCK_LEN],
        ..Inner::default()
    })));
    Log::format(&mut disk.clone(), QUEUE, 5).expect("a disk");
    let mut service = Count::default();
    let opened = DurableWorker::open(Options::default(), &mut service, |executed, replay| {
        Log::open(disk.clone(), QUEUE, executed, replay)
    });
    let mut worker = opened.expect("a journal");
    let invitation = worker.admit().expect("memory");
    let len = invitation.terms.object_len();
    let lane = Mapped(Mapping::reader_writer(&invitation.lane, len).expect("a lane"));
    disk.0.borrow_mut().accesses.clear();
    Both {
        disk,
        service,
        worker,
        lane,
        queue: Queue::join(invitation).expect("a queue"),
    }
}

impl Both {
    fn submit(&mut self) -> Committed {
        let sent = self.queue.submit(b"request", true).expect("room");
        self.disk.0.borrow_mut().under_way = Some((self.lane.clone(), sent.sequence));
        sent
    }

    /// One group, whose requests are executed when all is written and flushed.
    fn run_once(&mut self) -> Result<(), DurableError<io::Error>> {
        self.worker.run_once(&mut self.service).map(drop)
    }

    /// It takes nothing more, whoever asks, and touches its disk no more; all know it.
    fn is_over(&mut self, unknown: Committed) {
        let before = self.disk.0.borrow().accesses.len();
        let executed = self.service.executed;
        assert!(matches!(self.run_once(), Err(DurableError::Failed)));
        let checkpoint = self.worker.checkpoint(&mut self.service);
        assert!(matches!(checkpoint, Err(DurableError::Failed)));
        assert!(matches!(self.worker.admit(), Err(SetUpError::Ended)));
        assert_eq!(self.disk.0.borrow().accesses.len(), before);
        assert_eq!(self.service.executed, executed);
        let refused = self.queue.submit(b"late", true);
        assert_eq!(refused, Err(Refused::Closed));
        let committed = self.queue.committed(unknown, PATIENCE);
        assert_eq!(committed, Err(NoAnswer::ServerGone));
    }
}

#[test]
fn nothing_is_acknowledged_before_a_flush_or_after_one_that_fails() {
    for fails_at in [Access::Write, Access::Flush] {
        let mut both = both();
        let first = both.submit();
        both.run_once().expect("a disk");
        assert!(both.queue.is_committed(first));
        assert_eq!(both.service.executed, 1);
        let accesses = std::mem::take(&mut both.disk.0.borrow_mut().accesses);
        assert_eq!(accesses, [Access::Write, Access::Flush]);
        both.disk.0.borrow_mut().fails_at = Some(fails_at);
        let second = both.submit();
        let failed = both.run_once();
        let is_io = matches!(failed, Err(DurableError::Journal(JournalError::Io { .. })));
        assert!(is_io, "{failed:?}");
        assert_eq!(both.disk.0.borrow().accesses.last(), Some(&fails_at));
        assert!(!both.queue.is_committed(second));
        assert_eq!(both.service.executed, 1);
        both.is_over(second);
    }
}

#[test]
fn a_checkpoint_that_fails_ends_the_queue_after_what_was_acknowledged() {
    let mut both = both();
    both.service.fails = true;
    let mut sent = 0;
    let (last, failed) = loop {
        let last = both.submit();
        sent += 1;
        assert!(sent < BLOCKS as u64, "a checkpoint is due");
        if let Err(failed) = both.run_once() {
            break (last, failed);
        }
    };
    assert!(matches!(failed, DurableError::Checkpoint(_)), "{failed:?}");
    assert_eq!(both.queue.committed(last, PATIENCE), Ok(()));
    assert_eq!(both.service.executed, sent);
    let unknown = Committed {
        position: last.position + 1,
        sequence: last.sequence + 1,
    };
    both.is_over(unknown);
}

#[test]
fn a_checkpoint_that_is_asked_for_and_fails_ends_the_queue() {
    let mut both = both();
    both.submit();
    both.run_once().expect("a disk");
    both.service.fails = true;
    let failed = both.worker.checkpoint(&mut both.service);
    assert!(matches!(failed, Err(DurableError::Checkpoint(_))));
    let unknown = Committed {
        position: 2,
        sequence: 2,
    };
    both.is_over(unknown);
}
