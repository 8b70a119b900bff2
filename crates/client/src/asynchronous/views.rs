//! Lookups that end where they are called: one-sided reads through the views that
//! the client's thread has published.

use crate::error::OpError;
use crate::get::{Miss, failed, hit};
use crate::owned::OwnedLookup;
use crate::pulse;
use crate::time;
use arc_swap::ArcSwapOption;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Get, GetOutcome, MissReason, Plan, Strategy};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::retry::Limits;
use trefoil_driver::inline::{self, OneSided};
use trefoil_driver::{Clock, ItemRead, Topology};
use trefoil_fabric::RegionView;
use trefoil_layout::Version;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;
use trefoil_region::WordBuffer;

/// Stashes of reads: as many threads report theirs without waiting for each other.
const STASH_COUNT: usize = 8;
/// Reads of a stash that make it worth handing over.
const STASH_LEN: usize = 128;
/// Lookups that begin at the same replica before the next one's turn.
const PREFERRED_TURN: usize = 64;

/// How a backend is reached.
pub(crate) enum Reach {
    Mapped(Arc<RegionView>),
    /// By calls: a lookup that needs its vote waits for the thread.
    Called,
    Down,
}

/// What the thread knows, as other threads may use it. Never changed: replaced.
pub(super) struct Published {
    pub(super) topology: Arc<Topology>,
    pub(super) views: Vec<Reach>,
    /// Which views they are.
    pub(super) view_count: u64,
    /// How often the cell's topology had changed.
    pub(super) changes: u64,
}

/// An item that a hit has read, and through which views.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) read: ItemRead,
    pub(super) view_count: u64,
}

/// What lookups in place share.
#[derive(Default)]
pub(super) struct Views {
    pub(super) published: ArcSwapOption<Published>,
    stashes: [Mutex<Vec<Seen>>; STASH_COUNT],
    /// Stashes that are full, for the thread.
    pub(super) full: Mutex<Vec<Vec<Seen>>>,
    /// The latest time of a version that a hit has shown.
    pub(super) observed_ns: AtomicU64,
    threads: AtomicUsize,
}

