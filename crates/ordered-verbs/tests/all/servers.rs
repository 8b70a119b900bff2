//! Servers that say nonsense to a client.

use crate::serving::{PATIENCE, TOKEN, devices};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use trefoil_ordered::{Carrier, NoAnswer};
use trefoil_ordered_verbs::wire::{HELLO_LEN, Hello, Status, Welcome, encode_answer, refusal};
use trefoil_ordered_verbs::{ConnectError, QueueAddress, VerbsQueue};
use trefoil_region::Mapping;
use trefoil_verbs::{
    Completions, Connection, Device, Outcome, Peer, Region, RemoteUse, SendFlags, Timers,
};

const RECEIVES: u64 = 16;

/// A connection that a client has made, by one who is no queue.
struct Side {
    control: TcpStream,
    hello: Hello,
    connection: Connection,
    completions: Arc<Completions>,
    region: Region,
}

impl Side {
    fn accept(listener: &TcpListener) -> Self {
        let (mut control, _) = listener.accept().expect("a client");
        let mut head = [0; HELLO_LEN];
        control.read_exact(&mut head).expect("a client");
        let (hello, token_len) = Hello::decode(&head).expect("a client of this version");
        let mut token = vec![0; token_len];
        control.read_exact(&mut token).expect("a client");
        let device = Device::open(devices()[0]).expect("a device");
        let completions = Arc::new(Completions::new(&device, 64).expect("room"));
        let region = Region::new(&device, Mapping::heap(1 << 16), RemoteUse::None);
        let region = region.expect("memory");
        let both = (&completions, 16);
        let connection = Connection::new(&device, both, both, None, 5).expect("a connection");
        for at in 0..RECEIVES {
            let part = 4096 + at * 2048..4096 + (at + 1) * 2048;
            let posted = connection.post_receive(at, &region, part);
            posted.expect("room");
        }
        Side {
            control,
            hello,
            connection,
            completions,
            region,
        }
    }

    fn welcome(&mut self, change: impl FnOnce(&mut Welcome)) {
        let mut welcome = Welcome {
            status: Status::In,
            window: 8,
            epoch: 1,
            client_id: 1,
            placed: 0,
            peer: self.connection.own(),
        };
        change(&mut welcome);
        let _ = self.control.write_all(&welcome.encode());
    }

    /// Receives a request, then sends this.
    fn answer(&self, bytes: &[u8]) {
        let to = self.connection.connect(self.hello.peer, Timers::default());
        to.expect("a path");
        let mut is_there = false;
        while !is_there {
            let polled = self
                .completions
                .poll(|one| is_there |= one.outcome == Outcome::Done);
            polled.expect("a device");
            std::thread::yield_now();
        }
        self.region.words().copy_in_bytes(0, bytes);
        let how = SendFlags {
            wakes: true,
            is_signaled: false,
            immediate: Some(3),
        };
        let part = 0..bytes.len() as u64;
        self.connection
            .send(0, &self.region, part, how)
            .expect("room");
    }
}

fn client(listener: &TcpListener) -> Result<VerbsQueue, ConnectError> {
    let at = QueueAddress {
        address: listener.local_addr().expect("an address"),
        token: TOKEN.into(),
        device: devices().last().copied(),
    };
    VerbsQueue::connect(at, PATIENCE)
}

/// None is taken for a queue.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn impossible_welcomes_are_told_from_a_queue() {
    type Change = fn(&mut Welcome);
    let changes: [(&str, Change); 8] = [
        ("a window of 0", |welcome| welcome.window = 0),
        ("a window of 1", |welcome| welcome.window = 1),
        ("a window of 1025", |welcome| welcome.window = 1025),
        ("a window without end", |welcome| welcome.window = u32::MAX),
        ("no life", |welcome| welcome.epoch = 0),
        ("requests of who is new", |welcome| welcome.placed = 1),
        ("requests without end", |welcome| welcome.placed = u64::MAX),
        ("short packets", |welcome| {
            let mtu = trefoil_verbs::Mtu::B1024;
            welcome.peer = Peer {
                mtu,
                ..welcome.peer
            };
        }),
    ];
    let listener = TcpListener::bind((devices()[0], 0)).expect("a port");
    for (what, change) in changes {
        std::thread::scope(|scope| {
            scope.spawn(|| Side::accept(&listener).welcome(change));
            let result = client(&listener);
            let is_told = matches!(result, Err(ConnectError::Foreign { .. }));
            assert!(is_told, "{what}: {result:?}");
        });
    }
}

/// Each kind of nonsense ends the connection. The client asks for another one, and is told.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn impossible_answers_end_the_connection() {
    let mut of_another = Vec::new();
    encode_answer(99, b"of a request that was never sent", &mut of_another);
    let mut of_none = Vec::new();
    encode_answer(u64::MAX, b"", &mut of_none);
    let mut cut = Vec::new();
    encode_answer(1, b"answer", &mut cut);
    cut.pop();
    let answers = [
        of_another,
        of_none,
        cut,
        vec![],
        vec![7; 9],
        vec![7; 1536],
        vec![7; 4000],
    ];
    let listener = TcpListener::bind((devices()[0], 0)).expect("a port");
    for answer in &answers {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut side = Side::accept(&listener);
                side.welcome(|_| {});
                side.answer(answer);
                let mut again = Side::accept(&listener);
                assert_eq!((again.hello.epoch, again.hello.attempt), (1, 1));
                let refused = again.control.write_all(&refusal(Status::Forgotten));
                refused.expect("a client");
            });
            let mut client = client(&listener).expect("a place");
            let sent = client.submit(b"request", false).expect("room");
            let answered = client.answer(sent, &mut Vec::new(), PATIENCE);
            assert_eq!(answered, Err(NoAnswer::ServerGone));
            let late = client.committed(sent, Duration::from_millis(1));
            assert!(
                matches!(late, Ok(()) | Err(NoAnswer::ServerGone)),
                "{late:?}"
            );
        });
    }
}
