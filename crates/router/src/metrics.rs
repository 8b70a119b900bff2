//! A caller's router for Prometheus: [`METRICS`] lists every metric.

use crate::error::CallError;
use crate::router::Router;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tonic::Code;
use trefoil_endpoint::{MetricInfo, Process, Samples, exposition};

/// What a router has counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    answered: AtomicU64,
    /// Answers of the application that are none of its successes: no such key, say.
    refused: AtomicU64,
    /// No answer, or one that says that something is broken.
    failed: AtomicU64,
    /// Nobody waited for the answer.
    abandoned: AtomicU64,
    unrouted: AtomicU64,
    redirected_twice: AtomicU64,
    call_us: AtomicU64,
    pub(crate) redirects: AtomicU64,
    pub(crate) retries: AtomicU64,
}

impl Counters {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Counted<'_> {
        Counted {
            counters: self,
            began: Instant::now(),
            outcome: &self.abandoned,
        }
    }
}

/// A call, which is counted when this is dropped: as abandoned, if its caller
/// has dropped it before there was a result.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    counters: &'a Counters,
    began: Instant,
    outcome: &'a AtomicU64,
}

impl Counted<'_> {
    /// The call is over.
    pub(crate) fn ended<T>(mut self, result: &Result<T, CallError>) {
        self.outcome = match result {
            Ok(_) => &self.counters.answered,
            Err(CallError::Status { status, .. }) if is_failure(status.code()) => {
                &self.counters.failed
            }
            Err(CallError::Status { .. }) => &self.counters.refused,
            Err(CallError::Route(_)) => &self.counters.unrouted,
            Err(CallError::RedirectedTwice { .. }) => &self.counters.redirected_twice,
        };
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.call_us.fetch_add(us, Ordering::Relaxed);
        Counters::one(self.outcome);
    }
}

/// Whether somebody has to see to it. All other codes are what an application
/// answers where nothing is broken.
fn is_failure(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Internal
    )
}

const CORPUS: &[&str] = &["corpus"];

const CALLS: MetricInfo = MetricInfo::counter(
    "trefoil_router_calls",
    &["corpus", "outcome"],
    "Calls by what came of them: answered, refused by the application, an error of the server or of the way to it, nobody to ask, redirected twice, abandoned by the caller",
);
const CALL_SECONDS: MetricInfo = MetricInfo::counter(
    "trefoil_router_call_seconds",
    CORPUS,
    "Time that calls took, repetitions and redirects included",
);
const REDIRECTS: MetricInfo = MetricInfo::counter(
    "trefoil_router_redirects",
    CORPUS,
    "Requests that a server sent on to another one",
);
const RETRIES: MetricInfo = MetricInfo::counter(
    "trefoil_router_retries",
    CORPUS,
    "Further attempts of calls that may be repeated",
);
const SERVERS: MetricInfo =
    MetricInfo::gauge("trefoil_router_servers", CORPUS, "Servers that it knows");
const OUTSTANDING: MetricInfo = MetricInfo::gauge(
    "trefoil_router_outstanding",
    CORPUS,
    "Requests that no server has answered yet",
);
const INCARNATION: MetricInfo = MetricInfo::gauge(
    "trefoil_router_incarnation",
    CORPUS,
    "Incarnation of the map that it goes by; 0 before the first",
);
const GENERATION: MetricInfo = MetricInfo::gauge(
    "trefoil_router_generation",
    CORPUS,
    "Generation of the map that it goes by; 0 before the first",
);

/// Every metric of a router.
pub const METRICS: [MetricInfo; 8] = [
    CALLS,
    CALL_SECONDS,
    REDIRECTS,
    RETRIES,
    SERVERS,
    OUTSTANDING,
    INCARNATION,
    GENERATION,
];

impl Router {
    /// Counters and gauges in Prometheus' text format, with the corpus as a label:
    /// to be appended to the page of an application that has one.
    pub fn metrics(&self) -> String {
        let mut samples = Samples::default();
        self.collect_all(&mut samples);
        // Writing into a string does not fail.
        let page = samples.text().unwrap_or_default();
        exposition("text/plain", page).1
    }

    /// What it tells at a port for metrics
    /// ([`Endpoint`](trefoil_endpoint::Endpoint)): it is ready when it knows a map.
    pub fn process(&self) -> Arc<dyn Process> {
        Arc::new(RouterProcess(self.clone()))
    }

    fn collect_all(&self, samples: &mut Samples) {
        let corpus = self.inner.corpus();
        let counters = &self.inner.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        for (outcome, counter) in [
            ("answered", &counters.answered),
            ("refused", &counters.refused),
            ("error", &counters.failed),
            ("unrouted", &counters.unrouted),
            ("redirected_twice", &counters.redirected_twice),
            ("abandoned", &counters.abandoned),
        ] {
            samples.put(&CALLS, &[corpus, outcome], read(counter));
        }
        let mut put = |info, value| samples.put(info, &[corpus], value);
        put(&CALL_SECONDS, read(&counters.call_us) / 1e6);
        put(&REDIRECTS, read(&counters.redirects));
        put(&RETRIES, read(&counters.retries));
        let (servers, outstanding) = self.inner.peers();
        put(&SERVERS, servers as f64);
        put(&OUTSTANDING, outstanding as f64);
        let version = self.version();
        put(&INCARNATION, version.map_or(0.0, |v| v.incarnation as f64));
        put(&GENERATION, version.map_or(0.0, |v| v.generation as f64));
    }
}

struct RouterProcess(Router);

impl Process for RouterProcess {
    fn collect(&self, samples: &mut Samples) -> std::fmt::Result {
        self.0.collect_all(samples);
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        match self.0.version() {
            Some(_) => Ok(()),
            None => Err(format!(
                "corpus {}: there is no map yet",
                self.0.inner.corpus()
            )),
        }
    }
}
