//! The side of the process that goes.

use crate::clock;
use crate::member::Member;
use crate::service::copy::is_plain;
use crate::state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;
use trefoil_recovery::{ShardState, shard_states};
use trefoil_rpc::v1::{self, HandOverStep};

/// How long no mutation is taken: a successor that has not copied the rest by then is
/// refused. Clients try again within their deadlines, a second as a rule.
const FROZEN_MAX: Duration = Duration::from_millis(250);
/// The same once it was late so often: the machine is busy, and half a second once is better
/// than a quarter of one again and again.
pub(super) const FROZEN_LONGER: Duration = Duration::from_millis(500);
const LATE_BEFORE: u32 = 3;
/// A successor that has not been heard of for so long is given up. It says each few seconds
/// that it is alive ([`super::taking`]): between two other steps it copies, for minutes.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The same where another one asks to be the successor: whoever orders a move again has seen
/// the first one end, as a rule.
const SILENCE_BEFORE_ANOTHER: Duration = Duration::from_secs(15);
/// How long clients that are connected hear that nothing is taken here any more, before
/// they are hung up on: what they had sent before is answered.
pub(super) const LINGER: Duration = Duration::from_millis(30);

/// To whom a backend's number moves, if it does.
#[derive(Debug, Default)]
pub(crate) struct Giving {
    to: Mutex<Option<Successor>>,
}

#[derive(Debug)]
struct Successor {
    /// What it calls itself.
    token: u64,
    heard: Instant,
    /// No mutation is taken before then.
    frozen_until: Option<Instant>,
    /// How often it has not copied the rest in time.
    late: u32,
    /// It is the backend now.
    released: bool,
}

impl Successor {
    fn begins(token: u64, now: Instant) -> Self {
        Successor {
            token,
            heard: now,
            frozen_until: None,
            late: 0,
            released: false,
        }
    }

    /// Mutations are taken again.
    fn is_late(&mut self, member: &Member) {
        if self.frozen_until.take().is_some() {
            self.late += 1;
            thaw(member);
        }
    }

    fn frozen_max(&self) -> Duration {
        match self.late < LATE_BEFORE {
            true => FROZEN_MAX,
            false => FROZEN_LONGER,
        }
    }

    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= SILENCE_MAX
    }

    /// Whether another one may take its part.
    fn can_be_replaced(&self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.heard);
        !self.released && self.frozen_until.is_none() && silence >= SILENCE_BEFORE_ANOTHER
    }
}

/// The successor of that name, which is heard of now.
fn heard(to: &mut Option<Successor>, token: u64, now: Instant) -> Option<&mut Successor> {
    let successor = to.as_mut().filter(|to| to.token == token)?;
    successor.heard = now;
    Some(successor)
}

