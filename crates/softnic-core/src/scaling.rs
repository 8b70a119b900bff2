//! How many of an engine's threads take sessions: another one is added while those that do
//! are busy, and one is parked when the others have room for its work.
//!
//! The caller tells now and then how long each thread has been busy ever ([`Scaling::look`]).
//! What has happened between two looks, [`WINDOW`] apart at least, is one window. A step is
//! taken after several windows that ask for it in a row, and then nothing for
//! [`SETTLING`] windows, in which sessions move and what is measured is of before.
//!
//! | step | when |
//! |---|---|
//! | one more | those that are active are busy for [`BUSY`] of the time, on average |
//! | one less | the others would be busy for [`CALM`] of the time with its work, for [`PATIENCE`] windows |
//! | level | one is busy for [`BUSY`] of the time, and another one for [`GAP`] less, and all are needed |
//!
//! A level step that changes nothing was of one session that keeps a thread busy by itself: from
//! one to the next the wait is doubled, up to [`PATIENCE_MAX`], until they are even again. It puts
//! off no park.
//!
//! **Against to and fro.** Between [`BUSY`] and [`CALM`] nothing happens: one that was parked
//! leaves the others far below what would bring it back. If it is wanted again soon all the
//! same, the load comes in waves: patience is doubled then, up to [`PATIENCE_MAX`], and is
//! what it was after a park that has lasted.

use std::time::Duration;

/// Shortest time that is judged.
pub const WINDOW: Duration = Duration::from_millis(100);
/// Share of the time.
pub const BUSY: f64 = 0.75;
/// Likewise.
pub const CALM: f64 = 0.4;
/// Likewise.
pub const GAP: f64 = 0.4;
/// Windows in a row in which threads are busy, or one is far busier than another.
pub const BUSY_WINDOWS: u32 = 3;
/// Windows in a row in which one thread less would do, at first.
pub const PATIENCE: u32 = 30;
/// The same at most.
pub const PATIENCE_MAX: u32 = 600;
/// Windows after a step.
pub const SETTLING: u32 = 5;
/// A park has lasted when so many times the patience has passed.
const LASTED: u32 = 3;

const _: () = assert!(CALM < BUSY && PATIENCE > BUSY_WINDOWS && PATIENCE < PATIENCE_MAX);

/// Sessions that make up this part of a thread's work are to go to another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// By whom.
    pub from: usize,
    /// To whom.
    pub to: usize,
    /// Of its work.
    pub permille: u32,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Threads that are active from now on: those with the lowest numbers. One that is not
    /// any more gives all of its sessions away.
    pub active: usize,
    /// And besides.
    pub moves: Vec<Move>,
}

/// See the module.
#[derive(Debug)]
pub struct Scaling {
    least: usize,
    most: usize,
    active: usize,
    looked_at: Duration,
    busy_ns: Vec<u64>,
    /// Of the last window, of each thread.
    shares: Vec<f64>,
    busy_windows: u32,
    uneven_windows: u32,
    /// So many of these ask for a level step.
    uneven_max: u32,
    calm_windows: u32,
    settling: u32,
    patience: u32,
    /// Windows since one was parked; `None` if that has lasted, or none was.
    parked_for: Option<u32>,
}

impl Scaling {
    /// Between `least` and `most` threads, of which the fewest are active. `now` is of any
    /// clock that does not go back.
    pub fn new(least: usize, most: usize, now: Duration) -> Self {
        let least = least.max(1);
        let most = most.max(least);
        Scaling {
            least,
            most,
            active: least,
            looked_at: now,
            busy_ns: vec![0; most],
            shares: vec![0.0; most],
            busy_windows: 0,
            uneven_windows: 0,
            uneven_max: BUSY_WINDOWS,
            calm_windows: 0,
            settling: 0,
            patience: PATIENCE,
            parked_for: None,
        }
    }

