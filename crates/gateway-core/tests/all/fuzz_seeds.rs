//! What fuzzing begins with, driven as fuzzing drives it, and spoilt by seed: scripts and
//! functions among it, whose programs are commands (`fuzz/src/session.rs`).

use crate::corpus::random::Random;
use trefoil_gateway_core::resp::RespSession;

#[allow(unreachable_pub, dead_code, reason = "written for the fuzz targets")]
#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[allow(unreachable_pub, reason = "written for the fuzz targets")]
#[path = "../../../../fuzz/src/session.rs"]
mod session;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/resp");
const ROUNDS: u64 = 6000;

fn drive(bytes: &[u8]) {
    if let Some(input) = input::Input::new(bytes) {
        session::drive(RespSession::new(), input.authentication, &input.pieces);
    }
}

#[test]
fn commands_of_redis() {
    let mut paths: Vec<_> = std::fs::read_dir(SEEDS)
        .expect("seeds")
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| std::fs::read(path).expect("a seed"))
        .collect();
    assert!(seeds.len() > 10, "{paths:?}");
    for seed in &seeds {
        drive(seed);
    }
    for round in 0..ROUNDS {
        let mut random = Random::new(round);
        // Some of one, then some of another one, and pieces of any length.
        let mut bytes = random.pick(&seeds).clone();
        for _ in 0..random.below(3) {
            let other = random.pick(&seeds);
            bytes.extend_from_slice(other.get(2..).unwrap_or_default());
        }
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes.insert(at, *random.pick(b"\r\n $*0129aK+!\xff")),
                2 if bytes.len() > 3 => {
                    bytes.remove(at);
                }
                // A piece of itself.
                _ => {
                    let len = random.below(60).min((bytes.len() - at) as u64) as usize;
                    let piece = bytes[at..at + len].to_vec();
                    bytes.extend(piece);
                }
            }
        }
        bytes[1] = random.below(64) as u8;
        drive(&bytes);
    }
}
