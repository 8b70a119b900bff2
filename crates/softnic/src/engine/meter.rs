//! How a loop gets on: how long it is busy, how long what is ready may wait for what was
//! ready before it, and how far its clients are behind with their streams.

use super::counters::{Counters, add_own, note};
use super::session::Session;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use trefoil_sockets::stream::StreamState;

/// The longest round is that of this stretch and the one before.
const STRETCH: Duration = Duration::from_secs(1);
/// Between the beginnings of two passes over the streams, at least.
const PASS: Duration = Duration::from_millis(100);
/// A look at one stream takes up to 1.5 µs of CPU, if nothing of it is in a cache: with so long
/// for each of them between two passes, all of them take 1 % of it.
const PASS_OF_ONE: Duration = Duration::from_micros(150);
/// Looks of one round: whoever asks meanwhile waits for some 25 µs at most.
pub(super) const LOOKS_MAX: usize = 16;
/// Names of one round, of which most are of sessions that have left: no system call for these.
const NAMES_MAX: usize = 16 * LOOKS_MAX;
/// After a long sleep who had worked last is known still.
const PASSED_MAX: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Meter {
    busy_ns: u64,
    /// The longest round of this stretch, and of the one before.
    longest: [Duration; 2],
    stretch_began: Instant,
    pass_began: Instant,
    /// How often [`PASS`] went by between the beginnings of the last two passes.
    passed: u32,
    /// Sessions in the order in which they are looked at; some have left.
    around: VecDeque<u64>,
    /// So many of them are to be looked at in this pass.
    left: usize,
    /// Sums of what was seen of the sessions that are here.
    in_flight_bytes: u64,
    window_bytes: u64,
    /// Something was carried out since the last pass began.
    is_dirty: bool,
}

impl Meter {
    pub(super) fn new(now: Instant) -> Self {
        Meter {
            busy_ns: 0,
            longest: [Duration::ZERO; 2],
            stretch_began: now,
            pass_began: now,
            passed: 0,
            around: VecDeque::new(),
            left: 0,
            in_flight_bytes: 0,
            window_bytes: 0,
            is_dirty: false,
        }
    }

    /// A round that has carried out something is over.
    pub(super) fn carried_out(&mut self, began: Instant, now: Instant, counters: &Counters) {
        add_own(&counters.rounds, 1);
        self.is_dirty = true;
        self.was_busy(began, now, counters);
    }

    /// Whoever has asked meanwhile has waited since `began`.
    pub(super) fn was_busy(&mut self, began: Instant, now: Instant, counters: &Counters) {
        let took = now.saturating_duration_since(began);
        self.busy_ns += took.as_nanos() as u64;
        note(&counters.busy_us, self.busy_ns / 1000);
        if took > self.longest[0] {
            self.longest[0] = took;
            self.tell(counters);
        }
    }

    /// A session of this name has come, with what was seen of it elsewhere.
    pub(super) fn comes(&mut self, name: u64, session: &Session, counters: &Counters) {
        self.around.push_back(name);
        self.is_dirty = true;
        self.in_flight_bytes += session.stream.in_flight_bytes;
        self.window_bytes += session.stream.window_bytes;
        self.tell_streams(counters);
    }

    /// A session leaves. Its name stays in line until its turn: it is never given again.
    pub(super) fn leaves(&mut self, session: &Session, counters: &Counters) {
        self.in_flight_bytes -= session.stream.in_flight_bytes;
        self.window_bytes -= session.stream.window_bytes;
        self.tell_streams(counters);
    }

    /// One ends: what it was sent again since the last look counts still.
    pub(super) fn ends(&mut self, session: &mut Session, counters: &Counters) {
        self.look_at(session, counters);
        self.leaves(session, counters);
    }

    /// Ends a stretch whose time is over, and begins a pass over the streams that is due.
    pub(super) fn tick(&mut self, now: Instant, streams: usize, counters: &Counters) {
        let since = now.saturating_duration_since(self.stretch_began);
        if since >= STRETCH {
            self.longest = match since < 2 * STRETCH {
                true => [Duration::ZERO, self.longest[0]],
                // Nothing was carried out in the one that has just ended.
                false => [Duration::ZERO; 2],
            };
            self.stretch_began = now;
            self.tell(counters);
        }
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let since = now.saturating_duration_since(self.pass_began);
        let is_due = self.is_dirty && since >= PASS.max(PASS_OF_ONE.saturating_mul(streams));
        if is_due && !self.is_looking() {
            (self.pass_began, self.is_dirty) = (now, false);
            self.left = self.around.len();
            let passed = since.as_millis() / PASS.as_millis();
            self.passed = (passed as u32).min(PASSED_MAX);
        }
    }

