//! A durable queue in processes that are killed at random moments. Its requests are not
//! idempotent: each adds one to a counter, and appends a number to a list.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;
use trefoil_journal::snapshot::{self, SnapshotError};
use trefoil_journal::{FileDisk, Flush, JournalError, file};
use trefoil_ordered::{
    Answer, DurableError, DurableService, DurableWorker, Invitation, NoAnswer, Options, Queue,
    Refused, Request, Service, SetUpError,
};

const PATIENCE: Duration = Duration::from_secs(120);
const CHILD: &str = "TREFOIL_TEST_ORDERED_DURABLE";
const QUEUE: u64 = 0xd0;
/// The shortest journal: its ring is gone round often.
const LEN: u64 = 1;
const CLIENTS: usize = 2;
/// Requests of a client that are not acknowledged.
const WINDOW: usize = 6;

/// For each name, a counter and a list of numbers.
struct Lists {
    path: PathBuf,
    persistent: u64,
    of: BTreeMap<u64, (u64, Vec<u64>)>,
}

impl Lists {
    fn load(folder: &Path) -> Result<Self, SnapshotError> {
        let path = folder.join("state");
        let mut lists = Lists {
            path,
            persistent: 0,
            of: BTreeMap::new(),
        };
        if let Some((position, bytes)) = snapshot::load(&lists.path, QUEUE)? {
            lists.persistent = position;
            let mut words = bytes
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            while let Some(name) = words.next() {
                let mut next = || words.next().expect("whole");
                let (count, len) = (next(), next());
                let numbers = (0..len).map(|_| next()).collect();
                lists.of.insert(name, (count, numbers));
            }
        }
        Ok(lists)
    }
}

impl Service for Lists {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        let word = |at: usize| {
            let bytes = request.payload[at * 8..][..8].try_into();
            u64::from_le_bytes(bytes.expect("eight bytes"))
        };
        if request.payload.len() == 8 {
            let count = self.of.get(&word(0)).map_or(0, |(count, _)| *count);
            answer.put(&count.to_le_bytes()).expect("eight bytes");
            return;
        }
        let (count, numbers) = self.of.entry(word(0)).or_default();
        *count += 1;
        numbers.push(word(1));
        answer.put(&count.to_le_bytes()).expect("eight bytes");
    }
}

impl DurableService for Lists {
    type Error = SnapshotError;

    fn persistent_position(&self) -> u64 {
        self.persistent
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), SnapshotError> {
        let mut bytes = Vec::new();
        for (name, (count, numbers)) in &self.of {
            for word in [*name, *count, numbers.len() as u64] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        snapshot::store(&self.path, QUEUE, position, &bytes)?;
        self.persistent = position;
        Ok(())
    }

    fn is_read(&self, payload: &[u8]) -> bool {
        payload.len() == 8
    }
}

type Opened = Result<DurableWorker<FileDisk>, DurableError<SnapshotError>>;

fn open(folder: &Path, lists: &mut Lists) -> Opened {
    let options = Options {
        slot_count: 16,
        ..Options::default()
    };
    let path = folder.join("journal");
    DurableWorker::open(options, lists, |executed, replay| {
        file::open(&path, (QUEUE, 5), (LEN, Flush::Direct), executed, replay)
    })
}

fn request(name: u64, number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Started by the test below as a process of its own, which it kills.
#[test]
fn durable_child() {
    let Ok(text) = std::env::var(CHILD) else {
        return;
    };
    let (life, folder) = text.split_once(' ').expect("a life");
    let life: u64 = life.parse().expect("a number");
    let mut lists = Lists::load(Path::new(folder)).expect("a state");
    let mut worker = open(Path::new(folder), &mut lists).expect("a journal");
    let queues: Vec<Queue> = (0..CLIENTS)
        .map(|_| Queue::join(worker.admit().expect("memory")).expect("a queue"))
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (at, queue) in queues.into_iter().enumerate() {
            scope.spawn(move || report_acknowledged(queue, life * CLIENTS as u64 + at as u64));
        }
        worker.serve(&mut lists, &stop).expect("a disk");
    });
}

