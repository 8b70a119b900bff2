//! What a one-sided read must not do: allocate.

use crate::support::Cell;
use trefoil_client::{Lookup, Options, SetOptions};

const KEYS: usize = 2_000;
/// Enough for several batches of reported reads.
const ROUNDS: usize = 10;
/// On a machine that is busy otherwise a backend does not take reported reads in time, and
/// the client keeps them once; what a read allocates, it allocates every time.
const ATTEMPTS: usize = 5;

#[test]
fn reads_allocate_nothing_once_buffers_have_their_size() {
    for mode in ["R=1", "R=3.2"] {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::serve(dir.path(), &["--mode", mode, "--memory", "128MiB"]);
        let mut client = trefoil_client::Cell::connect(&cell.address)
            .unwrap()
            .client(Options::default());
        let keys: Vec<String> = (0..KEYS).map(|number| format!("key-{number}")).collect();
        for key in &keys {
            let value = [7; 100];
            client
                .set(key.as_bytes(), &value, SetOptions::default())
                .unwrap();
        }
        let mut read_all = |rounds: usize| {
            let mut hits = 0;
            for _ in 0..rounds {
                for key in &keys {
                    hits += usize::from(matches!(client.get(key.as_bytes()), Ok(Lookup::Hit(_))));
                }
                client.get_many(&keys, |_, found| {
                    hits += usize::from(matches!(found, Ok(Lookup::Hit(_))));
                });
            }
            hits
        };
        assert_eq!(read_all(1), 2 * KEYS, "{mode}");
        let mut attempt = || {
            let mut hits = 0;
            let allocated = allocation_counter::measure(|| hits = read_all(ROUNDS));
            assert_eq!(hits, 2 * KEYS * ROUNDS, "{mode}");
            allocated.count_total
        };
        let least = (0..ATTEMPTS).map(|_| attempt()).find(|count| *count == 0);
        assert_eq!(least, Some(0), "{mode}: every attempt has allocated");
        cell.stop();
    }
}
