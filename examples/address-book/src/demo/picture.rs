//! What the demonstration shows at one moment.

use super::load::Load;
use address_book_contract::v1::StatsAnswer;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_coordination::View;
use trefoil_sharder::KeyPoint;

/// Places of the map: each stands for an equal part of the key space. A prime
/// number, so that servers who have every so-many-th slice all show.
pub(super) const MAP_LEN: usize = 97;

/// Where nobody has the keys.
const NOBODY: char = '·';

/// A server, by the letter that stands for it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) letter: char,
    pub(super) address: String,
    pub(super) is_up: bool,
    pub(super) stats: StatsAnswer,
    /// Hits and misses from before counting began.
    before: (u64, u64),
    /// Requests a second.
    pub(super) rate: f64,
    /// Percent of the key space.
    pub(super) share: f64,
}

/// Everything there is to see.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    begin: Instant,
    /// What is being done.
    pub(super) act: String,
    pub(super) servers: Vec<Server>,
    /// For each place the letter of its owner.
    pub(super) map: Vec<char>,
    /// The same, or who was its last owner.
    known: Vec<char>,
    pub(super) slices: usize,
    pub(super) version: String,
    /// Parts of the key space that have changed hands, in wholes of it.
    pub(super) moved: f64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) is_hot: bool,
    /// What has happened, with the second.
    pub(super) events: Vec<(u64, String)>,
}

