//! Which backends of a cell this process reaches, as its clients find out, and
//! saying so: one line for each change, or one for several that come too fast.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A backend's changes that are each told at once.
const AT_ONCE: u32 = 6;
/// After those, one line in so long a time.
const SPACING: Duration = Duration::from_secs(10);

/// See the module. One for each cell of a process.
#[derive(Default)]
pub(crate) struct Reaches {
    known: Mutex<Known>,
    /// Backends that are away.
    away_count: AtomicUsize,
}

#[derive(Default)]
struct Known {
    backends: HashMap<u32, Reach>,
    /// How many the cell has, if it ever had another number.
    count: Option<usize>,
}

/// What is known of one backend.
struct Reach {
    /// How often it went or came back.
    change_count: u64,
    /// Why it is away, if it is.
    away: Option<String>,
    /// Since when it is away, or was the last time.
    since: Instant,
    /// When it came back.
    back: Instant,
    told: Told,
}

/// What was said of a backend.
struct Told {
    change_count: u64,
    /// The lines so far are worth all that comes before this.
    until: Instant,
}

/// A line about a backend.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    is_away: bool,
    text: String,
}

impl Reaches {
    /// A backend has answered. Returns what [`Reaches::lost`] wants to be told.
    pub(crate) fn reached(&self, backend: u32) -> u64 {
        self.reached_at(backend, Instant::now())
    }

    /// The same of one that has answered a call.
    #[inline]
    pub(crate) fn answered(&self, backend: u32) {
        if self.is_any_away() {
            self.reached(backend);
        }
    }

    /// Whether any backend is away.
    #[inline]
    pub(crate) fn is_any_away(&self) -> bool {
        self.away_count.load(Ordering::Relaxed) > 0
    }

    /// A backend could not be reached.
    pub(crate) fn unreached(&self, backend: u32, why: &str) {
        self.unreached_at(backend, why, Instant::now());
    }

    /// A backend that a client had reached at change `seen` does not answer it any
    /// more. If it has come back since, that is old news.
    pub(crate) fn lost(&self, backend: u32, why: &str, seen: u64) {
        let known = self.lock();
        let change_count = known.backends.get(&backend).map_or(0, |of| of.change_count);
        drop(known);
        if change_count == seen {
            self.unreached(backend, why);
        }
    }

    /// Whether none of a cell's `count` backends can be reached.
    pub(crate) fn are_all_away(&self, count: usize) -> bool {
        if self.away_count.load(Ordering::Relaxed) < count {
            return false;
        }
        let known = self.lock();
        let is_away = |number| {
            let reach = known.backends.get(&number);
            reach.is_some_and(|reach| reach.away.is_some())
        };
        (0..count as u32).all(is_away)
    }

    /// Why none of a cell's `count` backends can be reached, if that is so: the reason of
    /// the first.
    pub(crate) fn why_all_away(&self, count: usize) -> Option<String> {
        if !self.are_all_away(count) {
            return None;
        }
        let known = self.lock();
        known.backends.get(&0).and_then(|reach| reach.away.clone())
    }

    /// The cell has so many backends now: those beyond are no more, and not away, whatever a
    /// client that does not know it yet says of them.
    pub(crate) fn keep(&self, count: usize) {
        let mut known = self.lock();
        known.count = Some(count);
        known.backends.retain(|number, reach| {
            let is_kept = (*number as usize) < count;
            if !is_kept && reach.away.is_some() {
                self.away_count.fetch_sub(1, Ordering::Relaxed);
            }
            is_kept
        });
    }

    /// Says what came too fast to be said at once.
    pub(crate) fn tell(&self) {
        let now = Instant::now();
        for (backend, reach) in &mut self.lock().backends {
            reach.tell(*backend, now);
        }
    }

    fn reached_at(&self, backend: u32, now: Instant) -> u64 {
        let mut known = self.lock();
        let Some(reach) = known.backends.get_mut(&backend) else {
            return 0;
        };
        if reach.away.take().is_some() {
            reach.change_count += 1;
            reach.back = now;
            self.away_count.fetch_sub(1, Ordering::Relaxed);
            reach.tell(backend, now);
        }
        reach.change_count
    }

