//! Requests and answers through the rings of a running target.

use crate::support::{
    CONFIG, PANIC_KEY, Server, answer_of, ask, eventually, must_get, must_set, report, set,
};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_client_core::touch::TouchBatch;
use trefoil_fabric::port::Waited;
use trefoil_fabric::shm::{ConnectOptions, wait_any};
use trefoil_fabric::{Closed, SendError};
use trefoil_layout::message::{
    Answer, ErrorCode, LOOKUP_ANSWER_HEAD_LEN, MESSAGE_LEN_MAX, MUTATE_HEAD_LEN, Request,
};
use trefoil_layout::ring::{ANSWER_RING_LEN_DEFAULT, Geometry, RING_LEN_MIN};

#[test]
fn what_was_set_is_found_by_message() {
    let server = Server::start();
    let mut connection = server.connect();
    assert_eq!(must_get(&mut connection, b"key"), None);
    must_set(&mut connection, b"key", b"value");
    assert_eq!(must_get(&mut connection, b"key").unwrap(), b"value");
    let pong = ask(&mut connection, &Request::Ping, |a| {
        matches!(a, Answer::Pong)
    });
    assert!(pong);
}

#[test]
fn the_longest_message_fits_and_a_longer_one_is_refused() {
    let server = Server::start();
    let mut connection = server.connect();
    let value = vec![0x5a; MESSAGE_LEN_MAX - MUTATE_HEAD_LEN - 1 + 1];
    assert_eq!(
        connection.send_next(CONFIG, &set(b"k", &value)),
        Err(SendError::TooLarge)
    );
    let value = &value[1..];
    must_set(&mut connection, b"k", value);
    // Its lookup answer has a shorter head.
    const { assert!(LOOKUP_ANSWER_HEAD_LEN < MUTATE_HEAD_LEN) };
    assert_eq!(must_get(&mut connection, b"k").unwrap(), value);
}

