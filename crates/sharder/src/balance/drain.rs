//! Phase 2: servers that are about to stop give everything away, as fast as
//! the budget allows. A slice larger than the budget of a whole round, which
//! cannot be cut either, has a round of its own: otherwise it would never leave.

use super::draft::Draft;
use super::plan::{Note, Reason};
use super::{split, takers};
use crate::server::{MemberState, ServerId};

/// Empties draining servers.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let draining: Vec<ServerId> = draft
        .servers
        .iter()
        .filter(|server| server.member.state == MemberState::Draining)
        .map(|server| server.member.id)
        .collect();
    for from in draining {
        let mut left = 0;
        for at in 0..draft.slices.len() {
            if draft.slices[at].servers.contains(&from) && !leave(draft, at, from) {
                left += 1;
            }
        }
        if left > 0 {
            draft.notes.push(Note::StillDraining {
                server: from,
                slices: left,
            });
        }
    }
}

/// Whether the slice could leave the server.
fn leave(draft: &mut Draft<'_>, at: usize, from: ServerId) -> bool {
    let slice = &draft.slices[at];
    let staying = slice
        .servers
        .iter()
        .filter(|&&id| {
            draft
                .server(id)
                .is_some_and(|server| draft.servers[server].member.state != MemberState::Draining)
        })
        .count();
    // As many copies as the others can hold: fewer servers than replicas must
    // not keep one from stopping.
    let others = draft
        .servers
        .iter()
        .filter(|server| server.member.state != MemberState::Draining)
        .count();
    if staying > 0 && staying >= draft.config.replicas_min.min(others) {
        draft.drop_replica(at, from, Reason::Draining);
        return true;
    }
    if !draft.budget.allows(slice.burden()) && !has_round_of_its_own(draft, at) {
        return false;
    }
    // Where it has been not long ago is better than nowhere.
    let to = takers::any(draft, at);
    match to {
        Some(to) => {
            let to = draft.servers[to].member.id;
            draft.transfer(at, from, to, Reason::Draining);
            true
        }
        None => false,
    }
}

/// Whether a slice that the budget does not allow may leave nevertheless.
fn has_round_of_its_own(draft: &Draft<'_>, at: usize) -> bool {
    // If nothing was spent, the slice is larger than the budget.
    let unspent = draft.churn.keys == 0.0 && draft.churn.bytes == 0.0;
    draft.budget.moves > 0 && unspent && !split::cuts(draft, at)
}
