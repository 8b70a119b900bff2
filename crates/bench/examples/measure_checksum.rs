//! Which checksum guards a data entry, and which hash places a key?
//!
//! `cargo run --release -p trefoil-bench --example measure_checksum`

use std::hash::Hasher as _;
use std::hint::black_box;

use siphasher::sip128::{Hasher128 as _, SipHasher13, SipHasher24};
use trefoil_bench::measure::time_chained;
use twox_hash::{XxHash3_64, XxHash3_128};

const BLOCKS_COUNT: usize = 41;
const CHECKSUM_LENS: [usize; 5] = [64, 100, 300, 1024, 4096];
const KEY_LENS: [usize; 3] = [8, 36, 100];

type Candidate = (&'static str, fn(&[u8], u64) -> u64);

fn checksums() -> Vec<Candidate> {
    vec![
        ("xxh3-64 twox-hash", |b, _| XxHash3_64::oneshot(b)),
        ("xxh3-64 twox-hash, seeded", |b, s| {
            XxHash3_64::oneshot_with_seed(s, b)
        }),
        ("xxh3-64 twox-hash, streamed 24 B + rest", |b, s| {
            let mut hasher = XxHash3_64::new();
            hasher.write(&s.to_le_bytes());
            hasher.write(&[7; 16]);
            hasher.write(b);
            hasher.finish()
        }),
        ("xxh3-128 twox-hash", |b, _| XxHash3_128::oneshot(b) as u64),
        ("xxh3-64 xxhash-rust", |b, _| xxhash_rust::xxh3::xxh3_64(b)),
        ("xxh3-64 xxhash-rust, seeded", |b, s| {
            xxhash_rust::xxh3::xxh3_64_with_seed(b, s)
        }),
        ("crc32c crc32c", |b, _| u64::from(crc32c::crc32c(b))),
        ("crc32c crc-fast", |b, _| {
            crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b)
        }),
        ("crc64-nvme crc-fast", |b, _| {
            crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, b)
        }),
        ("(copy only)", |b, _| {
            let mut copy = [0u8; 4096];
            copy[..b.len()].copy_from_slice(b);
            u64::from(black_box(&copy)[b.len() - 1])
        }),
    ]
}

fn key_hashes() -> Vec<Candidate> {
    vec![
        ("xxh3-128 twox-hash", |b, _| fold(XxHash3_128::oneshot(b))),
        ("xxh3-128 twox-hash, seeded", |b, _| {
            fold(XxHash3_128::oneshot_with_seed(0x5eed_5eed, b))
        }),
        ("xxh3-128 xxhash-rust, seeded", |b, _| {
            fold(xxhash_rust::xxh3::xxh3_128_with_seed(b, 0x5eed_5eed))
        }),
        ("siphash-1-3-128", |b, _| {
            let mut hasher = SipHasher13::new_with_keys(1, 2);
            hasher.write(b);
            fold(hasher.finish128().as_u128())
        }),
        ("siphash-2-4-128", |b, _| {
            let mut hasher = SipHasher24::new_with_keys(1, 2);
            hasher.write(b);
            fold(hasher.finish128().as_u128())
        }),
    ]
}

fn fold(hash: u128) -> u64 {
    hash as u64 ^ (hash >> 64) as u64
}

fn table(title: &str, candidates: &[Candidate], lens: &[usize]) {
    print!("{title:<42}");
    for len in lens {
        print!("{:>9}", format!("{len} B"));
    }
    println!();
    // Data entries lie on 8-byte granules; the chained offset keeps that.
    let buffer: Vec<u8> = (0..8192u32).map(|i| ((i * 167) >> 3) as u8).collect();
    for (name, hash) in candidates {
        print!("{name:<42}");
        for &len in lens {
            let timing = time_chained(BLOCKS_COUNT, 20_000, |previous| {
                let start = (previous & 1) as usize * 16;
                hash(black_box(&buffer[start..start + len]), previous)
            });
            print!("{:>9.1}", timing.median_ns);
        }
        println!();
    }
    println!();
}

fn main() {
    println!("ns per call, median of {BLOCKS_COUNT} blocks, calls chained (latency)\n");
    table("checksum of a private buffer", &checksums(), &CHECKSUM_LENS);
    table("128-bit key hash", &key_hashes(), &KEY_LENS);
}
