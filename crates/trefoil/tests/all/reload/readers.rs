//! Clients that read all the time, and what they check.

use super::{KEYS, await_whole, client, corpus, generation, read, read_all, reload, start};
use crate::support::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use trefoil_client::{Carrier, Options, OwnedLookup};

/// The rule of one client: whoever has seen a corpus never sees an older one again.
#[derive(Debug, Default)]
struct Watch {
    newest: u32,
}

impl Watch {
    fn see(&mut self, generation: u32) -> Result<(), String> {
        if generation < self.newest {
            return Err(format!(
                "generation {generation} was read after generation {}",
                self.newest
            ));
        }
        self.newest = generation;
        Ok(())
    }
}

#[test]
fn the_rule_finds_who_goes_back() {
    let judge = |seen: &[u32]| {
        let mut watch = Watch::default();
        seen.iter()
            .try_for_each(|generation| watch.see(*generation))
    };
    assert_eq!(judge(&[1, 1, 2, 2, 5]), Ok(()));
    for bad in [&[2, 1][..], &[1, 1, 2, 2, 1], &[1, 3, 2]] {
        assert!(judge(bad).is_err(), "{bad:?}");
    }
}

/// Readers under way; they end when this is told to.
pub(super) struct Readers {
    stop: AtomicBool,
    /// The newest generation that may be in force, and the oldest: set before and after it
    /// is put there.
    pub(super) newest: AtomicU32,
    pub(super) oldest: AtomicU32,
    reads: AtomicU64,
}

impl Readers {
    /// Reads by clients of every kind while `meanwhile` runs; whatever one finds wrong
    /// fails the test. How many reads there were.
    pub(super) fn during(cell: &Cell, meanwhile: impl FnOnce(&Readers)) -> u64 {
        let readers = Readers {
            stop: AtomicBool::new(false),
            newest: AtomicU32::new(1),
            oldest: AtomicU32::new(1),
            reads: AtomicU64::new(0),
        };
        let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
        let shared = &readers;
        std::thread::scope(|scope| {
            let with = |carrier, preferred| Options {
                carrier,
                preferred,
                ..Options::default()
            };
            let own = |options| client(cell, options);
            let clients = [
                own(with(Carrier::Auto, Some(0))),
                own(with(Carrier::Auto, Some(1))),
                own(with(Carrier::Rpc, None)),
                own(with(Carrier::Message, None)),
                // Two that know of the cell together.
                connected.client(Options::default()),
                connected.client(Options::default()),
            ];
            let mut reading: Vec<_> = clients
                .into_iter()
                .map(|mut client| scope.spawn(move || shared.read_by(|key| read(&mut client, key))))
                .collect();
            reading.push(scope.spawn(|| shared.read_asynchronously(&connected)));
            let stops = SaysStop(&readers.stop);
            meanwhile(&readers);
            drop(stops);
            for reader in reading {
                reader.join().unwrap();
            }
        });
        readers.reads.load(Ordering::Relaxed)
    }

    /// By a client for tasks, whose lookups are carried out where they are asked for.
    fn read_asynchronously(&self, cell: &trefoil_client::Cell) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let client = cell.async_client(Options::default());
        self.read_by(|key| {
            let found = runtime.block_on(client.get(format!("k{key}").as_bytes()));
            match found {
                Ok(OwnedLookup::Hit(hit)) => generation(key, &hit.value),
                other => Err(format!("k{key}: {other:?}")),
            }
        });
    }

    fn read_by(&self, mut read: impl FnMut(usize) -> Result<u32, String>) {
        let mut watch = Watch::default();
        let mut key = 0;
        while !self.stop.load(Ordering::Relaxed) {
            key = (key + 997) % KEYS;
            let oldest = self.oldest.load(Ordering::SeqCst);
            let found = read(key).unwrap();
            let newest = self.newest.load(Ordering::SeqCst);
            watch.see(found).unwrap();
            assert!(
                (oldest..=newest).contains(&found),
                "{oldest} {found} {newest}"
            );
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until there were some more reads.
    pub(super) fn go_on(&self) {
        let before = self.reads.load(Ordering::Relaxed);
        while self.reads.load(Ordering::Relaxed) < before + 200
            && !self.stop.load(Ordering::Relaxed)
        {
            std::thread::yield_now();
        }
    }
}

/// Says so when it is dropped, by a failed assertion, too: a scope waits for its threads.
struct SaysStop<'a>(&'a AtomicBool);

impl Drop for SaysStop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn reloads_under_load(backends: u32) {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), backends, &[]);
    let reads = Readers::during(&cell, |readers| {
        for generation in 2..8 {
            readers.go_on();
            let file = corpus(dir.path(), generation);
            readers.newest.store(generation, Ordering::SeqCst);
            let said = reload(&cell, &file).unwrap();
            assert!(said.contains("5000 lines loaded"), "{said}");
            // From now on nobody finds anything older.
            readers.oldest.store(generation, Ordering::SeqCst);
            readers.go_on();
        }
    });
    assert!(reads > 2000, "{reads}");
    let status = await_whole(&cell);
    assert_eq!(status["config_id"], 7);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 7);
    let report = cell.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["keys"]["clean"], KEYS, "{report:#}");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn nobody_goes_back_while_two_backends_are_reloaded() {
    reloads_under_load(2);
}

/// With an odd number two neighbours change at the same time.
#[test]
fn nobody_goes_back_while_three_backends_are_reloaded() {
    reloads_under_load(3);
}

/// A killed backend's keys are served by the other replica, of which it copies them: its
/// file is gone.
#[test]
fn a_dead_backend_is_missed_by_nobody_and_copies_from_the_other_replica() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 3, &[]);
    std::fs::remove_file(dir.path().join("corpus-1.jsonl")).unwrap();
    Readers::during(&cell, |readers| {
        for number in [0, 1, 2, 1] {
            readers.go_on();
            let before = super::pid(&cell, number);
            crate::support::kill(before, "KILL");
            let begin = std::time::Instant::now();
            while super::pid(&cell, number) == before {
                assert!(begin.elapsed() < super::PATIENCE);
                readers.go_on();
            }
            let status = await_whole(&cell);
            let recovery = &status["backends"][number]["recovery"];
            assert_eq!(recovery["done"], true, "{status:#}");
            let items = status["backends"][number]["items"].as_u64().unwrap();
            assert_eq!(recovery["items"].as_u64(), Some(items), "{status:#}");
        }
    });
    assert_eq!(read_all(&mut client(&cell, Options::default())), 1);
    assert_eq!(cell.stop(), 0);
}
