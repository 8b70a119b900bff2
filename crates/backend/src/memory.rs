//! The bound on everything that this process holds in memory.
//!
//! ```text
//! limit = overhead (program, heap, stacks: measured)
//!       + reserve  (what the overhead may grow by until it is measured again)
//!       + the members' stores, rings and the bodies of large requests included
//! ```
//!
//! The stores account for every byte of theirs. What they do not know is
//! measured before they are filled and again while they serve, and taken off
//! their shares. Memory that is resident beyond the limit all the same, and that
//! no store knows of, comes off as well, so that the sum returns under it
//! whatever the cause. What a store still holds while it shrinks is no such
//! cause: counted twice, it would cost items that may stay.
//!
//! **Replicas should have equal shares**: a key that one of them has no room for is
//! lost with one of the two others. Processes that run the same program under the
//! same load hold a little more or less of it in memory, by chance. So the overhead
//! counts as what is usual for this program while the measured one is near that; the
//! reserve makes up the difference. Not where long messages come: what buffers and heap
//! hold for them grows by megabytes between two measurements, and all of the reserve
//! is left for that.

use crate::process::Resident;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Least limit of a process, in bytes.
pub const MEMORY_LIMIT_MIN: u64 = 32 << 20;
/// Least share of a member's store, in bytes.
const SHARE_MIN: u64 = 4 << 20;
/// Bounds of the reserve, which is a 64th of the limit otherwise.
const RESERVE_MIN: u64 = 4 << 20;
const RESERVE_MAX: u64 = 64 << 20;
/// Shares change only by more than this, in bytes: each change costs evictions
/// or populates pages.
const CORRECTION_MIN: u64 = 1 << 20;
/// What is known rests while it moves by no more than this, in bytes.
const REST_MAX: u64 = 256 << 10;
/// Measurements until the best of them counts.
const MEASUREMENTS_MAX: u32 = 5;
/// How long after a long message the overhead counts as it is measured: longer than
/// between two of them wherever they are usual, for shares are not to go up and down.
const MESSAGE_MS: u64 = 10_000;
/// While long messages come, less overhead is believed when it was less for so long. A
/// thread that has given a message's buffer back, and has yet to say so, makes one
/// measurement lack as much as the message had; it may wait for a core meanwhile.
const FALL_MS: u64 = 500;

/// Why a limit cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Less than the program itself needs.
    #[error(
        "a memory limit of {limit} bytes is too small: {needed} bytes are needed for {members} backend(s) in one process"
    )]
    TooSmall {
        /// Asked for.
        limit: u64,
        /// Least possible.
        needed: u64,
        /// Backends in the process.
        members: usize,
    },
    /// More than there is.
    #[error(
        "a memory limit of {limit} bytes is more than the {machine} bytes that this process can use on this machine"
    )]
    TooLarge {
        /// Asked for.
        limit: u64,
        /// Most possible.
        machine: u64,
    },
}

/// Bytes that the stores account for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) private: u64,
    pub(crate) shared: u64,
    /// All bytes of long messages that have ever become resident, and no more been.
    pub(crate) moved: u64,
}

/// Long messages: private memory that is on the stores' accounts. It is charged
/// before it becomes resident.
#[derive(Debug, Default)]
pub(crate) struct Transient {
    charged: AtomicI64,
    resident: AtomicI64,
    moved: AtomicU64,
}

impl Transient {
    /// Counts bytes that are charged, or no more.
    pub(crate) fn count_charged(&self, bytes: i64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that have become resident, or no more are.
    pub(crate) fn count_resident(&self, bytes: i64) {
        self.resident.fetch_add(bytes, Ordering::Relaxed);
        self.moved
            .fetch_add(bytes.unsigned_abs(), Ordering::Relaxed);
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed).max(0) as u64
    }
}

