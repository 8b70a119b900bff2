//! One deadline and one retry budget over all layers, and why they were spent.

/// Why a step of an operation was repeated or another replica was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetryCause {
    /// A data entry failed its checksum: read again.
    Torn = 0,
    /// A bucket's header moved during the scan: read again.
    Unstable = 1,
    /// Another config id, or a revoked index: the windows were refreshed.
    ConfigChanged = 2,
    /// A pointer left the known data window: the windows were refreshed.
    Window = 3,
    /// No two replicas agreed: another round.
    Inquorate = 4,
    /// The backend's lease had run out.
    Lease = 5,
    /// The backend could not be reached, or the connection broke.
    Connection = 6,
    /// The replica was recovering and gave no vote.
    Recovering = 7,
    /// The replica was slow; another one was brought in.
    Slow = 8,
    /// Something newer was known: a SET or ERASE went again above it.
    Superseded = 9,
    /// Acknowledgements of different epochs: the same version was sent again.
    Epoch = 10,
}

impl RetryCause {
    /// How many there are.
    pub const COUNT: usize = 11;

    /// Every cause, in the order of their numbers.
    pub const ALL: [RetryCause; Self::COUNT] = [
        RetryCause::Torn,
        RetryCause::Unstable,
        RetryCause::ConfigChanged,
        RetryCause::Window,
        RetryCause::Inquorate,
        RetryCause::Lease,
        RetryCause::Connection,
        RetryCause::Recovering,
        RetryCause::Slow,
        RetryCause::Superseded,
        RetryCause::Epoch,
    ];

    /// The name in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            RetryCause::Torn => "torn",
            RetryCause::Unstable => "unstable",
            RetryCause::ConfigChanged => "config_changed",
            RetryCause::Window => "window",
            RetryCause::Inquorate => "inquorate",
            RetryCause::Lease => "lease",
            RetryCause::Connection => "connection",
            RetryCause::Recovering => "recovering",
            RetryCause::Slow => "slow",
            RetryCause::Superseded => "superseded",
            RetryCause::Epoch => "epoch",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < RetryCause::COUNT {
        assert!(RetryCause::ALL[i] as usize == i);
        i += 1;
    }
};

impl std::fmt::Display for RetryCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Retries by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCounts([u64; RetryCause::COUNT]);

impl RetryCounts {
    /// Counts one more.
    #[inline]
    pub fn add(&mut self, cause: RetryCause) {
        self.0[cause as usize] += 1;
    }

    /// Adds another operation's, client's or run's counts.
    pub fn merge(&mut self, other: &RetryCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// How many of one cause.
    pub const fn get(&self, cause: RetryCause) -> u64 {
        self.0[cause as usize]
    }

    /// How many altogether.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every cause with its count, zeroes included.
    pub fn iter(&self) -> impl Iterator<Item = (RetryCause, u64)> + '_ {
        RetryCause::ALL
            .into_iter()
            .map(|cause| (cause, self.get(cause)))
    }
}

/// What one operation may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// When the caller's patience ends, on the caller's monotonic clock, in
    /// nanoseconds; `u64::MAX` for never.
    pub deadline_ns: u64,
    /// Retries over all layers.
    pub retries_max: u16,
}

/// Retries that an operation gets unless configured otherwise: with the
/// machines' back-off about 15 ms of waiting.
pub const RETRIES_MAX_DEFAULT: u16 = 24;

/// Retries beside the others for what is over in a moment: with the longest back-off of most
/// some four seconds, so that the deadline ends it. Replicas are in different epochs while all
/// headers of a shard are rewritten, at each replica by itself; and one that moves to
/// another process takes no mutation until it has, or half a second and what it takes to
/// find out that it has not.
const PASSING_RETRIES_MAX: u16 = 4_000;

/// Longest single back-off, in nanoseconds. (A mutation waits longer for those that move.)
const PAUSE_NS_MAX: u64 = 1_000_000;

/// Shortest back-off, in nanoseconds: about one mutation at a backend.
const PAUSE_NS_MIN: u64 = 500;

impl Limits {
    /// The default budget until `deadline_ns`.
    pub const fn until(deadline_ns: u64) -> Self {
        Limits {
            deadline_ns,
            retries_max: RETRIES_MAX_DEFAULT,
        }
    }
}

/// Why an operation gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveUp {
    /// The deadline passed.
    #[error("the deadline passed{}", after(.last))]
    Deadline {
        /// The last retry before that, if there was any.
        last: Option<RetryCause>,
    },
    /// The retry budget is spent.
    #[error("the retry budget is spent; the last retry's cause: {last}")]
    Budget {
        /// The last retry's cause.
        last: RetryCause,
    },
}

