//! Watches how busy the loops are, and has more or fewer of them take sessions
//! (`trefoil_softnic_core::scaling` decides).
//!
//! All loops have their threads from the start, and have mapped what there is to be read: one
//! that is parked sleeps. A session that moves goes from loop to loop as from the greeter to
//! its first one, with all that it keeps. One that has a lane of an ordered queue, or waits for
//! one, stays where it is until it ends.

use super::counters::add;
use super::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_softnic_core::scaling::{Scaling, Step, WINDOW};

/// See the module.
pub(super) struct Scaler {
    shared: Arc<Shared>,
    scaling: Scaling,
    began: Instant,
}

impl Scaler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (least, most) = (shared.options.engines, shared.loops.len());
        Scaler {
            scaling: Scaling::new(least, most, Duration::ZERO),
            shared,
            began: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.await_stop(WINDOW) {
            let busy = self.shared.loops.iter();
            let busy_us = busy.map(|share| share.counters.busy_us.load(Ordering::Relaxed));
            let busy_ns: Vec<u64> = busy_us.map(|us| us * 1000).collect();
            let step = self.scaling.look(self.began.elapsed(), &busy_ns);
            self.shared.tell_loads(self.scaling.shares());
            if let Some(step) = step {
                self.take(&step);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        let before = self.shared.active();
        let Step { active, moves } = step;
        let counters = &self.shared.counters;
        // Whoever reads that it was done finds it done.
        self.shared.set_active(*active);
        match active.cmp(&before) {
            std::cmp::Ordering::Greater => {
                add(&counters.scaled_out, 1);
                tracing::info!(active, "the engine is busy: another thread reads");
            }
            std::cmp::Ordering::Less => {
                add(&counters.scaled_in, 1);
                tracing::info!(active, "the engine is calm: one thread less reads");
            }
            std::cmp::Ordering::Equal => {}
        }
        for one in moves {
            self.shared.order_move(one);
        }
    }
}
