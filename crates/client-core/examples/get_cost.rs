//! What the GET machine itself costs: the same bucket scan and checksum with
//! and without it, on one hot entry.

use std::hint::black_box;
use std::time::Instant;
use trefoil_client_core::data::{DataCheck, DataVerdict, judge};
use trefoil_client_core::get::{Get, GetOutcome, GetStep, Plan};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::retry::Limits;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::{BUCKET_WORDS, BucketHeader, slot_word};
use trefoil_layout::data::DataEntry;
use trefoil_layout::{KeyHash, KeyHasher, Pointer, Version};

const ROUNDS: u32 = 5_000_000;
const KEY: &[u8] = b"key";

struct Shelf {
    hash: KeyHash,
    bucket: Vec<u64>,
    data: Vec<u8>,
}

impl Shelf {
    fn new() -> Self {
        let hash = KeyHasher::default().hash(KEY);
        let version = Version::new(1_000, 7, 0);
        let value = [7; 64];
        let entry = DataEntry {
            key: KEY,
            value: &value,
            ..DataEntry::default()
        };
        let mut data = vec![0; entry.encoded_len()];
        entry.encode(&mut data, hash.tag, version);
        let mut bucket = vec![0; BUCKET_WORDS];
        bucket[..2].copy_from_slice(&BucketHeader::new(1, 1).encode());
        let pointer = Pointer::new(0, data.len()).expect("a short entry fits");
        let words = [hash.tag, version.time_ns, version.origin, pointer.0];
        let at = slot_word(hash.home_slot());
        bucket[at..at + 4].copy_from_slice(&words);
        Shelf { hash, bucket, data }
    }

    #[inline(always)]
    fn vote(&self) -> IndexVote {
        index_vote(black_box(self.hash), 1, 1, |_| &self.bucket[..])
    }

    #[inline(always)]
    fn bare(&self, check: &DataCheck<'_>, votes: usize) -> bool {
        let mut first = self.vote();
        for _ in 1..votes {
            let next = self.vote();
            if next != first {
                first = IndexVote::Unstable;
            }
        }
        let IndexVote::Present { entry, .. } = first else {
            return false;
        };
        matches!(
            judge(&self.data, self.hash.tag, entry.version, check),
            DataVerdict::Hit(_)
        )
    }

    #[inline(always)]
    fn machine<const N: usize>(&self, check: &DataCheck<'_>) -> bool {
        let plan = Plan::frugal(0);
        let mut get = Get::<N>::new(&plan, self.hash, Limits::until(u64::MAX), black_box(5));
        loop {
            match get.poll(black_box(5)) {
                GetStep::ReadIndex { replica } => get.handle_index(replica, self.vote()),
                GetStep::ReadData { replica, .. } => get.handle_data(replica, &self.data, check),
                GetStep::Done(outcome) => return matches!(outcome, GetOutcome::Hit { .. }),
                _ => return false,
            }
        }
    }
}

fn time_ns(mut run: impl FnMut() -> bool) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            assert!(black_box(run()));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    best
}

fn main() {
    let shelf = Shelf::new();
    let check = DataCheck {
        key: KEY,
        now_ms: 0,
        flush_floor: Version::ZERO,
    };
    let bare = time_ns(|| shelf.bare(&check, 1));
    let machine = time_ns(|| shelf.machine::<1>(&check));
    report(Mode::R1, bare, machine);
    let bare = time_ns(|| shelf.bare(&check, 2));
    let machine = time_ns(|| shelf.machine::<3>(&check));
    report(Mode::R32, bare, machine);
}

fn report(mode: Mode, bare: f64, machine: f64) {
    println!(
        "{mode}: bare {bare:.1} ns, with the machine {machine:.1} ns, the machine {:.1} ns",
        machine - bare
    );
}
