//! Submitted operations: an event loop's client.

use crate::real::Real;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{
    Basis, Carrier, Cell, Client, Completion, Expected, Lookup, Mutated, OpError, Options,
    SetOptions,
};
use trefoil_layout::op::Rejection;

/// Sleeps on the client's descriptor, as an event loop does, until all are done.
fn run(client: &mut Client, count: usize, mut on: impl FnMut(u64, Completion<'_>)) {
    let mut done = 0;
    let begin = Instant::now();
    while done < count {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{done} of {count}"
        );
        done += client.poll(&mut |token, completion| on(token, completion));
        if done < count && client.arm() {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            let until_ns = client.next_deadline_ns().unwrap_or(u64::MAX);
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns));
            let timeout = Timespec::try_from(left.min(Duration::from_secs(20))).unwrap();
            let descriptor = client.descriptor().unwrap();
            let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
        }
    }
    // Third copies that found a ring full still go out.
    while client.in_flight() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        client.poll(&mut |_, other| panic!("{other:?}"));
    }
}

fn is_stored(completion: &Completion<'_>) -> bool {
    matches!(completion, Completion::Mutated(Ok(Mutated::Stored { .. })))
}

#[test]
fn many_operations_are_under_way_on_one_client_by_every_carrier() {
    const COUNT: u64 = 3_000;
    for (mode, carrier) in [
        (Mode::R1, Carrier::Auto),
        (Mode::R32, Carrier::Auto),
        (Mode::R32, Carrier::Message),
        (Mode::R1, Carrier::Rpc),
    ] {
        let real = Real::start(mode);
        let mut client = Cell::connect(&real.address).unwrap().client(Options {
            carrier,
            deadline: Duration::from_secs(20),
            ..Options::default()
        });
        // Calls to one backend are bounded: so many at a time.
        let window = if carrier == Carrier::Rpc { 300 } else { COUNT };
        for first in (0..COUNT).step_by(window as usize) {
            for token in first..first + window {
                let value = vec![token as u8; (token % 2_000) as usize];
                client.submit_set(&token.to_le_bytes(), &value, SetOptions::default(), token);
            }
            run(&mut client, window as usize, |_, completion| {
                assert!(is_stored(&completion), "{carrier:?} {completion:?}");
            });
            let mut found = HashMap::new();
            for token in first..first + window {
                client.submit_get(&token.to_le_bytes(), token);
            }
            run(&mut client, window as usize, |token, completion| {
                let Completion::Lookup(Ok(Lookup::Hit(hit))) = completion else {
                    panic!("{carrier:?} {completion:?}");
                };
                assert!(hit.value.iter().all(|byte| *byte == token as u8));
                found.insert(token, hit.value.len() as u64);
            });
            assert!(found.iter().all(|(token, len)| token % 2_000 == *len));
        }
    }
}

#[test]
fn every_kind_completes_and_bad_input_does_so_at_once() {
    let real = Real::start(Mode::R32);
    let mut client = Cell::connect(&real.address)
        .unwrap()
        .client(Options::default());
    let options = SetOptions::default();
    client.submit_set(b"", b"value", options, 1);
    client.submit_set(b"key", &vec![0; (16 << 20) + 1], options, 2);
    client.submit_get(&[b'k'; 70_000], 3);
    run(&mut client, 3, |token, completion| {
        let (error, expected) = match completion {
            Completion::Mutated(Err(error)) if token == 1 => (error, Rejection::KeyEmpty),
            Completion::Mutated(Err(error)) => (error, Rejection::ValueTooLong),
            Completion::Lookup(Err(error)) => (error, Rejection::KeyTooLong),
            other => panic!("{other:?}"),
        };
        assert_eq!(error, OpError::Rejected(expected));
    });
    client.submit_cas(b"key", Expected::Absent, b"one", options, 4);
    run(&mut client, 1, |_, completion| {
        assert!(is_stored(&completion), "{completion:?}");
    });
    client.submit_cas(b"key", Expected::Absent, b"two", options, 5);
    run(&mut client, 1, |_, completion| {
        let Completion::Mutated(Ok(Mutated::Exists { present })) = completion else {
            panic!("{completion:?}");
        };
        assert!(present.is_some());
    });
    assert!(matches!(
        client.get_or_submit(b"key", 6),
        Some(Ok(Lookup::Hit(hit))) if hit.value == b"one"
    ));
    client.submit_look(b"key", 9);
    client.submit_look(b"no such key", 10);
    client.submit_look(b"", 11);
    run(&mut client, 3, |token, completion| {
        let Completion::Basis(basis) = completion else {
            panic!("{completion:?}");
        };
        match (token, basis) {
            (9, Ok(Basis::Value(hit))) => assert_eq!(hit.value, b"one"),
            (10, Ok(Basis::Nothing)) => {}
            (11, Err(error)) => assert_eq!(error, OpError::Rejected(Rejection::KeyEmpty)),
            other => panic!("{other:?}"),
        }
    });
    client.submit_item_uses(b"key", Duration::from_secs(5), 7);
    run(&mut client, 1, |_, completion| {
        let Completion::ItemUses(Ok(uses)) = completion else {
            panic!("{completion:?}");
        };
        assert!(uses.iter().flatten().any(|of| of.hit_before), "{uses:?}");
    });
    client.submit_erase(b"key", 8);
    client.abandon(8);
    while client.in_flight() > 0 {
        assert_eq!(client.poll(&mut |_, other| panic!("{other:?}")), 0);
    }
    assert!(matches!(client.get(b"key"), Ok(Lookup::Miss(_))));
}
