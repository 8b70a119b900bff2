//! Any bytes to an engine and to its client: neither panics, a stranger gets less than
//! it has sent, and what is kept for either is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{MESSAGE_LEN_MAX, Request as ToBackend, RequestHead};
use trefoil_layout::{HashKind, KeyHash, KeyHasher, TopologyId};
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};
use trefoil_softnic_core::datagram::{Courier, DATAGRAM_LEN_MAX, PAYLOAD_LEN_MAX, Path, Window};
use trefoil_softnic_core::limits::WINDOW_LEN;
use trefoil_softnic_core::wire::{Ask, Request};
use trefoil_softnic_core::wire::{
    Answer, Message, MessageStatus, Open, OpenStatus, Opened, RefusalCode, Status, Welcome,
};
use trefoil_softnic_core::{Handed, Initiator, InitiatorOptions, Memory, ReadRange, Scan, Target};

struct Zeros;

impl Memory for Zeros {
    fn admit(&mut self, token: &[u8]) -> Result<Welcome, RefusalCode> {
        match token.is_empty() {
            true => Ok(Welcome { window: WINDOW_LEN, engine: 1, session: 2 }),
            false => Err(RefusalCode::Token),
        }
    }

    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        Ok(Opened {
            handle: 1,
            backend: open.backend,
            layout: 3,
            hasher: KeyHasher { kind: HashKind::Xxh3, seed: [0; 2] },
            partition_count: 4,
            sub_count: 4,
            incarnation: 1,
            topology: TopologyId { life: open.life, config_id: 1 },
        })
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        let len = scan.solicited.min(scan.hash.tag as u32) & !7;
        data.resize(data.len() + len as usize, 0);
        Answer { data_len: len, vote: Some(IndexVote::Unstable), ..Answer::bare(Status::Done) }
    }

    fn read(&mut self, _: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
        data.resize(data.len() + range.len as usize, 0);
        Answer { data_len: range.len, ..Answer::bare(Status::Done) }
    }

    fn touch(&mut self, _: u32, _: u8, _: KeyHash) {}

    fn message(&mut self, message: &Message<'_>) -> Handed {
        assert!(message.bytes.len() <= MESSAGE_LEN_MAX);
        match message.id % 4 {
            0 => Handed::UnderWay,
            1 => Handed::TooMany,
            _ => Handed::Refused(MessageStatus::Gone),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (mut target, mut out) = (Target::new(), Vec::new());
    let mut rest = bytes;
    while let Ok(done) = target.handle(rest, &mut Zeros, &mut out) {
        assert!(out.len() <= 2 * WINDOW_LEN as usize);
        if done == 0 {
            break;
        }
        rest = &rest[done..];
        if target.is_admitted() {
            out.clear();
        }
    }
    assert!(target.is_admitted() || out.len() <= bytes.len());

    let mut client = Initiator::new(InitiatorOptions::default());
    client.open(1, 0, 1, 0);
    client.ask_counters(0);
    client.scan(2, 1, 0, KeyHash { place: 1, tag: 8 }, 1, 0);
    let head = RequestHead { id: 3, config_id: 1 };
    assert!(client.message(1, head, &ToBackend::Ping, 0));
    let _ = client.handle(bytes, 1, |_| {});
    client.flush(0);
    client.put_messages();

    // The same bytes as the payload of a datagram, which only who has the key can send.
    let mut count = 0;
    let _ = carry_out(bytes, &mut Zeros, &mut Buffers::default(), |payload| {
        assert!(payload.len() <= PAYLOAD_LEN_MAX);
        count += payload.len();
    });
    assert!(count <= 2 * WINDOW_LEN as usize);
    let mut courier = Courier::on(Path::new(DATAGRAM_LEN_MAX), Window::new(WINDOW_LEN));
    let hash = KeyHash { place: 1, tag: 8 };
    let request = Request::Scan { place: 0, hash, config_id: 1, solicited: 4096, is_use: false, is_vote: false };
    courier.ask(Ask { id: 2, handle: 1, request });
    let mut payload = Vec::new();
    // The request, then a probe.
    while courier.next_payload(0, &mut payload) {
        assert!(payload.len() <= PAYLOAD_LEN_MAX);
    }
    let mut answers = 0;
    let _ = courier.handle(bytes, 1, |_| answers += 1);
    // Again, as attempts at the whole or at a part of it: the pieces may be of any of them.
    for now in [1 << 40, 1 << 50] {
        while courier.next_payload(now, &mut payload) {}
        let _ = courier.handle(bytes, now, |_| answers += 1);
    }
    assert!(answers <= 1);
});
