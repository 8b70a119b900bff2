//! All shards, one after another: what their replicas hold, compared.

use super::census::Census;
use super::pace::Pace;
use super::replica::{Read, Replica, Trouble, TroubleKind, now_ns};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use trefoil_cell::{BackendConfig, CellConfig};
use trefoil_recovery::examine::{Examination, Example, Moment, Odd, PLACES, Plan, Question};
use trefoil_tls::Tls;

/// Parts of a shard of each of which a sample takes a share.
const STRIPE_COUNT: u64 = 64;
/// Steps of the progress bar for each shard.
const BAR_STEPS: u64 = 1000;

/// How the keys are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Share of the keys, up to 1.
    pub(super) sample: f64,
    /// From each backend; 0 sets no limit.
    pub(super) bytes_per_s: u64,
    pub(super) pause: Duration,
    pub(super) values: bool,
    pub(super) example_count: usize,
    /// When it ends, whatever is left.
    pub(super) end: Option<Instant>,
}

/// What came of all shards. Replicas are named by the numbers of their backends.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) clean: u64,
    pub(super) dirty: BTreeMap<(u32, Odd), u64>,
    pub(super) inquorate: u64,
    pub(super) corrupt: u64,
    /// Corrupt copies of each backend.
    pub(super) corrupt_copies: BTreeMap<u32, u64>,
    pub(super) short: u64,
    pub(super) unsettled: u64,
    /// The shard, the backends of its cohort, and the key.
    pub(super) examples: Vec<(u32, Vec<u32>, Example)>,
    /// Why a backend was not read, or not to the end, by shard and backend. `None`:
    /// it recovers.
    pub(super) unread: BTreeMap<(u32, u32), Option<String>>,
    pub(super) bytes: u64,
    /// Share of what was to be looked at.
    pub(super) fraction: f64,
    /// There was no time for all of it.
    pub(super) is_cut_short: bool,
}

/// One question's answer: from which replica, and what.
type Answered = (usize, Result<Read, Trouble>);

/// See the module.
pub(super) struct Keys<'a> {
    config: &'a CellConfig,
    look: Look,
    begin: Instant,
    replicas: Vec<Result<Replica, Trouble>>,
    paces: Vec<Pace>,
    bar: ProgressBar,
    looked: Looked,
}

