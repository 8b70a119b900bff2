//! Servers that end while they are called.

use crate::fake::{Fake, Script};
use crate::real::Real;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::Status;
use trefoil_cell::Mode;
use trefoil_client::{Carrier, Cell, Client, Expected, Mutated, OpError, Options, SetOptions};
use trefoil_layout::op::{Ack, Outcome};

fn by_call(cell: &Cell) -> Client {
    let options = Options {
        carrier: Carrier::Rpc,
        deadline: Duration::from_secs(20),
        ..Options::default()
    };
    cell.client(options)
}

fn cas(client: &mut Client, key: &[u8], expected: Expected) -> Result<Mutated, OpError> {
    client.cas(key, expected, b"value", SetOptions::default())
}

/// A CAS goes to a replica once: what a refusal says about the one before decides.
#[test]
fn a_cas_that_was_not_executed_goes_again_and_one_that_may_have_been_does_not() {
    let answer = |refusal: fn() -> Status| {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let script = Script::new(Mode::R1, move |_| {
            let is_first = count.fetch_add(1, Ordering::Relaxed) < 2;
            Box::pin(async move {
                match is_first {
                    true => Err(refusal()),
                    false => Ok(trefoil_rpc::encode_ack(&Ack {
                        epoch: 1,
                        outcome: Outcome::Applied,
                    })),
                }
            })
        });
        let fake = Fake::start(script);
        let cell = Cell::connect(&fake.address).unwrap();
        let result = cas(&mut by_call(&cell), b"key", Expected::Absent);
        (result, asked.load(Ordering::Relaxed))
    };
    let (result, asked) = answer(trefoil_rpc::not_executed);
    assert!(matches!(result, Ok(Mutated::Stored { .. })), "{result:?}");
    assert_eq!(asked, 3);
    let (result, asked) = answer(|| Status::unavailable("it is gone"));
    assert!(
        matches!(result, Err(OpError::Indeterminate(_))),
        "{result:?}"
    );
    assert_eq!(asked, 1);
}

/// A call that is under way at the deadline may be executed; whoever was refused by all
/// knows that nothing was.
#[test]
fn a_set_that_was_not_executed_has_failed() {
    for mode in [Mode::R1, Mode::R32] {
        let fake = Fake::start(Script::new(mode, |_| {
            Box::pin(async { Err(trefoil_rpc::not_executed()) })
        }));
        let cell = Cell::connect(&fake.address).unwrap();
        let options = Options {
            carrier: Carrier::Rpc,
            deadline: Duration::from_millis(50),
            ..Options::default()
        };
        let mut client = cell.client(options);
        let failed = (0..20).find(|_| {
            let result = client.set(b"key", b"value", SetOptions::default());
            match result {
                Err(OpError::Failed(_)) => true,
                Err(OpError::Indeterminate(_)) => false,
                other => panic!("{other:?}"),
            }
        });
        assert!(failed.is_some(), "{mode:?}");
    }
}

#[test]
fn who_has_called_a_server_that_ends_knows_what_became_of_it() {
    let real = Real::start(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let stored = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (cell, stored) = (cell.clone(), Arc::clone(&stored));
            std::thread::spawn(move || {
                let (mut client, key) = (by_call(&cell), format!("key {number}"));
                let mut expected = Expected::Absent;
                loop {
                    match cas(&mut client, key.as_bytes(), expected) {
                        Ok(Mutated::Stored { version }) => {
                            expected = Expected::Version(version);
                            stored.fetch_add(1, Ordering::Relaxed);
                        }
                        // Nothing was changed.
                        Err(OpError::Failed(_) | OpError::Rejected(_)) => return,
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    while stored.load(Ordering::Relaxed) < 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(real);
    for caller in callers {
        caller.join().unwrap();
    }
}