    /// Share of the time in which each thread was busy, in the last window.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Judges what has happened since the last look, and says what is to be done. `busy_ns`
    /// is how long each thread has been busy since it began. Looks that come too soon are
    /// none.
    pub fn look(&mut self, now: Duration, busy_ns: &[u64]) -> Option<Step> {
        let passed = now.saturating_sub(self.looked_at);
        if passed < WINDOW || busy_ns.len() < self.most {
            return None;
        }
        self.looked_at = now;
        let passed_ns = passed.as_nanos() as f64;
        for (thread, busy_ns) in busy_ns.iter().take(self.most).enumerate() {
            let before = std::mem::replace(&mut self.busy_ns[thread], *busy_ns);
            let busy = busy_ns.saturating_sub(before) as f64 / passed_ns;
            // A long round is counted when it ends.
            self.shares[thread] = busy.min(1.0);
        }
        self.count_windows();
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        self.step()
    }

    fn active_shares(&self) -> &[f64] {
        &self.shares[..self.active]
    }

    fn count_windows(&mut self) {
        let count_if = |count: u32, holds: bool| match holds {
            true => count.saturating_add(1),
            false => 0,
        };
        let shares = self.active_shares();
        // What one that was parked still serves is work that the others will have.
        let work: f64 = self.shares.iter().sum();
        let highest = shares.iter().copied().fold(0.0, f64::max);
        let lowest = shares.iter().copied().fold(1.0, f64::min);
        let is_busy = shares.iter().sum::<f64>() / self.active as f64 >= BUSY;
        let is_uneven = highest >= BUSY && highest - lowest >= GAP;
        let is_calm = self.active > self.least && work <= CALM * (self.active - 1) as f64;
        self.busy_windows = count_if(self.busy_windows, is_busy);
        self.uneven_windows = count_if(self.uneven_windows, is_uneven);
        if !is_uneven && self.settling == 0 {
            self.uneven_max = BUSY_WINDOWS;
        }
        self.calm_windows = count_if(self.calm_windows, is_calm);
        self.parked_for = self.parked_for.map(|windows| windows + 1);
        if self.parked_for > Some(self.patience * LASTED) {
            self.parked_for = None;
            self.patience = PATIENCE;
        }
    }

    fn step(&mut self) -> Option<Step> {
        let moves = if self.busy_windows >= BUSY_WINDOWS && self.active < self.most {
            if self.parked_for.take().is_some() {
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
            }
            let moves = self.moves_to_one_more();
            self.active += 1;
            moves
        } else if self.calm_windows >= self.patience {
            self.active -= 1;
            self.parked_for = Some(0);
            Vec::new()
        } else if self.uneven_windows >= self.uneven_max && self.calm_windows == 0 {
            self.uneven_max = (self.uneven_max * 2).min(PATIENCE_MAX);
            self.moves_to_level()
        } else {
            return None;
        };
        (self.busy_windows, self.uneven_windows, self.calm_windows) = (0, 0, 0);
        self.settling = SETTLING;
        Some(Step {
            active: self.active,
            moves,
        })
    }

    /// What each has above the mean of all with one more.
    fn moves_to_one_more(&self) -> Vec<Move> {
        let shares = self.active_shares();
        let mean = shares.iter().sum::<f64>() / (self.active + 1) as f64;
        let above = shares.iter().enumerate();
        let above = above.filter(|(_, share)| **share > mean);
        let one = |(from, share): (usize, &f64)| Move {
            from,
            to: self.active,
            permille: permille((share - mean) / share),
        };
        above.map(one).collect()
    }

    /// Half of what the busiest has more than the one that is least busy.
    fn moves_to_level(&self) -> Vec<Move> {
        let numbered = || self.active_shares().iter().copied().enumerate();
        let by_share = |one: &(usize, f64), other: &(usize, f64)| one.1.total_cmp(&other.1);
        let (Some((from, highest)), Some((to, lowest))) =
            (numbered().max_by(by_share), numbered().min_by(by_share))
        else {
            return Vec::new();
        };
        let permille = permille((highest - lowest) / 2.0 / highest);
        vec![Move { from, to, permille }]
    }
}

