//! Recovery of a backend that has lost its memory: asks its peers what the machine wants
//! to know ([`trefoil_recovery`]).

mod peer;
mod progress;

pub(crate) use progress::Progress;

use crate::clock;
use crate::member::Member;
use crate::state::State;
use crate::stop::Stop;
use bytes::Bytes;
use peer::{Peer, Setback};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use trefoil_recovery::{Ended, Recovery};

/// Between two attempts: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Recovers every shard of the members that have to, one after the other.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, runtime: &Handle) {
    for member in &state.members {
        let Some(progress) = &member.recovery else {
            continue;
        };
        progress.begin();
        for shard in 0..member.store.shard_count() {
            let task = Task {
                state,
                stop,
                member,
                progress,
                shard,
            };
            match runtime.block_on(task.run()) {
                Some(Ended::Recovered) => {}
                Some(Ended::Lost) => {
                    progress.shard_lost();
                    tracing::error!(
                        backend = member.number,
                        shard = member.store.config().shards.shard(shard),
                        "two of three replicas had lost this shard before one had recovered: it is empty now"
                    );
                }
                Some(Ended::EpochsUsedUp) => {
                    tracing::error!("the epochs are used up: restart the whole cell");
                    return;
                }
                // The server ends.
                None => return,
            }
        }
        let stats = progress.stats();
        tracing::info!(
            backend = member.number,
            items = stats.items,
            bytes = stats.bytes,
            disagreed = stats.disagreed,
            repaired = stats.repaired,
            took_ms = stats.took_ms,
            "recovered"
        );
    }
}

/// One shard of a member.
struct Task<'t> {
    state: &'t Arc<State>,
    stop: &'t Stop,
    member: &'t Member,
    progress: &'t Progress,
    shard: usize,
}

impl Task<'_> {
    /// Until it has ended; `None` if the server ends before.
    async fn run(&self) -> Option<Ended> {
        let mut recovery = Recovery::<Bytes>::new(self.shard);
        let mut pause = PAUSE_MIN;
        loop {
            let place = recovery.place();
            match self.attempt(&mut recovery).await {
                Ok(ended) => {
                    self.progress.gets_on();
                    return Some(ended);
                }
                Err(Setback::Stopping) => return None,
                Err(setback) => self.progress.waits_for(&setback.to_string()),
            }
            if recovery.place() > place {
                pause = PAUSE_MIN;
            }
            if self.stop.wait(pause) {
                return None;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Until it has ended, or a peer does not answer. Each peer has one question at a
    /// time.
    async fn attempt(&self, recovery: &mut Recovery<Bytes>) -> Result<Ended, Setback> {
        let mut peers = self.peers()?;
        // Not always the same one has the work.
        if self.shard % 2 == 1 {
            peers.swap(0, 1);
        }
        let [first, second] = &peers;
        let (mut one, mut other) = (None, None);
        let result = loop {
            if one.is_none() {
                one = recovery.ask(0).map(|ask| Box::pin(first.ask(ask)));
            }
            if other.is_none() {
                other = recovery.ask(1).map(|ask| Box::pin(second.ask(ask)));
            }
            let (number, answer) = tokio::select! {
                Some(answer) = conditional(&mut one) => {
                    one = None;
                    (0, answer)
                }
                Some(answer) = conditional(&mut other) => {
                    other = None;
                    (1, answer)
                }
                else => break Err(Setback::Stopping),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(setback) => break Err(setback),
            };
            let taken = recovery.answer(number, answer, &self.member.store, clock::now());
            if let Err(nonsense) = taken {
                break Err(peers[number].cannot(nonsense.to_string()));
            }
            self.progress.is_at(recovery);
            if let Some(ended) = recovery.ended() {
                return Ok(ended);
            }
        };
        recovery.failed(0);
        recovery.failed(1);
        result
    }

    /// The other two of the shard's cohort.
    fn peers(&self) -> Result<[Peer; 2], Setback> {
        let config = self.state.config();
        let shard = self.member.store.config().shards.shard(self.shard);
        let cohort = config.placement().cohort_of_shard(shard);
        let own = self.member.number;
        let others = cohort.as_slice().iter().filter(|number| **number != own);
        let mut peers = Vec::new();
        for number in others {
            peers.push(Peer::new(self.state, &config, *number, shard)?);
        }
        peers.try_into().map_err(|_| Setback::Unreachable {
            number: own,
            why: "its cohort has no two others".into(),
        })
    }
}

/// Waits for a question's answer, if one was asked.
async fn conditional<F: Future + Unpin>(question: &mut Option<F>) -> Option<F::Output> {
    match question {
        Some(question) => Some(question.await),
        None => None,
    }
}
