//! A fill gives way to whatever was written since its miss, whatever the clocks say.

use crate::real::Real;
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_client::{
    Carrier, Cell, Client, Completion, FillTicket, Lookup, Mutated, OpError, Options, SetOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// How far the clock of who fills is ahead of everybody else's.
const AHEAD_MS: i64 = 5_000;

#[derive(Clone, Copy, Debug)]
enum By {
    Get,
    GetMany,
    Submitting,
}

fn options(carrier: Carrier, clock_offset_ms: i64) -> Options {
    Options {
        // Machines on which tests run may stand still.
        deadline: PATIENCE,
        carrier,
        clock_offset_ms,
        ..Options::default()
    }
}

fn ticket(found: Result<Lookup<'_>, OpError>) -> FillTicket {
    match found {
        Ok(Lookup::Miss(miss)) => miss.fill,
        other => panic!("no miss: {other:?}"),
    }
}

fn miss(client: &mut Client, key: &str, by: By) -> FillTicket {
    let mut found = None;
    match by {
        By::Get => found = Some(ticket(client.get(key.as_bytes()))),
        By::GetMany => client.get_many(&[key], |_, lookup| found = Some(ticket(lookup))),
        By::Submitting => {
            client.submit_get(key.as_bytes(), 1);
            while found.is_none() {
                client.poll(&mut |_, completion| {
                    let Completion::Lookup(lookup) = completion else {
                        panic!("no lookup");
                    };
                    found = Some(ticket(lookup));
                });
            }
        }
    }
    found.unwrap()
}

fn fill(client: &mut Client, ticket: FillTicket, key: &str) -> Result<Mutated, OpError> {
    client.fill(ticket, key.as_bytes(), b"loaded", SetOptions::default())
}

#[track_caller]
fn holds(client: &mut Client, key: &str, value: &[u8]) {
    match client.get(key.as_bytes()) {
        Ok(Lookup::Hit(hit)) => assert_eq!(hit.value, value),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn what_was_written_since_the_miss_stays_whatever_the_clocks_say() {
    for mode in [Mode::R1, Mode::R32] {
        let real = Real::start(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let mut writer = cell.client(options(Carrier::Auto, 0));
        for carrier in [Carrier::Auto, Carrier::Message, Carrier::Rpc] {
            let mut filler = cell.client(options(carrier, AHEAD_MS));
            for by in [By::Get, By::GetMany, By::Submitting] {
                let what = format!("{mode:?}, {carrier:?}, {by:?}");
                let key = format!("key by {carrier:?} and {by:?}");
                let ticket = miss(&mut filler, &key, by);
                writer
                    .set(key.as_bytes(), b"written", SetOptions::default())
                    .unwrap();
                writer.settle(PATIENCE);
                let filled = fill(&mut filler, ticket, &key);
                assert!(matches!(filled, Ok(Mutated::Superseded { .. })), "{what}");
                holds(&mut writer, &key, b"written");
                // What is erased meanwhile stays erased.
                writer.erase(key.as_bytes()).unwrap();
                writer.settle(PATIENCE);
                let ticket = miss(&mut filler, &key, by);
                writer
                    .set(key.as_bytes(), b"written", SetOptions::default())
                    .unwrap();
                writer.erase(key.as_bytes()).unwrap();
                writer.settle(PATIENCE);
                let filled = fill(&mut filler, ticket, &key);
                assert!(matches!(filled, Ok(Mutated::Superseded { .. })), "{what}");
                assert!(matches!(writer.get(key.as_bytes()), Ok(Lookup::Miss(_))));
                // With nobody else at work it is stored.
                let ticket = miss(&mut filler, &key, by);
                let filled = fill(&mut filler, ticket, &key);
                assert!(matches!(filled, Ok(Mutated::Stored { .. })), "{what}");
                holds(&mut writer, &key, b"loaded");
            }
        }
    }
}

#[test]
fn a_ticket_is_for_the_key_of_its_miss() {
    let real = Real::start(Mode::R32);
    let mut client = Cell::connect(&real.address)
        .unwrap()
        .client(options(Carrier::Auto, 0));
    let ticket = miss(&mut client, "one", By::Get);
    let refused = fill(&mut client, ticket, "another");
    assert!(matches!(refused, Err(OpError::Failed(_))), "{refused:?}");
    assert!(matches!(client.get(b"another"), Ok(Lookup::Miss(_))));
    // Written down and read again it is the same.
    let ticket = miss(&mut client, "one", By::Get);
    let ticket = FillTicket::from_bytes(&ticket.to_bytes()).unwrap();
    let filled = fill(&mut client, ticket, "one");
    assert!(matches!(filled, Ok(Mutated::Stored { .. })), "{filled:?}");
}