fn permille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine on a clock of its own.
    struct Bench {
        scaling: Scaling,
        now: Duration,
        busy_ns: Vec<u64>,
        windows: u32,
    }

    impl Bench {
        fn new(least: usize, most: usize) -> Self {
            let now = Duration::from_secs(1000);
            Bench {
                scaling: Scaling::new(least, most, now),
                now,
                busy_ns: vec![0; most],
                windows: 0,
            }
        }

        /// Each thread is busy for this share of one window.
        fn window(&mut self, shares: &[f64]) -> Option<Step> {
            self.now += WINDOW;
            self.windows += 1;
            for (busy_ns, share) in self.busy_ns.iter_mut().zip(shares) {
                *busy_ns += (share * WINDOW.as_nanos() as f64) as u64;
            }
            self.scaling.look(self.now, &self.busy_ns)
        }

        /// So much work, shared evenly by those that are active; the steps in `windows`
        /// windows, each with the number of its window.
        fn work(&mut self, work: f64, windows: u32) -> Vec<(u32, usize)> {
            let (mut steps, begin) = (Vec::new(), self.windows);
            for _ in 0..windows {
                let active = self.scaling.active;
                let share = (work / active as f64).min(1.0);
                let shares = vec![share; active];
                if let Some(step) = self.window(&shares) {
                    assert_eq!(step.active.abs_diff(active), 1);
                    steps.push((self.windows - begin, step.active));
                }
            }
            steps
        }
    }

    #[test]
    fn load_adds_threads_one_after_another_and_calm_takes_them_away() {
        let mut bench = Bench::new(1, 4);
        assert_eq!(bench.work(0.6, 100), []);
        assert_eq!(bench.work(3.9, 100), [(3, 2), (9, 3), (15, 4)]);
        // What three would do just so keeps four.
        assert_eq!(bench.work(3.0 * CALM + 0.1, 1000), []);
        assert_eq!(bench.work(0.1, 200), [(30, 3), (60, 2), (90, 1)]);
        assert_eq!(bench.work(0.0, 1000), []);
    }

    #[test]
    fn there_are_never_fewer_than_the_least_nor_more_than_the_most() {
        let mut bench = Bench::new(2, 3);
        assert_eq!(bench.work(0.0, 1000), []);
        assert_eq!(bench.work(9.0, 1000), [(3, 3)]);
        assert_eq!(bench.work(0.0, 1000), [(30, 2)]);
        let mut fixed = Bench::new(2, 2);
        assert_eq!(fixed.work(2.0, 1000), []);
        assert_eq!(fixed.work(0.0, 1000), []);
    }

    #[test]
    fn a_burst_that_is_over_soon_changes_nothing() {
        let mut bench = Bench::new(1, 2);
        for _ in 0..100 {
            assert_eq!(bench.work(1.0, BUSY_WINDOWS - 1), []);
            assert_eq!(bench.work(0.5, 1), []);
        }
        assert_eq!(bench.work(1.5, 100).len(), 1);
        // Nor does a pause.
        for _ in 0..100 {
            assert_eq!(bench.work(0.0, PATIENCE - 1), []);
            assert_eq!(bench.work(1.2, 1), []);
        }
    }

    #[test]
    fn waves_are_waited_out_longer_and_longer() {
        let mut bench = Bench::new(1, 2);
        let mut steps = Vec::new();
        for _ in 0..200 {
            steps.extend(bench.work(1.8, 20));
            steps.extend(bench.work(0.1, 40));
        }
        // One park, and then patience outlasts a wave.
        assert!((2..=6).contains(&steps.len()), "{steps:?}");
        assert_eq!(bench.scaling.active, 2);
        // A calm that lasts ends it, and patience is what it was.
        assert_eq!(bench.work(0.1, 1000).len(), 1);
        assert_eq!(bench.scaling.patience, PATIENCE);
    }

    #[test]
    fn one_more_gets_what_the_others_have_above_the_mean() {
        let mut bench = Bench::new(2, 3);
        let step = (0..3).find_map(|_| bench.window(&[1.0, 0.8]));
        let moves = |of: &Step| -> Vec<(usize, usize, u32)> {
            let each = of.moves.iter();
            each.map(|one| (one.from, one.to, one.permille)).collect()
        };
        let step = step.expect("three busy windows are enough");
        assert_eq!(
            (step.active, moves(&step)),
            (3, vec![(0, 2, 400), (1, 2, 250)])
        );
    }

    #[test]
    fn a_thread_that_is_far_busier_gives_half_of_the_difference() {
        let mut bench = Bench::new(2, 2);
        let step = (0..3).find_map(|_| bench.window(&[0.1, 0.9]));
        let moves = vec![Move {
            from: 1,
            to: 0,
            permille: 444,
        }];
        assert_eq!(step, Some(Step { active: 2, moves }));
        // Not at once again: what is measured is of before.
        let again = (0..SETTLING).find_map(|_| bench.window(&[0.1, 0.9]));
        assert_eq!(again, None);
        // Both busy, or neither: nothing is gained.
        for shares in [[0.9, 0.8], [0.7, 0.1]] {
            assert!((0..100).all(|_| bench.window(&shares).is_none()));
        }
    }

    /// It cannot be shared by several threads: moving others to and fro would park none.
    #[test]
    fn one_that_keeps_a_thread_busy_does_not_keep_the_others() {
        let mut bench = Bench::new(1, 8);
        bench.work(7.9, 200);
        assert_eq!(bench.scaling.active, 8);
        let mut shares = [0.0; 8];
        shares[0] = 0.9;
        let steps: Vec<Step> = (0..600).filter_map(|_| bench.window(&shares)).collect();
        assert!(bench.scaling.active <= 3, "{}", bench.scaling.active);
        // Where there are not too many, it is tried now and then.
        let levels = steps.iter().filter(|step| !step.moves.is_empty()).count();
        assert!((1..=9).contains(&levels), "{levels}");
        // Once they were even, it is tried at once again.
        bench.window(&[0.7; 8]);
        let mut again = (0..BUSY_WINDOWS + SETTLING).filter_map(|_| bench.window(&shares));
        assert!(again.any(|step| !step.moves.is_empty()));
    }

    #[test]
    fn what_a_parked_thread_still_serves_counts() {
        let mut bench = Bench::new(1, 3);
        bench.work(2.9, 20);
        assert_eq!(bench.work(0.3, 31).len(), 1);
        // Two active and calm, but the third one is not through yet.
        assert!((0..100).all(|_| bench.window(&[0.1, 0.1, 0.5]).is_none()));
        assert!((0..30).any(|_| bench.window(&[0.1, 0.1, 0.0]).is_some()));
    }

    #[test]
    fn looks_that_are_late_or_soon_are_judged_by_what_has_passed() {
        let mut bench = Bench::new(1, 2);
        // Twice as often as a window lasts.
        for half in 0..20 {
            bench.now += WINDOW / 2;
            bench.busy_ns[0] += WINDOW.as_nanos() as u64 / 4;
            assert_eq!(
                bench.scaling.look(bench.now, &bench.busy_ns),
                None,
                "{half}"
            );
        }
        assert!((bench.scaling.shares()[0] - 0.5).abs() < 0.01);
        // A pause of the machine is one window, and no share is more than all.
        bench.now += Duration::from_secs(60);
        bench.busy_ns[0] += Duration::from_secs(90).as_nanos() as u64;
        assert_eq!(bench.scaling.look(bench.now, &bench.busy_ns), None);
        assert_eq!(bench.scaling.shares()[0], 1.0);
    }
}
