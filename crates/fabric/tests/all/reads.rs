//! One-sided reads through a real socket, real descriptors and real mappings.

use crate::support::{
    BACKEND, BUCKETS, CONFIG, DATA_LEN, EPOCH, INCARNATION, LIFE, PARTITIONS, Server, hasher,
};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::port::{Port, Progress, Token};
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Connection, TargetOptions};
use trefoil_fabric::{OutOfWindow, Refreshed, SendError, clock};
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::data::DataEntry;
use trefoil_layout::hello::{REPLY_LEN, Reply, Status};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::Request;
use trefoil_layout::{Pointer, bucket};
use trefoil_region::WordBuffer;

#[test]
fn a_key_is_found_and_its_entry_validates() {
    let server = Server::start();
    let value = vec![0xab; 1000];
    let (hash, pointer) = server.install(b"key", &value, 4096);
    let connection = server.connect();
    connection.prefetch_bucket(0, hash);
    let IndexVote::Present { entry, epoch, .. } = connection.index_vote(0, hash) else {
        panic!();
    };
    assert_eq!((entry.pointer, epoch), (pointer, EPOCH));
    connection.prefetch_data(entry.pointer);
    let mut buffer = WordBuffer::default();
    connection.read_data(entry.pointer, &mut buffer).unwrap();
    let entry = DataEntry::validate(buffer.bytes(), entry.tag, entry.version, b"key").unwrap();
    assert_eq!(entry.value, value);
    assert_eq!(
        connection.index_vote(0, hasher().hash(b"another")),
        IndexVote::Absent { epoch: EPOCH }
    );
}

#[test]
fn the_same_through_the_trait() {
    let server = Server::start();
    let (hash, pointer) = server.install(b"key", b"value", 0);
    let mut connection = server.connect();
    let port: &mut Connection = &mut connection;
    let Progress::Done(IndexVote::Present { entry, .. }) =
        Port::submit_index(port, Token(1), 0, hash)
    else {
        panic!();
    };
    let mut buffer = WordBuffer::default();
    assert_eq!(
        port.submit_data(Token(2), entry.pointer, &mut buffer),
        Progress::Done(Ok(()))
    );
    assert_eq!(buffer.bytes().len(), pointer.len());
    assert!(port.has_messages() && !port.is_ready());
}

#[test]
fn the_agreement_is_what_the_backend_said() {
    let server = Server::start();
    let connection = server.connect();
    let agreement = *connection.agreement();
    assert_eq!(agreement.backend, BACKEND);
    assert_eq!(agreement.incarnation, INCARNATION);
    assert_eq!(agreement.hasher, hasher());
    assert_eq!(agreement.partition_count, PARTITIONS);
    assert_eq!(
        (agreement.topology.life, agreement.topology.config_id),
        (LIFE, CONFIG)
    );
    assert_eq!(connection.window_id(0), 2);
}

#[test]
fn pointers_outside_the_window_are_not_followed() {
    let server = Server::start();
    let connection = server.connect();
    let mut buffer = WordBuffer::default();
    let edge = DATA_LEN / 2;
    let read = |offset, len, buffer: &mut WordBuffer| {
        let pointer = Pointer::new(offset, len).unwrap();
        connection.prefetch_data(pointer);
        connection.read_data(pointer, buffer)
    };
    assert_eq!(read(edge - 64, 64, &mut buffer), Ok(()));
    assert_eq!(read(edge - 64, 80, &mut buffer), Err(OutOfWindow));
    assert_eq!(read(edge, 16, &mut buffer), Err(OutOfWindow));
    assert_eq!(read((1 << 44) - 16, 1 << 20, &mut buffer), Err(OutOfWindow));
    assert_eq!(
        connection.read_data(Pointer(u64::MAX), &mut buffer),
        Err(OutOfWindow)
    );
}

