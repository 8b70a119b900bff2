//! How fast work may go that nobody waits for: so many bytes between backends a second, and,
//! where each of three replicas reads them all, so many keys looked at.
//!
//! Time is an argument of what decides ([`Pace`]); [`CopyPace`] reads the clock.

use bytes::Bytes;
use std::time::{Duration, Instant};
use trefoil_recovery::{Data, Page};

/// Keys a second: some percent of a core at each replica.
const KEYS_PER_S: u64 = 200_000;
/// Bytes a second at least.
pub const REPAIR_RATE_MIN: u64 = 64 << 10;
/// The same of copies: less would be of no use to anybody.
pub const RECOVERY_RATE_MIN: u64 = REPAIR_RATE_MIN;
/// Bytes a second that are copied from one who serves on meanwhile, unless an operator has
/// chosen another rate: nobody waits for the end, but some wait for the cores that it takes. A
/// recovery goes as fast as it can, because what it copies has one copy fewer meanwhile.
const MOVE_RATE: u64 = 256 << 20;
/// What may be owed before anybody waits: waits are not to be shorter than the system's
/// clock is fine.
const SLACK: Duration = Duration::from_millis(2);
/// How long one who waits does so at a time, before it looks whether it should go on.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// What an item takes of a message beside its data: version, place, recency.
const ITEM_HEAD_LEN: u64 = 48;
/// A key that is told without its value: its hash and its version.
const HELD_LEN: u64 = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: u64,
    /// When what was done so far is paid for.
    paid_at: Instant,
}

impl Pace {
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        Pace {
            rate: rate.max(REPAIR_RATE_MIN),
            paid_at: now,
        }
    }

    /// So many bytes were sent and received.
    pub(crate) fn moved(&mut self, bytes: u64, now: Instant) {
        self.takes(bytes, self.rate, now);
    }

    /// So many keys are looked at.
    pub(crate) fn looks_at(&mut self, keys: u64, now: Instant) {
        self.takes(keys, KEYS_PER_S, now);
    }

    fn takes(&mut self, count: u64, per_s: u64, now: Instant) {
        let takes = Duration::from_secs_f64(count as f64 / per_s as f64);
        // What was not used before is not saved up.
        self.paid_at = self.paid_at.max(now) + takes;
    }

    /// How long to wait now.
    pub(crate) fn owes(&self, now: Instant) -> Duration {
        let owed = self.paid_at.saturating_duration_since(now);
        match owed > SLACK {
            true => owed,
            false => Duration::ZERO,
        }
    }
}

/// The pace of a copy of what other processes hold.
///
/// Whoever copies asks for nothing while it owes, and takes what is under way: a page that
/// names where values stand is of less use the later they are read.
#[derive(Debug)]
pub(crate) struct CopyPace(Option<Pace>);

impl CopyPace {
    /// Of so many bytes a second; as fast as it goes for 0, and where nothing was chosen.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        let rate = rate.filter(|rate| *rate > 0);
        CopyPace(rate.map(|rate| Pace::new(rate, Instant::now())))
    }

    /// Of a move: of so many bytes a second, or as many as disturb nobody.
    pub(crate) fn of_move(rate: Option<u64>) -> Self {
        Self::new(Some(rate.unwrap_or(MOVE_RATE)))
    }

    /// So many bytes have come.
    pub(crate) fn moved(&mut self, bytes: u64) {
        if let Some(pace) = &mut self.0 {
            pace.moved(bytes, Instant::now());
        }
    }

    /// How long to ask for nothing.
    pub(crate) fn owes(&self) -> Duration {
        let owes = |pace: &Pace| pace.owes(Instant::now());
        self.0.as_ref().map_or(Duration::ZERO, owes)
    }

    /// Waits for as long, as far as it `goes_on`.
    pub(crate) async fn wait<E>(&self, goes_on: impl Fn() -> Result<(), E>) -> Result<(), E> {
        loop {
            let owed = self.owes();
            if owed.is_zero() {
                return Ok(());
            }
            goes_on()?;
            tokio::time::sleep(owed.min(LOOK_PERIOD)).await;
        }
    }
}

/// What a page has brought, about.
pub(crate) fn page_len(page: &Page<Bytes>) -> u64 {
    let len = |data: &Data<Bytes>| match data {
        Data::Whole(bytes) | Data::Long { key: bytes } => bytes.len() as u64 + ITEM_HEAD_LEN,
    };
    let items: u64 = page.items.iter().map(|item| len(&item.data)).sum();
    items + HELD_LEN * page.held.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_and_looked_at_is_waited_for() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        let mut pace = Pace::new(1 << 20, begin);
        assert_eq!(pace.owes(begin), Duration::ZERO);
        pace.moved(1 << 20, begin);
        pace.looks_at(KEYS_PER_S, begin);
        assert_eq!(pace.owes(begin), Duration::from_secs(2));
        assert_eq!(pace.owes(after(1500)), Duration::from_millis(500));
        assert_eq!(
            pace.owes(after(1998)),
            Duration::ZERO,
            "shorter than a wait is"
        );
        let mut slow = Pace::new(0, begin);
        slow.moved(REPAIR_RATE_MIN, begin);
        assert_eq!(slow.owes(begin), Duration::from_secs(1));
    }

    #[test]
    fn a_move_keeps_a_pace_unless_it_was_told_none_and_a_recovery_only_if_it_was() {
        let owes = |mut pace: CopyPace| {
            pace.moved(MOVE_RATE);
            !pace.owes().is_zero()
        };
        let rates = [None, Some(0), Some(MOVE_RATE)];
        let of_move = rates.map(|rate| owes(CopyPace::of_move(rate)));
        let of_recovery = rates.map(|rate| owes(CopyPace::new(rate)));
        assert_eq!(of_move, [true, false, true]);
        assert_eq!(of_recovery, [false, false, true]);
    }

    #[test]
    fn a_copy_takes_as_long_as_its_bytes_do_whatever_pages_they_come_in() {
        let rate = 8 << 20;
        for page in [64 << 10, 1 << 20, 5 << 20] {
            let begin = Instant::now();
            let (mut now, mut pace) = (begin, Pace::new(rate, begin));
            let mut left: u64 = 80 << 20;
            while left > 0 {
                // It takes a millisecond to get, too, and no longer in all for that.
                now += Duration::from_millis(1);
                let len = left.min(page);
                pace.moved(len, now);
                now += pace.owes(now);
                left -= len;
            }
            let ms = (now - begin).as_millis();
            let extra = 80 * (1 << 20) / page as u128 + 1;
            assert!((10_000..=10_000 + extra).contains(&ms), "{page}: {ms} ms");
        }
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let begin = Instant::now();
        let mut pace = Pace::new(1 << 20, begin);
        let late = begin + Duration::from_secs(3600);
        pace.moved(1 << 20, late);
        assert_eq!(pace.owes(late), Duration::from_secs(1));
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let mut pace = CopyPace::new(None);
        pace.moved(u64::MAX);
        assert_eq!(pace.owes(), Duration::ZERO);
    }
}