impl Picture {
    pub(super) fn new() -> Self {
        Picture {
            begin: Instant::now(),
            act: String::new(),
            servers: Vec::new(),
            map: vec![NOBODY; MAP_LEN],
            known: vec![NOBODY; MAP_LEN],
            slices: 0,
            version: "none".into(),
            moved: 0.0,
            answered: 0,
            failed: 0,
            p50_us: 0,
            p99_us: 0,
            is_hot: false,
            events: Vec::new(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn event(&mut self, what: impl Into<String>) {
        self.events.push((self.elapsed().as_secs(), what.into()));
    }

    /// A server that has come.
    pub(super) fn add_server(&mut self, address: &str) -> char {
        let letter = (b'A' + (self.servers.len() % 26) as u8) as char;
        self.servers.push(Server {
            letter,
            address: address.to_owned(),
            is_up: true,
            stats: StatsAnswer::default(),
            before: (0, 0),
            rate: 0.0,
            share: 0.0,
        });
        letter
    }

    pub(super) fn set_down(&mut self, address: &str) {
        for server in &mut self.servers {
            if server.address == address {
                server.is_up = false;
                server.rate = 0.0;
            }
        }
    }

    /// The map as it is now.
    pub(super) fn see_map(&mut self, view: &View) {
        let letters: BTreeMap<&str, char> = self
            .servers
            .iter()
            .map(|server| (server.address.as_str(), server.letter))
            .collect();
        let step = u64::MAX / MAP_LEN as u64;
        let letter_at = |place: usize| {
            let point = KeyPoint(step * place as u64 + step / 2);
            let owner = view.assignment.slice_of(point).servers.first()?;
            let server = view.servers.get(owner)?;
            letters.get(server.address.as_str()).copied()
        };
        let map: Vec<char> = (0..MAP_LEN)
            .map(|place| letter_at(place).unwrap_or(NOBODY))
            .collect();
        for (known, now) in self.known.iter_mut().zip(&map) {
            if *now != NOBODY && known != now {
                self.moved += f64::from(u8::from(*known != NOBODY)) / MAP_LEN as f64;
                *known = *now;
            }
        }
        let mut widths: BTreeMap<&str, f64> = BTreeMap::new();
        for assigned in view.assignment.slices() {
            let owner = assigned.servers.first();
            if let Some(server) = owner.and_then(|owner| view.servers.get(owner)) {
                let width = assigned.slice.last().0 - assigned.slice.start().0;
                *widths.entry(&server.address).or_default() += width as f64;
            }
        }
        for server in &mut self.servers {
            let width = widths.get(server.address.as_str()).copied().unwrap_or(0.0);
            server.share = 100.0 * width / u64::MAX as f64;
        }
        self.map = map;
        self.slices = view.assignment.slices().len();
        self.version = view.assignment.version().to_string();
    }

    /// A server's counters, `elapsed` after those before.
    pub(super) fn see_stats(&mut self, address: &str, stats: StatsAnswer, elapsed: Duration) {
        for server in self
            .servers
            .iter_mut()
            .filter(|s| s.is_up && s.address == address)
        {
            let requests = |stats: &StatsAnswer| stats.lookups + stats.changes;
            let done = requests(&stats).saturating_sub(requests(&server.stats));
            server.rate = done as f64 / elapsed.as_secs_f64().max(0.01);
            server.stats = stats;
        }
    }

    pub(super) fn see_load(&mut self, load: &Load) {
        let mut tally = load.tally();
        (self.answered, self.failed) = (tally.answered, tally.failed);
        self.p50_us = tally.recent_us.value_at_quantile(0.5);
        self.p99_us = tally.recent_us.value_at_quantile(0.99);
        tally.recent_us.reset();
        self.is_hot = load.is_hot.load(Ordering::Relaxed);
    }

    /// Begins to count hits: what was stored before was no miss.
    pub(super) fn count_hits_from_now(&mut self) {
        for server in &mut self.servers {
            server.before = (server.stats.hits, server.stats.misses);
        }
    }

    /// Percent of requests whose book was in memory, dead servers included.
    pub(super) fn hit_percent(&self) -> f64 {
        let (mut hits, mut misses) = (0, 0);
        for Server { stats, before, .. } in &self.servers {
            hits += stats.hits.saturating_sub(before.0);
            misses += stats.misses.saturating_sub(before.1);
        }
        100.0 * hits as f64 / (hits + misses).max(1) as f64
    }

    /// One line, where there is no terminal.
    pub(super) fn line(&self) -> String {
        let mut text = format!(
            "{:>3} s  {}  p50 {:>5} µs  p99 {:>7} µs  hits {:5.1} %  failed {}  ",
            self.elapsed().as_secs(),
            self.map.iter().collect::<String>(),
            self.p50_us,
            self.p99_us,
            self.hit_percent(),
            self.failed,
        );
        for server in self.servers.iter().filter(|server| server.is_up) {
            let _ = write!(text, "{} {:.0}/s  ", server.letter, server.rate);
        }
        text + if self.is_hot { "hot key on" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_hits_come_from_counters() {
        let mut picture = Picture::new();
        assert_eq!(
            (picture.add_server("a:1"), picture.add_server("b:2")),
            ('A', 'B')
        );
        let stats = |lookups, hits, misses| StatsAnswer {
            lookups,
            hits,
            misses,
            ..StatsAnswer::default()
        };
        let second = Duration::from_secs(1);
        picture.see_stats("a:1", stats(100, 90, 10), second);
        picture.see_stats("a:1", stats(300, 290, 10), second);
        picture.see_stats("b:2", stats(100, 100, 0), second);
        assert_eq!(picture.servers[0].rate, 200.0);
        assert!((picture.hit_percent() - 97.5).abs() < 0.01);
        picture.set_down("b:2");
        picture.see_stats("b:2", stats(900, 0, 900), second);
        assert!((picture.hit_percent() - 97.5).abs() < 0.01);
        picture.count_hits_from_now();
        picture.see_stats("a:1", stats(500, 489, 11), second);
        assert!((picture.hit_percent() - 99.5).abs() < 0.01);
        assert!(picture.line().contains("A 200/s") && !picture.line().contains("B "));
    }

    #[test]
    fn nobody_owns_anything_before_the_first_assignment() {
        let mut picture = Picture::new();
        picture.add_server("a:1");
        picture.see_map(&View::empty());
        assert!(picture.map.iter().all(|letter| *letter == NOBODY));
        assert_eq!(picture.moved, 0.0);
    }
}