/// Sends numbers and reports each when it is acknowledged.
fn report_acknowledged(mut queue: Queue, name: u64) {
    let mut window = std::collections::VecDeque::new();
    for number in 0.. {
        let nilext = number % 5 != 0;
        let sent = queue.submit(&request(name, number), nilext);
        window.push_back((number, nilext, sent.expect("room for a window")));
        if window.len() < WINDOW {
            continue;
        }
        let (number, nilext, sent) = window.pop_front().expect("a window");
        queue.committed(sent, PATIENCE).expect("a server");
        if !nilext {
            let answer = queue.answer(sent, PATIENCE).expect("a server");
            assert_eq!(answer, (number + 1).to_le_bytes(), "its own count");
        }
        std::io::stderr()
            .write_all(&request(name, number))
            .expect("a reader");
    }
}

fn kills() -> u64 {
    let count = std::env::var("TREFOIL_TEST_ORDERED_KILLS");
    count.map_or(40, |count| count.parse().expect("a number"))
}

#[test]
fn acknowledged_increments_and_appends_are_there_once_after_kill_9_at_random_moments() {
    let folder = tempfile::tempdir().expect("a folder");
    // For each name, how many were acknowledged.
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    let mut moment = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let mut unlucky = 0;
    for life in 0..kills() {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "durable::durable_child", "--nocapture"])
            .env(CHILD, format!("{life} {}", folder.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut stderr = child.stderr.take().expect("a pipe");
        moment ^= moment << 13;
        moment ^= moment >> 7;
        moment ^= moment << 17;
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).expect("a pipe");
            bytes
        });
        // From amid the recovery to many laps of the ring.
        std::thread::sleep(Duration::from_micros(500 + moment % 60_000));
        child.kill().expect("a child");
        let status = child.wait().expect("a child");
        let bytes = reader.join().expect("no panic");
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(status.code(), None, "it did not end by itself: {text}");
        unlucky += u64::from(bytes.is_empty());
        for report in bytes.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(report[at..][..8].try_into().expect("eight"));
            let count = acknowledged.entry(word(0)).or_default();
            assert_eq!(word(8), *count, "reports are in order");
            *count += 1;
        }
    }
    let mut lists = Lists::load(folder.path()).expect("a state");
    let worker = open(folder.path(), &mut lists).expect("a journal");
    assert!(worker.log().epoch() > kills() / 4, "lives were lived");
    worker.finish(&mut lists).expect("a disk");
    let mut unknown = 0;
    for (name, count) in &acknowledged {
        let (counter, numbers) = lists.of.get(name).expect("acknowledged");
        let expected: Vec<u64> = (0..*counter).collect();
        assert_eq!(numbers, &expected, "each once, and in order");
        assert!(counter >= count, "{counter} of {count} acknowledged");
        assert!(*counter <= count + WINDOW as u64, "no more than were sent");
        unknown += counter - count;
    }
    let total: u64 = acknowledged.values().sum();
    println!(
        "{} kills ({unlucky} before anything was acknowledged): {total} acknowledged, \
         {unknown} more executed, state up to {}",
        kills(),
        lists.persistent
    );
    assert!(total > kills(), "something was done");
    assert_eq!(Lists::load(folder.path()).expect("a state").of, lists.of);
}

#[test]
fn a_server_that_is_gone_acknowledges_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = Lists::load(folder.path()).expect("a state");
    let mut worker = open(folder.path(), &mut lists).expect("a journal");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let first = queue.submit(&request(1, 0), true).expect("room");
    assert!(!queue.is_committed(first), "publication is not persistence");
    worker.run_once(&mut lists).expect("a disk");
    queue.committed(first, PATIENCE).expect("acknowledged");
    let gone = queue.submit(&request(1, 1), true).expect("room");
    drop(worker);
    assert_eq!(
        queue.committed(gone, Duration::from_secs(5)),
        Err(NoAnswer::ServerGone)
    );
    let late = queue.submit(&request(1, 2), true);
    assert_eq!(late, Err(Refused::Closed));
    let mut lists = Lists::load(folder.path()).expect("a state");
    let again = open(folder.path(), &mut lists).expect("a journal");
    assert_eq!(lists.of[&1], (1, vec![0]), "what was acknowledged");
    assert!(matches!(
        open(folder.path(), &mut lists),
        Err(DurableError::Journal(JournalError::InUse { .. }))
    ));
    drop(again);
}

