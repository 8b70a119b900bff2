//! What the scans of a frame look at is fetched before they look, some of them at a time.

use crate::world::{CONFIG, Fake, LIFE, TOKEN};
use trefoil_layout::KeyHash;
use trefoil_softnic_core::wire::{Answer, Open, OpenStatus, Opened, RefusalCode, Welcome};
use trefoil_softnic_core::{
    Event, Expected, Initiator, InitiatorOptions, Memory, ReadRange, Scan, Target, Unanswered,
};

/// What it was asked for, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Expects(u64),
    Scans(u64),
    EndsReads,
}

struct Noting {
    fake: Fake,
    asked: Vec<Asked>,
    /// Whether leases have ended.
    is_over: bool,
    lapsed: usize,
}

impl Memory for Noting {
    fn admit(&mut self, token: &[u8]) -> Result<Welcome, RefusalCode> {
        self.fake.admit(token)
    }

    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        self.fake.open(open)
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        self.asked.push(Asked::Scans(scan.hash.place));
        self.fake.scan(scan, data)
    }

    fn expect(&mut self, scans: impl Iterator<Item = Expected> + Clone) {
        for scan in scans {
            assert_eq!((scan.handle, scan.place, scan.has_data), (9, 1, true));
            self.asked.push(Asked::Expects(scan.hash.place));
        }
    }

    fn read(&mut self, handle: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
        self.fake.read(handle, range, data)
    }

    fn touch(&mut self, handle: u32, place: u8, hash: KeyHash) {
        self.fake.touch(handle, place, hash);
    }

    fn end_reads(&mut self) {
        self.asked.push(Asked::EndsReads);
    }

    fn lease_left_us(&mut self, _: u32) -> Option<u32> {
        Some(u32::from(!self.is_over))
    }

    fn lapsed(&mut self, _: u32) {
        self.lapsed += 1;
    }
}

/// Asks for so many keys at once; how many were answered, and what the memory was asked for.
fn asked_for(count: u64, is_over: bool) -> (usize, Noting) {
    let mut client = Initiator::new(InitiatorOptions {
        token: TOKEN,
        ..InitiatorOptions::default()
    });
    client.open(1, 0, LIFE, 0);
    let (mut target, mut out) = (Target::new(), Vec::new());
    let mut memory = Noting {
        fake: Fake::new(),
        asked: Vec::new(),
        is_over,
        lapsed: 0,
    };
    let mut answered = 0;
    for round in 0..2 {
        if round == 1 {
            for id in 0..count {
                let hash = KeyHash { place: id, tag: 2 };
                client.scan(id, 9, 1, hash, CONFIG, 0);
            }
        }
        client.flush(0);
        out.clear();
        let done = target.handle(client.output(), &mut memory, &mut out);
        client.sent(done.unwrap());
        let taken = client.handle(&out, 1, |event| match event {
            Event::Opened { .. } => {}
            Event::Scanned { data, .. } if data.len() == 16 => answered += 1,
            Event::Unanswered {
                why: Unanswered::Lapsed,
                ..
            } => {}
            other => panic!("{other:?}"),
        });
        assert_eq!(taken, Ok(out.len()));
    }
    (answered, memory)
}

#[test]
fn a_group_is_fetched_before_it_is_looked_at() {
    let (answered, memory) = asked_for(70, false);
    assert_eq!(answered, 70);
    let mut wanted = Vec::new();
    for group in [0..32, 32..64, 64..70] {
        wanted.extend(group.clone().map(Asked::Expects));
        wanted.extend(group.map(Asked::Scans));
    }
    wanted.push(Asked::EndsReads);
    assert_eq!(memory.asked, wanted);
}

#[test]
fn few_are_looked_at_at_once() {
    for count in 1..4 {
        let (answered, memory) = asked_for(count, false);
        assert_eq!(answered as u64, count);
        let scans = (0..count).map(Asked::Scans);
        let wanted: Vec<Asked> = scans.chain([Asked::EndsReads]).collect();
        assert_eq!(memory.asked, wanted);
    }
}

#[test]
fn one_alone_whose_lease_has_ended_is_looked_at_once() {
    let (answered, memory) = asked_for(1, true);
    assert_eq!((answered, memory.lapsed), (0, 1));
    assert_eq!(memory.asked, [Asked::Scans(0), Asked::EndsReads]);
}
