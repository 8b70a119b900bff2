//! What the backends of a cell say of themselves. All are asked at once: one that
//! does not answer costs its caller's patience once, not once for each.

use crate::cell::{CONNECT_PATIENCE, Cell};
use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trefoil_cell::{CONFIG_ID_CHANGING, RpcAddress};
use trefoil_rpc::{Client, failure_text, v1};

/// The latest answer of each backend.
#[derive(Default)]
pub(crate) struct Census {
    latest: Mutex<HashMap<u32, v1::StatsResponse>>,
}

/// What one backend's process says of itself.
pub struct BackendStats {
    /// Backend number.
    pub number: u32,
    /// Its statistics, or why there are none.
    pub stats: Result<v1::StatsResponse, String>,
    /// It neither answered nor refused: its process is there and hangs, or its host
    /// does not answer.
    pub is_silent: bool,
}

/// What came of an empty call to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It answered.
    Answers,
    /// It neither answered in time nor refused.
    Silent,
    /// Nobody is there, or it serves somebody else.
    Away,
}

/// An answer to a call, or why there is none.
type Answer<T> = Result<T, Unanswered>;

struct Unanswered {
    why: String,
    is_silent: bool,
}

impl Unanswered {
    fn silent(patience: Duration) -> Self {
        Unanswered {
            why: format!("no answer within {} ms", patience.as_millis()),
            is_silent: true,
        }
    }

    fn failed(why: String) -> Self {
        Unanswered {
            why,
            is_silent: false,
        }
    }
}

/// Once enough backends have answered, how long the others are waited for: longer than a
/// lease, so that who is silent for so long is away for everybody. A replica that is passed
/// over misses what is written next.
const STRAGGLER_PATIENCE: Duration = Duration::from_millis(600);

impl Cell {
    /// Statistics of every backend process: an entry for each backend, with
    /// the reason if it did not answer.
    pub fn stats(&self) -> Vec<BackendStats> {
        let known = self.config();
        let enough = known.mode.quorum();
        let ask = || self.ask_all(CONNECT_PATIENCE, (enough, STRAGGLER_PATIENCE));
        let mut all = ask();
        // Who only watches learns here that the cell has other backends.
        let newest = all.iter().flat_map(|answer| answer.stats.iter());
        let newest = newest.flat_map(|stats| &stats.members);
        let newest = newest.map(|member| member.config_id).max();
        if newest.is_some_and(|id| id > known.config_id && id != CONFIG_ID_CHANGING)
            && let Ok(config) = self.shared().reload_config()
            && config.backends.len() != known.backends.len()
        {
            all = ask();
        }
        for backend in &all {
            self.shared().hushed.note(backend.number, backend.is_silent);
        }
        all
    }

    /// The same for callers whom others wait for: a backend that does not answer
    /// within `patience` is told of by its latest answer, if there was one. What
    /// it answers later is there next time.
    pub fn stats_soon(&self, patience: Duration) -> Vec<BackendStats> {
        let mut all = self.ask_all(patience, (usize::MAX, patience));
        let latest = self.shared().census.lock();
        for backend in &mut all {
            if let (Err(_), Some(known)) = (&backend.stats, latest.get(&backend.number)) {
                backend.stats = Ok(known.clone());
            }
        }
        all
    }

    /// Calls every backend, all at once. Once `enough` have answered, the others are
    /// waited for a moment only.
    pub fn presence(&self, enough: usize) -> Vec<(u32, Presence)> {
        let call =
            |mut client: Client| async move { client.ping(v1::PingRequest {}).await.map(|_| ()) };
        let answers = self.ask(
            CONNECT_PATIENCE,
            (enough, STRAGGLER_PATIENCE),
            call,
            |_, _, _| {},
        );
        let presence = |(number, answer): (u32, Answer<()>)| {
            let presence = match answer {
                Ok(()) => Presence::Answers,
                Err(error) if error.is_silent => Presence::Silent,
                Err(_) => Presence::Away,
            };
            // A client that is made next is not to wait for its greeting.
            self.shared()
                .hushed
                .note(number, presence == Presence::Silent);
            (number, presence)
        };
        answers.into_iter().map(presence).collect()
    }

    /// The process that listens for backend `number` on this host, answering or not;
    /// `None` for one that is dead, or elsewhere.
    pub fn listening_process(&self, number: u32) -> Option<u32> {
        let config = self.config();
        let mut addresses = config.backend(number)?.addresses.iter();
        addresses.find_map(|address| match address {
            RpcAddress::Unix(path) => trefoil_cell::listening_process(path),
            RpcAddress::Tcp { .. } => None,
        })
    }