#[test]
fn changes_are_seen_after_a_refresh() {
    let server = Server::start();
    let mut connection = server.connect();
    let hash = hasher().hash(b"key");
    assert_eq!(connection.refresh(), Refreshed::Unchanged);

    control::set_data_window(&server.control.words(), DATA_LEN);
    let pointer = Pointer::new(DATA_LEN - 16, 16).unwrap();
    let mut buffer = WordBuffer::default();
    assert_eq!(connection.read_data(pointer, &mut buffer), Err(OutOfWindow));
    assert_eq!(connection.refresh(), Refreshed::Changed);
    assert_eq!(connection.read_data(pointer, &mut buffer), Ok(()));

    control::set_config_id(&server.control.words(), CONFIG + 1);
    assert!(matches!(
        connection.index_vote(0, hash),
        IndexVote::Absent { .. }
    ));
    assert_eq!(connection.refresh(), Refreshed::Changed);
    assert_eq!(
        connection.index_vote(0, hash),
        IndexVote::ConfigChanged { found: CONFIG }
    );
}

/// The range of an index that was replaced is used again: a reader that knows
/// the first one only would find nothing there, and believe it for ever.
#[test]
fn absence_in_a_range_that_is_used_again_proves_nothing() {
    let server = Server::start();
    let mut connection = server.connect();
    let (hash, _) = server.install(b"key", b"value", 512);
    let partition = hash.sub_partition(PARTITIONS);
    let home = partition as u64 * IndexWindow::bytes(BUCKETS) + hash.bucket(BUCKETS) * 512;
    let bucket = server.index.words().slice(home, 512).unwrap();
    bucket::remove(&bucket, hash.home_slot());
    assert!(matches!(
        connection.index_vote(0, hash),
        IndexVote::Absent { .. }
    ));
    let window = IndexWindow {
        window_id: 4,
        offset: partition as u64 * IndexWindow::bytes(BUCKETS),
        bucket_count: BUCKETS - 1,
        epoch: EPOCH,
    };
    control::set_index_window(&server.control.words(), partition, window);
    assert_eq!(
        connection.index_vote(0, hash),
        IndexVote::ConfigChanged { found: 0 }
    );
    assert_eq!(connection.refresh(), Refreshed::Changed);
    assert!(matches!(
        connection.index_vote(0, hash),
        IndexVote::Absent { .. }
    ));
}

#[test]
fn a_window_that_leaves_the_region_is_no_window() {
    let server = Server::start();
    let mut connection = server.connect();
    let hash = hasher().hash(b"key");
    let window = IndexWindow {
        window_id: 4,
        offset: 0,
        bucket_count: BUCKETS * 1000,
        epoch: EPOCH,
    };
    for partition in 0..PARTITIONS {
        control::set_index_window(&server.control.words(), partition, window);
    }
    assert_eq!(connection.refresh(), Refreshed::Changed);
    connection.prefetch_bucket(0, hash);
    assert_eq!(
        connection.index_vote(0, hash),
        IndexVote::ConfigChanged { found: 0 }
    );
}

#[test]
fn the_lease_is_the_backends() {
    let server = Server::start();
    let connection = server.connect();
    let now = clock::monotonic_ns();
    assert!(!connection.lease_alive(now));
    control::set_lease_end_ns(&server.control.words(), now + 1_000_000);
    assert!(connection.lease_alive(now));
    assert!(!connection.lease_alive(now + 1_000_000));
}

#[test]
fn without_rings_there_are_reads_only() {
    let server = Server::start();
    let (hash, _) = server.install(b"key", b"value", 0);
    let options = ConnectOptions {
        rings: false,
        ..ConnectOptions::default()
    };
    let mut connection = server.try_connect(&options).unwrap();
    assert!(matches!(
        connection.index_vote(0, hash),
        IndexVote::Present { .. }
    ));
    assert_eq!(
        connection.send_next(CONFIG, &Request::Ping),
        Err(SendError::NoMessages)
    );
    assert_eq!(server.statistics().rings_open, 0);
}

fn connect_error(path: &Path, backend: u32) -> ConnectError {
    let options = ConnectOptions {
        timeout: Duration::from_millis(50),
        ..ConnectOptions::default()
    };
    Connection::connect(path, backend, &options).unwrap_err()
}

/// Whoever is in its accept queue when it leaves its place is not given memory that a
/// successor has already.
#[test]
fn who_is_leaving_greets_nobody() {
    let server = Server::start();
    let is_changing = &server.backend.is_changing;
    is_changing.store(true, Ordering::Relaxed);
    let error = connect_error(&server.path(), BACKEND);
    assert!(matches!(error, ConnectError::HungUp { .. }), "{error:?}");
    is_changing.store(false, Ordering::Relaxed);
    assert!(server.connect().channel().is_some());
}

