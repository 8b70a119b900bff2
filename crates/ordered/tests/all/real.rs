//! Both sides over memory objects, in threads and in processes of their own.

use rustix::fs::{Mode, OFlags};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_ordered::lane::{self, Terms, Turn};
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

/// Started by the tests below as a process of its own. Its standard input is its bell.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else {
        return;
    };
    let (part, text) = text.split_once(' ').expect("a part");
    let (order, lane, terms) = inherited(text);
    let mut producer = Producer::new(lane, terms);
    match part {
        "ticket" => die_with_a_ticket(&mut producer, &order),
        "reports" => report_commits(&mut producer, &order),
        "stops" => stop_with_a_ticket(&mut producer, &order),
        other => panic!("no part {other}"),
    }
}

/// Commits three requests, and dies with a ticket in its hand.
fn die_with_a_ticket(producer: &mut Producer<Mapped>, order: &Mapped) {
    for number in 0..3u8 {
        producer.submit(order, 1, &[number], true).expect("room");
    }
    producer.write(2, b"never", true).expect("room");
    producer.claim().expect("open");
    producer.ticket(order).expect("in order");
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("its own");
    unreachable!();
}

/// Stands still with a ticket in its hand, and finds itself skipped when it goes on.
fn stop_with_a_ticket(producer: &mut Producer<Mapped>, order: &Mapped) {
    let written = producer.write(1, b"never", true).expect("room");
    producer.claim().expect("open");
    let position = producer.ticket(order).expect("in order");
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::STOP).expect("its own");
    // This thread may go on for a moment before it stops.
    let claimed = Some(Turn::Claimed(producer.sequence()));
    while lane::turn(producer.words()) == claimed {
        std::thread::yield_now();
    }
    assert_eq!(producer.publish(written, position), Err(Refused::Skipped));
    producer.submit(order, 2, b"late", true).expect("room");
}

/// Commits numbers until it is killed, and reports each position after its commit.
fn report_commits(producer: &mut Producer<Mapped>, order: &Mapped) {
    let mut number = 0u64;
    loop {
        match producer.submit(order, number, &number.to_le_bytes(), true) {
            Ok(committed) => {
                let report = committed.position.to_le_bytes();
                std::io::stderr().write_all(&report).expect("a reader");
                number += 1;
            }
            Err(Refused::Full | Refused::Skipped) => std::thread::yield_now(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// Starts a client of its own process; the descriptors are to live until it has opened
/// them.
fn spawn(part: &str, invitation: &Invitation, stderr: Stdio) -> Child {
    let Invitation {
        order,
        lane,
        bell,
        terms,
    } = invitation;
    let text = format!(
        "{part} {} {} {} {} {} {}",
        std::process::id(),
        order.as_raw_fd(),
        lane.as_raw_fd(),
        terms.epoch,
        terms.client_id,
        terms.slot_count
    );
    let bell: OwnedFd = bell.try_clone().expect("a descriptor").into();
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "real::child", "--nocapture"])
        .env(CHILD, text)
        .stdin(Stdio::from(bell))
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .expect("a child")
}

/// Reads positions; `false` at the end.
fn read_report(from: &mut impl Read, reports: &mut Vec<u64>) -> bool {
    let mut report = [0; 8];
    let is_there = from.read_exact(&mut report).is_ok();
    if is_there {
        reports.push(u64::from_le_bytes(report));
    }
    is_there
}

#[test]
fn whatever_a_killed_process_has_reported_is_executed_once() {
    let options = Options {
        slot_count: 16,
        ..Options::default()
    };
    let mut worker = Worker::new(13, options).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let mut log = Log::default();
    let mut own = 0u64;
    let mut reports = Vec::new();
    for round in 0..8 {
        let invitation = worker.admit().expect("memory");
        let client_id = invitation.terms.client_id;
        let mut child = spawn("reports", &invitation, Stdio::piped());
        let mut stderr = child.stderr.take().expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut reports = Vec::new();
            // Sooner or later in a lap, with the server before or behind.
            for _ in 0..1 + round * 23 {
                assert!(read_report(&mut stderr, &mut reports), "it lives");
            }
            child.kill().expect("a child");
            while read_report(&mut stderr, &mut reports) {}
            child.wait().expect("a child");
            reports
        });
        while !reader.is_finished() {
            if queue.submit(&own.to_le_bytes(), true).is_ok() {
                own += 1;
            }
            worker.run_once(&mut log);
            std::thread::yield_now();
        }
        reports.push((client_id, reader.join().expect("reports")));
        drop(invitation);
        while worker.client_count() > 1 {
            worker.run_once(&mut log);
            worker.nap();
        }
    }
    let counts = worker.finish(&mut log);
    assert_eq!((counts.broken, counts.out_of_order), (0, 0));
    assert!(log.0.is_sorted_by(|a, b| a.0 < b.0), "by position, once");
    for (client_id, reported) in reports {
        let of_client = log.0.iter().filter(|(_, client, _)| *client == client_id);
        let (positions, numbers): (Vec<u64>, Vec<Vec<u8>>) = of_client
            .map(|(position, _, payload)| (*position, payload.clone()))
            .unzip();
        // The last commit may not have been reported any more.
        assert_eq!(positions[..reported.len()], reported);
        assert!(positions.len() <= reported.len() + 1);
        let expected: Vec<_> = (0..numbers.len() as u64)
            .map(|number| number.to_le_bytes().to_vec())
            .collect();
        assert_eq!(numbers, expected);
    }
    assert_eq!(
        log.0.iter().filter(|(_, client, _)| *client == 1).count() as u64,
        own
    );
}

#[test]
fn a_process_that_is_killed_with_a_ticket_stalls_nobody() {
    let mut worker = Worker::new(12, Options::default()).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let invitation = worker.admit().expect("memory");
    submit(&mut queue, b"first", true);
    let status = spawn("ticket", &invitation, Stdio::null()).wait();
    let status = status.expect("a child");
    assert_eq!(status.code(), None, "killed: {status}");
    // The ticket of the dead stands before this one. With the client's end of the bell still
    // open here, its death is not heard: it has to be found out.
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
    drop(invitation);
    while worker.client_count() > 1 {
        worker.nap();
    }
}

/// Others wait for its claim once, however long it stands still.
#[test]
fn a_process_that_is_stopped_with_a_ticket_is_waited_for_once() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let mut worker = Worker::new(12, Options::default()).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let invitation = worker.admit().expect("memory");
    let mut child = spawn("stops", &invitation, Stdio::null());
    let pid = Pid::from_child(&child);
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    let mut log = Log::default();
    for number in 0..50u8 {
        let sent = submit(&mut queue, &[number], false);
        while log.0.len() <= usize::from(number) {
            worker.run_once(&mut log);
        }
        let position = 2 + u64::from(number);
        let answer = queue.answer(sent, PATIENCE);
        assert_eq!(answer, Ok(&position.to_le_bytes()[..]));
    }
    assert_eq!(worker.counts().skipped, 1);
    kill_process(pid, Signal::CONT).expect("a child");
    assert!(child.wait().expect("a child").success());
    while log.0.len() < 51 {
        worker.run_once(&mut log);
    }
    assert_eq!(log.0.last(), Some(&(52, 2, b"late".to_vec())));
    assert_eq!(worker.counts().skipped, 1);
    assert_eq!(worker.counts().out_of_order, 0);
}
