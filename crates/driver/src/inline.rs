//! A lookup by one-sided reads of mapped memory, carried out where it is asked
//! for: no allocation, no lock, no system call. It ends, or stops at the first
//! step that has to wait for somebody.

use crate::host::Clock;
use crate::topology::Topology;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::fill::{Stamps, index_leaves_room};
use trefoil_client_core::get::{Failure, Get, GetOutcome, GetStep};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::RegionView;
use trefoil_layout::{KeyHash, Version};
use trefoil_region::WordBuffer;

/// How far the coarse clock may lag: two ticks of the slowest kernel timer, and the
/// time for which the processor that keeps it may be descheduled. A lease is many
/// times longer.
pub const COARSE_LAG_NS: u64 = 100_000_000;

/// So long after a pause of this process, a backend that is missing may have paused
/// with it, and not have got to run yet.
pub const RESUMING_NS: u64 = 2_000_000_000;

/// Longest pause that is spent spinning: a sleep takes longer than these.
pub const SPIN_NS_MAX: u64 = 20_000;

/// Whether what happens at `now_ns` happens shortly after a pause, given when the
/// process began to run, or to run again (0: it has not paused).
pub fn is_resuming(running_since_ns: u64, now_ns: u64) -> bool {
    running_since_ns != 0 && now_ns < running_since_ns.saturating_add(RESUMING_NS)
}

/// Copies of an immutable corpus.
const COPIES_OF_IMMUTABLE: usize = Mode::R2Immutable.replica_count();

/// The replicas of one key, as far as their memory is mapped.
pub trait OneSided: Clock {
    /// The replica's memory, and the buffer for what is read from it.
    fn read(&mut self, replica: usize) -> Option<(&RegionView, &mut WordBuffer)>;

    /// The config id of the topology by which the lookup chose its replicas.
    fn known_config_id(&self) -> u32;

    /// The replica's lease has ended.
    fn lapsed(&mut self, replica: usize);

    /// Whether this process has paused a moment ago, and a replica that is missing may
    /// have paused with it; or one has moved to another process.
    fn is_resuming(&self) -> bool;

    /// Takes the replica's windows anew; `false` if that is not all that is needed.
    fn refresh(&mut self, replica: usize) -> bool;
}

/// Runs `get`; an error is the step at which it has to wait, not yet carried out.
#[inline(always)]
pub fn run<const N: usize>(
    source: &mut impl OneSided,
    get: &mut Get<N>,
    hash: KeyHash,
    check: &DataCheck<'_>,
    mut now: u64,
) -> Result<GetOutcome, GetStep> {
    // Probably a miss: it will ask all replicas ([`stamps_unseen`]).
    let mut is_absent = false;
    loop {
        match get.poll(now) {
            GetStep::ReadIndex { replica } => {
                let Some((view, _)) = source.read(replica) else {
                    get.handle_failure(replica, Failure::Connection);
                    continue;
                };
                let (served, mut vote) = (view.config_id(), view.index_vote(replica, hash));
                // Of an immutable corpus one copy decides: who knows of the next corpus
                // takes nothing from a copy that has not changed yet.
                if N == COPIES_OF_IMMUTABLE && served != source.known_config_id() {
                    vote = IndexVote::ConfigChanged { found: served };
                }
                if N > 1 && !is_absent && matches!(vote, IndexVote::Absent { .. }) {
                    is_absent = true;
                    for place in 0..N {
                        if let Some((view, _)) = source.read(place) {
                            view.prefetch_stamp(place, hash);
                        }
                    }
                }
                now = source.coarse_ns();
                if is_alive(source, replica, now) {
                    get.handle_index(replica, vote);
                } else {
                    source.lapsed(replica);
                    get.handle_failure(replica, Failure::Lease);
                }
            }
            GetStep::ReadData {
                replica, pointer, ..
            } => {
                let Some((view, bytes)) = source.read(replica) else {
                    get.handle_failure(replica, Failure::Connection);
                    continue;
                };
                if view.read_data(pointer, bytes).is_err() {
                    get.handle_out_of_window(replica);
                    continue;
                }
                now = source.coarse_ns();
                let Some((view, bytes)) = source.read(replica) else {
                    continue;
                };
                // After the reads: what was flushed before they began is known.
                let check = DataCheck {
                    flush_floor: check.flush_floor.max(view.flush_floor()),
                    ..*check
                };
                if view.lease_alive(now + COARSE_LAG_NS) {
                    get.handle_data(replica, bytes.bytes(), &check);
                } else {
                    source.lapsed(replica);
                    get.handle_failure(replica, Failure::Lease);
                }
            }
            GetStep::Done(outcome) => return Ok(outcome),
            step => {
                rare(source, get, step)?;
                now = source.monotonic_ns();
            }
        }
    }
}

