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