#[test]
fn clients_are_admitted_while_a_server_sleeps_and_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = Lists::load(folder.path()).expect("a state");
    let mut worker = open(folder.path(), &mut lists).expect("a journal");
    let (ask, asked) = mpsc::channel::<mpsc::Sender<Invitation>>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for name in 0..5 {
                let (give, given) = mpsc::channel();
                ask.send(give).expect("a server");
                let invitation = given.recv().expect("a server");
                let mut queue = Queue::join(invitation).expect("a queue");
                for number in 0..20 {
                    let sent = queue.submit(&request(name, number), true).expect("room");
                    queue.committed(sent, PATIENCE).expect("a server");
                }
            }
        });
        let mut idle_since = None;
        loop {
            match asked.try_recv() {
                Ok(give) => {
                    let invitation = worker.admit().expect("memory");
                    give.send(invitation).expect("a client");
                }
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
            let turn = worker.run_once(&mut lists).expect("a disk");
            worker.rest(turn, &mut idle_since);
        }
    });
    worker.finish(&mut lists).expect("a disk");
    let expected: Vec<u64> = (0..20).collect();
    for name in 0..5 {
        assert_eq!(lists.of[&name], (20, expected.clone()));
    }
}

#[test]
fn a_state_that_was_loaded_while_another_process_served_is_to_be_loaded_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = Lists::load(folder.path()).expect("a state");
    let mut worker = open(folder.path(), &mut lists).expect("a journal");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    queue.submit(&request(1, 0), true).expect("room");
    let mut early = Lists::load(folder.path()).expect("a state");
    worker.finish(&mut lists).expect("a disk");
    let error = open(folder.path(), &mut early).expect_err("the state is older");
    let text = error.to_string();
    assert!(text.contains("load the state again"), "{text}");
    let mut late = Lists::load(folder.path()).expect("a state");
    open(folder.path(), &mut late).expect("a journal");
    assert_eq!(late.of[&1], (1, vec![0]));
}

#[test]
fn a_full_journal_withholds_and_goes_on_after_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = Lists::load(folder.path()).expect("a state");
    let mut worker = open(folder.path(), &mut lists).expect("a journal");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let mut last = None;
    for number in 0..2_000 {
        match queue.submit(&request(1, number), true) {
            Ok(sent) => last = Some(sent),
            Err(Refused::Full) => {
                worker.run_once(&mut lists).expect("a disk");
                let sent = queue.submit(&request(1, number), true);
                last = Some(sent.expect("room after a turn"));
            }
            Err(refused) => panic!("{refused}"),
        }
    }
    worker.run_once(&mut lists).expect("a disk");
    queue
        .committed(last.expect("sent"), PATIENCE)
        .expect("acknowledged");
    assert_eq!(lists.of[&1].0, 2_000);
    assert!(
        lists.persistent > 0,
        "the ring was gone round by checkpoints"
    );
    let count = queue.submit(&1u64.to_le_bytes(), false).expect("room");
    let journal = worker.log().last_position();
    worker.run_once(&mut lists).expect("a disk");
    assert_eq!(
        queue.answer(count, PATIENCE),
        Ok(&2_000u64.to_le_bytes()[..])
    );
    assert_eq!(
        worker.log().last_position(),
        journal,
        "reads are not written"
    );
}

#[test]
fn impossible_options_are_told_before_anything_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = Lists::load(folder.path()).expect("no state");
    let options = Options {
        slot_count: 3,
        ..Options::default()
    };
    let opened: Result<DurableWorker<FileDisk>, _> =
        DurableWorker::open(options, &mut lists, |_, _| {
            unreachable!("nothing is opened")
        });
    assert!(matches!(
        opened,
        Err(DurableError::SetUp(SetUpError::SlotCount(3)))
    ));
}