#[test]
fn an_answer_that_fits_no_message_is_an_error_not_a_stall() {
    let server = Server::start();
    let long = vec![1; MESSAGE_LEN_MAX];
    server.backend.map.lock().unwrap().insert(b"k".into(), long);
    let mut connection = server.connect();
    let code = ask(
        &mut connection,
        &Request::Lookup { key: b"k" },
        |answer| match answer {
            Answer::Error(code) => code,
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(code, ErrorCode::TooLarge);
}

#[test]
fn rings_wrap_around_with_messages_of_every_length() {
    let server = Server::with(|options| {
        options.geometry = Geometry::new(RING_LEN_MIN, RING_LEN_MIN).unwrap();
    });
    let mut connection = server.connect();
    let mut bytes = 0;
    let mut len = 1;
    while bytes < 40 * RING_LEN_MIN as usize {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        must_set(&mut connection, b"key", &value);
        assert_eq!(must_get(&mut connection, b"key").unwrap(), value);
        bytes += len;
        len = (len * 3 + 1) % 65_000;
    }
}

/// Set in the process that is to die.
const DIES: &str = "TREFOIL_TEST_PANICS";

#[test]
fn a_panic_inside_the_backend_ends_its_process() {
    let name = "messages::a_panic_inside_the_backend_ends_its_process";
    if std::env::var_os(DIES).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(DIES, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(6), "it aborts: {said}");
        assert!(said.contains("the process ends"), "{said}");
        return;
    }
    let server = Server::start();
    let mut connection = server.connect();
    ask(&mut connection, &set(PANIC_KEY, b""), |_| ());
    unreachable!("no answer comes from a process that is gone");
}

#[test]
fn a_client_that_does_not_read_its_answers_waits_alone() {
    let server = Server::start();
    let mut lazy = server.connect();
    let mut busy = server.connect();
    let mut sent = Vec::new();
    let value = vec![3; 100];
    // Until the request ring is full because nothing is taken any more, however
    // often the poller has come by.
    let mut turns_without_room = 0;
    while turns_without_room < 100 {
        match lazy.send_next(CONFIG, &set(b"lazy", &value)) {
            Ok(id) => {
                sent.push(id);
                turns_without_room = 0;
            }
            Err(SendError::Full) => turns_without_room += 1,
            Err(other) => panic!("{other}"),
        }
        must_set(&mut busy, b"busy", b"value");
    }
    let executed = server.backend.executed.load(Ordering::Relaxed);
    assert!(sent.len() > ANSWER_RING_LEN_DEFAULT as usize / 2 / 56);
    // The poller sleeps: reading answers must wake it.
    let sleeps = server.statistics().sleeps;
    eventually("the poller sleeps", || server.statistics().sleeps > sleeps);
    let mut answered = Vec::new();
    while answered.len() < sent.len() {
        assert_eq!(lazy.wait(Duration::from_secs(10)), Waited::Ready);
        lazy.poll(|id, answer| {
            assert!(matches!(answer, Answer::Ack(_)));
            answered.push(id);
        })
        .unwrap();
    }
    assert_eq!(answered, sent);
    assert!(server.backend.executed.load(Ordering::Relaxed) > executed);
}

#[test]
fn touches_do_not_wake_the_backend_until_there_are_many() {
    let server = Server::start();
    let mut connection = server.connect();
    let touched = || server.backend.touched.load(Ordering::Relaxed);
    must_set(&mut connection, b"key", b"value");
    let sleeps = server.statistics().sleeps;
    eventually("the poller sleeps", || server.statistics().sleeps > sleeps);
    let before = server.statistics();
    let slots: Vec<u32> = (0..200).collect();
    connection.touch(1, report(&slots));
    assert_eq!(server.statistics().bells_heard, before.bells_heard);
    // Taken in at the poller's own pace.
    eventually("touches are taken in", || touched() == 200);
    assert_eq!(server.backend.touched_sum.load(Ordering::Relaxed), 19_900);
    assert_eq!(server.statistics().bells_heard, before.bells_heard);
    // Half a ring of them wakes it at once.
    let start = Instant::now();
    let mut total = 200;
    while server.statistics().bells_heard == before.bells_heard {
        assert!(start.elapsed() < Duration::from_secs(60));
        connection.touch(1, report(&slots));
        total += slots.len();
    }
    assert!(touched() <= total);
    connection.touch(usize::MAX, report(&slots));
}

#[test]
fn items_whose_slots_are_not_known_are_touched_by_their_names() {
    let server = Server::start();
    let mut connection = server.connect();
    let batch = TouchBatch {
        names: &[7, u32::MAX],
        ..report(&[5])
    };
    connection.touch(1, batch);
    eventually("touches are taken in", || {
        server.backend.touched.load(Ordering::Relaxed) == 3
    });
    let sum = server.backend.touched_sum.load(Ordering::Relaxed);
    assert_eq!(sum, 5 + 7 + u64::from(u32::MAX));
}

#[test]
fn what_a_client_has_sent_before_it_left_is_executed() {
    let server = Server::with(|options| {
        // Nothing but a bell or a hang-up ends a sleep.
        options.sleep_max = Duration::from_secs(3600);
    });
    let slots: Vec<u32> = (0..200).collect();
    for round in 1..=20 {
        let mut connection = server.connect();
        must_set(&mut connection, b"key", b"value");
        eventually("the poller sleeps", || server.is_asleep());
        connection.touch(1, report(&slots));
        drop(connection);
        eventually("its touches are taken in", || {
            server.backend.touched.load(Ordering::Relaxed) == round * slots.len()
        });
    }
}

#[test]
fn bells_are_never_lost() {
    // Both sides sleep at once whenever they find nothing: every exchange
    // goes through both wake-ups, at ever different moments.
    let server = Server::with(|options| {
        options.spin = Duration::ZERO;
        // Nothing but a bell ends a sleep.
        options.sleep_max = Duration::from_secs(3600);
    });
    let options = ConnectOptions {
        spin: Duration::ZERO,
        ..ConnectOptions::default()
    };
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let mut connection = server.try_connect(&options).unwrap();
            scope.spawn(move || {
                let mut random = seed + 1;
                let end = Instant::now() + Duration::from_millis(700);
                let mut rounds = 0;
                while Instant::now() < end || rounds <= 100 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    for _ in 0..random >> 52 {
                        std::hint::spin_loop();
                    }
                    // Gives up after ten seconds.
                    ask(&mut connection, &Request::Ping, |_| ());
                    rounds += 1;
                }
            });
        }
    });
}

#[test]
fn one_wait_serves_several_backends() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut connections = servers.each_ref().map(Server::connect);
    for round in 0..100 {
        let asked = round % 3;
        connections[asked]
            .send_next(CONFIG, &Request::Ping)
            .unwrap();
        let channels: Vec<_> = connections.iter().filter_map(|c| c.channel()).collect();
        assert_eq!(wait_any(&channels, Duration::from_secs(10)), Waited::Ready);
        for (i, connection) in connections.iter_mut().enumerate() {
            let expected = usize::from(i == asked);
            assert_eq!(connection.poll(|_, _| ()), Ok(expected));
        }
    }
    let channels: Vec<_> = connections.iter().filter_map(|c| c.channel()).collect();
    let start = Instant::now();
    assert_eq!(
        wait_any(&channels, Duration::from_millis(5)),
        Waited::TimedOut
    );
    assert!(start.elapsed() >= Duration::from_millis(5));
}

