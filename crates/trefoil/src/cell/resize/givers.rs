//! The backends of the cell as it is, as who resizes it speaks to them.

use crate::cell::home::Home;
use crate::cell::order_error::OrderError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use trefoil_backend::LEASE;
use trefoil_cell::{BackendConfig, CellConfig};
use trefoil_recovery::one_epoch;
use trefoil_rpc::v1::{self, ResizeStep};
use trefoil_rpc::{Client, failure_text};

/// How long one may take to be reached.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How long one may take to freeze, and to go on.
const STEP_PATIENCE: Duration = Duration::from_millis(400);
/// How long one may take to retire: then it is killed.
const RETIRE_PATIENCE: Duration = Duration::from_millis(500);
/// Before one is asked again that could not look into the configuration.
const RETIRE_PAUSE: Duration = Duration::from_millis(20);
/// How long the system may take to end one that was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Givers {
    resize: u64,
    life: u64,
    /// In order of number.
    all: Vec<Giver>,
}

#[derive(Clone)]
struct Giver {
    number: u32,
    process: Arc<Process>,
    client: Client,
}

/// A process, and no other that gets its number later.
#[derive(Debug)]
struct Process {
    pid: u32,
    handle: OwnedFd,
}

/// What frozen backends have said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frozen {
    /// The epoch that all shards are to be in.
    Epoch(u32),
    /// Not now: the same may succeed a moment later.
    Later(String),
}

/// Why one does not do what it is asked.
#[derive(Debug)]
struct Refusal {
    why: String,
    /// It may a moment later.
    passes: bool,
}

impl Givers {
    /// Of a cell that is whole. Their processes are those that hold the locks of their
    /// numbers then: who was started before may have died since, and its number may be
    /// another process's.
    pub(super) async fn new(
        resize: u64,
        config: &CellConfig,
        home: &Home,
    ) -> Result<Self, OrderError> {
        let (of, place) = (config.clone(), home.clone());
        let processes = tokio::task::spawn_blocking(move || processes(&place, &of)).await;
        let processes = processes.map_err(OrderError::internal)??;
        let giver = |(backend, process): (&BackendConfig, Process)| {
            let number = backend.number;
            let address = backend.nearest_address();
            let address = address.ok_or_else(|| {
                OrderError::internal(format_args!("backend {number} has no address"))
            })?;
            let client = trefoil_cell::rpc_client(address, None, CONNECT_PATIENCE);
            Ok(Giver {
                number,
                process: Arc::new(process),
                client: client.map_err(OrderError::internal)?,
            })
        };
        let all: Result<_, OrderError> = config.backends.iter().zip(processes).map(giver).collect();
        Ok(Givers {
            resize,
            life: config.life,
            all: all?,
        })
    }

    /// Whether they are the backends of `config` still, each the same process as before:
    /// only those can be ended who are known.
    pub(super) async fn check(&self, config: &CellConfig, home: &Home) -> Result<(), OrderError> {
        let (of, place) = (config.clone(), home.clone());
        let holders = tokio::task::spawn_blocking(move || holders(&place, &of)).await;
        let holders = holders.map_err(OrderError::internal)??;
        for (giver, holder) in self.all.iter().zip(holders) {
            if giver.process.pid != holder || giver.process.has_ended(Duration::ZERO) {
                return Err(OrderError::StartedAgain(giver.number));
            }
        }
        Ok(())
    }

    /// Has all of them take no mutation; what epochs they are in.
    pub(super) async fn freeze(&self, attempt: u32) -> Result<Frozen, OrderError> {
        let request = v1::ResizeRequest {
            attempt,
            ..self.request(ResizeStep::Freeze)
        };
        let answers = all_at_once(&self.all, STEP_PATIENCE, &request).await;
        let mut epochs = Vec::new();
        let mut later = None;
        for answer in answers {
            match answer {
                Ok(answer) => epochs.push(answer.shards.iter().map(|s| s.epoch).collect()),
                Err(refusal) if refusal.passes => later = Some(refusal.why),
                Err(refusal) => return Err(OrderError::BackendRefused(refusal.why)),
            }
        }
        match later {
            Some(why) => Ok(Frozen::Later(why)),
            None => agree(&epochs),
        }
    }

    /// Has all of them go on. One that does not hear it does so by itself, later.
    pub(super) async fn thaw(&self, attempt: u32) {
        let request = v1::ResizeRequest {
            attempt,
            ..self.request(ResizeStep::Thaw)
        };
        drop(all_at_once(&self.all, STEP_PATIENCE, &request).await);
    }

    /// The resize was given up.
    pub(super) async fn abandon(&self) {
        let request = self.request(ResizeStep::Abandon);
        drop(all_at_once(&self.all, STEP_PATIENCE, &request).await);
    }

    /// Ends them: the cell is another one. When this returns, nobody believes any of them
    /// any more.
    pub(super) async fn retire(&self, config: &CellConfig) {
        let request = v1::ResizeRequest {
            config: Some(trefoil_cell::encode_config(config)),
            ..self.request(ResizeStep::Retire)
        };
        let by = Instant::now() + RETIRE_PATIENCE;
        let mut hung = self.all.clone();
        loop {
            let left = by.saturating_duration_since(Instant::now());
            let answers = all_at_once(&hung, left, &request).await;
            let asked = std::mem::take(&mut hung);
            let mut refusals = Vec::new();
            for (giver, answer) in asked.into_iter().zip(answers) {
                if let Err(refusal) = answer {
                    hung.push(giver);
                    refusals.push(refusal);
                }
            }
            if hung.is_empty() {
                return;
            }
            if Instant::now() + RETIRE_PAUSE >= by || refusals.iter().any(|of| !of.passes) {
                for (giver, refusal) in hung.iter().zip(refusals) {
                    tracing::warn!(
                        backend = giver.number,
                        why = refusal.why,
                        "a backend of the cell as it was does not retire; it is killed"
                    );
                }
                break;
            }
            tokio::time::sleep(RETIRE_PAUSE).await;
        }
        let killed = hung
            .into_iter()
            .map(|giver| tokio::task::spawn_blocking(move || giver.process.kill_and_wait()));
        for ended in killed.collect::<Vec<_>>() {
            let _ = ended.await;
        }
        // Its memory is believed for as long.
        tokio::time::sleep(LEASE).await;
    }

