//! Measures what is promised: how old what is kept may be, and whether it is
//! what the database has.
//!
//! A comparison reads the database, waits until everything from before that
//! read has been told, and then looks at what is kept. A difference is a
//! broken promise only if the database still has the same and the difference
//! stays: the row may have changed in between.

use crate::metrics::{COMPARISONS, QUANTILES, STALENESS};
use bytes::Bytes;
use hdrhistogram::Histogram;
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use trefoil_endpoint::Process;

/// What is sampled: values that are kept, and the database behind them.
pub trait Sampled: Send + 'static {
    /// Why the database cannot be read.
    type Error: Display + Send;

    /// A key that is kept; different numbers give different ones.
    fn pick(&mut self, number: u64) -> impl Future<Output = Option<Bytes>> + Send;

    /// A fingerprint of the value that is kept; none if there is none any more.
    fn kept(&mut self, key: &Bytes) -> Option<u64>;

    /// A fingerprint of the value in the database. The same values have the
    /// same fingerprints; what is not there has none.
    fn stored(
        &mut self,
        key: &Bytes,
    ) -> impl Future<Output = Result<Option<u64>, Self::Error>> + Send;

    /// How old what is kept may be; see
    /// [`FreshTable::staleness`](crate::FreshTable::staleness).
    fn staleness(&mut self) -> Option<Duration>;
}

/// A read of the database may take so many bounds.
const READS_MAX: u32 = 10;

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct SamplerOptions {
    /// Time between two samples.
    pub interval: Duration,
    /// How long a comparison waits for everything to have been told. What takes
    /// longer is counted as late. A read of the database may take ten times as long;
    /// then it is counted as failed.
    pub bound: Duration,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            interval: Duration::from_millis(100),
            bound: Duration::from_secs(1),
        }
    }
}

/// What was found so far.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Kept as the database has it.
    pub same: u64,
    /// Not kept any more when looked at.
    pub gone: u64,
    /// Changed while being compared: says nothing.
    pub changing: u64,
    /// Not told within the bound: the stream is behind, or interrupted.
    pub late: u64,
    /// The database could not be read.
    pub failed: u64,
    /// Kept although the database has had something else for longer than
    /// everything from before has been told. A broken promise.
    pub stale: u64,
    /// How old what is kept may have been, in microseconds, at every sample.
    pub ages: Histogram<u64>,
}

impl Samples {
    /// What is kept was no older than this at any sample.
    pub fn stale_bound(&self) -> Duration {
        Duration::from_micros(self.ages.max())
    }

    fn collect(&self, name: &str, page: &mut trefoil_endpoint::Samples) {
        for (found, count) in [
            ("same", self.same),
            ("gone", self.gone),
            ("changing", self.changing),
            ("late", self.late),
            ("failed", self.failed),
            ("stale", self.stale),
        ] {
            page.put(&COMPARISONS, &[name, found], count as f64);
        }
        if self.ages.is_empty() {
            return;
        }
        for (quantile, value) in QUANTILES {
            let seconds = self.ages.value_at_quantile(value) as f64 / 1e6;
            page.put(&STALENESS, &[name, quantile], seconds);
        }
    }
}

/// A sampler at work; ends with the value.
#[derive(Debug)]
pub struct Sampler {
    task: JoinHandle<()>,
    samples: Arc<Mutex<Samples>>,
}

impl Sampler {
    /// Samples from now on.
    pub fn start(options: SamplerOptions, sampled: impl Sampled) -> Self {
        let samples = Arc::new(Mutex::new(Samples {
            same: 0,
            gone: 0,
            changing: 0,
            late: 0,
            failed: 0,
            stale: 0,
            ages: crate::relay::delays(),
        }));
        let work = work(options, sampled, Arc::clone(&samples));
        Sampler {
            task: tokio::spawn(work),
            samples,
        }
    }

