//! What an event loop lends a connection for one turn.

use super::front::{Front, LoopObserver, Orders};
use super::intake::Spare;
use super::outbox::Outbox;
use super::scripts::Executor;
use super::shared::{Chosen, Shared};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::session::{Driven, Session, Wants};
use trefoil_gateway_core::world::{Now, Progress, World};

/// Input read at a time.
pub(super) const INPUT_LEN: usize = 64 << 10;
/// Answers collected before they are sent: a hundred values of 1 KiB.
pub(super) const OUTPUT_LEN: usize = 128 << 10;
/// The same while buffers are short.
const OUTPUT_LEN_SHORT: usize = 8 << 10;

/// See the module.
pub(super) struct Desk<K, O> {
    pub(super) keyspace: K,
    pub(super) observer: O,
    pub(super) shared: Arc<Shared>,
    /// What the operator chose, as this loop knows it.
    pub(super) chosen: Arc<Chosen>,
    chosen_count: u64,
    pub(super) index: usize,
    pub(super) clock: LoopClock,
    /// Where input is read that nothing is known about yet.
    pub(super) input: Box<[u8]>,
    /// Where answers are collected.
    pub(super) outbox: Outbox,
    /// Bytes that the loop's connections keep.
    pub(super) kept: usize,
    /// For the next long request, beside what is kept.
    pub(super) spare: Spare,
    /// Scripts of the loop's connections.
    pub(super) scripts: Executor,
}

impl<K: Keyspace, O: LoopObserver> Desk<K, O> {
    pub(super) fn new(keyspace: K, observer: O, shared: Arc<Shared>, index: usize) -> Self {
        let chosen_count = shared.chosen_count();
        let woken = Arc::clone(&shared);
        Desk {
            scripts: Executor::new(shared.running.clone(), move || woken.loops[index].wake()),
            chosen: shared.chosen(),
            chosen_count,
            keyspace,
            observer,
            shared,
            index,
            clock: LoopClock::new(),
            input: vec![0; INPUT_LEN].into(),
            outbox: Outbox::new(),
            kept: 0,
            spare: Spare::default(),
        }
    }

    /// Takes what the operator has chosen meanwhile; whether there was something.
    #[inline]
    pub(super) fn settle_choice(&mut self) -> bool {
        let count = self.shared.chosen_count();
        if count == self.chosen_count {
            return false;
        }
        self.chosen_count = count;
        self.chosen = self.shared.chosen();
        true
    }

    /// Bytes that connections keep beyond the limit.
    pub(super) fn excess(&self) -> usize {
        let max = self.chosen.limits.buffer_bytes_max;
        self.kept.saturating_sub(max)
    }

    fn output_len_max(&self) -> usize {
        if self.kept > self.chosen.limits.buffer_bytes_max / 2 {
            OUTPUT_LEN_SHORT
        } else {
            OUTPUT_LEN
        }
    }

    /// Executes what stands in `input`; the answer is in the outbox then. `own` is
    /// the connection's input, or the desk's up to that length.
    pub(super) fn drive<S: Session>(
        &mut self,
        session: &mut S,
        input: Input<'_>,
        connection: u64,
        fd: i32,
        orders: &mut Orders,
        under_way: &mut UnderWay,
    ) -> Driven {
        let output_len_max = self.output_len_max();
        let (output, held_len) = self.outbox.begin();
        let now = self.clock.last();
        let mut front = Front {
            observer: &mut self.observer,
            shared: &self.shared,
            scripts: &mut self.scripts,
            orders,
            index: self.index,
            fd,
            connection,
            now_s: (now.monotonic_ns / 1_000_000_000) as u32,
        };
        self.keyspace.enter(connection, now.monotonic_ns);
        let mut world = World {
            keyspace: &mut self.keyspace,
            observer: &mut front,
            settings: &self.chosen.settings,
            now: under_way.began.take().unwrap_or(now),
            next_now: now,
            progress: std::mem::take(&mut under_way.progress),
            connection,
        };
        let bytes = match input {
            Input::Desk { begin, end } => &self.input[begin..end],
            Input::Own(bytes) => bytes,
        };
        let driven = session.drive(bytes, output, held_len + output_len_max, &mut world);
        if driven.wants == Wants::Operation {
            *under_way = UnderWay {
                began: Some(world.now),
                progress: world.progress,
            };
        }
        self.keyspace.leave();
        driven
    }
}

/// What is kept of a request while its operation is pending.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// The time of its first execution.
    began: Option<Now>,
    /// See `World::progress`.
    progress: Progress,
}

/// Where a connection's input stands.
pub(super) enum Input<'a> {
    /// On the desk.
    Desk {
        /// From here.
        begin: usize,
        /// To here.
        end: usize,
    },
    /// In the connection's own buffer.
    Own(&'a [u8]),
}

/// The time, looked at once in each round of the loop. The time of day follows
/// the monotonic clock, and is looked at itself now and then.
#[derive(Debug)]
pub(super) struct LoopClock {
    unix_minus_monotonic_ns: u64,
    refreshed_ns: u64,
    last: Now,
}

/// The time of day may have been set since.
const REFRESH_NS: u64 = 50_000_000;

impl LoopClock {
    fn new() -> Self {
        let mut clock = LoopClock {
            unix_minus_monotonic_ns: 0,
            refreshed_ns: 0,
            last: Now::default(),
        };
        clock.look();
        clock
    }

    /// Looks at the clock.
    pub(super) fn look(&mut self) -> Now {
        let monotonic_ns = nanoseconds(ClockId::Monotonic);
        if monotonic_ns.saturating_sub(self.refreshed_ns) >= REFRESH_NS {
            self.refreshed_ns = monotonic_ns;
            let unix_ns = nanoseconds(ClockId::Realtime);
            self.unix_minus_monotonic_ns = unix_ns.wrapping_sub(monotonic_ns);
        }
        self.last = self.at(monotonic_ns);
        self.last
    }

    /// The monotonic clock, without a look.
    pub(super) fn now_ns() -> u64 {
        nanoseconds(ClockId::Monotonic)
    }

    /// What the last look saw.
    #[inline]
    pub(super) fn last(&self) -> Now {
        self.last
    }

    fn at(&self, monotonic_ns: u64) -> Now {
        let unix_ns = monotonic_ns.wrapping_add(self.unix_minus_monotonic_ns);
        Now {
            unix_ms: unix_ns / 1_000_000,
            monotonic_ns,
        }
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
