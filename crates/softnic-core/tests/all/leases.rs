//! Leases that end while a frame is carried out, and scans that are uses.

use crate::world::{CONFIG, TOKEN, welcome};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};
use trefoil_softnic_core::wire::{Answer, Open, OpenStatus, Opened, RefusalCode, Status, Welcome};
use trefoil_softnic_core::{
    Event, Initiator, InitiatorOptions, Memory, ReadRange, Scan, Target, Unanswered,
};

/// Everything is there under every handle, with a byte of data for each scan so far.
#[derive(Default)]
struct Leased {
    /// Of the handles from 0 on, in microseconds.
    left_us: [u32; 3],
    /// This one's ends with the scan of this number.
    ends: Option<(u32, usize)>,
    scans: usize,
    ended: usize,
    lapsed: usize,
    used: Vec<(u32, u32)>,
}

impl Memory for Leased {
    fn admit(&mut self, _: &[u8]) -> Result<Welcome, RefusalCode> {
        Ok(welcome())
    }

    fn open(&mut self, _: &Open) -> Result<Opened, OpenStatus> {
        unreachable!("nobody opens")
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        let Scan { handle, hash, .. } = *scan;
        if scan.is_use {
            self.used.push((handle, 40 + handle));
        }
        self.scans += 1;
        if let Some((ending, at)) = self.ends
            && at == self.scans
        {
            self.left_us[ending as usize] = 0;
        }
        data.extend_from_slice(&[handle as u8; 8]);
        let entry = IndexEntry {
            tag: hash.tag,
            version: Version::new(1, 1, 1),
            pointer: Pointer(0),
        };
        Answer {
            vote: Some(IndexVote::Present {
                slot_number: 40 + handle,
                entry,
                epoch: 1,
            }),
            data_len: 8,
            ..Answer::bare(Status::Done)
        }
    }

    fn read(&mut self, _: u32, _: &ReadRange, _: &mut Vec<u8>) -> Answer {
        unreachable!("nobody reads")
    }

    fn touch(&mut self, _: u32, _: u8, _: KeyHash) {
        unreachable!("scans say it themselves")
    }

    fn end_reads(&mut self) {
        self.ended += 1;
    }

    fn lease_left_us(&mut self, handle: u32) -> Option<u32> {
        Some(self.left_us[handle as usize])
    }

    fn lapsed(&mut self, _: u32) {
        self.lapsed += 1;
    }
}

/// What comes of nine scans, of three backends in turn, asked together.
fn answers(memory: &mut Leased, is_use: bool) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut client = Initiator::new(InitiatorOptions {
        token: TOKEN,
        ..InitiatorOptions::default()
    });
    let (mut target, mut said) = (Target::new(), Vec::new());
    target.handle(client.output(), memory, &mut said).unwrap();
    client.sent(client.output().len());
    client.handle(&said, 1, |_| ()).unwrap();
    for id in 0..9 {
        let hash = KeyHash { place: id, tag: id };
        let handle = (id % 3) as u32;
        match is_use {
            true => client.scan_as_use(id, handle, 0, hash, CONFIG, 1000),
            false => client.scan(id, handle, 0, hash, CONFIG, 1000),
        }
    }
    client.flush(0);
    said.clear();
    let asked = client.output().len();
    assert_eq!(target.handle(client.output(), memory, &mut said), Ok(asked));
    client.sent(asked);
    let mut came = Vec::new();
    let taken = client.handle(&said, 5000, |event| match event {
        Event::Scanned { id, data, .. } => came.push((id, Some(data.to_vec()))),
        Event::Unanswered {
            id,
            why: Unanswered::Lapsed,
            ..
        } => came.push((id, None)),
        other => panic!("{other:?}"),
    });
    assert_eq!(taken, Ok(said.len()));
    assert_eq!(client.answer_ns(), 4000);
    came
}

#[test]
fn the_lease_is_looked_at_once_for_a_frame() {
    let mut memory = Leased {
        left_us: [7, 8, 9],
        ..Leased::default()
    };
    let came = answers(&mut memory, false);
    assert_eq!((came.len(), memory.scans, memory.ended), (9, 9, 1));
    for (id, data) in came {
        assert_eq!(data, Some(vec![(id % 3) as u8; 8]));
    }
    assert!(memory.used.is_empty());
}

/// Also what was read before it ended is thrown away: nobody looked before.
#[test]
fn of_a_lease_that_ends_within_a_frame_nothing_is_answered() {
    for at in 1..=9 {
        let mut memory = Leased {
            left_us: [7, 8, 9],
            ends: Some((1, at)),
            ..Leased::default()
        };
        let came = answers(&mut memory, false);
        assert_eq!(came.len(), 9);
        for (id, data) in came {
            let wanted = (id % 3 != 1).then(|| vec![(id % 3) as u8; 8]);
            assert_eq!(data, wanted, "{id}, ended at {at}");
        }
        assert_eq!(memory.lapsed, 3);
    }
}

#[test]
fn a_scan_that_is_a_use_says_so_to_the_memory() {
    let mut memory = Leased {
        left_us: [7, 8, 9],
        ..Leased::default()
    };
    answers(&mut memory, true);
    let used: Vec<(u32, u32)> = (0..9).map(|id| (id % 3, 40 + id % 3)).collect();
    assert_eq!(memory.used, used);
}
