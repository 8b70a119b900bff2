//! Phase 1: servers that are not alive lose their slices.
//!
//! A slice with a live replica stays with it. The others are dealt out, the
//! heaviest first, each to whoever then carries least: values are lost anyway,
//! so nothing but the load counts. No budget limits this; a slice that nobody
//! serves is worse than any churn.

use super::draft::Draft;
use super::plan::{Action, Reason};
use crate::server::{MemberState, ServerId};

/// Drops dead servers.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let mut lost = Vec::new();
    for at in 0..draft.slices.len() {
        let dead: Vec<ServerId> = draft.slices[at]
            .servers
            .iter()
            .copied()
            .filter(|&id| draft.server(id).is_none())
            .collect();
        if dead.len() == draft.slices[at].servers.len() {
            lost.push(at);
        } else {
            for server in dead {
                draft.drop_replica(at, server, Reason::Dead);
            }
        }
    }
    lost.sort_by(|&a, &b| {
        let weight = |at: usize| draft.weight(draft.slices[at].burden_with(1));
        weight(b).total_cmp(&weight(a)).then(a.cmp(&b))
    });
    for at in lost {
        let Some(to) = taker(draft, at) else {
            // Nobody is alive. The slice waits, with nobody's name on it.
            if !draft.slices[at].servers.is_empty() {
                draft.assign(at, Vec::new());
            }
            continue;
        };
        let to = draft.servers[to].member.id;
        draft.log(at, Action::Replace { to }, Reason::AllDead, false);
        draft.churn.forced_keys += draft.slices[at].slice.fraction();
        draft.assign(at, vec![to]);
    }
}

/// Who takes a slice that nobody has: preferably somebody who takes part in
/// balancing, else whoever is alive.
fn taker(draft: &Draft<'_>, at: usize) -> Option<usize> {
    let slice = &draft.slices[at];
    let burden = slice.burden_with(1);
    let rank = |server: usize| {
        let state = &draft.servers[server];
        match state.member.state {
            MemberState::Serving if state.active => 0,
            MemberState::Serving => 1,
            MemberState::Frozen => 2,
            MemberState::Draining => 3,
        }
    };
    (0..draft.servers.len()).min_by(|&a, &b| {
        let load =
            |server: usize| draft.load_with(server, draft.servers[server].burden.plus(burden));
        let soft = |server: usize| {
            (
                rank(server),
                !draft.has_memory(server, burden.bytes),
                draft.would_return(server, slice.slice),
            )
        };
        soft(a)
            .cmp(&soft(b))
            .then(load(a).total_cmp(&load(b)))
            .then(a.cmp(&b))
    })
}
