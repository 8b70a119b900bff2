//! Clients that are let in and write nonsense, by the verbs themselves.

use crate::serving::{PATIENCE, Server, TOKEN, devices, options, submit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use trefoil_ordered::Carrier;
use trefoil_ordered_verbs::wire::{Hello, Request, WELCOME_LEN, Welcome};
use trefoil_region::Mapping;
use trefoil_verbs::{
    Completions, Connection, Device, Outcome, Region, RemoteUse, SendFlags, Timers,
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
        let mut control = TcpStream::connect(server.address).expect("a listener");
        control.write_all(&hello.encode(TOKEN)).expect("a server");
        let mut words = [0; WELCOME_LEN];
        control.read_exact(&mut words).expect("a server");
        let welcome = Welcome::decode(&words).expect("it is let in");
        connection
            .connect(welcome.peer, Timers::default())
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
        self.region.words().copy_in_bytes(0, bytes);
        let how = SendFlags {
            wakes: true,
            is_signaled: true,
        };
        let part = 0..bytes.len() as u64;
        self.connection
            .send(0, &self.region, part, how)
            .expect("room");
    }

    /// Waits until the server has hung up.
    fn is_put_out(mut self) {
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
    const ROUNDS: u64 = 60;
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
        match round % 6 {
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
            _ => hostile.send(&[1; 60_000]),
        }
        hostile.is_put_out();
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
        ROUNDS / 6 * 4,
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
        let request = Request {
            client_id: hostile.welcome.client_id,
            number,
            nilext: false,
            payload: &[2],
        };
        let mut bytes = Vec::new();
        request.encode(1, &mut bytes);
        hostile.send(&bytes);
        // One at a time: they have the same memory.
        let mut outcome = None;
        while outcome.is_none() {
            let polled = hostile.completions.poll(|one| outcome = Some(one.outcome));
            polled.expect("a device");
            std::thread::yield_now();
        }
        if outcome != Some(Outcome::Done) {
            break;
        }
        if number % 20 == 0 {
            let sent = submit(&mut honest, &[1], false);
            honest
                .answer(sent, &mut Vec::new(), PATIENCE)
                .expect("a server");
        }
    }
    hostile.is_put_out();
    assert_eq!(server.end().broken, 0, "its requests were sound");
}
