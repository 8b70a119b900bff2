//! Who comes in, and what others are told.

use crate::serving::{PATIENCE, Server, TOKEN, devices, options, submit};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use trefoil_ordered::Carrier;
use trefoil_ordered_verbs::wire::{Hello, Status, WELCOME_LEN, Welcome};
use trefoil_ordered_verbs::{ConnectError, QueueAddress, VerbsQueue, VerbsWorker};
use trefoil_verbs::{Mtu, Peer};

fn refused(result: Result<VerbsQueue, ConnectError>) -> Status {
    match result {
        Err(ConnectError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn who_shows_the_token_is_let_in_and_as_many_as_may_be() {
    let server = Server::start(1, options());
    let other = QueueAddress {
        token: b"another one".into(),
        ..server.at(0)
    };
    let result = VerbsQueue::connect(other, PATIENCE);
    assert_eq!(refused(result), Status::NotAdmitted);
    let clients: Vec<_> = (0..options().client_count_max)
        .map(|at| server.client(at).expect("a place"))
        .collect();
    assert_eq!(refused(server.client(0)), Status::Full);
    drop(clients);
    // Their places are free when the server has parted from them.
    let begin = std::time::Instant::now();
    let mut client = loop {
        match server.client(1) {
            Ok(client) => break client,
            Err(ConnectError::Refused {
                status: Status::Full,
                ..
            }) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    let sent = submit(&mut client, b"in", false);
    let answered = client.answer(sent, &mut Vec::new(), PATIENCE);
    assert_eq!(answered, Ok(()));
}

#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn strangers_that_say_nothing_or_nonsense_hold_up_nobody() {
    let server = Server::start(1, options());
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(server.address).expect("a listener"))
        .collect();
    let mut talker = TcpStream::connect(server.address).expect("a listener");
    talker.write_all(&[b'x'; 200]).expect("room");
    let mut end = Vec::new();
    // Reset or closed, without a word.
    let _ = talker.read_to_end(&mut end);
    assert!(end.is_empty());
    let begin = std::time::Instant::now();
    let mut client = server.client(0).expect("a place");
    let sent = submit(&mut client, b"in", true);
    client.committed(sent, PATIENCE).expect("a server");
    println!("let in after {:?}", begin.elapsed());
    drop(silent);
}

/// Waiting as long as can be said.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn there_is_no_time_that_is_too_long_to_wait() {
    let server = Server::start(1, options());
    let mut client = VerbsQueue::connect(server.at(0), Duration::MAX).expect("a place");
    client.set_spin(Duration::ZERO);
    let sent = submit(&mut client, b"in", false);
    assert_eq!(client.committed(sent, Duration::MAX), Ok(()));
    let answered = client.answer(sent, &mut Vec::new(), Duration::MAX);
    assert_eq!(answered, Ok(()));
}

/// A peer whose packets are short could have a buffer taken by half of a message.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn peers_with_short_packets_stay_outside() {
    let server = Server::start(1, options());
    let hello = Hello {
        producer: [3, 4],
        epoch: 0,
        attempt: 0,
        peer: Peer {
            number: 17,
            sequence: 1,
            gid: [0; 16],
            mtu: Mtu::B1024,
        },
    };
    let mut stranger = TcpStream::connect(server.address).expect("a listener");
    stranger.write_all(&hello.encode(TOKEN)).expect("room");
    let mut words = [0; WELCOME_LEN];
    stranger.read_exact(&mut words).expect("an answer");
    assert_eq!(Welcome::decode(&words), Err(Some(Status::Device)));
}

fn hello(producer: [u64; 2], epoch: u64, attempt: u64, gid: [u8; 16]) -> Vec<u8> {
    let peer = Peer {
        number: 17,
        sequence: 1,
        gid,
        mtu: Mtu::B4096,
    };
    let hello = Hello {
        producer,
        epoch,
        attempt,
        peer,
    };
    hello.encode(TOKEN)
}

fn gid(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

/// What is said to who has said this; `None`: nothing, it was hung up on.
fn heard(mut stranger: TcpStream) -> Option<Result<Welcome, Option<Status>>> {
    let mut words = [0; WELCOME_LEN];
    stranger.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stranger.read_exact(&mut words).ok()?;
    Some(Welcome::decode(&words))
}

/// The kernel looks for an address for a second, in whoever makes the connection.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn who_names_an_address_of_nobody_holds_up_nobody() {
    const STRANGERS: u64 = 8;
    let server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    let of_nobody = |number: u64| {
        let mut stranger = TcpStream::connect(server.address).expect("a listener");
        let words = hello([9, number], 0, 0, gid([10, 77, 0, 100 + number as u8]));
        stranger.write_all(&words).expect("room");
        stranger
    };
    let begin = std::time::Instant::now();
    assert_eq!(heard(of_nobody(0)), Some(Err(Some(Status::Device))));
    let one = begin.elapsed();
    assert!(
        one > Duration::from_millis(300),
        "there is nothing to see: {one:?}"
    );
    let strangers: Vec<_> = (1..=STRANGERS).map(of_nobody).collect();
    let begin = std::time::Instant::now();
    let mut longest = Duration::ZERO;
    while begin.elapsed() < one * 3 {
        let sent = submit(&mut honest, b"in", false);
        let before = std::time::Instant::now();
        let answered = honest.answer(sent, &mut Vec::new(), PATIENCE);
        assert_eq!(answered, Ok(()));
        longest = longest.max(before.elapsed());
    }
    println!("{longest:?} at most, beside {one:?}");
    assert!(longest < one * 3, "{longest:?} beside {one:?}");
    for stranger in strangers {
        assert_eq!(heard(stranger), Some(Err(Some(Status::Device))));
    }
}

/// A client that comes again and again while the worker stands still: the last attempt counts,
/// and they do not pile up.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn of_many_attempts_the_last_one_is_let_in() {
    const ATTEMPTS: u64 = 60;
    let server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    let come = |epoch, attempt| {
        let mut stranger = TcpStream::connect(server.address).expect("a listener");
        let words = hello([7, 7], epoch, attempt, gid([10, 77, 0, 1]));
        stranger.write_all(&words).expect("room");
        stranger
    };
    let first = come(0, 0);
    let mut words = [0; WELCOME_LEN];
    (&first).read_exact(&mut words).expect("an answer");
    assert!(Welcome::decode(&words).is_ok());
    server
        .pause
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let sent = submit(&mut honest, b"in", false);
    // It stands still from here on, if not yet.
    honest.committed(sent, PATIENCE).expect("a card");
    std::thread::sleep(Duration::from_millis(50));
    let strangers: Vec<_> = (1..=ATTEMPTS)
        .map(|attempt| (attempt, come(1, attempt)))
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    server
        .pause
        .store(false, std::sync::atomic::Ordering::SeqCst);
    let (mut put_off, mut hung_up_on, mut is_in) = (Vec::new(), Vec::new(), Vec::new());
    for (attempt, stranger) in strangers {
        match heard(stranger) {
            Some(Err(Some(Status::Superseded))) => put_off.push(attempt),
            None => hung_up_on.push(attempt),
            Some(Ok(_)) => is_in.push(attempt),
            other => panic!("{other:?}"),
        }
    }
    println!("in {is_in:?}, put off {put_off:?}, hung up on {hung_up_on:?}");
    assert!(!hung_up_on.is_empty(), "{ATTEMPTS} at a time were heard");
    assert_eq!(is_in.len(), 1, "{is_in:?}");
    assert!(put_off.iter().all(|attempt| *attempt < is_in[0]));
    let answered = honest.answer(sent, &mut Vec::new(), PATIENCE);
    assert_eq!(answered, Ok(()));
}

#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn what_is_wrong_is_said() {
    let listener = || TcpListener::bind((devices()[0], 0)).expect("a port");
    let nowhere = "192.0.2.1".parse().expect("an address");
    let error = VerbsWorker::start(1, nowhere, listener(), TOKEN, options());
    let words = error.expect_err("no such device").to_string();
    assert!(
        words.contains("192.0.2.1") && words.contains(&devices()[0].to_string()),
        "{words}"
    );
    let mut impossible = options();
    impossible.slots = 1 << 20;
    let error = VerbsWorker::start(1, devices()[0], listener(), TOKEN, impossible);
    let words = error.expect_err("too many").to_string();
    assert!(words.contains("8 to 32768, not 1048576"), "{words}");
    let mut impossible = options();
    impossible.client_count_max = usize::MAX;
    let error = VerbsWorker::start(1, devices()[0], listener(), TOKEN, impossible);
    let words = error.expect_err("too many").to_string();
    assert!(words.contains("clients"), "{words}");
    // Nobody listens there any more.
    let address = listener().local_addr().expect("an address");
    let at = QueueAddress {
        address,
        token: TOKEN.into(),
        device: None,
    };
    let error = VerbsQueue::connect(at, PATIENCE).expect_err("nobody is there");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