fn after(last: &Option<RetryCause>) -> String {
    last.map_or_else(String::new, |cause| {
        format!("; the last retry's cause: {cause}")
    })
}

/// One operation's account. Causes are counted in bytes that saturate: an
/// operation never makes so many retries, and a GET must not clear more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    deadline_ns: u64,
    left: u16,
    passing_left: u16,
    spent: u16,
    last: Option<RetryCause>,
    counts: [u8; RetryCause::COUNT],
}

impl Retry {
    #[inline(always)]
    pub(crate) const fn new(limits: Limits) -> Self {
        Retry {
            deadline_ns: limits.deadline_ns,
            left: limits.retries_max,
            passing_left: PASSING_RETRIES_MAX,
            spent: 0,
            last: None,
            counts: [0; RetryCause::COUNT],
        }
    }

    #[inline(always)]
    pub(crate) const fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Ends it later than it was to end.
    pub(crate) fn extend(&mut self, deadline_ns: u64) {
        self.deadline_ns = self.deadline_ns.max(deadline_ns);
    }

    /// What is left to spend.
    pub(crate) const fn left(&self) -> Limits {
        Limits {
            deadline_ns: self.deadline_ns,
            retries_max: self.left,
        }
    }

    /// Takes one retry off the budget, or says that it is spent.
    pub(crate) fn spend(&mut self, cause: RetryCause) -> Result<(), GiveUp> {
        self.spend_as(cause, false)
    }

    /// The same; `is_passing` if what caused it is over in a moment.
    pub(crate) fn spend_as(&mut self, cause: RetryCause, is_passing: bool) -> Result<(), GiveUp> {
        self.count(cause);
        let is_passing = is_passing || matches!(cause, RetryCause::Epoch | RetryCause::Recovering);
        let left = match is_passing {
            true => &mut self.passing_left,
            false => &mut self.left,
        };
        if *left == 0 {
            return Err(GiveUp::Budget { last: cause });
        }
        *left -= 1;
        self.spent = self.spent.saturating_add(1);
        Ok(())
    }

    /// Whether the next retry ends the operation, unless what causes it is over in a moment.
    pub(crate) const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Counts a fall-over to another replica, which costs no budget: their
    /// number is bounded anyway.
    pub(crate) fn count(&mut self, cause: RetryCause) {
        self.last = Some(cause);
        let count = &mut self.counts[cause as usize];
        *count = count.saturating_add(1);
    }

    pub(crate) const fn deadline(&self) -> GiveUp {
        GiveUp::Deadline { last: self.last }
    }

    /// Nobody could be reached, and trying again is not allowed.
    pub(crate) fn unreached(&self) -> GiveUp {
        GiveUp::Budget {
            last: self.last.unwrap_or(RetryCause::Connection),
        }
    }

    /// How long to wait before the next retry, in nanoseconds: nothing before
    /// the first two, then doubling.
    pub(crate) fn pause_ns(&self) -> u64 {
        match self.spent {
            0..=2 => 0,
            spent => (PAUSE_NS_MIN << (spent - 3).min(16)).min(PAUSE_NS_MAX),
        }
    }

    pub(crate) fn counts(&self) -> RetryCounts {
        RetryCounts(self.counts.map(u64::from))
    }

    #[inline(always)]
    pub(crate) const fn is_clean(&self) -> bool {
        self.last.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_ends_and_causes_add_up() {
        let mut retry = Retry::new(Limits {
            deadline_ns: 9,
            retries_max: 2,
        });
        assert!(retry.is_clean());
        assert_eq!(retry.spend(RetryCause::Torn), Ok(()));
        retry.count(RetryCause::Lease);
        assert_eq!(retry.spend(RetryCause::Torn), Ok(()));
        let last = RetryCause::Window;
        assert_eq!(retry.spend(last), Err(GiveUp::Budget { last }));
        let mut counts = retry.counts();
        counts.merge(&retry.counts());
        assert_eq!(counts.get(RetryCause::Torn), 4);
        assert_eq!(counts.total(), 8);
        assert_eq!(counts.iter().filter(|(_, n)| *n > 0).count(), 3);
    }

    #[test]
    fn back_off_doubles_up_to_its_limit() {
        let mut retry = Retry::new(Limits::until(u64::MAX));
        let mut pauses = Vec::new();
        while retry.spend(RetryCause::Inquorate).is_ok() {
            pauses.push(retry.pause_ns());
        }
        assert_eq!(&pauses[..5], [0, 0, 500, 1_000, 2_000]);
        assert_eq!(pauses.last(), Some(&PAUSE_NS_MAX));
        assert!(pauses.is_sorted());
    }
}
