//! What each way to look keys up asks for.

use super::certificates::Certs;
use super::{Engine, PATIENCE, client, get, get_all, metric, said_by_metrics, set, up, value};
use crate::support::free_port;
use std::net::SocketAddr;
use std::time::Instant;
use trefoil_client::{LookupStrategy, Options};

/// What a lookup asks of three backends goes in one message.
#[test]
fn of_three_copies_one_comes_over_the_wire() {
    const LEN: usize = 32 << 10;
    const GETS: usize = 200;
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    for key in &keys {
        set(&mut client, key, &value(key, 1, LEN));
    }
    for key in keys.iter().cycle().take(GETS) {
        let found = get(&mut client, key);
        assert!(found == Some(value(key, 1, LEN)), "{key}");
    }
    drop(client);
    let counted = engine.stop();
    let copies = counted["bytes_out"] as f64 / (GETS * LEN) as f64;
    // Some were late where this machine stood still, and the third was asked.
    assert!(
        (1.0..1.5).contains(&copies),
        "{copies} copies a GET: {counted:?}"
    );
    assert!(counted["scans"] >= 2 * GETS as u64, "{counted:?}");
}

/// What each strategy asks for, and what comes over the wire for it.
#[test]
fn each_strategy_asks_for_what_it_says() {
    const LEN: usize = 32 << 10;
    const GETS: u64 = 200;
    let (_dir, cell) = up("R=3.2");
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    // Copies of a value, and reads for a GET; the third was asked where this machine stood
    // still.
    for (strategy, copies, reads) in [
        (LookupStrategy::Scar, 1.0, 0),
        (LookupStrategy::ScarAll, 2.0, 0),
        (LookupStrategy::TwoReads, 1.0, 1),
        (LookupStrategy::Rpc, 0.0, 0),
    ] {
        let engine = Engine::beside(&cell);
        let options = Options {
            strategy,
            ..engine.options()
        };
        let mut client = client(&cell, options);
        for key in &keys {
            set(&mut client, key, &value(key, 1, LEN));
        }
        for key in keys.iter().cycle().take(GETS as usize) {
            let found = get(&mut client, key);
            assert!(found == Some(value(key, 1, LEN)), "{key}");
        }
        drop(client);
        let counted = engine.stop();
        let sent = counted["bytes_out"] as f64 / (GETS as usize * LEN) as f64;
        let is_close = (copies..copies + 0.5).contains(&sent);
        assert!(is_close, "{strategy:?}: {sent} copies: {counted:?}");
        let asked = counted["reads"];
        let is_close = (reads * GETS..=reads * GETS * 5 / 4).contains(&asked);
        assert!(is_close, "{strategy:?}: {counted:?}");
    }
}

/// One item in eight is long: too many to ask for each of them again. Whether votes
/// are asked for then depends on how fast answers come.
#[test]
fn batches_of_very_different_lengths_are_found_whole() {
    let (_dir, cell) = up("R=1");
    let lens = |number: usize| {
        if number.is_multiple_of(8) {
            60_000
        } else {
            100
        }
    };
    let keys: Vec<String> = (0..600).map(|number| format!("k{number}")).collect();
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    for by_datagrams in [false, true] {
        let more = ["--certs", &certs.of_server(), "--metrics", &at];
        let engine = Engine::start_with(&cell, certs.listen(), &more);
        let options = Options {
            engine_datagrams: by_datagrams,
            ..engine.options()
        };
        let mut client = certs.client(&cell, options);
        for (number, key) in keys.iter().enumerate() {
            set(&mut client, key, &value(key, 1, lens(number)));
        }
        let begin = Instant::now();
        let mut batches = 0;
        // Who asks for a vote asks for the data by a read. Votes are for times in which answers
        // come as fast as they can; on a busy machine that may take a while.
        while batches < 20 || metric(&said_by_metrics(metrics), "reads_total", "0") == 0 {
            assert!(begin.elapsed() < PATIENCE, "{by_datagrams}: only scans");
            get_all(&mut client, &keys, lens);
            batches += 1;
        }
        drop(client);
        let counted = engine.stop();
        assert!(counted["scans"] >= batches * 600, "{counted:?}");
    }
}