impl Giving {
    fn lock(&self) -> MutexGuard<'_, Option<Successor>> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process takes the backend over.
    pub(crate) fn is_under_way(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether no mutation is taken at present.
    pub(crate) fn is_frozen(&self) -> bool {
        let to = self.lock();
        to.as_ref().is_some_and(|to| to.frozen_until.is_some())
    }

    /// Goes on as before if the successor does not.
    pub(crate) fn look(&self, member: &Member, now: Instant) {
        let mut to = self.lock();
        let Some(successor) = to.as_mut().filter(|to| !to.released) else {
            return;
        };
        let is_late = successor.frozen_until.is_some_and(|until| now >= until);
        if successor.is_silent(now) {
            *to = None;
            go_on(member);
            tracing::warn!(
                backend = member.number,
                "the process that was to take this backend over did not: it goes on here"
            );
        } else if is_late {
            // It may try again.
            successor.is_late(member);
            tracing::info!(
                backend = member.number,
                "the other process was too late: mutations are taken again"
            );
        }
    }
}

/// Takes mutations again.
fn thaw(member: &Member) {
    for shard in 0..member.store.shard_count() {
        member.store.freeze(shard, false);
    }
}

/// The same, and notes them no longer.
fn go_on(member: &Member) {
    member.announce_successor(0);
    thaw(member);
    for shard in 0..member.store.shard_count() {
        member.store.watch_changes(shard, false);
    }
}

/// What was committed goes along. It is waited for without the lock, which the lease's thread
/// takes; and before the time begins in which nothing is taken. `false`: it is hindered.
fn end_queue(member: &Member, token: u64) -> bool {
    let is_successor = {
        let mut to = member.giving.lock();
        heard(&mut to, token, Instant::now()).is_some_and(|to| !to.released)
    };
    !is_successor || member.end_queue()
}

/// One step of a handover, as the successor asks for it.
pub(crate) fn step(
    state: &Arc<State>,
    member: &Member,
    request: &v1::HandOverRequest,
) -> Result<v1::HandOverResponse, Status> {
    let step = request.step();
    if request.successor == 0 || step == HandOverStep::Unspecified {
        return Err(Status::invalid_argument("no successor, or no step"));
    }
    // Before a freeze, too: what comes after it cannot be taken back, and the successor could
    // not serve.
    if matches!(step, HandOverStep::Begin | HandOverStep::Freeze)
        && let Some(why) = state.hindered_by_config()
    {
        return Err(Status::failed_precondition(why.to_string()));
    }
    if step == HandOverStep::Begin {
        return begin(state, member, request);
    }
    // Before the lock that the lease's thread takes, too: who changes the configuration may
    // have every header to rewrite.
    let adopting = (step == HandOverStep::Release).then(|| state.adopting());
    if step == HandOverStep::Freeze && !end_queue(member, request.successor) {
        return Err(Status::aborted("the queue of this backend is hindered"));
    }
    let mut to = member.giving.lock();
    let successor = heard(&mut to, request.successor, Instant::now());
    let successor = successor.ok_or_else(|| {
        Status::failed_precondition("the handover is over: it took too long, or another began")
    })?;
    if successor.released {
        return after_release(step);
    }
    match step {
        HandOverStep::Alive => Ok(response(Vec::new(), Duration::ZERO)),
        HandOverStep::Changes => Ok(v1::HandOverResponse {
            // It may have been changed since.
            memory_limit_bytes: state.bound.limit(),
            ..response(shard_states(&member.store), Duration::ZERO)
        }),
        HandOverStep::Freeze => {
            for shard in 0..member.store.shard_count() {
                member.store.freeze(shard, true);
            }
            let frozen_max = successor.frozen_max();
            successor.frozen_until = Some(successor.heard + frozen_max);
            Ok(v1::HandOverResponse {
                memory_limit_bytes: state.bound.limit(),
                ..response(shard_states(&member.store), frozen_max)
            })
        }
        HandOverStep::Release => {
            let is_in_time = successor
                .frozen_until
                .is_some_and(|until| successor.heard < until);
            if !is_in_time {
                successor.is_late(member);
                return Err(Status::aborted(
                    "it took too long to copy the rest: mutations are taken again",
                ));
            }
            successor.released = true;
            drop(to);
            // Nothing here can be thawed any more, and nobody else is the backend yet: nothing
            // comes in between, also no log, which a terminal that stands still can hold up.
            if let Some(adopting) = &adopting {
                state.retire(adopting);
            }
            let (number, retirement) = (member.number, Arc::clone(&state.retirement));
            tokio::spawn(async move {
                tokio::time::sleep(LINGER).await;
                retirement.notify_one();
                tracing::info!(backend = number, "the backend is another process now");
            });
            Ok(response(Vec::new(), Duration::ZERO))
        }
        HandOverStep::Unspecified | HandOverStep::Begin => Err(Status::invalid_argument(
            "no step of a handover that has begun",
        )),
        HandOverStep::Abandon => {
            *to = None;
            go_on(member);
            tracing::info!(backend = member.number, "the handover was given up");
            Ok(response(Vec::new(), Duration::ZERO))
        }
    }
}

fn begin(
    state: &Arc<State>,
    member: &Member,
    request: &v1::HandOverRequest,
) -> Result<v1::HandOverResponse, Status> {
    let (asked, takes_plain) = (request.layout_version, request.takes_plain);
    is_plain(asked, takes_plain, state.layout_version)?;
    may_begin(state, member)?;
    let now = Instant::now();
    {
        let mut to = member.giving.lock();
        if to.as_ref().is_some_and(|to| !to.can_be_replaced(now)) {
            return refused("another process is taking it over already");
        }
        if to.take().is_some() {
            go_on(member);
        }
        *to = Some(Successor::begins(request.successor, now));
    }
    // A resize looks for a handover under its own lock: never both at once. Whichever comes
    // second sees the first.
    if member.resizing.is_under_way() {
        *member.giving.lock() = None;
        return refused(RESIZES);
    }
    for shard in 0..member.store.shard_count() {
        member.store.watch_changes(shard, true);
    }
    member.announce_successor(request.successor);
    tracing::info!(
        backend = member.number,
        "another process takes this backend over"
    );
    let begun = state.begun().get(&member.number).copied();
    Ok(v1::HandOverResponse {
        begun: begun.unwrap_or_default(),
        memory_limit_bytes: state.bound.limit(),
        unix_ns: clock::now().unix_ns,
        ..response(shard_states(&member.store), Duration::ZERO)
    })
}

/// Nothing goes back. The successor may ask again because the answer was lost.
fn after_release(step: HandOverStep) -> Result<v1::HandOverResponse, Status> {
    match step {
        HandOverStep::Release => Ok(response(Vec::new(), Duration::ZERO)),
        _ => Err(Status::failed_precondition(
            "the backend is another process now",
        )),
    }
}

const RESIZES: &str = "the cell is being resized: wait for the end, or abort it";

fn refused<T>(why: &str) -> Result<T, Status> {
    Err(Status::failed_precondition(why))
}

fn may_begin(state: &State, member: &Member) -> Result<(), Status> {
    if state.members.len() > 1 || state.doors().locks.is_empty() {
        return refused("its process is a whole cell: a handover is for cells of `cell up`");
    }
    if state.config().mode.is_immutable() {
        return refused("an immutable cell's backends are restarted with its file");
    }
    let mut shards = 0..member.store.shard_count();
    if shards.any(|shard| member.store.is_recovering(shard)) {
        return refused("it has not recovered yet: wait until it has");
    }
    if member.resizing.is_under_way() {
        return refused(RESIZES);
    }
    Ok(())
}

fn response(shards: Vec<ShardState>, frozen: Duration) -> v1::HandOverResponse {
    let shard = |shard: ShardState| v1::HandOverShard {
        epoch: shard.epoch,
        bound_max: Some(trefoil_rpc::encode_version(shard.bound_max)),
        bucket_count: shard.bucket_count,
        changes: shard
            .changes
            .into_iter()
            .map(|range| v1::PlaceRange {
                from: range.start,
                until: range.end,
            })
            .collect(),
    };
    v1::HandOverResponse {
        shards: shards.into_iter().map(shard).collect(),
        frozen_ms: frozen.as_millis() as u32,
        begun: 0,
        memory_limit_bytes: 0,
        unix_ns: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_that_is_heard_of_is_not_given_up_however_long_it_copies() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut to = Some(Successor::begins(7, begin));
        for seconds in (20..600).step_by(20) {
            assert!(!to.as_ref().unwrap().is_silent(at(seconds)));
            assert!(heard(&mut to, 7, at(seconds)).is_some());
            // Another one is none of its.
            assert!(heard(&mut to, 8, at(seconds + 15)).is_none());
        }
        assert!(!to.as_ref().unwrap().is_silent(at(580) + SILENCE_MAX / 2));
        assert!(to.as_ref().unwrap().is_silent(at(580) + SILENCE_MAX));
    }
}