/// What a miss leaves for a fill: each replica's stamp as `stamp_at` knows it. To be
/// called once the miss is known, and before its caller hears of it.
#[inline]
pub fn stamps(
    topology: &Topology,
    hash: KeyHash,
    stamp_at: impl Fn(usize, u32) -> Option<u64>,
) -> Stamps {
    let cohort = topology.cohort(hash);
    let mut by_place = [None; REPLICAS_MAX];
    for (place, number) in cohort.as_slice().iter().enumerate() {
        by_place[place] = stamp_at(place, *number);
    }
    Stamps {
        under: topology.id(),
        hash,
        by_place,
        is_unseen: false,
    }
}

/// The same of a miss that has found nothing at all, of the replicas whose memory is
/// mapped: whether they still hold nothing, the fill looks.
#[inline]
pub fn stamps_unseen<'a>(
    topology: &Topology,
    hash: KeyHash,
    view_of: impl Fn(usize, u32) -> Option<&'a RegionView>,
) -> Stamps {
    Stamps {
        is_unseen: true,
        ..stamps(topology, hash, |place, number| {
            Some(view_of(place, number)?.stamp(place, hash))
        })
    }
}

/// The stamp of a replica whose memory is mapped, unless it holds a value of its own;
/// `dead` is what the miss has found expired or flushed.
pub fn stamp_of(
    view: &RegionView,
    place: usize,
    hash: KeyHash,
    dead: Version,
    now_unix_ns: impl FnOnce() -> u64,
) -> Option<u64> {
    let partition = view.partition(place, hash);
    let stamp = view.stamp_in(partition, hash);
    // What is committed and not executed is nowhere in the index. What is marked after this
    // is executed after it, and changes the stamp.
    if view.is_pending(hash) {
        return None;
    }
    // After the stamp: what comes later than this changes it.
    let vote = view.index_vote_in(partition, hash);
    index_leaves_room(vote, dead, now_unix_ns).then_some(stamp)
}

#[inline(always)]
fn is_alive(source: &mut impl OneSided, replica: usize, coarse_now_ns: u64) -> bool {
    source
        .read(replica)
        .is_some_and(|(view, _)| view.lease_alive(coarse_now_ns + COARSE_LAG_NS))
}

#[cold]
fn rare<const N: usize>(
    source: &mut impl OneSided,
    get: &mut Get<N>,
    step: GetStep,
) -> Result<(), GetStep> {
    match step {
        GetStep::Refresh { replica, .. } if source.refresh(replica) => {
            get.handle_refreshed(replica);
            Ok(())
        }
        GetStep::Await { replica } if !source.is_resuming() => {
            get.handle_failure(replica, Failure::Connection);
            Ok(())
        }
        GetStep::Pause { ns } if ns <= SPIN_NS_MAX => {
            let end = source.monotonic_ns() + ns;
            while source.monotonic_ns() < end {
                std::hint::spin_loop();
            }
            Ok(())
        }
        step => Err(step),
    }
}