thread_local! {
    static BUFFERS: RefCell<[WordBuffer; REPLICAS_MAX]> =
        RefCell::new(std::array::from_fn(|_| WordBuffer::default()));
    /// This thread's number, plus one, and its lookups so far.
    static THREAD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl Views {
    /// Looks a key up in place; `None` if that takes waiting for somebody. `changes`: how
    /// often the cell's topology has changed by now.
    pub(super) fn get(
        &self,
        key: &[u8],
        changes: u64,
        limits: impl Fn(u64) -> Limits,
    ) -> Option<Result<OwnedLookup, OpError>> {
        let published = self.published.load();
        let published = published.as_ref()?;
        // What was read by somebody under a later configuration must not be followed by
        // what stands here under this one.
        if published.changes != changes {
            return None;
        }
        match published.topology.mode() {
            Mode::R1 => self.get_of::<1>(published, key, limits),
            Mode::R2Immutable => self.get_of::<2>(published, key, limits),
            Mode::R32 => self.get_of::<3>(published, key, limits),
        }
    }

    fn get_of<const N: usize>(
        &self,
        published: &Published,
        key: &[u8],
        limits: impl Fn(u64) -> Limits,
    ) -> Option<Result<OwnedLookup, OpError>> {
        let topology = &published.topology;
        let hash = topology.hash(key);
        let cohort = topology.cohort(hash);
        let now = time::coarse_ns();
        let (thread, count) = self.thread();
        let mut plan = Plan::<N>::frugal((thread + count / PREFERRED_TURN) % N);
        let mut views = [None; N];
        for (place, number) in cohort.as_slice().iter().enumerate() {
            match published.views.get(*number as usize)? {
                Reach::Mapped(view) => views[place] = Some(&**view),
                Reach::Called => {
                    plan.strategies[place] = Strategy::Rpc;
                    // The last one to be asked.
                    plan.preferred = (place + 1) % N;
                }
                Reach::Down => plan.strategies[place] = Strategy::Down,
            }
        }
        if views.iter().flatten().count() < topology.mode().quorum() {
            return None;
        }
        let mut get = Get::<N>::new(&plan, hash, limits(now), now);
        let check = DataCheck {
            key,
            now_ms: time::coarse_unix_ms(),
            flush_floor: topology.flush_floor(),
        };
        BUFFERS.with_borrow_mut(|buffers| {
            let mut source = OnViews {
                known_config_id: topology.id().config_id,
                views: &views,
                buffers,
            };
            let outcome = inline::run(&mut source, &mut get, hash, &check, now).ok()?;
            Some(match outcome {
                GetOutcome::Hit { version, replica } => {
                    self.observe(version);
                    let mut slots = [None; REPLICAS_MAX];
                    for (place, slot) in slots.iter_mut().enumerate().take(N) {
                        *slot = get.touched_slot(place);
                    }
                    let read = ItemRead {
                        hash,
                        cohort,
                        slots,
                    };
                    self.note(thread, read, published.view_count);
                    hit(buffers[replica].bytes(), version).map(|found| found.into_owned())
                }
                GetOutcome::Miss { reason } => {
                    let dead = get.dead_version();
                    let view_of = |place: usize| *views.get(place)?;
                    let stamps = match reason {
                        MissReason::Absent => {
                            inline::stamps_unseen(topology, hash, |place, _| view_of(place))
                        }
                        _ => inline::stamps(topology, hash, |place, _| {
                            let view = view_of(place)?;
                            inline::stamp_of(view, place, hash, dead, time::unix_ns)
                        }),
                    };
                    Ok(OwnedLookup::Miss(Miss::new(reason, stamps)))
                }
                GetOutcome::Failed { cause } => Err(failed(cause, None)),
            })
        })
    }

    /// Takes note of a version, unless it is from too far in the future: it would
    /// hide all that are seen later.
    fn observe(&self, version: Version) {
        let seen_ns = version.time_ns;
        if seen_ns > self.observed_ns.load(Ordering::Relaxed)
            && seen_ns <= time::unix_ns().saturating_add(CLOCK_AHEAD_NS_MAX)
        {
            self.observed_ns.fetch_max(seen_ns, Ordering::Relaxed);
        }
    }

    /// This thread's number, and its lookups so far.
    fn thread(&self) -> (usize, usize) {
        let (mut number, count) = THREAD.get();
        if number == 0 {
            number = self.threads.fetch_add(1, Ordering::Relaxed) + 1;
        }
        THREAD.set((number, count.wrapping_add(1)));
        (number, count)
    }

    /// Keeps what a hit has read, for the thread to report.
    fn note(&self, thread: usize, read: ItemRead, view_count: u64) {
        let stash = &self.stashes[thread % STASH_COUNT];
        let mut stash = stash.lock().unwrap_or_else(PoisonError::into_inner);
        stash.push(Seen { read, view_count });
        if stash.len() >= STASH_LEN {
            let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that does not keep up loses some.
            if full.len() < 2 * STASH_COUNT {
                full.push(std::mem::replace(&mut stash, Vec::with_capacity(STASH_LEN)));
            } else {
                stash.clear();
            }
        }
    }

    /// What is still being collected, too.
    pub(super) fn take_stashes(&self) -> Vec<Vec<Seen>> {
        let mut all =
            std::mem::take(&mut *self.full.lock().unwrap_or_else(PoisonError::into_inner));
        for stash in &self.stashes {
            all.push(std::mem::take(
                &mut *stash.lock().unwrap_or_else(PoisonError::into_inner),
            ));
        }
        all
    }
}

struct OnViews<'a, const N: usize> {
    known_config_id: u32,
    views: &'a [Option<&'a RegionView>; N],
    buffers: &'a mut [WordBuffer; REPLICAS_MAX],
}

impl<const N: usize> Clock for OnViews<'_, N> {
    fn coarse_ns(&self) -> u64 {
        time::coarse_ns()
    }
    fn monotonic_ns(&self) -> u64 {
        time::monotonic_ns()
    }
    fn unix_ns(&self) -> u64 {
        time::unix_ns()
    }
    fn coarse_unix_ms(&self) -> u64 {
        time::coarse_unix_ms()
    }
}

impl<const N: usize> OneSided for OnViews<'_, N> {
    #[inline(always)]
    fn read(&mut self, replica: usize) -> Option<(&RegionView, &mut WordBuffer)> {
        Some((self.views[replica]?, &mut self.buffers[replica]))
    }

    #[inline(always)]
    fn known_config_id(&self) -> u32 {
        self.known_config_id
    }

    /// The thread finds out by itself.
    fn lapsed(&mut self, _: usize) {}

    fn is_resuming(&self) -> bool {
        inline::is_resuming(pulse::running_since_ns(), time::monotonic_ns())
    }

    /// The thread does it.
    fn refresh(&mut self, _: usize) -> bool {
        false
    }
}