    fn request(&self, step: ResizeStep) -> v1::ResizeRequest {
        v1::ResizeRequest {
            life: self.life,
            resize: self.resize,
            step: step.into(),
            ..v1::ResizeRequest::default()
        }
    }
}

/// What each answers, in the same order.
async fn all_at_once(
    givers: &[Giver],
    patience: Duration,
    request: &v1::ResizeRequest,
) -> Vec<Result<v1::ResizeResponse, Refusal>> {
    let calls = givers.iter().map(|giver| {
        let mut giver = giver.clone();
        let request = v1::ResizeRequest {
            backend: giver.number,
            ..request.clone()
        };
        tokio::spawn(async move {
            let number = giver.number;
            match tokio::time::timeout(patience, giver.client.resize(request)).await {
                Ok(Ok(answer)) => Ok(answer.into_inner()),
                Ok(Err(status)) => Err(Refusal::of(number, &status)),
                Err(_) => Err(Refusal {
                    why: format!(
                        "backend {number} does not answer within {} ms",
                        patience.as_millis()
                    ),
                    passes: true,
                }),
            }
        })
    });
    let mut answers = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        let failed = |error: tokio::task::JoinError| Refusal {
            why: error.to_string(),
            passes: false,
        };
        answers.push(call.await.unwrap_or_else(|error| Err(failed(error))));
    }
    answers
}

impl Refusal {
    fn of(number: u32, status: &Status) -> Self {
        Refusal {
            why: format!("backend {number}: {}", failure_text(status)),
            passes: matches!(
                status.code(),
                Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
            ),
        }
    }
}

/// Whether the replicas of each shard are in one epoch; the highest of all.
fn agree(epochs: &[Vec<u32>]) -> Result<Frozen, OrderError> {
    match one_epoch(epochs) {
        Ok(Some(epoch)) => Ok(Frozen::Epoch(epoch)),
        // Somebody recovers just now.
        Ok(None) => Ok(Frozen::Later("replicas are in different epochs".into())),
        Err(_) => Err(OrderError::ImpossibleEpochs),
    }
}

/// The processes that are the backends of `config`.
fn processes(home: &Home, config: &CellConfig) -> Result<Vec<Process>, OrderError> {
    let pids = holders(home, config)?;
    let opened = pids.iter().map(|pid| Process::open(*pid));
    let opened: std::io::Result<Vec<_>> = opened.collect();
    let opened = opened.map_err(|error| OrderError::ProcessEnded(error.to_string()))?;
    // Who holds the lock after that is the one that was opened: nobody else has its number
    // while it lives.
    match holders(home, config)? == pids {
        true => Ok(opened),
        false => Err(OrderError::StartedJustNow),
    }
}

/// The numbers of the processes that hold the locks of the backends of `config`, in order.
fn holders(home: &Home, config: &CellConfig) -> Result<Vec<u32>, OrderError> {
    let claimed = home.registry().claimed();
    let claimed = claimed.map_err(OrderError::config_store)?;
    let holder = |backend: &BackendConfig| {
        let number = backend.number;
        if let Some(place) = home.other_holder(config, number) {
            return Err(OrderError::NotHere {
                number,
                at: place.to_string(),
            });
        }
        let holder = claimed.iter().find(|of| of.number == number);
        let pid = holder.and_then(|of| of.process).filter(|pid| *pid != 0);
        pid.ok_or(OrderError::ProcessUnknown(number))
    };
    config.backends.iter().map(holder).collect()
}

impl Process {
    fn open(pid: u32) -> std::io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or(std::io::ErrorKind::InvalidInput)?;
        let handle = pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Process { pid, handle })
    }

    /// Whether it has ended, at the latest in so long.
    fn has_ended(&self, patience: Duration) -> bool {
        let timeout = rustix::time::Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        let ended = &mut [PollFd::new(&self.handle, PollFlags::IN)];
        poll(ended, Some(&timeout)).is_ok_and(|count| count > 0)
    }

    /// Kills it and waits for its end, as its memory and its lock are held until then.
    fn kill_and_wait(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        if !self.has_ended(KILL_PATIENCE) {
            tracing::error!(pid = self.pid, "a process that was killed does not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_passes_is_tried_again() {
        let passes = |status| Refusal::of(1, &status).passes;
        assert!(passes(Status::aborted("it has not recovered yet")));
        assert!(passes(Status::unavailable("no connection")));
        assert!(!passes(Status::failed_precondition("the resize is over")));
        assert!(!passes(Status::unimplemented("an older release")));
    }

    #[test]
    fn a_process_is_known_until_it_has_ended_and_no_other_is_taken_for_it() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.has_ended(Duration::ZERO));
        process.kill_and_wait();
        assert!(process.has_ended(Duration::ZERO));
        child.wait().unwrap();
        // Its number is free now; the handle is of the former one.
        process.kill_and_wait();
        assert!(Process::open(0).is_err());
        assert!(Process::open(u32::MAX).is_err());
    }
}
