//! The backends of the cell as it is, as who resizes it speaks to them.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::time::Duration;
use tonic::Status;
use trefoil_backend::LEASE;
use trefoil_cell::CellConfig;
use trefoil_rpc::v1::{self, ResizeStep};
use trefoil_rpc::{Client, failure_text};

/// How long one may take to be reached.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How long one may take to freeze, and to go on.
const STEP_PATIENCE: Duration = Duration::from_millis(400);
/// How long one may take to retire: then it is killed.
const RETIRE_PATIENCE: Duration = Duration::from_millis(500);
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
    pid: u32,
    client: Client,
}

/// What frozen backends have said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frozen {
    /// The epoch that all shards are to be in.
    Epoch(u32),
    /// The replicas of some shard are in different ones: somebody recovers just now.
    Disagree,
}

impl Givers {
    pub(super) fn new(resize: u64, config: &CellConfig, pids: &[u32]) -> Result<Self, String> {
        let giver = |(backend, pid): (&trefoil_cell::BackendConfig, &u32)| {
            let number = backend.number;
            let address = backend.nearest_address();
            let address = address.ok_or_else(|| format!("backend {number} has no address"))?;
            let client = trefoil_cell::rpc_client(address, None, CONNECT_PATIENCE);
            Ok(Giver {
                number,
                pid: *pid,
                client: client.map_err(|error| error.to_string())?,
            })
        };
        let all: Result<_, String> = config.backends.iter().zip(pids).map(giver).collect();
        Ok(Givers {
            resize,
            life: config.life,
            all: all?,
        })
    }

    /// Has all of them take no mutation; what epochs they are in.
    pub(super) async fn freeze(&self, attempt: u32) -> Result<Frozen, String> {
        let request = v1::ResizeRequest {
            attempt,
            ..self.request(ResizeStep::Freeze)
        };
        let answers = self.all_at_once(STEP_PATIENCE, &request).await;
        let answers: Result<Vec<_>, String> = answers.into_iter().collect();
        let epochs = answers?.into_iter().map(|answer| {
            let shards = answer.shards.iter().map(|shard| shard.epoch);
            shards.collect::<Vec<u32>>()
        });
        Ok(agree(&epochs.collect::<Vec<_>>()))
    }

    /// Has all of them go on. One that does not hear it does so by itself, later.
    pub(super) async fn thaw(&self, attempt: u32) {
        let request = v1::ResizeRequest {
            attempt,
            ..self.request(ResizeStep::Thaw)
        };
        drop(self.all_at_once(STEP_PATIENCE, &request).await);
    }

    /// The resize was given up.
    pub(super) async fn abandon(&self) {
        let request = self.request(ResizeStep::Abandon);
        drop(self.all_at_once(STEP_PATIENCE, &request).await);
    }

    /// Ends them: the cell is another one. When this returns, nobody believes any of them
    /// any more.
    pub(super) async fn retire(&self, config: &CellConfig) {
        let request = v1::ResizeRequest {
            config: Some(trefoil_cell::encode_config(config)),
            ..self.request(ResizeStep::Retire)
        };
        let answers = self.all_at_once(RETIRE_PATIENCE, &request).await;
        let mut hung = Vec::new();
        for (giver, answer) in self.all.iter().zip(answers) {
            if let Err(why) = answer {
                tracing::warn!(
                    backend = giver.number,
                    why,
                    "a backend of the cell as it was does not retire; it is killed"
                );
                hung.push(giver.pid);
            }
        }
        if hung.is_empty() {
            return;
        }
        let killed = hung
            .into_iter()
            .map(|pid| tokio::task::spawn_blocking(move || kill_and_wait(pid)));
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

    /// What each answers, in order of number.
    async fn all_at_once(
        &self,
        patience: Duration,
        request: &v1::ResizeRequest,
    ) -> Vec<Result<v1::ResizeResponse, String>> {
        let calls = self.all.iter().map(|giver| {
            let mut giver = giver.clone();
            let request = v1::ResizeRequest {
                backend: giver.number,
                ..request.clone()
            };
            tokio::spawn(async move {
                let number = giver.number;
                match tokio::time::timeout(patience, giver.client.resize(request)).await {
                    Ok(Ok(answer)) => Ok(answer.into_inner()),
                    Ok(Err(status)) => Err(refusal(number, &status)),
                    Err(_) => Err(format!(
                        "backend {number} does not answer within {} ms",
                        patience.as_millis()
                    )),
                }
            })
        });
        let mut answers = Vec::new();
        for call in calls.collect::<Vec<_>>() {
            answers.push(call.await.unwrap_or_else(|error| Err(error.to_string())));
        }
        answers
    }
}

fn refusal(number: u32, status: &Status) -> String {
    format!("backend {number}: {}", failure_text(status))
}

/// Whether the replicas of each shard are in one epoch; the highest of all. `epochs` are
/// those of each backend's shards, by its place in their cohorts.
fn agree(epochs: &[Vec<u32>]) -> Frozen {
    let count = epochs.len();
    for shard in 0..count {
        let copies = epochs[shard].len();
        let of_shard = |place: usize| epochs[(shard + place) % count].get(place);
        if (1..copies).any(|place| of_shard(place) != of_shard(0)) {
            return Frozen::Disagree;
        }
    }
    Frozen::Epoch(epochs.iter().flatten().copied().max().unwrap_or_default())
}

/// Kills a process and waits for its end, as its memory and its lock are held until then.
fn kill_and_wait(pid: u32) {
    let Some(pid) = Pid::from_raw(pid as i32) else {
        return;
    };
    // Gone already.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let timeout = rustix::time::Timespec {
        tv_sec: KILL_PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replicas_of_each_shard_have_to_be_in_one_epoch() {
        // Backend 1 is the first of shard 1, the second of shard 0, the third of shard 3.
        let alike = vec![vec![5, 1, 1], vec![9, 5, 1], vec![1, 9, 5], vec![1, 1, 9]];
        assert_eq!(agree(&alike), Frozen::Epoch(9));
        let mut raised = alike.clone();
        raised[2][1] = 13;
        assert_eq!(agree(&raised), Frozen::Disagree);
        assert_eq!(agree(&[vec![4]]), Frozen::Epoch(4));
        assert_eq!(agree(&[vec![1], vec![1]]), Frozen::Epoch(1));
    }
}
