//! Clients that are let in and write nonsense, by the verbs themselves.

use crate::serving::{PATIENCE, Server, TOKEN, devices, options, submit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use trefoil_ordered::Carrier;
use trefoil_ordered_verbs::wire::{Hello, Request, Status, WELCOME_LEN, Welcome};
use trefoil_region::Mapping;
use trefoil_verbs::{
    Completions, Connection, Device, Mtu, Outcome, Peer, Region, RemoteUse, SendFlags, Timers,
};

struct Hostile {
    control: TcpStream,
    connection: Connection,
    completions: Arc<Completions>,
    region: Region,
    welcome: Welcome,
}

impl Hostile {
    fn connect(server: &Server, number: u64) -> Self {
        Self::connect_by(server, number, Mtu::B4096)
    }

    /// With packets that are no longer than this, whatever it has said.
    fn connect_by(server: &Server, number: u64, mtu: Mtu) -> Self {
        let device = Device::open(*devices().last().expect("some")).expect("a device");
        let completions = Arc::new(Completions::new(&device, 64).expect("room"));
        let region = Region::new(&device, Mapping::heap(1 << 16), RemoteUse::None);
        let both = (&completions, 16);
        let connection = Connection::new(&device, both, both, None, 5).expect("a connection");
        let hello = Hello {
            producer: [666, number],
            epoch: 0,
            attempt: 0,
            peer: connection.own(),
        };
        let begin = std::time::Instant::now();
        let (control, welcome) = loop {
            let mut control = TcpStream::connect(server.address).expect("a listener");
            control.write_all(&hello.encode(TOKEN)).expect("a server");
            let mut words = [0; WELCOME_LEN];
            control.read_exact(&mut words).expect("a server");
            match Welcome::decode(&words) {
                Ok(welcome) => break (control, welcome),
                // The places of former ones are free soon.
                Err(Some(Status::Full)) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(refused) => panic!("{refused:?}"),
            }
        };
        let mtu = mtu.min(welcome.peer.mtu);
        // Whose answers find no buffer is asked again each 164 ms: each 0.6 ms keeps an emulated
        // machine from everything else.
        let timers = Timers {
            no_buffer: 28,
            ..Timers::default()
        };
        connection
            .connect(
                Peer {
                    mtu,
                    ..welcome.peer
                },
                timers,
            )
            .expect("a path");
        Hostile {
            control,
            connection,
            completions,
            region: region.expect("memory"),
            welcome,
        }
    }

    fn send(&self, bytes: &[u8]) {
        self.send_beside(bytes, None);
    }

    fn send_beside(&self, bytes: &[u8], immediate: Option<u32>) {
        self.region.words().copy_in_bytes(0, bytes);
        let how = SendFlags {
            wakes: true,
            is_signaled: true,
            immediate,
        };
        let part = 0..bytes.len() as u64;
        self.connection
            .send(0, &self.region, part, how)
            .expect("room");
    }

    fn request(&self, number: u64, nilext: bool) -> Vec<u8> {
        let request = Request {
            client_id: self.welcome.client_id,
            number,
            nilext,
            payload: b"hostile",
        };
        let mut bytes = Vec::new();
        request.encode(1, &mut bytes);
        bytes
    }

    /// How the next of its own requests to the card ends.
    fn outcome(&self) -> Outcome {
        let mut outcome = None;
        while outcome.is_none() {
            let polled = self
                .completions
                .poll(|one| outcome = outcome.or(Some(one.outcome)));
            polled.expect("a device");
            std::thread::yield_now();
        }
        outcome.expect("one")
    }

    /// Waits until the server has hung up.
    fn wait_to_be_put_out(mut self) {
        self.control
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket");
        let mut rest = Vec::new();
        self.control.read_to_end(&mut rest).expect("an end");
        assert!(rest.is_empty());
    }
}

/// Each kind of nonsense ends the connection that it came by, and no other; nothing of it is
/// executed, and no buffer is lost with it.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn nonsense_ends_its_own_connection() {
    const ROUNDS: u64 = 63;
    let mut server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    for round in 0..ROUNDS {
        let hostile = Hostile::connect(&server, round);
        let mut request = Vec::new();
        let sound = Request {
            client_id: hostile.welcome.client_id,
            number: 1,
            nilext: true,
            payload: b"hostile",
        };
        match round % 7 {
            0 => hostile.send(&[0xab; 100]),
            // Another's.
            1 => {
                let client_id = 1;
                Request { client_id, ..sound }.encode(1, &mut request);
                hostile.send(&request);
            }
            // Out of order.
            2 => {
                Request { number: 2, ..sound }.encode(1, &mut request);
                hostile.send(&request);
            }
            // Of another life.
            3 => {
                sound.encode(2, &mut request);
                hostile.send(&request);
            }
            // More than a buffer holds: in a packet, and in many.
            4 => hostile.send(&[1; 2000]),
            5 => hostile.send(&[1; 60_000]),
            _ => hostile.send(&[]),
        }
        hostile.wait_to_be_put_out();
        for number in 0..4 {
            let sent = submit(&mut honest, &[1, round as u8, number], number == 0);
            if number > 0 {
                honest
                    .answer(sent, &mut Vec::new(), PATIENCE)
                    .expect("a server");
            }
        }
    }
    let counts = server.end();
    println!("{counts:?}");
    assert_eq!(counts.executed, ROUNDS * 4);
    assert_eq!(
        counts.broken,
        ROUNDS / 7 * 5,
        "the device itself ends the other two"
    );
    let expected =
        (0..ROUNDS).flat_map(|round| (0..4).map(move |number| vec![1, round as u8, number]));
    assert!(server.executed().into_iter().eq(expected));
}

