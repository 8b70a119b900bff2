//! Messages: their frames, what may be under way, and an engine that says nothing.

use crate::world::{Fake, TOKEN, random};
use rand::RngExt as _;
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::{Answer, MESSAGE_LEN_MAX, Request, RequestHead, parse_request};
use trefoil_layout::op::{Ack, Action, Mutation, Outcome};
use trefoil_softnic_core::limits::{
    MESSAGE_COUNT_MAX, MESSAGE_FRAME_LEN_MAX, MESSAGE_WINDOW_LEN, SESSION_PATIENCE_NS,
};
use trefoil_softnic_core::wire::{
    COUNTER_NAMES, Frame, HEAD_LEN, Head, Hello, Kind, Message, MessageStatus, Messaged, Open,
    OpenStatus, Opened, RefusalCode, Welcome, counters,
};
use trefoil_softnic_core::{
    Event, Handed, Initiator, InitiatorOptions, Memory, ReadRange, Scan, Target, TargetError,
};

const HANDLE: u32 = 9;
const SOLICITED: u32 = 1000;

/// A SET with a value of that length.
fn set(value: &[u8]) -> Request<'_> {
    Request::Mutate(Mutation {
        action: Action::Set,
        version: Version::new(3, 2, 1),
        entry: DataEntry {
            key: b"key",
            value,
            ..DataEntry::default()
        },
    })
}

fn head(id: u64) -> RequestHead {
    RequestHead { id, config_id: 5 }
}

fn frame(id: u64, request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Message::encode((HANDLE, SOLICITED), head(id), request, &mut out);
    out
}

fn ack(id: u64) -> Vec<u8> {
    let answer = Answer::Ack(Ack {
        epoch: 1,
        outcome: Outcome::Applied,
    });
    let mut bytes = vec![0; answer.encoded_len()];
    answer.encode(id, &mut bytes);
    bytes
}

fn messaged(id: u64, result: Result<&[u8], MessageStatus>) -> Vec<u8> {
    let mut out = Vec::new();
    Messaged { id, result }.encode(&mut out);
    out
}

fn body(bytes: &[u8]) -> &[u8] {
    let frame = Frame::first(bytes, bytes.len()).unwrap().unwrap();
    assert_eq!(frame.total_len(), bytes.len());
    frame.body
}

#[test]
fn messages_come_back_as_they_were() {
    for len in [0, 1, 7, 8, 1000, 65_536] {
        let value = vec![7; len];
        let bytes = frame(4711, &set(&value));
        assert!(bytes.len() <= MESSAGE_FRAME_LEN_MAX);
        let found = Message::decode(body(&bytes)).unwrap();
        assert_eq!((found.handle, found.solicited), (HANDLE, SOLICITED));
        assert_eq!(found.id, 4711);
        let (head, request) = parse_request(found.bytes).unwrap();
        assert_eq!((head.id, head.config_id), (4711, 5));
        let Request::Mutate(mutation) = request else {
            panic!("{request:?}");
        };
        assert_eq!(mutation.entry.value, value);
        let most = bytes.len() + messaged(1, Ok(&[0; SOLICITED as usize])).len();
        assert_eq!(found.cost() as usize, most);
    }
    let bytes = ack(8);
    let answered = messaged(8, Ok(&bytes));
    let found = Messaged::decode(body(&answered)).unwrap();
    assert_eq!((found.id, found.result), (8, Ok(&bytes[..])));
    for status in MessageStatus::ALL {
        let found = messaged(8, Err(status));
        let found = Messaged::decode(body(&found)).unwrap();
        assert_eq!((found.id, found.result), (8, Err(status)));
    }
    // Another message's answer is none.
    assert!(Messaged::decode(body(&messaged(9, Ok(&bytes)))).is_err());
}

