//! A client that writes and reads without a pause, and says what failed, what it missed and
//! what was older than what it had been told.

use super::network::{Network, eventually};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_client::{Cell, CertFiles, CertUse, Lookup, Mutated, Options, SetOptions, Tls};

const KEYS: u64 = 64;

/// See the module.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    did: Arc<Did>,
    wrong: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

/// What was done.
#[derive(Debug, Default)]
struct Did {
    rounds: AtomicU64,
    /// A SET and a GET, one after the other.
    longest_ms: AtomicU64,
}

impl Load {
    pub(super) fn begin(network: &Network, host: usize, cell: &str, certs: &Path) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let did = Arc::<Did>::default();
        let wrong = Arc::<Mutex<Vec<String>>>::default();
        let files = CertFiles::in_directory(certs);
        let tls = Tls::read(&files, CertUse::Client).unwrap();
        let (ended, done, told) = (Arc::clone(&stop), Arc::clone(&did), Arc::clone(&wrong));
        let cell = cell.to_owned();
        let thread = network.spawn_within(host, move || {
            let cell = Cell::connect_with(&cell, Some(tls)).unwrap();
            // A machine that is busy with other tests stands still for seconds.
            let options = Options {
                deadline: Duration::from_secs(30),
                ..Options::default()
            };
            let mut client = cell.client(options);
            crate::support::reaches_all(&mut client);
            let tell = |what: String| {
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(what);
            };
            let mut round = 0;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                for key in 0..KEYS {
                    let (name, value) = (format!("key-{key}"), round.to_string());
                    let begin = Instant::now();
                    let set = client.set(name.as_bytes(), value.as_bytes(), SetOptions::default());
                    if !matches!(set, Ok(Mutated::Stored { .. })) {
                        tell(format!("set {name} in round {round}: {set:?}"));
                    }
                    match client.get(name.as_bytes()) {
                        Ok(Lookup::Hit(hit)) if hit.value == value.as_bytes() => {}
                        other => tell(format!("get {name} in round {round}: {other:?}")),
                    }
                    let took_ms = begin.elapsed().as_millis() as u64;
                    done.longest_ms.fetch_max(took_ms, Ordering::Relaxed);
                }
                done.rounds.store(round, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Load {
            stop,
            did,
            wrong,
            thread: Some(thread),
        }
    }

    /// Waits until it has done something more, and nothing was wrong until then.
    pub(super) fn goes_on(&self) {
        let rounds = || self.did.rounds.load(Ordering::Relaxed);
        let before = rounds();
        eventually("the load goes on", || {
            (rounds() >= before + 3).then_some(())
        });
        self.check();
    }

    fn check(&self) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            wrong.is_empty(),
            "{} wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(10)]
        );
    }

    pub(super) fn end(mut self) {
        self.stop();
        eprintln!("{:?}", self.did);
        self.check();
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the load has failed"
            );
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}
