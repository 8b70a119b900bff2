//! Messages by a port, and an engine that says what the test wants.

use crate::dial::{DatagramUse, EngineAddress};
use crate::port::EnginePort;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_fabric::port::{Completion, Port as _, SendError, Token};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::{Answer, ErrorCode, Request};
use trefoil_layout::{KeyHash, KeyHasher, TopologyId};
use trefoil_softnic_core::limits::WINDOW_LEN;
use trefoil_softnic_core::wire::{
    self, COUNTER_NAMES, CounterValues, MESSAGE_FRAMES, Message, MessageStatus, Messaged, Open,
    OpenStatus, Opened, RefusalCode, Welcome,
};
use trefoil_softnic_core::{Handed, Memory, ReadRange, Scan, Target};

const PATIENCE: Duration = Duration::from_secs(20);
const TOPOLOGY: TopologyId = TopologyId {
    life: 7,
    config_id: 1,
};

/// Notes what it was handed, and answers nothing.
#[derive(Default)]
struct Notes(Vec<u64>);

impl Memory for Notes {
    fn admit(&mut self, _: &[u8]) -> Result<Welcome, RefusalCode> {
        Ok(Welcome {
            window: WINDOW_LEN,
            engine: 1,
            session: 1,
        })
    }

    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        Ok(Opened {
            handle: 3,
            backend: open.backend,
            layout: LAYOUT_VERSION,
            hasher: KeyHasher::default(),
            partition_count: 1,
            sub_count: 1,
            incarnation: 1,
            topology: TOPOLOGY,
        })
    }

    fn scan(&mut self, _: &Scan, _: &mut Vec<u8>) -> wire::Answer {
        wire::Answer::bare(wire::Status::Gone)
    }

    fn read(&mut self, _: u32, _: &ReadRange, _: &mut Vec<u8>) -> wire::Answer {
        wire::Answer::bare(wire::Status::Gone)
    }

    fn touch(&mut self, _: u32, _: u8, _: KeyHash) {}

    fn message(&mut self, message: &Message<'_>) -> Handed {
        self.0.push(message.id);
        Handed::UnderWay
    }

    fn counters(&mut self) -> CounterValues {
        let mut values = [0; COUNTER_NAMES.len()];
        let frames = COUNTER_NAMES.iter().position(|of| *of == "message_frames");
        values[frames.unwrap()] = MESSAGE_FRAMES;
        values
    }
}

struct Engine {
    stream: TcpStream,
    target: Target,
    notes: Notes,
    input: Vec<u8>,
}

impl Engine {
    /// What has come, if anything.
    fn serve(&mut self) {
        let mut buffer = [0; 4096];
        if let Ok(count) = self.stream.read(&mut buffer) {
            self.input.extend_from_slice(&buffer[..count]);
        }
        let mut out = Vec::new();
        let done = self.target.handle(&self.input, &mut self.notes, &mut out);
        self.input.drain(..done.unwrap());
        self.stream.write_all(&out).unwrap();
    }

    fn says(&mut self, id: u64, result: Result<&[u8], MessageStatus>) {
        let mut out = Vec::new();
        Messaged { id, result }.encode(&mut out);
        self.stream.write_all(&out).unwrap();
    }
}

fn connected() -> (EnginePort, Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let engine = EngineAddress {
            address,
            host: "localhost".to_owned(),
            tls: None,
            datagrams: DatagramUse::No,
            token: Arc::from(&b""[..]),
        };
        EnginePort::connect(&engine, (0, TOPOLOGY.life), true, PATIENCE).unwrap()
    });
    let (stream, _) = listener.accept().unwrap();
    let wait = Some(Duration::from_millis(1));
    stream.set_read_timeout(wait).unwrap();
    let mut engine = Engine {
        stream,
        target: Target::new(),
        notes: Notes::default(),
        input: Vec::new(),
    };
    while !client.is_finished() {
        engine.serve();
    }
    (client.join().unwrap(), engine)
}

/// One message was not handed on, and another one is executed: what is said of the first is not
/// said of the second.
#[test]
fn one_that_is_gone_loses_no_other() {
    let (mut port, mut engine) = connected();
    assert!(port.has_scans());
    for token in [1, 2] {
        port.send(Token(token), TOPOLOGY, &Request::Ping).unwrap();
    }
    port.arm();
    let begin = Instant::now();
    while engine.notes.0.len() < 2 {
        engine.serve();
        assert!(begin.elapsed() < PATIENCE);
    }
    let mut heard = Vec::new();
    engine.says(2, Err(MessageStatus::Gone));
    while heard.is_empty() {
        let polled = port.poll(|completion| {
            let is_refused = matches!(
                completion,
                Completion::Answer(_, Answer::Error(ErrorCode::TooLarge))
            );
            heard.push((completion.token().0, is_refused));
        });
        polled.expect("the other one is owed");
        engine.serve();
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(heard, [(2, true)]);
    // Nothing new goes by it meanwhile, and nobody turns round and round for it.
    assert!(!port.has_scans() && !port.is_ready());
    let sent = port.send(Token(3), TOPOLOGY, &Request::Ping);
    assert!(matches!(sent, Err(SendError::NoMessages)), "{sent:?}");
    let mut pong = vec![0; Answer::Pong.encoded_len()];
    Answer::Pong.encode(1, &mut pong);
    engine.says(1, Ok(&pong));
    let mut heard = Vec::new();
    while port
        .poll(|completion| {
            let is_it = matches!(completion, Completion::Answer(_, Answer::Pong));
            heard.push((completion.token().0, is_it));
        })
        .is_ok()
    {
        engine.serve();
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(heard, [(1, true)]);
}

/// It has ended while its client asked for nothing.
#[test]
fn an_engine_that_has_ended_is_sent_nothing() {
    let (mut port, engine) = connected();
    drop(engine);
    // It is there, and nobody has looked.
    let socket = port.descriptor().unwrap();
    let mut waits = [PollFd::new(&socket, PollFlags::IN)];
    assert_eq!(poll(&mut waits, None).unwrap(), 1);
    let sent = port.send(Token(1), TOPOLOGY, &Request::Ping);
    assert!(matches!(sent, Err(SendError::Closed)), "{sent:?}");
}