#[test]
fn reserved_bytes_and_lengths_that_lie_are_refused() {
    // With a byte of padding.
    let good = frame(1, &set(b"text"));
    let judge = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[HEAD_LEN + at] = byte;
        Message::decode(body(&bad)).is_ok()
    };
    assert!(judge(0, 1));
    assert!(!judge(12, 1) && !judge(4, 1) && !judge(5, 1));
    // Less than an acknowledgement, and more than a message.
    assert!(!judge(10, 2));
    let solicits = |solicited| {
        let mut out = Vec::new();
        Message::encode((HANDLE, solicited), head(1), &set(b""), &mut out);
        Message::decode(body(&out)).is_ok()
    };
    assert!(solicits(48) && solicits(MESSAGE_LEN_MAX as u32));
    assert!(!solicits(47) && !solicits(MESSAGE_LEN_MAX as u32 + 1));
    assert!(!judge(good.len() - HEAD_LEN - 1, 1));
    let bytes = ack(8);
    let good = messaged(8, Ok(&bytes));
    let judge = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[HEAD_LEN + at] = byte;
        Messaged::decode(body(&bad)).is_ok()
    };
    assert!(judge(8, 0) && !judge(8, 1) && !judge(8, 99));
    assert!(!judge(9, 1) && !judge(12, 1) && !judge(16, 1));
    let mut random = random(3);
    for _ in 0..10_000 {
        for good in [&good, &frame(1, &set(b"value"))] {
            let mut bad = good.clone();
            let at = random.random_range(HEAD_LEN..bad.len());
            bad[at] = random.random();
            let _ = (Message::decode(body(&bad)), Messaged::decode(body(&bad)));
        }
    }
}

/// Keeps what it is handed, and says what it was told to.
struct Rings {
    fake: Fake,
    says: Handed,
    handed: Vec<u64>,
}

impl Memory for Rings {
    fn admit(&mut self, token: &[u8]) -> Result<Welcome, RefusalCode> {
        self.fake.admit(token)
    }

    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        self.fake.open(open)
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> trefoil_softnic_core::wire::Answer {
        self.fake.scan(scan, data)
    }

    fn read(
        &mut self,
        handle: u32,
        range: &ReadRange,
        data: &mut Vec<u8>,
    ) -> trefoil_softnic_core::wire::Answer {
        self.fake.read(handle, range, data)
    }

    fn touch(&mut self, handle: u32, place: u8, hash: trefoil_layout::KeyHash) {
        self.fake.touch(handle, place, hash);
    }

    fn message(&mut self, message: &Message<'_>) -> Handed {
        assert_eq!(message.handle, HANDLE);
        self.handed.push(message.id);
        self.says
    }
}

fn rings(says: Handed) -> (Target, Rings) {
    let (mut target, mut rings) = (
        Target::new(),
        Rings {
            fake: Fake::new(),
            says,
            handed: Vec::new(),
        },
    );
    let mut hello = Vec::new();
    Hello::new(u32::MAX, TOKEN).encode(&mut hello);
    let done = target.handle(&hello, &mut rings, &mut Vec::new());
    assert_eq!(done, Ok(hello.len()));
    (target, rings)
}

#[test]
fn an_engine_hands_on_what_is_whole_and_answers_what_it_refuses() {
    let value = vec![1; 60_000];
    let input = [frame(1, &set(&value)), frame(2, &set(b""))].concat();
    for piece in [input.len(), 1000] {
        let (mut target, mut memory) = rings(Handed::UnderWay);
        let (mut held, mut out) = (Vec::new(), Vec::new());
        for piece in input.chunks(piece) {
            held.extend_from_slice(piece);
            let done = target.handle(&held, &mut memory, &mut out).unwrap();
            held.drain(..done);
            assert!(held.len() < target.input_len_max());
        }
        assert_eq!(memory.handed, [1, 2]);
        assert!(out.is_empty() && held.is_empty());
    }
    let (mut target, mut memory) = rings(Handed::Refused(MessageStatus::Full));
    let mut out = Vec::new();
    target.handle(&input, &mut memory, &mut out).unwrap();
    let full = |id| messaged(id, Err(MessageStatus::Full));
    assert_eq!(out, [full(1), full(2)].concat());
    let (mut target, mut memory) = rings(Handed::TooMany);
    let ended = target.handle(&input, &mut memory, &mut Vec::new());
    assert!(matches!(ended, Err(TargetError::Malformed(_))));
}

