//! What a one-sided read must not do: allocate.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use support::Cell;
use trefoil_client::{Lookup, Options, SetOptions};

thread_local! {
    static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system allocator's; the count is a thread's own
// and needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEYS: usize = 2_000;
/// Enough for several batches of reported reads.
const ROUNDS: usize = 10;

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
        let before = COUNT.get();
        let hits = read_all(ROUNDS);
        let allocations = COUNT.get() - before;
        assert_eq!((hits, allocations), (2 * KEYS * ROUNDS, 0), "{mode}");
        cell.stop();
    }
}