    fn ask_all(&self, patience: Duration, enough: (usize, Duration)) -> Vec<BackendStats> {
        let call = |mut client: Client| async move {
            client
                .stats(v1::StatsRequest {})
                .await
                .map(tonic::Response::into_inner)
        };
        let all = self.ask(patience, enough, call, |census, number, answer| {
            census.remember(number, answer);
        });
        let stats = |(number, answer): (u32, Answer<v1::StatsResponse>)| BackendStats {
            number,
            is_silent: answer.as_ref().is_err_and(|error| error.is_silent),
            stats: answer.map_err(|error| error.why),
        };
        all.into_iter().map(stats).collect()
    }

    /// Lists of keys that are asked for most, of the backends that answer and were
    /// not silent a moment ago.
    pub(crate) fn top_key_lists(&self, request: v1::TopKeysRequest) -> Vec<v1::TopKeysResponse> {
        let call = move |mut client: Client| async move {
            client
                .top_keys(request)
                .await
                .map(tonic::Response::into_inner)
        };
        let config = self.config();
        let hushed = &self.shared().hushed;
        let speak = config.backends.iter().filter(|b| !hushed.holds(b.number));
        let enough = (speak.count().max(1), Duration::ZERO);
        let answers = self.ask(CONNECT_PATIENCE, enough, call, |_, _, _| {});
        answers
            .into_iter()
            .filter_map(|(_, answer)| answer.ok())
            .collect()
    }

    /// Asks every backend, all at once, for `patience`; once `enough` have answered,
    /// for that much longer at most. `note` hears of late answers, too.
    fn ask<T: Send + 'static, F>(
        &self,
        patience: Duration,
        (enough, straggling): (usize, Duration),
        call: impl Fn(Client) -> F,
        note: fn(&Census, u32, Option<&T>),
    ) -> Vec<(u32, Answer<T>)>
    where
        F: Future<Output = Result<T, tonic::Status>> + Send + 'static,
    {
        let mut end = Instant::now() + patience;
        let config = self.config();
        let rpc = &self.shared().rpc;
        let (done, answers) = channel();
        let mut waiting = 0;
        let mut all = Vec::new();
        for backend in &config.backends {
            let number = backend.number;
            let client = rpc.backend(&config, number);
            let started = client.and_then(|client| {
                let runtime = rpc.runtime().map_err(|e| e.to_string())?;
                let call = call(client);
                let (done, census) = (done.clone(), Arc::clone(&self.shared().census));
                runtime.spawn(async move {
                    let answer = match tokio::time::timeout(CONNECT_PATIENCE, call).await {
                        Ok(Ok(answer)) => Ok(answer),
                        Ok(Err(status)) => Err(Unanswered::failed(failure_text(&status))),
                        Err(_) => Err(Unanswered::silent(CONNECT_PATIENCE)),
                    };
                    note(&census, number, answer.as_ref().ok());
                    // Nobody may be waiting any more.
                    let _ = done.send((number, answer));
                });
                Ok(())
            });
            waiting += usize::from(started.is_ok());
            let error = started.map_or_else(Unanswered::failed, |()| Unanswered::silent(patience));
            all.push((number, Err(error)));
        }
        let mut count = 0;
        while waiting > 0
            && let Ok((number, answer)) =
                answers.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            waiting -= 1;
            count += usize::from(answer.is_ok());
            if count == enough {
                end = end.min(Instant::now() + straggling);
            }
            if let Some(place) = all.iter_mut().find(|(known, _)| *known == number) {
                place.1 = answer;
            }
        }
        all
    }
}

/// Backends that were silent a moment ago.
#[derive(Default)]
pub(crate) struct Hushed(Mutex<HashMap<u32, Instant>>);

impl Hushed {
    /// For so long a backend that was silent is believed to be so still.
    const FRESH: Duration = Duration::from_secs(1);

    fn note(&self, number: u32, is_silent: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match is_silent {
            true => known.insert(number, Instant::now()),
            false => known.remove(&number),
        };
    }

    pub(crate) fn holds(&self, number: u32) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&number)
            .is_some_and(|at| at.elapsed() < Self::FRESH)
    }
}

impl Census {
    /// An answer, or that there was none although there was time enough.
    fn remember(&self, number: u32, answer: Option<&v1::StatsResponse>) {
        let mut latest = self.lock();
        match answer {
            Some(answer) => latest.insert(number, answer.clone()),
            None => latest.remove(&number),
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, v1::StatsResponse>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