/// A client that is owed answers and never receives any: it holds up nobody.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn who_never_takes_answers_is_put_out() {
    let mut server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    let hostile = Hostile::connect(&server, 1);
    for number in 1..=200 {
        hostile.send(&hostile.request(number, false));
        // One at a time: they have the same memory.
        if hostile.outcome() != Outcome::Done {
            break;
        }
        if number % 20 == 0 {
            let sent = submit(&mut honest, &[1], false);
            honest
                .answer(sent, &mut Vec::new(), PATIENCE)
                .expect("a server");
        }
    }
    hostile.wait_to_be_put_out();
    assert_eq!(server.end().broken, 0, "its requests were sound");
}

/// Whatever else a peer's card can do: none of it is let through, or all of it is looked at
/// as a request is.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn other_operations_of_a_card_come_to_nothing() {
    const ROUNDS: u64 = 24;
    let mut server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    for round in 0..ROUNDS {
        let hostile = Hostile::connect(&server, round);
        // An address and a key of the server's own memory, as far as one can be guessed: this
        // process is the server's, and keys are numbers that are given in turn.
        let (address, key) = (hostile.region.address(), hostile.region.remote_key());
        let (other, part) = ((address, key.wrapping_add(0x100)), 0..64);
        let region = &hostile.region;
        let posted = match round % 6 {
            0 => hostile.connection.read(0, region, part, (address, key)),
            1 => hostile
                .connection
                .write(0, region, part, (address, key), None),
            2 => hostile.connection.write(0, region, part, other, Some(7)),
            // Of no bytes: there is no key to look at.
            3 => hostile.connection.write(0, region, 0..0, (0, 0), Some(7)),
            4 => hostile.connection.write(0, region, 0..0, (0, 0), None),
            _ => {
                let words = [0, 1, u32::MAX, 0x8000_0000];
                let word = words[(round / 6 % 4) as usize];
                hostile.send_beside(&hostile.request(1, true), Some(word));
                Ok(())
            }
        };
        posted.expect("room");
        let outcome = hostile.outcome();
        match round % 6 {
            5 => assert_eq!(outcome, Outcome::Done),
            of => assert!(matches!(outcome, Outcome::Failed(_)), "{of}: {outcome:?}"),
        }
        let sent = submit(&mut honest, &[1, round as u8], false);
        let answered = honest.answer(sent, &mut Vec::new(), PATIENCE);
        assert_eq!(answered, Ok(()));
    }
    let counts = server.end();
    assert_eq!((counts.broken, counts.skipped, counts.strays), (0, 0, 0));
    let executed = server.executed();
    let of_hostile = executed.iter().filter(|bytes| *bytes == b"hostile");
    assert_eq!(of_hostile.count() as u64, ROUNDS / 6);
    let of_honest = executed.iter().filter(|bytes| *bytes != b"hostile");
    assert!(
        of_honest.eq((0..ROUNDS)
            .map(|round| vec![1, round as u8])
            .collect::<Vec<_>>()
            .iter())
    );
}

/// The server's SEND of an answer fails at a buffer that is too short for it.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn who_has_too_little_room_for_an_answer_is_put_out() {
    let mut server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    for round in 0..6 {
        let hostile = Hostile::connect(&server, round);
        let short = 1 << 15..(1 << 15) + 8;
        let posted = hostile.connection.post_receive(9, &hostile.region, short);
        posted.expect("room");
        hostile.send(&hostile.request(1, false));
        hostile.wait_to_be_put_out();
        let sent = submit(&mut honest, &[1], false);
        let answered = honest.answer(sent, &mut Vec::new(), PATIENCE);
        assert_eq!(answered, Ok(()));
    }
    assert_eq!(server.end().executed, 12);
}

/// Messages of several packets, of which Soft-RoCE takes short ones, whose sender goes in their
/// midst: the card gives their buffers back. There are some over a cable that loses frames
/// (`scripts/rdma-vm.sh --loss 30`).
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn halves_of_messages_take_no_room_from_others() {
    let mut server = Server::start(1, options());
    let mut honest = server.client(0).expect("a place");
    let mut sent = 0;
    for round in 0..60 {
        let hostile = Hostile::connect_by(&server, round, Mtu::B256);
        hostile.send(&[3; 1500]);
        // What is lost on the way now is not sent again any more.
        std::thread::sleep(Duration::from_millis(20));
        drop(hostile);
        for _ in 0..4 {
            let of_honest = submit(&mut honest, &u64::to_le_bytes(sent), true);
            let committed = honest.committed(of_honest, PATIENCE);
            assert_eq!(committed, Ok(()), "{sent}");
            sent += 1;
        }
    }
    let counts = server.end();
    println!("{counts:?}, {} connections more", honest.reconnected());
    assert!(
        server
            .executed()
            .into_iter()
            .eq((0..sent).map(|n| n.to_le_bytes().to_vec()))
    );
}