/// Only a message's frame may be as long as a message.
#[test]
fn nothing_else_is_waited_for_that_is_so_long() {
    let begin = |kind| Head {
        len: MESSAGE_FRAME_LEN_MAX - HEAD_LEN,
        kind,
        count: 1,
    };
    for (kind, is_taken) in [(Kind::Message, true), (Kind::Asks, false)] {
        let (mut target, mut memory) = rings(Handed::UnderWay);
        let begun = begin(kind).encode();
        let result = target.handle(&begun, &mut memory, &mut Vec::new());
        assert_eq!(result.is_ok(), is_taken, "{kind:?}");
    }
}

/// A session that stands.
fn client() -> Initiator {
    let mut client = Initiator::new(InitiatorOptions::default());
    let mut bytes = Vec::new();
    crate::world::welcome().encode(&mut bytes);
    client.handle(&bytes, 1, |_| {}).unwrap();
    client.sent(client.output().len());
    client
}

#[test]
fn a_client_keeps_what_is_under_way_within_bounds() {
    let mut client = client();
    let mut sent = 0;
    while client.message(HANDLE, head(sent), &set(b""), 1) {
        sent += 1;
    }
    assert_eq!(sent, MESSAGE_COUNT_MAX as u64);
    let mut told = Vec::new();
    let bytes = [
        messaged(5, Err(MessageStatus::Gone)),
        messaged(3, Ok(&ack(3))),
    ];
    client
        .handle(&bytes.concat(), 2, |event| match event {
            Event::Messaged { id, handle, result } => told.push((id, handle, result.is_ok())),
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert_eq!(told, [(5, HANDLE, false), (3, HANDLE, true)]);
    assert!(client.message(HANDLE, head(1000), &set(b""), 3));
    assert!(client.message(HANDLE, head(1001), &set(b""), 3));
    assert!(!client.message(HANDLE, head(1002), &set(b""), 3));
    // Nobody has asked for it, or not any more.
    assert!(
        client
            .handle(&messaged(5, Err(MessageStatus::Gone)), 4, |_| {})
            .is_err()
    );

    let mut client = self::client();
    let value = vec![0; 60_000];
    let mut len = 0;
    for id in 0.. {
        if !client.message(HANDLE, head(id), &set(&value), 1) {
            break;
        }
        len = client.messages().len();
    }
    assert!(len <= MESSAGE_WINDOW_LEN as usize && len > MESSAGE_WINDOW_LEN as usize / 4 * 3);
    let long = vec![0; MESSAGE_LEN_MAX];
    assert!(!self::client().message(HANDLE, head(1), &set(&long), 1));
}

/// What a backend takes its time for says nothing of the engine, which is asked whether it lives.
#[test]
fn an_engine_that_owes_messages_alone_is_given_up_when_it_answers_nothing() {
    let question = {
        let mut question = Vec::new();
        counters::encode_question(&mut question);
        question
    };
    let mut client = client();
    assert!(client.message(HANDLE, head(1), &set(b""), 10));
    let mut now_ns = 10;
    for _ in 0..5 {
        client.take_messages(&mut Vec::new());
        now_ns += SESSION_PATIENCE_NS / 2 - 1;
        client.ask_whether_it_lives(now_ns);
        assert!(client.messages().is_empty() && !client.is_silent(now_ns));
        now_ns += 1;
        client.ask_whether_it_lives(now_ns);
        client.ask_whether_it_lives(now_ns);
        assert_eq!(client.messages(), question);
        let mut counted = Vec::new();
        counters::encode(&[1; COUNTER_NAMES.len()], &mut counted);
        client.handle(&counted, now_ns, |_| {}).unwrap();
    }
    now_ns += SESSION_PATIENCE_NS / 2;
    client.ask_whether_it_lives(now_ns);
    assert!(!client.is_silent(now_ns + SESSION_PATIENCE_NS - 1));
    assert!(client.is_silent(now_ns + SESSION_PATIENCE_NS));
}
