//! What it costs to ask whether a key is served here: the part of this crate
//! on the way of every request.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_linklet_core::{Config, Core, Entry, Limit, NotStored, Scan, Status, Table, Values};
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// No values at all.
struct Nothing;

impl Values for Nothing {
    fn publish(&mut self, _: Arc<Table>) {}
    fn scan(&mut self, slice: Slice, _: Limit) -> Scan {
        Scan {
            entries: Vec::new(),
            last: slice.last(),
        }
    }
    fn get(&mut self, _: KeyPoint, _: &bytes::Bytes) -> Option<Entry> {
        None
    }
    fn store(&mut self, _: Entry) -> Result<(), NotStored> {
        Ok(())
    }
    fn remove(&mut self, _: KeyPoint, _: &bytes::Bytes) {}
    fn forget(&mut self, _: Slice) {}
    fn forget_but(&mut self, _: Slice, _: &dyn Fn(KeyPoint, &[u8]) -> bool) {}
    fn settle(&mut self, _: trefoil_linklet_core::Ticket) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const LOOKS: u64 = 20_000_000;
    for slices in [32, 256, 2_048] {
        // Every other slice is this server's, so that nothing can be joined.
        let (me, other) = (ServerId(1), ServerId(2));
        let mut core = Core::new(me, Config::default())?;
        let map = Assignment::even(AssignmentVersion::first_of(1), &[me, other], slices / 2, 1);
        core.learn(Duration::ZERO, &mut Nothing, &map, &BTreeSet::from([me]));
        let table = Arc::clone(core.table());
        let (mut point, mut owned) = (0u64, 0u64);
        let begin = Instant::now();
        for _ in 0..LOOKS {
            point = point.wrapping_add(0x9e37_79b9_7f4a_7c15);
            owned += u64::from(matches!(
                black_box(&table).status(KeyPoint(point)),
                Status::Owned { .. }
            ));
        }
        let nanoseconds = begin.elapsed().as_nanos() as f64 / LOOKS as f64;
        println!("{slices:5} slices: {nanoseconds:5.1} ns a look ({owned} owned)");
    }
    Ok(())
}