    /// What was found so far.
    pub fn samples(&self) -> Samples {
        locked(&self.samples).clone()
    }

    /// What it tells at a port for metrics ([`SAMPLER_METRICS`](crate::SAMPLER_METRICS)).
    /// `name` says which sampler it is: the corpus, for example. It does not keep the
    /// sampler.
    pub fn process(&self, name: &str) -> Arc<dyn Process> {
        Arc::new(SamplerProcess {
            name: name.into(),
            samples: Arc::downgrade(&self.samples),
        })
    }
}

struct SamplerProcess {
    name: String,
    samples: Weak<Mutex<Samples>>,
}

impl Process for SamplerProcess {
    fn collect(&self, page: &mut trefoil_endpoint::Samples) -> std::fmt::Result {
        if let Some(samples) = self.samples.upgrade() {
            locked(&samples).collect(&self.name, page);
        }
        Ok(())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(samples: &Mutex<Samples>) -> MutexGuard<'_, Samples> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a comparison has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Same,
    Gone,
    Changing,
    Late,
    Stale,
    /// The database has not answered.
    Silent,
}

async fn work(options: SamplerOptions, mut sampled: impl Sampled, samples: Arc<Mutex<Samples>>) {
    let mut number = 0_u64;
    loop {
        tokio::time::sleep(options.interval).await;
        if let Some(age) = sampled.staleness() {
            let micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
            locked(&samples).ages.saturating_record(micros);
        }
        // Steps of a number without divisors in common with small ones.
        number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let Some(key) = sampled.pick(number >> 16).await else {
            continue;
        };
        let found = compare(&mut sampled, &key, options.bound).await;
        let mut samples = locked(&samples);
        match found {
            Ok(Found::Same) => samples.same += 1,
            Ok(Found::Gone) => samples.gone += 1,
            Ok(Found::Changing) => samples.changing += 1,
            Ok(Found::Late) => samples.late += 1,
            Ok(Found::Silent) => {
                samples.failed += 1;
                tracing::warn!("the database cannot be sampled: it does not answer");
            }
            Ok(Found::Stale) => {
                samples.stale += 1;
                tracing::error!(
                    key = %String::from_utf8_lossy(&key),
                    "what is kept is not what the database has"
                );
            }
            Err(error) => {
                samples.failed += 1;
                tracing::warn!(%error, "the database cannot be sampled");
            }
        }
    }
}

async fn compare<S: Sampled>(
    sampled: &mut S,
    key: &Bytes,
    bound: Duration,
) -> Result<Found, S::Error> {
    let mut begun = Instant::now();
    let patience = bound.saturating_mul(READS_MAX);
    let Ok(before) = timeout(patience, sampled.stored(key)).await else {
        return Ok(Found::Silent);
    };
    let mut before = before?;
    // A difference counts if it is found twice: the value may have changed and
    // changed back.
    for round in 0..2 {
        if !told(sampled, begun, bound).await {
            return Ok(Found::Late);
        }
        let Some(kept) = sampled.kept(key) else {
            return Ok(Found::Gone);
        };
        let looked = Instant::now();
        let Ok(after) = timeout(patience, sampled.stored(key)).await else {
            return Ok(Found::Silent);
        };
        let after = after?;
        if before == Some(kept) || after == Some(kept) {
            return Ok(Found::Same);
        }
        if before != after {
            return Ok(Found::Changing);
        }
        if round == 1 {
            break;
        }
        (begun, before) = (looked, after);
    }
    Ok(Found::Stale)
}

/// Waits until everything from before a moment has been told.
async fn told(sampled: &mut impl Sampled, moment: Instant, bound: Duration) -> bool {
    loop {
        let now = Instant::now();
        let since = now.duration_since(moment);
        if sampled.staleness().is_some_and(|age| age <= since) {
            return true;
        }
        if since > bound {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// In place of a value: no answer.
    const HANGS: u64 = u64::MAX;

    /// A store that answers from a list.
    struct Script {
        stored: VecDeque<Option<u64>>,
        kept: VecDeque<Option<u64>>,
        staleness: Option<Duration>,
    }

    impl Sampled for Script {
        type Error = String;

        async fn pick(&mut self, _: u64) -> Option<Bytes> {
            Some(Bytes::from_static(b"k"))
        }

        fn kept(&mut self, _: &Bytes) -> Option<u64> {
            self.kept
                .pop_front()
                .expect("one more look at what is kept")
        }

        async fn stored(&mut self, _: &Bytes) -> Result<Option<u64>, String> {
            match self.stored.pop_front() {
                Some(Some(HANGS)) => std::future::pending().await,
                stored => stored.ok_or_else(|| "no database".into()),
            }
        }

        fn staleness(&mut self) -> Option<Duration> {
            self.staleness
        }
    }

    /// What is stored, what is kept, the staleness, and the verdict.
    type Case<'a> = (
        &'a [Option<u64>],
        &'a [Option<u64>],
        Option<Duration>,
        Result<Found, String>,
    );

    #[test]
    fn what_was_found_is_a_page_of_metrics() {
        let mut samples = Samples {
            same: 5,
            gone: 0,
            changing: 0,
            late: 0,
            failed: 0,
            stale: 1,
            ages: crate::relay::delays(),
        };
        let page = |samples: &Samples| {
            let mut page = trefoil_endpoint::Samples::default();
            samples.collect("books", &mut page);
            page.text().expect("a page")
        };
        let text = page(&samples);
        let stale = "trefoil_sampler_comparisons_total{name=\"books\",found=\"stale\"} 1.0\n";
        assert!(text.contains(stale), "{text}");
        // Not zero where nothing is known.
        assert!(
            !text.contains("trefoil_sampler_staleness_seconds"),
            "{text}"
        );
        samples.ages.saturating_record(2_000);
        let text = page(&samples);
        let age = "trefoil_sampler_staleness_seconds{name=\"books\",quantile=\"0.5\"} 0.002";
        assert!(text.contains(age), "{text}");
    }

    #[tokio::test]
    async fn verdicts() {
        let fresh = Some(Duration::ZERO);
        let cases: [Case<'_>; 11] = [
            (&[Some(1), Some(1)], &[Some(1)], fresh, Ok(Found::Same)),
            (&[Some(1), Some(2)], &[Some(2)], fresh, Ok(Found::Same)),
            (&[Some(1), Some(3)], &[Some(2)], fresh, Ok(Found::Changing)),
            (&[Some(1)], &[None], fresh, Ok(Found::Gone)),
            // Different once, then replaced: it had changed and changed back.
            (
                &[Some(1), Some(1), Some(1)],
                &[Some(2), Some(1)],
                fresh,
                Ok(Found::Same),
            ),
            (
                &[Some(1), Some(1), Some(1)],
                &[Some(2), Some(2)],
                fresh,
                Ok(Found::Stale),
            ),
            (
                &[None, None, None],
                &[Some(2), Some(2)],
                fresh,
                Ok(Found::Stale),
            ),
            (&[Some(1)], &[], None, Ok(Found::Late)),
            (&[Some(HANGS)], &[], fresh, Ok(Found::Silent)),
            (
                &[Some(1), Some(HANGS)],
                &[Some(2)],
                fresh,
                Ok(Found::Silent),
            ),
            (&[], &[], fresh, Err("no database".into())),
        ];
        for (stored, kept, staleness, expected) in cases {
            let mut script = Script {
                stored: stored.iter().copied().collect(),
                kept: kept.iter().copied().collect(),
                staleness,
            };
            let key = Bytes::from_static(b"k");
            let found = compare(&mut script, &key, Duration::from_millis(5)).await;
            assert_eq!(found, expected, "{stored:?} {kept:?}");
        }
    }
}