    fn unreached_at(&self, backend: u32, why: &str, now: Instant) {
        let mut known = self.lock();
        if known.count.is_some_and(|count| backend as usize >= count) {
            return;
        }
        let reach = known
            .backends
            .entry(backend)
            .or_insert_with(|| Reach::new(now));
        if reach.away.is_none() {
            reach.change_count += 1;
            reach.since = now;
            reach.away = Some(why.to_owned());
            self.away_count.fetch_add(1, Ordering::Relaxed);
            reach.tell(backend, now);
        } else if reach.away.as_deref() != Some(why) {
            // Another attempt may have found out more.
            reach.away = Some(why.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reach {
    fn new(now: Instant) -> Self {
        Reach {
            change_count: 0,
            away: None,
            since: now,
            back: now,
            told: Told {
                change_count: 0,
                until: now,
            },
        }
    }

    fn tell(&mut self, backend: u32, now: Instant) {
        match self.line(now) {
            Some(line) if line.is_away => tracing::warn!(backend, "{}", line.text),
            Some(line) => tracing::info!(backend, "{}", line.text),
            None => {}
        }
    }

    /// What is to be said now, if anything is.
    fn line(&mut self, now: Instant) -> Option<Line> {
        let unsaid = self.change_count - self.told.change_count;
        let begun = self.told.until.max(now);
        if unsaid == 0 || begun - now > SPACING * (AT_ONCE - 1) {
            return None;
        }
        self.told.until = begun + SPACING;
        self.told.change_count = self.change_count;
        let mut text = match &self.away {
            Some(why) => format!("the backend cannot be reached: {why}"),
            None => {
                let after = self.back - self.since;
                format!("the backend is reached again, after {after:.1?}")
            }
        };
        if unsaid > 1 {
            // Writing to a string does not fail.
            let _ = write!(text, " ({unsaid} changes since the last such line)");
        }
        Some(Line {
            is_away: self.away.is_some(),
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of one backend, as they are asked for.
    struct Story {
        reach: Reach,
        now: Instant,
    }

    impl Story {
        fn new() -> Self {
            let now = Instant::now();
            let reach = Reach::new(now);
            Story { reach, now }
        }

        fn goes(&mut self) -> Option<String> {
            self.reach.change_count += 1;
            self.reach.since = self.now;
            self.reach.away = Some("gone".to_owned());
            self.line()
        }

        fn comes(&mut self) -> Option<String> {
            self.reach.change_count += 1;
            self.reach.back = self.now;
            self.reach.away = None;
            self.line()
        }

        fn line(&mut self) -> Option<String> {
            self.reach.line(self.now).map(|line| line.text)
        }

        fn passes(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn each_change_is_one_line() {
        let mut story = Story::new();
        assert_eq!(story.line(), None);
        let gone = "the backend cannot be reached: gone";
        assert_eq!(story.goes().as_deref(), Some(gone));
        assert_eq!(story.line(), None);
        story.passes(3);
        let back = "the backend is reached again, after 3.0s";
        assert_eq!(story.comes().as_deref(), Some(back));
        assert_eq!(story.line(), None);
    }

    #[test]
    fn a_backend_that_comes_and_goes_fills_no_log_and_its_last_state_is_told() {
        let mut story = Story::new();
        let mut lines = 0;
        for _ in 0..300 {
            lines += usize::from(story.goes().is_some());
            story.passes(1);
            lines += usize::from(story.comes().is_some());
        }
        assert!((30..=40).contains(&lines), "{lines} lines in 300 s");
        for _ in 0..AT_ONCE {
            story.goes();
            story.comes();
        }
        assert_eq!(story.goes(), None);
        story.passes(SPACING.as_secs());
        let told = story.line().unwrap();
        assert!(told.starts_with("the backend cannot be reached: gone"));
        assert!(told.contains("changes since"), "{told}");
        assert_eq!(story.line(), None);
    }

    #[test]
    fn a_backend_that_the_cell_has_no_more_is_not_away() {
        let reaches = Reaches::default();
        for backend in [1, 3, 4] {
            reaches.unreached(backend, "gone");
        }
        reaches.keep(3);
        assert!(reaches.is_any_away());
        assert!(!reaches.are_all_away(1));
        reaches.answered(1);
        assert!(!reaches.is_any_away(), "3 and 4 are no more");
        // A client that does not know it yet.
        reaches.unreached(4, "gone");
        assert!(!reaches.is_any_away());
        // A cell that grows again has them anew.
        reaches.keep(5);
        reaches.unreached(4, "gone");
        assert!(reaches.is_any_away());
        reaches.answered(4);
        assert!(!reaches.is_any_away());
    }

    #[test]
    fn a_client_that_was_idle_brings_no_old_news() {
        let reaches = Reaches::default();
        let [busy, idle] = [(); 2].map(|()| reaches.reached(0));
        reaches.lost(0, "gone", busy);
        assert!(reaches.are_all_away(1));
        let busy = reaches.reached(0);
        // The idle one finds out only now.
        reaches.lost(0, "gone", idle);
        assert!(!reaches.are_all_away(1));
        reaches.lost(0, "gone", busy);
        assert!(reaches.are_all_away(1));
        assert!(!reaches.are_all_away(2));
        reaches.answered(0);
        assert!(!reaches.are_all_away(1));
    }
}
