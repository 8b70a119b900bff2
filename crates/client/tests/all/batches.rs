//! Batches of lookups that go by calls.

use crate::fake::{Counted, Fake, Script};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{Cell, Lookup, Options};
use trefoil_rpc::v1;

const COUNT: usize = 300;

fn keys() -> Vec<String> {
    (0..COUNT).map(|number| format!("key {number}")).collect()
}

fn patient() -> Options {
    Options {
        // Machines on which tests run may stand still.
        deadline: Duration::from_secs(20),
        ..Options::default()
    }
}

fn script() -> Script {
    Script::new(Mode::R1, |_| unreachable!("nothing is written"))
}

/// What others of the batch have found is handed out to nobody.
#[test]
fn a_callback_that_panics_leaves_no_lookup_under_way() {
    let mut script = script();
    script.on_lookup = Box::new(|_| {
        Box::pin(async {
            Ok(v1::LookupResponse {
                epoch: 1,
                found: Some(v1::lookup_response::Found::Absent(v1::Absent {})),
                stamp: 0,
            })
        })
    });
    let fake = Fake::start(script);
    let mut client = Cell::connect(&fake.address).unwrap().client(patient());
    let keys = keys();
    for stops_at in [0, 1, COUNT / 2, COUNT - 1] {
        let mut told = 0;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            client.get_many(&keys, |index, _| {
                assert!(index < stops_at, "the caller has had enough");
                told += 1;
            });
        }));
        assert!(panicked.is_err());
        assert_eq!((told, client.in_flight()), (stops_at, 0));
    }
    let mut misses = 0;
    client.get_many(&keys, |_, found| {
        misses += usize::from(matches!(found, Ok(Lookup::Miss(_))));
    });
    assert_eq!((misses, client.in_flight()), (COUNT, 0));
}

/// A backend that answers greetings is not silent, and may hang with all that it was asked.
#[test]
fn the_calls_of_a_batch_end_with_its_deadline() {
    let counts = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let most = Arc::new(AtomicUsize::new(0));
    let mut script = script();
    script.on_lookup = Box::new({
        let (counts, most) = (counts.clone(), Arc::clone(&most));
        move |request| {
            let of_batch = request.key != b"other".as_slice();
            let count = &counts[usize::from(of_batch)];
            let counted = Counted::new(count);
            if of_batch {
                most.fetch_max(count.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(counted);
                unreachable!("it hangs")
            })
        }
    });
    let [others, batch] = &counts;
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    // A call that is given up after the same time whatever becomes of who began it, and began
    // before those of the batch.
    let mut other = cell.client(patient());
    other.submit_get(b"other", 1);
    let begin = Instant::now();
    while others.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is not asked");
        other.poll(&mut |_, ended| panic!("{ended:?}"));
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut client = cell.client(Options {
        deadline: Duration::from_millis(300),
        ..Options::default()
    });
    let mut failed = 0;
    client.get_many(&keys(), |_, found| failed += usize::from(found.is_err()));
    assert_eq!((failed, client.in_flight()), (COUNT, 0));
    assert!(most.load(Ordering::SeqCst) > 1);
    loop {
        let is_hanging = others.load(Ordering::SeqCst) > 0;
        if batch.load(Ordering::SeqCst) == 0 {
            break;
        }
        assert!(is_hanging, "the calls of the batch go on as long as any");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A backend that was slow once has its answers heard, and its connection is nobody's to end.
#[test]
fn answers_that_come_after_the_deadline_of_a_batch_are_taken() {
    const FEW: usize = 60;
    let answered = Arc::<AtomicUsize>::default();
    let gate = Arc::new(tokio::sync::watch::Sender::new(false));
    let mut script = script();
    script.on_lookup = Box::new({
        let (answered, gate) = (Arc::clone(&answered), Arc::clone(&gate));
        move |_| {
            let (answered, mut open) = (Arc::clone(&answered), gate.subscribe());
            Box::pin(async move {
                open.wait_for(|is_open| *is_open).await.unwrap();
                answered.fetch_add(1, Ordering::SeqCst);
                Ok(v1::LookupResponse {
                    epoch: 1,
                    found: Some(v1::lookup_response::Found::Absent(v1::Absent {})),
                    stamp: 0,
                })
            })
        }
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let mut client = cell.client(Options {
        deadline: Duration::from_millis(100),
        ..Options::default()
    });
    let keys = keys();
    let begin = Instant::now();
    loop {
        answered.store(0, Ordering::SeqCst);
        gate.send_replace(false);
        let mut failed = 0;
        client.get_many(&keys[..FEW], |_, found| {
            failed += usize::from(found.is_err())
        });
        // One that ended with its deadline has ended by now.
        std::thread::sleep(Duration::from_millis(100));
        gate.send_replace(true);
        std::thread::sleep(Duration::from_millis(100));
        if failed == FEW && answered.load(Ordering::SeqCst) == FEW {
            return;
        }
        // A machine that is busy takes longer than a call is kept.
        assert!(begin.elapsed() < Duration::from_secs(60), "none is taken");
    }
}