#[test]
fn a_stopped_target_is_noticed_and_leaves_no_file() {
    let mut server = Server::start();
    let mut connection = server.connect();
    must_set(&mut connection, b"key", b"value");
    drop(server.target.take());
    assert!(!server.path().exists());
    // The answer will never come, and the wait ends long before its timeout. It is known
    // that nothing was executed.
    let _ = connection.send_next(CONFIG, &Request::Ping);
    assert_eq!(connection.wait(Duration::from_secs(10)), Waited::Ready);
    let settled = Closed { is_settled: true };
    assert_eq!(connection.poll(|_, _| ()), Err(settled));
    assert_eq!(
        connection.send_next(CONFIG, &Request::Ping),
        Err(SendError::Closed)
    );
    assert_eq!(server.backend.charged.load(Ordering::Relaxed), 0);
}

#[test]
fn a_target_that_ends_answers_all_that_it_was_sent() {
    const COUNT: usize = 200;
    let mut server = Server::start();
    let mut connection = server.connect();
    let backend = Arc::clone(&server.backend);
    let held = backend.map.lock().unwrap();
    for number in 0..COUNT as u32 {
        let key = number.to_le_bytes();
        connection.send_next(CONFIG, &set(&key, b"value")).unwrap();
    }
    // It has begun with the first one when it is told to stop.
    let executed = || backend.executed.load(Ordering::Relaxed);
    eventually("it has begun", || executed() == 1);
    let target = server.target.take();
    let stops = std::thread::spawn(move || drop(target));
    eventually("it ends", || !server.path().exists());
    drop(held);
    stops.join().unwrap();
    assert_eq!(executed(), COUNT);
    let mut answered = 0;
    while answered < COUNT {
        assert_eq!(connection.wait(Duration::from_secs(10)), Waited::Ready);
        answered += connection.poll(|_, _| ()).unwrap();
    }
    let settled = Closed { is_settled: true };
    let ended = || {
        assert_eq!(connection.wait(Duration::from_secs(10)), Waited::Ready);
        connection.poll(|_, _| ())
    };
    assert_eq!({ ended }(), Err(settled));
}

#[test]
fn rings_are_charged_and_refused_rings_leave_the_reads() {
    let len = Geometry::default().object_len();
    let server = Server::with(|options| options.client_count_max = 3);
    let charged = || server.backend.charged.load(Ordering::Relaxed);
    server
        .backend
        .charge_limit
        .store(2 * len as i64, Ordering::Relaxed);
    let first = server.connect();
    let _second = server.connect();
    assert_eq!(charged(), 2 * len as i64);
    let mut third = server.connect();
    assert!(third.channel().is_none());
    assert_eq!(
        third.send_next(CONFIG, &Request::Ping),
        Err(SendError::NoMessages)
    );
    assert_eq!(server.statistics().rings_refused, 1);
    // A place that is given up can be taken again.
    drop(first);
    eventually("the rings are given back", || charged() == len as i64);
    let mut fourth = server.connect();
    must_set(&mut fourth, b"key", b"value");
    // The count is limited as well.
    server.backend.charge_limit.store(0, Ordering::Relaxed);
    let _fifth = server.connect();
    assert!(server.connect().channel().is_none());
}

#[test]
fn many_requests_in_flight_are_answered_in_order() {
    let server = Server::start();
    let mut connection = server.connect();
    let value = vec![9; 300];
    let (mut sent, mut answered) = (Vec::new(), 0);
    while answered < 20_000 {
        while sent.len() < 20_000 && sent.len() - answered < 200 {
            match connection.send_next(CONFIG, &set(b"key", &value)) {
                Ok(id) => sent.push(id),
                Err(SendError::Full) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(connection.wait(Duration::from_secs(10)), Waited::Ready);
        connection
            .poll(|id, _| {
                assert_eq!(id, sent[answered]);
                answered += 1;
            })
            .unwrap();
    }
    let last = connection.send_next(CONFIG, &Request::Ping).unwrap();
    answer_of(&mut connection, last, &mut |_| ());
}
