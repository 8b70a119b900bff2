//! Recovery of a backend that has lost its memory: asks its peers what the machine wants
//! to know ([`trefoil_recovery`]).

mod memory;
mod peer;
mod progress;

pub(crate) use memory::{Memories, Memory, Missed, check_placed, encode_placed, encode_places};
pub(crate) use peer::{Peer, Setback, decode_page};
pub(crate) use progress::Progress;

use crate::background;
use crate::clock;
use crate::member::Member;
use crate::pace::{self, CopyPace};
use crate::state::State;
use crate::stop::Stop;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use trefoil_recovery::{Answer, Ask, Ended, Recovery};

/// Between two attempts: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After the last shard's vote. A client that has found a backend down looks for it again
/// after a second at the latest, and is greeted within another; what it writes before
/// reaches the other two only.
const CLIENTS_COME: Duration = Duration::from_secs(2);

/// So often it is looked whether keys are left that both others hold and this one lacks; they
/// were named to whoever repairs them, which takes a second or two.
const ROUNDS_MAX: u32 = 6;

/// Recovers every shard of the members that have to. One whose peers cannot be asked is
/// tried again after the others; so is one that has come to vote, to fetch what was written
/// while it copied: until all vote, a second death costs the shards that do not. When all
/// vote and clients have come, each fetches once more what was written without it, until
/// nothing is left that both others hold and this one does not.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, runtime: &Runtime) {
    // One thread copies for all members: the limit is the process's.
    let mut pace = CopyPace::new(state.recovery_rate);
    for member in &state.members {
        let Some(progress) = &member.recovery else {
            continue;
        };
        progress.begin();
        let memories = Memories::default();
        let task = |shard| Task {
            state,
            member,
            progress,
            memories: &memories,
            shard,
            recovery: Recovery::new(shard).between_values(background::leave_core),
        };
        let mut tasks: VecDeque<Task<'_>> = (0..member.store.shard_count()).map(task).collect();
        let mut setbacks = Setbacks::default();
        let mut recovered = Vec::new();
        let (mut round, mut hidden) = (0, 0);
        loop {
            let Some(mut task) = tasks.pop_front() else {
                if round > 0 && (hidden == 0 || round == ROUNDS_MAX) {
                    break;
                }
                round += 1;
                hidden = 0;
                let by = Instant::now() + CLIENTS_COME;
                while let Some(left) = by.checked_duration_since(Instant::now()) {
                    if stop.wait(left) {
                        return;
                    }
                }
                tasks.extend(recovered.drain(..).map(Task::looks_again));
                continue;
            };
            let place = task.recovery.place();
            let attempt = runtime.block_on(task.attempt(&mut pace));
            hidden += runtime.block_on(task.name_hidden());
            match attempt {
                Ok(None) => {
                    setbacks.clear();
                    tasks.push_back(task);
                }
                Ok(Some(Ended::Recovered)) => {
                    setbacks.clear();
                    recovered.push(task);
                }
                Ok(Some(Ended::Lost)) => tracing::error!(
                    backend = member.number,
                    shard = member.store.config().shards.shard(task.shard),
                    "two of three replicas had lost this shard before one had recovered: it is empty now"
                ),
                Ok(Some(Ended::EpochsUsedUp)) => {
                    tracing::error!("the epochs are used up: restart the whole cell");
                }
                Err(Setback::Stopping) => return,
                Err(setback) => {
                    progress.waits_for(&setback.to_string());
                    if task.recovery.place() > place {
                        setbacks.clear();
                    }
                    tasks.push_back(task);
                    if stop.wait(setbacks.pause(tasks.len())) {
                        return;
                    }
                }
            }
        }
        if hidden > 0 {
            tracing::warn!(
                backend = member.number,
                keys = hidden,
                "both others hold keys that this one still lacks: they are left to repair"
            );
        }
        progress.end();
        if let Some(repair) = &member.repair {
            repair.want();
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

/// Tells the others of a shard's cohort of an epoch that was raised here. Whoever raises
/// epochs may die after the first: then the two that live would be in different ones, and
/// nothing would have a quorum until it is back. To raise one early is always safe.
pub(crate) async fn pass_on(state: Arc<State>, member: Arc<Member>, shard: usize, epoch: u32) {
    let config = state.config();
    let shard = member.store.config().shards.shard(shard);
    let cohort = config.placement().cohort_of_shard(shard);
    let others = cohort
        .as_slice()
        .iter()
        .filter(|number| **number != member.number);
    for number in others {
        let Ok(peer) = Peer::new(&state, &config, *number, shard) else {
            continue;
        };
        let raised = peer.ask(Ask::Standing { raise_to: epoch }).await;
        if let Err(setback) = raised {
            // It may be the very one that recovers, and not be listening yet.
            tracing::debug!(epoch, %setback, "an epoch was not passed on");
        }
    }
}

/// Attempts in a row that came to nothing.
#[derive(Debug, Default)]
struct Setbacks(u32);

impl Setbacks {
    fn clear(&mut self) {
        self.0 = 0;
    }

    /// How long to wait after another one, with so many shards left: nothing before each
    /// has had its turn, then twice as long each round.
    fn pause(&mut self, shards_left: usize) -> Duration {
        self.0 += 1;
        let left = shards_left.max(1) as u32;
        if !self.0.is_multiple_of(left) {
            return Duration::ZERO;
        }
        let rounds = (self.0 / left - 1).min(16);
        (PAUSE_MIN * (1 << rounds)).min(PAUSE_MAX)
    }
}

/// One shard of a member.
struct Task<'t> {
    state: &'t Arc<State>,
    member: &'t Arc<Member>,
    progress: &'t Progress,
    memories: &'t Memories,
    shard: usize,
    recovery: Recovery<Bytes>,
}

impl Task<'_> {
    fn looks_again(mut self) -> Self {
        self.recovery.look_again();
        self
    }

    /// Names what both others hold and this one's floor hides to the backend that repairs
    /// the shard; how many keys that were. If it cannot be told, they are found again in the
    /// next round, or by its next scan.
    async fn name_hidden(&mut self) -> usize {
        let keys = self.recovery.take_hidden();
        if keys.is_empty() {
            return 0;
        }
        let shard = self.member.store.config().shards.shard(self.shard);
        if shard == self.member.number {
            if let Some(repair) = &self.member.repair {
                repair.named.add(&keys);
            }
            return keys.len();
        }
        let config = self.state.config();
        let told = match Peer::new(self.state, &config, shard, shard) {
            Ok(peer) => peer.suspect(&keys).await,
            Err(setback) => Err(setback),
        };
        if let Err(setback) = told {
            tracing::debug!(%setback, "keys that this backend lacks could not be named");
        }
        keys.len()
    }

    /// Until it has ended, or votes (then nothing is said), or a peer does not answer. Each
    /// peer has one question at a time.
    async fn attempt(&mut self, pace: &mut CopyPace) -> Result<Option<Ended>, Setback> {
        let mut peers = self.peers()?;
        let recovery = &mut self.recovery;
        let voted = recovery.votes();
        // Not always the same one has the work.
        if self.shard % 2 == 1 {
            peers.swap(0, 1);
        }
        let [first, second] = &peers;
        let (mut one, mut other) = (None, None);
        let goes_on = || match self.state.is_stopping() {
            true => Err(Setback::Stopping),
            false => Ok(()),
        };
        let result = loop {
            if one.is_none()
                && other.is_none()
                && let Err(stopping) = pace.wait(goes_on).await
            {
                break Err(stopping);
            }
            let may_ask = pace.owes().is_zero();
            if one.is_none() && may_ask {
                one = recovery.ask(0).map(|ask| Box::pin(first.ask(ask)));
            }
            if other.is_none() && may_ask {
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
                else => break Err(first.cannot("nothing is left to ask, and no end".into())),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(Setback::Stopping) => break Err(Setback::Stopping),
                Err(setback) if !recovery.unanswered(number) => break Err(setback),
                Err(setback) => {
                    tracing::debug!(%setback, "a long value is asked of the other replica");
                    continue;
                }
            };
            if let Answer::Standing(_) = &answer {
                // One that is alone may be wrong.
                clock::follow(first.ahead_ns().min(second.ahead_ns()));
            }
            pace.moved(len_of(&answer));
            let taken = recovery.answer(number, answer, &self.member.store, clock::now());
            if let Err(nonsense) = taken {
                break Err(peers[number].cannot(nonsense.to_string()));
            }
            self.progress.is_at(self.shard, recovery);
            if let Some(ended) = recovery.ended() {
                return Ok(Some(ended));
            }
            if recovery.votes() && !voted {
                break Ok(None);
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
            let peer = Peer::new(self.state, &config, *number, shard)?;
            peers.push(peer.reading(self.memories.of(*number), self.member));
        }
        peers.try_into().map_err(|_| Setback::Unreachable {
            number: own,
            why: "its cohort has no two others".into(),
        })
    }
}

/// What an answer has brought, about.
fn len_of(answer: &Answer<Bytes>) -> u64 {
    match answer {
        Answer::Standing(_) => 0,
        Answer::Items(page) => pace::page_len(page),
        Answer::Long(data) => data.as_ref().map_or(0, |data| data.len() as u64),
    }
}

/// Waits for a question's answer, if one was asked.
async fn conditional<F: Future + Unpin>(question: &mut Option<F>) -> Option<F::Output> {
    match question {
        Some(question) => Some(question.await),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_come_when_each_shard_has_had_its_turn() {
        let mut setbacks = Setbacks::default();
        let ms: Vec<u128> = (0..9).map(|_| setbacks.pause(3).as_millis()).collect();
        assert_eq!(ms, [0, 0, 20, 0, 0, 40, 0, 0, 80]);
        setbacks.clear();
        let ms: Vec<u128> = (0..8).map(|_| setbacks.pause(1).as_millis()).collect();
        assert_eq!(ms, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(Setbacks::default().pause(0), PAUSE_MIN);
    }
}
