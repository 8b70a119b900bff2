//! The thread that tends the stores: bounded steps of maintenance, and the
//! memory bound's corrections.

use crate::clock;
use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two steps when nothing waits.
const STEP_PERIOD: Duration = Duration::from_millis(50);
/// Between two looks at the process's resident memory.
const MEMORY_PERIOD: Duration = Duration::from_millis(250);

/// Tends until stopped.
pub(crate) fn run(state: &Arc<State>, stop: &Stop) {
    let mut looked = Instant::now();
    loop {
        let mut more = false;
        for member in &state.members {
            more |= member.store.maintain(clock::now()).more;
        }
        if looked.elapsed() >= MEMORY_PERIOD {
            state.correct_memory();
            looked = Instant::now();
        }
        let pause = if more { Duration::ZERO } else { STEP_PERIOD };
        if stop.wait(pause) {
            return;
        }
    }
}