impl<'a> Keys<'a> {
    /// Backends that did not answer the census are not asked. Must be called where tasks
    /// run.
    pub(super) fn new(
        config: &'a CellConfig,
        tls: Option<&Tls>,
        census: &Census,
        look: Look,
    ) -> Self {
        let begin = Instant::now();
        let replica = |backend: &BackendConfig| {
            let known = census.backend(backend.number).map(|known| &known.answer);
            match known {
                Some(Err(trouble)) => Err(trouble.clone()),
                _ => Replica::new(config, backend, tls),
            }
        };
        let replicas: Vec<_> = config.backends.iter().map(replica).collect();
        let paces = vec![Pace::new(look.bytes_per_s, begin); replicas.len()];
        // On a terminal only, and on standard error.
        let bar = ProgressBar::new(config.backends.len() as u64 * BAR_STEPS);
        let template = "looking at keys [{bar:36}] {percent:>3} %  {elapsed}  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Keys {
            config,
            look,
            begin,
            replicas,
            paces,
            bar,
            looked: Looked::default(),
        }
    }

    /// Looks at all of them.
    pub(super) async fn run(mut self) -> Looked {
        let shards = self.config.backends.len() as u32;
        let mut fraction = 0.0;
        for shard in 0..shards {
            fraction += self.shard(shard).await;
        }
        self.bar.finish_and_clear();
        self.looked.fraction = fraction / f64::from(shards);
        self.looked
    }

    /// How much of it was looked at.
    async fn shard(&mut self, shard: u32) -> f64 {
        let cohort = self.config.placement().cohort_of_shard(shard);
        let numbers: Vec<u32> = cohort.as_slice().to_vec();
        let mut examination = Examination::new(Plan {
            copies: numbers.len(),
            hasher: self.config.hash,
            places: places(self.look.sample),
            values: self.look.values,
            pause_ms: self.look.pause.as_millis() as u64,
            example_count: self.look.example_count,
        });
        let incarnations = self.greet(shard, &numbers, &mut examination).await;
        let mut calls: JoinSet<Answered> = JoinSet::new();
        while !examination.is_done() && !self.is_over() {
            for (at, number) in numbers.iter().enumerate() {
                if let Some(question) = examination.ask(at, self.moment()) {
                    self.start(&mut calls, shard, (at, *number, incarnations[at]), question);
                }
            }
            let Some((at, answer)) = self.next(&mut calls, &examination).await else {
                continue;
            };
            let number = numbers[at];
            let now = self.moment();
            let failed = match answer {
                Ok((reply, bytes)) => {
                    self.looked.bytes += bytes;
                    self.paces[number as usize].took(bytes, Instant::now());
                    let taken = examination.answer(at, reply, now);
                    taken.err().map(|nonsense| nonsense.to_string())
                }
                Err(trouble) => {
                    let why = trouble.why.clone();
                    // The other shards do not wait for it, too.
                    if trouble.kind == TroubleKind::Silent {
                        self.replicas[number as usize] = Err(trouble);
                    }
                    Some(why)
                }
            };
            if let Some(why) = failed {
                self.looked.unread.insert((shard, number), Some(why));
                examination.lose(at, now);
            }
            self.show(shard, &examination);
        }
        calls.abort_all();
        self.looked.is_cut_short |= !examination.is_done();
        self.count(shard, &numbers, &examination);
        // What was only looked at once has no verdict yet.
        examination.fraction()
    }

    /// Who of a shard's replicas can be asked, and which memory is meant by that.
    async fn greet(
        &mut self,
        shard: u32,
        numbers: &[u32],
        examination: &mut Examination,
    ) -> Vec<u64> {
        let mut incarnations = vec![0; numbers.len()];
        for (at, number) in numbers.iter().enumerate() {
            let standing = match &self.replicas[*number as usize] {
                Ok(replica) => replica.standing(shard).await,
                Err(trouble) => Err(trouble.clone()),
            };
            let why = match standing {
                Ok(standing) if !standing.is_recovering => {
                    incarnations[at] = standing.incarnation;
                    continue;
                }
                Ok(_) => None,
                Err(trouble) => Some(trouble.why),
            };
            self.looked.unread.insert((shard, *number), why);
            examination.lose(at, self.moment());
        }
        incarnations
    }

    fn start(
        &self,
        calls: &mut JoinSet<Answered>,
        shard: u32,
        (at, number, incarnation): (usize, u32, u64),
        question: Question,
    ) {
        let Ok(replica) = self.replicas[number as usize].clone() else {
            return;
        };
        let begin = self.paces[number as usize].next();
        calls.spawn(async move {
            tokio::time::sleep_until(begin.into()).await;
            (at, replica.ask(shard, incarnation, &question).await)
        });
    }

    /// The next answer; `None` if it is time to ask instead, or to end.
    async fn next(
        &self,
        calls: &mut JoinSet<Answered>,
        examination: &Examination,
    ) -> Option<Answered> {
        let wakes_at = examination.wakes_at_ms();
        let wakes_at = wakes_at.map(|ms| self.begin + Duration::from_millis(ms));
        let until = [wakes_at, self.look.end].into_iter().flatten().min();
        let wait = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(answered) = calls.join_next() => Some(taken(answered)),
            () = wait => None,
            else => None,
        }
    }

    fn is_over(&self) -> bool {
        self.look.end.is_some_and(|end| Instant::now() >= end)
    }

    fn moment(&self) -> Moment {
        Moment {
            monotonic_ms: self.begin.elapsed().as_millis() as u64,
            unix_ms: (now_ns() / 1_000_000) as u64,
        }
    }

    fn show(&self, shard: u32, examination: &Examination) {
        let done = f64::from(shard) + examination.fraction();
        self.bar.set_position((done * BAR_STEPS as f64) as u64);
        let (keys, all) = (examination.keys(), &self.looked);
        let clean = all.clean + keys.clean;
        let dirty: u64 = all.dirty.values().sum::<u64>() + keys.dirty_count();
        let waiting = examination.suspect_count();
        self.bar.set_message(format!(
            "{clean} clean, {dirty} dirty, {waiting} to look at again"
        ));
    }

    fn count(&mut self, shard: u32, numbers: &[u32], examination: &Examination) {
        let (keys, all) = (examination.keys(), &mut self.looked);
        all.clean += keys.clean;
        for ((at, how), count) in &keys.dirty {
            *all.dirty.entry((numbers[*at], *how)).or_default() += count;
        }
        all.inquorate += keys.inquorate;
        all.corrupt += keys.corrupt;
        for (number, count) in numbers.iter().zip(keys.corrupt_copies) {
            if count > 0 {
                *all.corrupt_copies.entry(*number).or_default() += count;
            }
        }
        all.short += keys.short;
        all.unsettled += keys.unsettled + examination.suspect_count();
        for example in examination.examples() {
            let kind = std::mem::discriminant(&example.verdict);
            let same = |known: &&(u32, Vec<u32>, Example)| {
                std::mem::discriminant(&known.2.verdict) == kind
            };
            if all.examples.iter().filter(same).count() < self.look.example_count {
                let example = example.clone();
                all.examples.push((shard, numbers.to_vec(), example));
            }
        }
    }
}

/// What a task has brought; they are not aborted while somebody waits for them.
fn taken(joined: Result<Answered, JoinError>) -> Answered {
    joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// A share of a shard's places: of each stripe the same, at a place of chance.
fn places(share: f64) -> Vec<Range<u64>> {
    if share >= 1.0 {
        return vec![PLACES];
    }
    let stripe = PLACES.end / STRIPE_COUNT;
    let len = ((stripe as f64 * share) as u64).clamp(1, stripe);
    let slack = stripe - len + 1;
    // As good as chance, and there without a library.
    let begin = RandomState::new().build_hasher().finish() % slack;
    let range = |n: u64| n * stripe + begin..n * stripe + begin + len;
    (0..STRIPE_COUNT).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_places_is_spread_over_all() {
        assert_eq!(places(1.0), [PLACES]);
        for share in [0.5, 0.01, 1e-9] {
            let ranges = places(share);
            assert_eq!(ranges.len(), STRIPE_COUNT as usize);
            assert!(ranges.iter().all(|range| !range.is_empty()));
            assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
            assert!(ranges.last().unwrap().end <= PLACES.end);
            let count: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            let wanted = PLACES.end as f64 * share;
            assert!(
                (count as f64 - wanted).abs() <= 2.0 * STRIPE_COUNT as f64,
                "{share}"
            );
        }
        assert_ne!(places(0.01), places(0.01), "another part each time");
    }
}
