//! A backend that has lost its memory and comes back without its cell: it learns from
//! the other two of each cohort what they know, and then votes again (DESIGN section 4,
//! rules 6 to 10).
//!
//! ```text
//! for each shard   ask both for its epoch
//!                  raise it at both, and here, to one above all of them
//!                  copy: from one the values, from the other what it holds at which
//!                        version, the same places of both; at last tombstones, floors
//!                  vote
//!                  repair: values that both hold and this one lacks, because they were
//!                          written while it was copying
//! ```
//!
//! The shard serves nobody while it is copied, but keeps what is written meanwhile
//! ([`trefoil_store::Store`] says how). Everything may be interrupted and begins again
//! where it was, unless a peer has lost its memory, too.
//!
//! **Two of three have lost the shard.** Then no value has a quorum any more, and the
//! promise is void. Nothing is invented: the shard comes back empty, nothing older than
//! what the third one knows is stored, and an error says so.

mod merge;
mod peer;
mod progress;
mod repair;
mod shard;

pub(crate) use progress::Progress;

use crate::member::Member;
use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Between two attempts: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Why a shard's recovery cannot go on at the moment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Setback {
    /// It may come back.
    #[error("backend {number} cannot be asked: {why}")]
    Unreachable {
        /// Which.
        number: u32,
        /// What it, or the system, says.
        why: String,
    },
    /// Its memory is another one than that from which was copied.
    #[error("backend {number} was restarted meanwhile")]
    Restarted {
        /// Which.
        number: u32,
    },
    /// Every recovery takes one.
    #[error("the epochs are used up: restart the whole cell")]
    EpochsUsedUp,
    /// This server ends.
    #[error("the server is shutting down")]
    Stopping,
}

/// Recovers every shard of the members that have to, one after the other.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, runtime: &Handle) {
    let recovers = |member: &&Arc<Member>| member.recovery.is_some();
    for member in state.members.iter().filter(recovers) {
        let Some(progress) = &member.recovery else {
            continue;
        };
        progress.begin();
        for shard in 0..member.store.shard_count() {
            if !until_done(stop, progress, || {
                runtime.block_on(shard::recover(state, member, shard, progress))
            }) {
                return;
            }
            progress.shard_done();
        }
        tracing::info!(
            backend = member.number,
            items = progress.items(),
            bytes = progress.bytes(),
            disagreed = progress.disagreed(),
            took_ms = progress.took().as_millis() as u64,
            "recovered: it votes again"
        );
        for shard in 0..member.store.shard_count() {
            if !until_done(stop, progress, || {
                runtime.block_on(repair::repair(state, member, shard, progress))
            }) {
                return;
            }
        }
    }
}

/// Tries again until it is done; `false` if the server ends before.
fn until_done(
    stop: &Stop,
    progress: &Progress,
    mut attempt: impl FnMut() -> Result<(), Setback>,
) -> bool {
    let mut pause = PAUSE_MIN;
    loop {
        match attempt() {
            Ok(()) => {
                progress.gets_on();
                return true;
            }
            Err(Setback::Stopping) => return false,
            Err(setback) => progress.waits_for(&setback.to_string()),
        }
        if stop.wait(pause) {
            return false;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