#[test]
fn failures_to_connect_have_names() {
    let server = Server::start();
    let directory = server.directory.path();
    let error = connect_error(&server.path(), BACKEND + 1);
    assert!(matches!(error, ConnectError::NoSuchBackend { backend, .. } if backend == BACKEND + 1));
    let error = connect_error(&directory.join("nothing"), BACKEND);
    assert!(matches!(error, ConnectError::NotFound { .. }));
    let error = connect_error(&directory.join("x".repeat(200)), BACKEND);
    assert!(matches!(error, ConnectError::PathTooLong { .. }));

    let stale = directory.join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let error = connect_error(&stale, BACKEND);
    assert!(matches!(error, ConnectError::NobodyListens { .. }));

    let silent = directory.join("silent");
    let listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let error = connect_error(&silent, BACKEND);
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
    drop(listener);
}

#[test]
fn a_server_that_is_not_trefoil_or_of_another_version_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let mut other_protocol = Reply::Refused(Status::Protocol).encode();
    other_protocol[8] = 99;
    let other_layout = Reply::OtherLayout(77).encode();
    let not_allowed = Reply::Refused(Status::NotAllowed).encode();
    let empty = Reply::Granted(trefoil_layout::hello::Granted {
        layout_version: LAYOUT_VERSION,
        hasher: hasher(),
        partition_count: 1,
        backend: BACKEND,
        incarnation: 1,
        control_len: 8192,
        index_len: 1,
        data_len: 1,
        rings: None,
        marks_len: 0,
        place: None,
        topology: trefoil_layout::TopologyId {
            life: LIFE,
            config_id: CONFIG,
        },
    })
    .encode();
    let replies: [(&str, Vec<u8>, &str); 6] = [
        ("http", vec![b'H'; REPLY_LEN], "not the greeting"),
        ("protocol", other_protocol.to_vec(), "version 99"),
        ("layout", other_layout.to_vec(), "layout version 77"),
        ("user", not_allowed.to_vec(), "does not serve this user"),
        (
            "hangup",
            not_allowed[..50].to_vec(),
            "closed the connection",
        ),
        ("bare", empty.to_vec(), "a descriptor is missing"),
    ];
    for (name, reply, expected) in replies {
        let path = directory.path().join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; 32]).unwrap();
            socket.write_all(&reply).unwrap();
        });
        let error = connect_error(&path, BACKEND);
        server.join().unwrap();
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

/// Whether somebody gets in beside more silent clients than there are places for, before
/// the time of any of those is over.
fn one_gets_in_beside_the_silent() -> bool {
    const PATIENCE: Duration = Duration::from_secs(2);
    let server = Server::with(|options: &mut TargetOptions| {
        options.hello_timeout = PATIENCE;
    });
    let start = Instant::now();
    let mut silent: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(server.path()).unwrap())
        .collect();
    for socket in &mut silent {
        let _ = socket.write_all(b"TREF");
    }
    let _connection = server.connect();
    let is_in_time = start.elapsed() < PATIENCE;
    // All of them are hung up on, at the latest when their time is over.
    for mut socket in silent {
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        match socket.read(&mut [0; 16]) {
            Ok(0) => {}
            Err(e) if e.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => {}
            other => panic!("{other:?}"),
        }
    }
    is_in_time
}

#[test]
fn silent_and_half_spoken_clients_hold_nobody_up() {
    // A busy machine may stand still for as long, but not always.
    assert!((0..5).any(|_| one_gets_in_beside_the_silent()));
}

#[test]
fn strangers_greetings_are_refused_with_a_reason() {
    let server = Server::start();
    for (hello, status) in [
        ([b'G'; 32], Status::Malformed),
        (
            {
                let mut bytes = trefoil_layout::hello::Hello {
                    backend: BACKEND,
                    wants_rings: true,
                    knows_marks: false,
                    wants_lane: false,
                }
                .encode();
                bytes[8] = 42;
                bytes
            },
            Status::Protocol,
        ),
    ] {
        let mut socket = UnixStream::connect(server.path()).unwrap();
        socket.write_all(&hello).unwrap();
        let mut reply = [0; REPLY_LEN];
        socket.read_exact(&mut reply).unwrap();
        assert_eq!(Reply::parse(&reply), Ok(Reply::Refused(status)));
        assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
    }
    assert_eq!(server.statistics().refused, 2);
}
