//! A caller's router for Prometheus: [`METRICS`] lists every metric.

use crate::error::CallError;
use crate::router::Router;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trefoil_endpoint::{MetricInfo, Process, Samples, exposition};

/// What a router has counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    answered: AtomicU64,
    /// Answers that were errors of the server's own.
    refused: AtomicU64,
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

    /// A call is over.
    pub(crate) fn ended<T>(&self, began: Instant, result: &Result<T, CallError>) {
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.call_us.fetch_add(us, Ordering::Relaxed);
        Counters::one(match result {
            Ok(_) => &self.answered,
            Err(CallError::Status { .. }) => &self.refused,
            Err(CallError::Route(_)) => &self.unrouted,
            Err(CallError::RedirectedTwice { .. }) => &self.redirected_twice,
        });
    }
}

const CORPUS: &[&str] = &["corpus"];

const CALLS: MetricInfo = MetricInfo::counter(
    "trefoil_router_calls",
    &["corpus", "outcome"],
    "Calls by what came of them: answered, an error of the server or of the way to it, nobody to ask, redirected twice",
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
            ("error", &counters.refused),
            ("unrouted", &counters.unrouted),
            ("redirected_twice", &counters.redirected_twice),
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
