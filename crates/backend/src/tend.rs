//! The thread that tends the stores: bounded steps of maintenance, the memory
//! bound's corrections, and huge pages gathered from small ones.

use crate::clock;
use crate::member::Member;
use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_region::{Gathered, Gatherer};

/// Between two steps when nothing waits.
const STEP_PERIOD: Duration = Duration::from_millis(50);
/// Between two looks at the process's resident memory.
const MEMORY_PERIOD: Duration = Duration::from_millis(250);

/// After a huge page was gathered: the copying is not to keep others from working.
const GATHER_PAUSE: Duration = Duration::from_millis(2);

/// Tends until stopped; `huge_pages` says whether to gather them.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, huge_pages: bool) {
    let mut looked = Instant::now();
    let mut gatherers: Vec<[Gatherer; 2]> = Vec::new();
    if huge_pages {
        let of = |member: &Arc<Member>| {
            let regions = member.store.regions();
            [&regions.index, &regions.data].map(|space| Gatherer::new(space.len()))
        };
        gatherers = state.members.iter().map(of).collect();
    }
    loop {
        let mut more = false;
        for member in &state.members {
            more |= member.store.maintain(clock::now()).more;
        }
        if looked.elapsed() >= MEMORY_PERIOD {
            state.correct_memory();
            // Whoever flushes tells every backend that answers; this is for one
            // that did not answer at that moment.
            if let Err(error) = state.catch_up() {
                tracing::warn!(%error, "cannot follow the cell's configuration");
            }
            looked = Instant::now();
        }
        let mut gathered = false;
        for (member, [index, data]) in state.members.iter().zip(&mut gatherers) {
            let regions = member.store.regions();
            gathered |= regions.index.gather(index) == Gathered::Page;
            gathered |= regions.data.gather(data) == Gathered::Page;
        }
        let pause = match (more, gathered) {
            (true, _) => Duration::ZERO,
            (false, true) => GATHER_PAUSE,
            (false, false) => STEP_PERIOD,
        };
        if stop.wait(pause) {
            return;
        }
    }
}
