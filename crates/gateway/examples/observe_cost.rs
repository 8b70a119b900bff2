//! What counting costs a command: `cargo run --release -p trefoil-gateway
//! --example observe_cost`.

use std::time::Instant;
use trefoil_gateway::observe::{Observatory, ObserveOptions};
use trefoil_gateway_core::world::{Command, Done, Ending, Observer as _, Release, Settings};

const COUNT: u64 = 20_000_000;
const KEYS: usize = 4096;

fn main() {
    let settings = Settings {
        item_len_max: 1 << 20,
        shutdown_allowed: false,
        authentication: false,
        admin_commands: true,
        release: Release::V1_6_18,
        connections_max: 1024,
        idle_timeout: None,
        thread_count: 1,
        answer_len_max: 64 << 20,
        transactions: trefoil_gateway_core::world::Isolation::Relaxed,
    };
    let observatory = Observatory::new(ObserveOptions::new(settings));
    let begin = Instant::now();
    let mut observer = observatory.observer(0);
    println!("made in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let keys: Vec<String> = (0..KEYS)
        .map(|n| format!("some-key-of-usual-size-{n:012}"))
        .collect();
    for round in 0..3 {
        let begin = Instant::now();
        for number in 0..COUNT {
            // Half of all on the first 16.
            let range = if number % 2 == 0 { 16 } else { KEYS as u64 };
            let key =
                &keys[(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % range as usize];
            observer.done(&Done {
                command: Command::Get,
                ending: Ending::Hit,
                key: key.as_bytes(),
                value_len: 1024,
            });
        }
        let ns = begin.elapsed().as_nanos() as f64 / COUNT as f64;
        println!("round {round}: {ns:.1} ns a command");
    }
    for key in observatory.top_keys(3) {
        println!("{} {:.0}/s", key.key.escape_ascii(), key.ops_per_s);
    }
}
