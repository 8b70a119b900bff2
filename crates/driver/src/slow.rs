//! Replicas that answer much later than the others of their cohort are asked last: a lookup
//! needs two of three, and takes as long as the slower of those that it asks first. Now and
//! then one asks all three, and so waits for nobody, but learns whether that has changed.

use crate::driver::Driver;
use crate::host::Host;
use crate::options::LookupStrategy;
use trefoil_cell::Cohort;
use trefoil_client_core::mode::REPLICAS_MAX;

/// One is slow that takes so many times as long as the next slowest …
const SLOW_FACTOR: u64 = 2;
/// … and this beside, in nanoseconds: a wake-up or two are no reason.
const SLOW_NS: u64 = 100_000;
/// While one is left out, one lookup in so many nanoseconds asks it, too.
const PROBE_NS: u64 = 50_000_000;
/// If those that were asked by message, or by way of an engine, do not decide it for so long,
/// one more is asked, in nanoseconds: a hundred times what they take on one host, a hundredth
/// of what one that has stopped would be waited for …
const HEDGE_AFTER_NS: u64 = 5_000_000;
/// … or for so many times what they take, on a long way or behind many others. A batch whose
/// answers fill a link for longer than that would be asked for half as much again, over the
/// same link.
const HEDGE_FACTOR: u64 = 2;

/// How much is asked before, for a lookup that two answers decide: of one that hangs, or has
/// more to do than the others, it says nothing.
fn backlog_of(replicas: &mut [u64]) -> u64 {
    replicas.sort_unstable();
    let second = replicas.get(1).or_else(|| replicas.first());
    second.copied().unwrap_or(0)
}

/// When one more is asked: where answers usually take so long, so much is asked before, and
/// the lookup's clock lags so far behind.
fn hedge_after(usual_ns: u64, backlog_ns: u64, lag_ns: u64) -> u64 {
    let expected_ns = usual_ns.saturating_add(backlog_ns);
    let after_ns = HEDGE_AFTER_NS.max(expected_ns.saturating_mul(HEDGE_FACTOR));
    after_ns.saturating_add(lag_ns)
}

/// Whom a lookup that waits for answers asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// The place in the cohort to begin with, if not whose turn it is.
    pub(crate) first: Option<usize>,
    /// All at once.
    pub(crate) asks_all: bool,
    /// When one more is asked, in nanoseconds.
    pub(crate) hedge_after_ns: u64,
    /// Of two that scan only the first sends the data along.
    pub(crate) leaves_out_data: bool,
}

/// The place of the slow one, if there is one, and how long the slowest of the others takes.
/// Times are by place, 0 where none is known.
fn slowest(answers_ns: &[u64]) -> (Option<usize>, u64) {
    let places = answers_ns.iter().copied().enumerate();
    let Some((place, most)) = places.clone().max_by_key(|(_, ns)| *ns) else {
        return (None, 0);
    };
    let others = places.filter(|(of, _)| *of != place).map(|(_, ns)| ns);
    let usual = others.clone().max().unwrap_or(0);
    let is_known = others.clone().all(|ns| ns > 0);
    let is_slow = is_known && usual > 0 && most > usual * SLOW_FACTOR + SLOW_NS;
    match is_slow {
        true => (Some(place), usual),
        false => (None, most),
    }
}

impl<H: Host> Driver<H> {
    /// For a lookup of this cohort by scans or messages, which begins by a clock that may lag
    /// by milliseconds.
    pub(crate) fn order(&mut self, cohort: Cohort, now_ns: u64) -> Order {
        let numbers = cohort.as_slice();
        let mut answers_ns = [0; REPLICAS_MAX];
        let mut backlogs_ns = [0; REPLICAS_MAX];
        for (place, number) in numbers.iter().enumerate() {
            if let Some(link) = self.links.get(*number as usize) {
                answers_ns[place] = link.answer_ns();
                backlogs_ns[place] = link.backlog_ns();
            }
        }
        let backlog_ns = backlog_of(&mut backlogs_ns[..numbers.len()]);
        let lag_ns = self.host.monotonic_ns().saturating_sub(now_ns);
        let (slow, usual_ns) = slowest(&answers_ns[..numbers.len()]);
        let slow = slow.filter(|_| self.turns.are_free());
        let asks_all = slow.is_some() && now_ns >= self.probe_at_ns;
        if asks_all {
            self.probe_at_ns = now_ns + PROBE_NS;
        }
        Order {
            // The slow one is the last behind it.
            first: slow.map(|place| (place + 1) % numbers.len()),
            asks_all,
            hedge_after_ns: hedge_after(usual_ns, backlog_ns, lag_ns),
            leaves_out_data: self.options.strategy != LookupStrategy::ScarAll,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_more_is_asked_when_the_answer_is_late_where_it_stands() {
        let ms = |times: [u64; 3]| hedge_after(times[0] * MS, times[1] * MS, times[2] * MS) / MS;
        assert_eq!(ms([0, 0, 0]), 5);
        assert_eq!(ms([1, 0, 0]), 5);
        assert_eq!(ms([25, 0, 0]), 50);
        // The last of a batch is not late before those ahead of it have come.
        assert_eq!(ms([1, 20, 0]), 42);
        // By a clock that says what it was 4 ms ago.
        assert_eq!(ms([1, 0, 4]), 9);
        assert_eq!(hedge_after(u64::MAX, 1, 1), u64::MAX);
    }

    #[test]
    fn one_that_hangs_does_not_decide_when_the_third_is_asked() {
        assert_eq!(backlog_of(&mut [10_000 * MS, 2 * MS, MS]), 2 * MS);
        assert_eq!(backlog_of(&mut [3 * MS, 0, 0]), 0);
        assert_eq!(backlog_of(&mut [MS, 4 * MS]), 4 * MS);
        assert_eq!(backlog_of(&mut [MS]), MS);
        assert_eq!(backlog_of(&mut []), 0);
    }

    #[test]
    fn one_is_slow_beside_the_next_slowest() {
        let us = |times: [u64; 3]| slowest(&times.map(|us| us * 1000));
        assert_eq!(us([10, 12, 11]), (None, 12_000));
        // As different as wake-ups make them.
        assert_eq!(us([10, 90, 11]).0, None);
        assert_eq!(us([1000, 10_000, 1000]), (Some(1), 1_000_000));
        assert_eq!(us([1000, 1000, 10_000]), (Some(2), 1_000_000));
        // Two that are slow are both needed, or one of them.
        assert_eq!(us([10_000, 10_000, 1000]), (None, 10_000_000));
        // Of one that was not heard nothing is known.
        assert_eq!(us([0, 10_000, 1000]).0, None);
        assert_eq!(slowest(&[1_000_000, 5_000_000]).0, Some(1));
        assert_eq!(slowest(&[5_000_000]).0, None);
    }
}