/// The bound in force.
#[derive(Debug)]
pub(crate) struct MemoryBound {
    limit: AtomicU64,
    baseline: u64,
    /// What every process of this program counts, unless it holds much more.
    usual: u64,
    overhead: AtomicU64,
    falling: Mutex<Option<Falling>>,
    /// The most of the program that was resident since it has started. What is given
    /// back ([`trefoil_region::ProgramPages`]) may be needed again at once.
    program_max: AtomicU64,
    /// The same until then. Long messages need much of it again, at once, on top of what
    /// they take themselves.
    program_max_at_start: AtomicU64,
    pub(crate) transient: Transient,
    /// Until when the overhead counts as it is measured ([`MESSAGE_MS`]).
    exact_until_ms: AtomicU64,
    /// Highest limit that the members' regions were made for.
    limit_max: u64,
    members: usize,
}

impl MemoryBound {
    /// A bound of `limit` bytes for `members` stores, in a process that holds
    /// `baseline` bytes without them, where `usual` bytes are usual.
    pub(crate) fn new(
        limit: u64,
        limit_max: u64,
        baseline: u64,
        usual: u64,
        members: usize,
    ) -> Result<Self, MemoryError> {
        let is_usual = baseline <= usual + tolerance(limit);
        let usual = if is_usual { usual } else { baseline };
        let bound = MemoryBound {
            limit: AtomicU64::new(limit),
            baseline,
            usual,
            overhead: AtomicU64::new(usual),
            falling: Mutex::default(),
            program_max: AtomicU64::new(0),
            program_max_at_start: AtomicU64::new(0),
            transient: Transient::default(),
            exact_until_ms: AtomicU64::new(0),
            limit_max,
            members,
        };
        bound.check(limit)?;
        Ok(bound)
    }

    fn check(&self, limit: u64) -> Result<(), MemoryError> {
        let members = self.members;
        let needed = (self.usual + reserve(limit) + SHARE_MIN * members as u64)
            .max(MEMORY_LIMIT_MIN)
            .next_multiple_of(1 << 20);
        if limit < needed {
            return Err(MemoryError::TooSmall {
                limit,
                needed,
                members,
            });
        }
        if limit > self.limit_max {
            return Err(MemoryError::TooLarge {
                limit,
                machine: self.limit_max,
            });
        }
        Ok(())
    }

    /// Bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes before the stores were filled.
    pub(crate) fn baseline(&self) -> u64 {
        self.baseline
    }

    /// Bytes kept free for growth of the overhead.
    pub(crate) fn reserve(&self) -> u64 {
        reserve(self.limit())
    }

    /// Changes the limit; returns the old one.
    pub(crate) fn set_limit(&self, limit: u64) -> Result<u64, MemoryError> {
        self.check(limit)?;
        Ok(self.limit.swap(limit, Ordering::Relaxed))
    }

    /// Starting is over, and what only starting needed of the program was given back.
    pub(crate) fn has_started(&self) {
        let max = self.program_max.swap(0, Ordering::Relaxed);
        self.program_max_at_start.fetch_max(max, Ordering::Relaxed);
    }

    /// What the stores could hold together beside what the process began with.
    pub(crate) fn stores_len_max(&self) -> u64 {
        let process = self.baseline.max(self.usual);
        self.limit().saturating_sub(process + self.reserve())
    }

    /// What each member's store may hold now.
    pub(crate) fn share(&self) -> u64 {
        let taken = self.overhead.load(Ordering::Relaxed) + self.reserve();
        (self.limit().saturating_sub(taken) / self.members as u64).max(SHARE_MIN)
    }

