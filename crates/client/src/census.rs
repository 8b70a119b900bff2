//! What the backends of a cell say of themselves. All are asked at once: one that
//! does not answer costs its caller's patience once, not once for each.

use crate::cell::{CONNECT_PATIENCE, Cell};
use crate::rpc::status_text;
use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trefoil_rpc::v1;

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
}

impl Cell {
    /// Statistics of every backend process: an entry for each backend, with
    /// the reason if it did not answer.
    pub fn stats(&self) -> Vec<BackendStats> {
        self.ask_all(CONNECT_PATIENCE)
    }

    /// The same for callers whom others wait for: a backend that does not answer
    /// within `patience` is told of by its latest answer, if there was one. What
    /// it answers later is there next time.
    pub fn stats_soon(&self, patience: Duration) -> Vec<BackendStats> {
        let mut all = self.ask_all(patience);
        let latest = self.shared().census.lock();
        for backend in &mut all {
            if let (Err(_), Some(known)) = (&backend.stats, latest.get(&backend.number)) {
                backend.stats = Ok(known.clone());
            }
        }
        all
    }

    fn ask_all(&self, patience: Duration) -> Vec<BackendStats> {
        let end = Instant::now() + patience;
        let config = self.config();
        let (done, answers) = channel();
        let mut waiting = 0;
        let ask = |backend: &trefoil_cell::BackendConfig| {
            let asked = self.start(&config, backend.number, done.clone());
            waiting += usize::from(asked.is_ok());
            let silent = || format!("no answer within {} ms", patience.as_millis());
            BackendStats {
                number: backend.number,
                stats: Err(asked.err().unwrap_or_else(silent)),
            }
        };
        let mut all: Vec<BackendStats> = config.backends.iter().map(ask).collect();
        while waiting > 0
            && let Ok((number, answer)) =
                answers.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            waiting -= 1;
            if let Some(backend) = all.iter_mut().find(|backend| backend.number == number) {
                backend.stats = answer;
            }
        }
        all
    }

    /// Asks one backend; its answer goes to `done`, and is remembered.
    fn start(
        &self,
        config: &trefoil_cell::CellConfig,
        number: u32,
        done: std::sync::mpsc::Sender<(u32, Result<v1::StatsResponse, String>)>,
    ) -> Result<(), String> {
        let rpc = &self.shared().rpc;
        let mut client = rpc.backend(config, number)?;
        let runtime = rpc.runtime().map_err(|e| e.to_string())?;
        let census = Arc::clone(&self.shared().census);
        runtime.spawn(async move {
            let call = client.stats(v1::StatsRequest {});
            let answer = match tokio::time::timeout(CONNECT_PATIENCE, call).await {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(status_text(&status)),
                Err(_) => Err(format!(
                    "no answer within {} ms",
                    CONNECT_PATIENCE.as_millis()
                )),
            };
            census.remember(number, answer.as_ref().ok());
            // Nobody may be waiting any more.
            let _ = done.send((number, answer));
        });
        Ok(())
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
