//! Both sides over memory objects, in threads and in processes of their own.

use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_ordered::lane::Terms;
use trefoil_ordered::producer::Producer;
use trefoil_ordered::words::Mapped;
use trefoil_ordered::{
    Answer, Committed, Invitation, Options, Queue, Refused, Request, Service, Worker, order,
};
use trefoil_region::Mapping;

const PATIENCE: Duration = Duration::from_secs(120);
const CHILD: &str = "TREFOIL_TEST_ORDERED_CHILD";

/// What was executed: position, client and payload.
#[derive(Default)]
struct Log(Vec<(u64, u64, Vec<u8>)>);

impl Service for Log {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        let Request {
            position,
            client_id,
            payload,
            ..
        } = request;
        self.0.push((position, client_id, payload.to_vec()));
        answer.put(&position.to_le_bytes()).expect("eight bytes");
    }
}

/// Commits, waiting for room where there is none.
fn submit(queue: &mut Queue, request: &[u8], nilext: bool) -> Committed {
    loop {
        match queue.submit(request, nilext) {
            Ok(committed) => return committed,
            Err(Refused::Full) => queue.wait_for_room(PATIENCE).expect("a server"),
            Err(Refused::Skipped) => {}
            Err(refused) => panic!("{refused}"),
        }
    }
}

#[test]
fn four_clients_and_a_server_agree_on_one_order() {
    const REQUESTS: u64 = 3_000;
    let options = Options {
        slot_count: 16,
        ..Options::default()
    };
    let mut worker = Worker::new(11, options).expect("memory");
    let queues: Vec<Queue> = (0..4)
        .map(|_| Queue::join(worker.admit().expect("memory")).expect("a queue"))
        .collect();
    let stop = AtomicBool::new(false);
    let (log, counts, committed) = std::thread::scope(|scope| {
        let stop = &stop;
        let server = scope.spawn(move || {
            let mut log = Log::default();
            worker.serve(&mut log, stop);
            let counts = worker.finish(&mut log);
            (log, counts)
        });
        let clients: Vec<_> = queues
            .into_iter()
            .enumerate()
            .map(|(at, mut queue)| {
                scope.spawn(move || {
                    let client_id = at as u64 + 1;
                    let mut committed = Vec::new();
                    for number in 0..REQUESTS {
                        let request = (number << 8 | client_id).to_le_bytes();
                        let nilext = number % 7 != 0;
                        let done = submit(&mut queue, &request, nilext);
                        if !nilext {
                            let answer = queue.answer(done, PATIENCE).expect("a server");
                            assert_eq!(answer, done.position.to_le_bytes());
                        }
                        committed.push((done.position, client_id, request.to_vec()));
                    }
                    committed
                })
            })
            .collect();
        let mut committed = Vec::new();
        for client in clients {
            committed.extend(client.join().expect("no panic"));
        }
        stop.store(true, Ordering::Relaxed);
        let (log, counts) = server.join().expect("no panic");
        (log, counts, committed)
    });
    assert_eq!(counts.executed, 4 * REQUESTS);
    assert_eq!((counts.broken, counts.out_of_order), (0, 0));
    let mut expected = committed;
    expected.sort();
    assert_eq!(log.0, expected, "executed in the order of positions");
}

/// The lane of another process, by descriptors of its parent's.
fn inherited(text: &str) -> (Mapped, Mapped, Terms) {
    let mut numbers = text.split(' ').map(|word| word.parse().expect("a number"));
    let mut next = || -> u64 { numbers.next().expect("six numbers") };
    let parent = next();
    let open = |fd: u64| -> OwnedFd {
        let path = format!("/proc/{parent}/fd/{fd}");
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("open")
    };
    let (order, lane) = (open(next()), open(next()));
    let terms = Terms {
        epoch: next(),
        client_id: next(),
        slot_count: next() as u32,
    };
    let order = Mapping::reader_writer(order, order::OBJECT_LEN).expect("an order");
    let lane = Mapping::reader_writer(lane, terms.object_len()).expect("a lane");
    (Mapped(order), Mapped(lane), terms)
}

/// Started by the test below as a process of its own: commits three requests, dies with a
/// ticket in its hand. Its standard input is its bell.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else {
        return;
    };
    let (order, lane, terms) = inherited(&text);
    let mut producer = Producer::new(lane, terms);
    for number in 0..3u8 {
        producer.submit(&order, 1, &[number], true).expect("room");
    }
    let written = producer.write(2, b"never", true).expect("room");
    producer.claim().expect("open");
    let position = producer.ticket(&order).expect("in order");
    let _ = (written, position);
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("its own");
    unreachable!();
}

#[test]
fn a_process_that_is_killed_with_a_ticket_stalls_nobody() {
    let mut worker = Worker::new(12, Options::default()).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let Invitation {
        order,
        lane,
        bell,
        terms,
    } = worker.admit().expect("memory");
    let text = format!(
        "{} {} {} {} {} {}",
        std::process::id(),
        order.as_raw_fd(),
        lane.as_raw_fd(),
        terms.epoch,
        terms.client_id,
        terms.slot_count
    );
    submit(&mut queue, b"first", true);
    // With this, its death is not heard: it has to be found out.
    let still_open = bell.try_clone().expect("a descriptor");
    let bell_end: OwnedFd = UnixStream::into(bell);
    let status = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "real::child", "--nocapture"])
        .env(CHILD, text)
        .stdin(Stdio::from(bell_end))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("a child");
    assert_eq!(status.code(), None, "killed: {status}");
    // The ticket of the dead stands before this one.
    let last = submit(&mut queue, b"last", false);
    assert_eq!(last.position, 6);
    let mut log = Log::default();
    while log.0.len() < 5 {
        worker.run_once(&mut log);
    }
    assert_eq!(queue.answer(last, PATIENCE), Ok(&6u64.to_le_bytes()[..]));
    let expected: [(u64, u64, &[u8]); 5] = [
        (1, 1, b"first"),
        (2, 2, &[0]),
        (3, 2, &[1]),
        (4, 2, &[2]),
        (6, 1, b"last"),
    ];
    let expected = expected.map(|(position, client, bytes)| (position, client, bytes.to_vec()));
    assert_eq!(log.0, expected);
    assert_eq!(worker.counts().skipped, 1);
    // Its death is heard at the next sleep.
    drop(still_open);
    while worker.client_count() > 1 {
        worker.nap();
    }
}