    /// A long message comes, at this time, in milliseconds.
    pub(crate) fn expect_message(&self, now_ms: u64) {
        let until = now_ms + MESSAGE_MS;
        self.exact_until_ms.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether long messages come at this time.
    pub(crate) fn expects_message(&self, now_ms: u64) -> bool {
        now_ms < self.exact_until_ms.load(Ordering::Relaxed)
    }

    /// Has a measurement count, which lies between two figures: more at once; less, where
    /// long messages come, after a while, and then the most of it. Nothing, where it may be
    /// what counts already. Several threads measure.
    fn believe(&self, (at_least, at_most): (u64, u64), expects_message: bool, now_ms: u64) {
        let mut falling = self.falling.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.overhead.load(Ordering::Relaxed);
        if at_least >= counts {
            *falling = None;
            self.overhead.store(at_least, Ordering::Relaxed);
            return;
        }
        if at_most >= counts {
            return;
        }
        if !expects_message {
            *falling = None;
            self.overhead.store(at_most, Ordering::Relaxed);
            return;
        }
        let fall = falling.get_or_insert(Falling {
            since_ms: now_ms,
            most: at_most,
        });
        fall.most = fall.most.max(at_most);
        if now_ms >= fall.since_ms + FALL_MS {
            self.overhead.store(fall.most, Ordering::Relaxed);
            *falling = None;
        }
    }

    /// Takes a measurement into account, made at `now_ms`: what is resident, and what
    /// the stores know that they hold. Returns the new share if it differs enough from
    /// `share`.
    ///
    /// Where what they know has moved meanwhile, all that the overhead may be lies between
    /// two figures, and the one that is nearest to what counts already is believed: what
    /// merely may have changed costs no items.
    pub(crate) fn correct(
        &self,
        resident: Resident,
        stores: impl Into<KnownBetween>,
        share: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let stores = stores.into();
        let before = self
            .program_max
            .fetch_max(resident.program, Ordering::Relaxed);
        let expects_message = self.expects_message(now_ms);
        let needed = match expects_message {
            true => before.max(self.program_max_at_start.load(Ordering::Relaxed)),
            false => before,
        };
        let away = needed.saturating_sub(resident.program);
        let tolerance = match expects_message {
            true => 0,
            false => tolerance(self.limit()),
        };
        let overhead = |known: Known| {
            let unknown_private = (resident.private + away).saturating_sub(known.private);
            let unknown_shared = (resident.total() - resident.private).saturating_sub(known.shared);
            let excess = resident.total().saturating_sub(self.limit());
            let is_usual = unknown_private <= self.usual + tolerance;
            let private = if is_usual {
                self.usual
            } else {
                unknown_private
            };
            private + excess.min(unknown_shared)
        };
        // The more is known, the less is overhead.
        let (at_least, at_most) = (overhead(stores.most), overhead(stores.least));
        self.believe((at_least, at_most), expects_message, now_ms);
        let next = self.share();
        (next.abs_diff(share) * self.members as u64 > CORRECTION_MIN).then_some(next)
    }
}

/// Overhead that was measured since `since_ms` and is less than what counts.
#[derive(Debug)]
struct Falling {
    since_ms: u64,
    most: u64,
}

/// What the stores knew while something was measured: between these two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownBetween {
    pub(crate) least: Known,
    pub(crate) most: Known,
}

impl From<Known> for KnownBetween {
    fn from(known: Known) -> Self {
        KnownBetween {
            least: known,
            most: known,
        }
    }
}

impl KnownBetween {
    fn of(before: Known, after: Known) -> Self {
        let between = |of: fn(&Known) -> u64| {
            let (before, after) = (of(&before), of(&after));
            (before.min(after), before.max(after))
        };
        let (least, most) = between(|known| known.private);
        // What has come and gone meanwhile, or gone and come, leaves no difference.
        let moved = after.moved.wrapping_sub(before.moved);
        let unseen = moved.saturating_sub(most - least) / 2;
        let (shared_least, shared_most) = between(|known| known.shared);
        KnownBetween {
            least: Known {
                private: least.saturating_sub(unseen),
                shared: shared_least,
                moved: after.moved,
            },
            most: Known {
                private: most + unseen,
                shared: shared_most,
                moved: after.moved,
            },
        }
    }

    fn width(&self) -> u64 {
        self.most.private - self.least.private + self.most.shared - self.least.shared
    }
}