    /// Whether a pass over the streams is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.left > 0
    }

    /// Looks at the next few streams of a pass, and lets what their sessions have cost count for
    /// less. After a pass that has found something under way there is another one.
    pub(super) fn look(&mut self, sessions: &mut HashMap<u64, Session>, counters: &Counters) {
        let mut looks = 0;
        for _ in 0..self.left.min(NAMES_MAX) {
            if looks == LOOKS_MAX {
                break;
            }
            self.left -= 1;
            let Some(name) = self.around.pop_front() else {
                self.left = 0;
                break;
            };
            if let Some(session) = sessions.get_mut(&name) {
                session.age_work(self.passed);
                self.look_at(session, counters);
                self.around.push_back(name);
                looks += 1;
            }
        }
        self.is_dirty |= !self.is_looking() && self.in_flight_bytes > 0;
        self.tell_streams(counters);
    }

    fn look_at(&mut self, session: &mut Session, counters: &Counters) {
        let mut state = StreamState {
            retransmitted: session.stream.retransmitted,
            ..StreamState::default()
        };
        if let Some(seen) = StreamState::of(&session.socket) {
            state = seen;
            state.in_flight_bytes += session.untaken_len() as u64;
        }
        let before = std::mem::replace(&mut session.stream, state);
        let more = state.retransmitted.saturating_sub(before.retransmitted);
        add_own(&counters.retransmitted, more.into());
        self.in_flight_bytes =
            self.in_flight_bytes - before.in_flight_bytes + state.in_flight_bytes;
        self.window_bytes = self.window_bytes - before.window_bytes + state.window_bytes;
    }

    /// How long the loop may sleep before what it has told is out of date; `None`: for ever.
    pub(super) fn sleep_max(&self) -> Option<Duration> {
        match (self.is_dirty, self.longest == [Duration::ZERO; 2]) {
            _ if self.is_looking() => Some(Duration::ZERO),
            (true, _) => Some(PASS),
            (false, false) => Some(STRETCH),
            (false, true) => None,
        }
    }

    fn tell(&self, counters: &Counters) {
        let longest = self.longest[0].max(self.longest[1]);
        note(&counters.lag_us_max, longest.as_micros() as u64);
    }

    fn tell_streams(&self, counters: &Counters) {
        note(&counters.in_flight_bytes, self.in_flight_bytes);
        note(&counters.window_bytes, self.window_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_longest_round_is_told_for_a_while() {
        let (counters, begin) = (Counters::default(), Instant::now());
        let mut meter = Meter::new(begin);
        let lag = || counters.lag_us_max.load(Ordering::Relaxed);
        assert_eq!(meter.sleep_max(), None);
        for (at, took) in [(10, 3), (20, 7), (30, 1)] {
            meter.carried_out(begin + ms(at), begin + ms(at + took), &counters);
        }
        assert_eq!(
            (lag(), counters.busy_us.load(Ordering::Relaxed)),
            (7000, 11_000)
        );
        assert_eq!(counters.rounds.load(Ordering::Relaxed), 3);
        // A pass is due when something was carried out, and not again until then.
        meter.tick(begin + ms(50), 1, &counters);
        assert_eq!(meter.sleep_max(), Some(PASS));
        meter.tick(begin + ms(150), 1, &counters);
        assert_eq!(meter.sleep_max(), Some(STRETCH));
        // A stretch ends, and another one.
        meter.tick(begin + ms(1000), 1, &counters);
        assert_eq!(lag(), 7000);
        meter.carried_out(begin + ms(1500), begin + ms(1502), &counters);
        meter.tick(begin + ms(2000), 1, &counters);
        assert_eq!(lag(), 2000);
        meter.tick(begin + ms(9000), 1, &counters);
        assert_eq!((lag(), meter.sleep_max()), (0, None));
    }

    #[test]
    fn many_streams_are_looked_at_less_often() {
        let (counters, begin) = (Counters::default(), Instant::now());
        let mut meter = Meter::new(begin);
        meter.carried_out(begin, begin + ms(1), &counters);
        meter.around.extend(0..10_000);
        meter.tick(begin + ms(1400), 10_000, &counters);
        assert!(!meter.is_looking());
        meter.tick(begin + ms(1500), 10_000, &counters);
        assert!(meter.is_looking());
        // Of those who have left there is nothing to be seen.
        let rounds = (0..10_000).take_while(|_| {
            meter.look(&mut HashMap::new(), &counters);
            meter.is_looking()
        });
        assert_eq!(rounds.count() + 1, 10_000_usize.div_ceil(NAMES_MAX));
        assert!(meter.around.is_empty());
    }
}