/// What is resident, and what the stores know of it, for one moment. A message of
/// megabytes that comes or goes meanwhile would hide as much of what nobody knows of, or
/// look like it: so both are taken again while what is known moves, and the measurement
/// in which it moved least counts, with what was known before and after.
pub(crate) fn measured_together(
    mut resident: impl FnMut() -> Resident,
    mut known: impl FnMut() -> Known,
) -> (Resident, KnownBetween) {
    let mut before = known();
    let mut measure = || {
        let (resident, after) = (resident(), known());
        let between = KnownBetween::of(std::mem::replace(&mut before, after), after);
        (resident, between)
    };
    let mut best = measure();
    for _ in 1..MEASUREMENTS_MAX {
        if best.1.width() <= REST_MAX {
            break;
        }
        let next = measure();
        if next.1.width() < best.1.width() {
            best = next;
        }
    }
    best
}

fn reserve(limit: u64) -> u64 {
    (limit / 64).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// How far the overhead may be from what is usual, where no long messages come. A
/// quarter of the reserve is left for what it grows by between two measurements.
fn tolerance(limit: u64) -> u64 {
    reserve(limit) / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bound(limit: u64, members: usize) -> Result<MemoryBound, MemoryError> {
        MemoryBound::new(limit, 1 << 40, 10 * MIB, 10 * MIB, members)
    }

    #[test]
    fn shares_leave_room_for_overhead_and_reserve() {
        let one = bound(1024 * MIB, 1).unwrap();
        assert_eq!(one.share(), (1024 - 10 - 16) * MIB);
        let three = bound(1024 * MIB, 3).unwrap();
        assert_eq!(three.share() * 3, one.share() / 3 * 3);
    }

    #[test]
    fn limits_out_of_range_are_refused() {
        let error = bound(16 * MIB, 1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{} bytes are needed", 32 * MIB)),
            "{error}"
        );
        assert!(matches!(
            bound(30 * MIB, 8),
            Err(MemoryError::TooSmall { .. })
        ));
        assert!(matches!(
            bound(1 << 41, 1),
            Err(MemoryError::TooLarge { .. })
        ));
        let bound = bound(64 * MIB, 1).unwrap();
        assert!(bound.set_limit(1).is_err());
        assert_eq!(bound.limit(), 64 * MIB);
        assert_eq!(bound.set_limit(128 * MIB), Ok(64 * MIB));
    }

    fn private(bytes: u64) -> Known {
        Known {
            private: bytes,
            shared: 0,
            ..Known::default()
        }
    }

    fn held(bytes: u64) -> Resident {
        Resident {
            private: bytes,
            ..Resident::default()
        }
    }

    /// A message arrives between the two measurements.
    #[test]
    fn a_message_that_comes_meanwhile_hides_nothing() {
        let mut messages = [0, 5, 5].into_iter().map(|mib| private(mib * MIB));
        let mut measured = [10, 15].into_iter().map(|mib| held(mib * MIB));
        let (resident, known) =
            measured_together(|| measured.next().unwrap(), || messages.next().unwrap());
        for known in [known.least, known.most] {
            assert_eq!(resident.private - known.private, 10 * MIB);
        }
    }

    /// More of it at every look; in the third least.
    #[test]
    fn what_never_rests_is_measured_where_it_moves_least() {
        let mut messages = [0, 3, 6, 7, 20, 40].into_iter();
        let (resident, known) = measured_together(
            || held(20 * MIB),
            || private(messages.next().unwrap() * MIB),
        );
        assert_eq!(resident, held(20 * MIB));
        assert_eq!(known.least.private, 6 * MIB);
        assert_eq!(known.most.private, 7 * MIB);
    }

    /// The thread that measures had no core while a message arrived.
    #[test]
    fn what_may_be_a_message_costs_no_items() {
        let bound = bound(256 * MIB, 1).unwrap();
        bound.expect_message(1000);
        let correct = |held_mib, least, most| {
            let known = KnownBetween::of(private(least * MIB), private(most * MIB));
            bound.correct(held(held_mib * MIB), known, bound.share(), 1000);
            bound.share()
        };
        let share = correct(12, 0, 0);
        assert_eq!(correct(32, 0, 20), share);
        assert_eq!(correct(12, 0, 20), share);
        assert_eq!(correct(22, 0, 20), share);
        // What no message can be is believed.
        assert_eq!(correct(35, 0, 20), share - 3 * MIB);
    }

    /// A message is there while it is measured, and was neither before nor after.
    #[test]
    fn what_came_and_went_meanwhile_costs_no_items() {
        let bound = bound(256 * MIB, 1).unwrap();
        bound.expect_message(1000);
        let transient = &bound.transient;
        let known = || Known {
            private: transient.resident(),
            shared: 0,
            moved: transient.moved(),
        };
        let measure = |message: i64, private| {
            let resident = || {
                transient.count_resident(message);
                transient.count_resident(-message);
                held(private)
            };
            let (resident, known) = measured_together(resident, known);
            bound.correct(resident, known, bound.share(), 1000);
            bound.share()
        };
        let share = measure(0, 12 * MIB);
        assert_eq!(measure(20 << 20, 32 * MIB), share);
        assert_eq!(measure(0, 32 * MIB), share - 20 * MIB);
    }

    /// Overhead falls though a measurement in between says nothing.
    #[test]
    fn what_says_nothing_does_not_hold_up_what_does() {
        let bound = bound(256 * MIB, 1).unwrap();
        bound.expect_message(1000);
        let correct = |held_mib, most, now_ms| {
            let known = KnownBetween::of(private(0), private(most * MIB));
            bound.correct(held(held_mib * MIB), known, bound.share(), now_ms);
            bound.share()
        };
        let share = correct(14, 0, 1000);
        assert_eq!(correct(11, 0, 1010), share);
        assert_eq!(correct(21, 20, 1300), share);
        assert_eq!(correct(11, 0, 1010 + FALL_MS), share + 3 * MIB);
    }

    #[test]
    fn measured_overhead_comes_off_the_share_and_returns() {
        let bound = bound(256 * MIB, 1).unwrap();
        let share = bound.share();
        let measured = |private, shared| Resident {
            private: private * MIB,
            shared: shared * MIB,
            ..Resident::default()
        };
        let known = |private, shared| Known {
            private: private * MIB,
            shared: shared * MIB,
            ..Known::default()
        };
        // As at the start: nothing changes, small noise neither.
        assert_eq!(
            bound.correct(measured(10, 200), known(0, 200), share, 0),
            None
        );
        assert_eq!(
            bound.correct(measured(14, 200), known(4, 200), share, 0),
            None
        );
        assert_eq!(
            bound.correct(measured(11, 200), known(0, 200), share, 0),
            None
        );
        // 20 MiB more that no store knows of.
        let less = bound.correct(measured(30, 200), known(0, 200), share, 0);
        assert_eq!(less, Some(share - 20 * MIB));
        let again = bound.correct(measured(10, 200), known(0, 200), share - 20 * MIB, 0);
        assert_eq!(again, Some(share));
        // Beyond the limit, and no store knows why.
        let less = bound.correct(measured(10, 256), known(0, 240), share, 0);
        assert_eq!(less, Some(share - 10 * MIB));
    }

    #[test]
    fn what_the_program_may_need_again_is_not_for_items() {
        let bound = bound(256 * MIB, 1).unwrap();
        let share = bound.share();
        let resident = |program| Resident {
            private: (10 + program) * MIB,
            program: program * MIB,
            ..Resident::default()
        };
        let known = Known::default();
        let less = bound.correct(resident(8), known, share, 0);
        assert_eq!(less, Some(share - 8 * MIB));
        assert_eq!(bound.correct(resident(2), known, share - 8 * MIB, 0), None);
        // Unless only starting needed it.
        bound.has_started();
        assert_eq!(
            bound.correct(resident(2), known, share - 8 * MIB, 0),
            Some(share)
        );
    }

    /// A message of 10 MiB is given back by a thread that has not said so yet.
    #[test]
    fn one_measurement_amid_long_messages_makes_no_room() {
        let bound = bound(256 * MIB, 1).unwrap();
        let share = bound.share() - 4 * MIB;
        let held = |private| Resident {
            private: private * MIB,
            ..Resident::default()
        };
        let known = |private| Known {
            private: private * MIB,
            shared: 0,
            ..Known::default()
        };
        bound.expect_message(1000);
        let correct = |private, of_messages, now_ms| {
            bound.correct(held(private), known(of_messages), bound.share(), now_ms);
            bound.share()
        };
        assert_eq!(correct(24, 10, 1000), share);
        assert_eq!(correct(14, 10, 1010), share, "it is believed at once");
        assert_eq!(correct(14, 0, 1020), share);
        // Less for long is believed, and more at once.
        assert_eq!(correct(11, 0, 1100), share);
        assert_eq!(correct(12, 0, 1350), share);
        assert_eq!(correct(11, 0, 1600), share + 2 * MIB);
        assert_eq!(correct(13, 0, 1610), share + MIB);
        // What was about to be believed before a pause says nothing after it.
        correct(11, 0, 1000 + MESSAGE_MS - 1);
        correct(30, 0, 1000 + MESSAGE_MS);
        let less = bound.share();
        bound.expect_message(3 * MESSAGE_MS);
        assert_eq!(correct(11, 0, 3 * MESSAGE_MS), less);
    }

    #[test]
    fn processes_of_one_program_have_equal_shares() {
        let share = |baseline: u64, private: u64| {
            let (limit, usual) = (64 * MIB, 9 * MIB);
            let bound = MemoryBound::new(limit, 1 << 40, baseline, usual, 1).unwrap();
            let resident = Resident {
                private,
                shared: 40 * MIB,
                ..Resident::default()
            };
            let stores = Known {
                private: 0,
                shared: 40 * MIB,
                ..Known::default()
            };
            let before = bound.share();
            bound.correct(resident, stores, before, 0).unwrap_or(before)
        };
        let usual = share(9 * MIB, 9 * MIB);
        assert_eq!(usual, (64 - 9 - 4) * MIB);
        for kib in (8 << 10..12 << 10).step_by(100) {
            assert_eq!(share(8 * MIB, kib << 10), usual);
            assert_eq!(share(10 * MIB, kib << 10), usual);
        }
        // Another program than it was thought, or one that holds much more by now.
        assert_eq!(share(20 * MIB, 20 * MIB), (64 - 20 - 4) * MIB);
        assert_eq!(share(9 * MIB, 13 * MIB), (64 - 13 - 4) * MIB);
    }

    #[test]
    fn all_of_the_reserve_is_left_where_long_messages_come() {
        let bound = bound(64 * MIB, 1).unwrap();
        let usual = bound.share();
        let known = Known::default();
        let with = |private: u64| Resident {
            private: private * MIB,
            ..Resident::default()
        };
        assert_eq!(bound.correct(with(13), known, usual, 1000), None);
        bound.expect_message(2000);
        for private in 12..30 {
            let share = bound.correct(with(private), known, usual, 2000).unwrap();
            assert_eq!(share + private * MIB, bound.limit() - bound.reserve());
        }
        // Another process of this program that holds less has the usual share still.
        let other = self::bound(64 * MIB, 1).unwrap();
        other.expect_message(2000);
        assert_eq!(other.correct(with(9), known, usual, 2000), None);
        // For a while.
        bound.correct(with(13), known, usual, 1999 + MESSAGE_MS - FALL_MS);
        let less = bound.correct(with(13), known, usual, 1999 + MESSAGE_MS);
        assert_eq!(less, Some(usual - 3 * MIB));
        let again = bound.correct(with(13), known, usual - 3 * MIB, 2000 + MESSAGE_MS);
        assert_eq!(again, Some(usual));
    }

    #[test]
    fn a_store_that_is_still_shrinking_is_not_told_to_shrink_more() {
        let bound = bound(256 * MIB, 1).unwrap();
        bound.set_limit(128 * MIB).unwrap();
        let share = bound.share();
        let resident = Resident {
            private: 10 * MIB,
            shared: 240 * MIB,
            ..Resident::default()
        };
        let stores = Known {
            private: 0,
            shared: 240 * MIB,
            ..Known::default()
        };
        assert_eq!(bound.correct(resident, stores, share, 0), None);
    }
}
