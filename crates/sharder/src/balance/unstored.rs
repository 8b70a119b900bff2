//! Phase 3: copies that their servers cannot store are given to others.
//!
//! A server of another release, or without room, refuses copies for as long as it is
//! what it is; strong commits wait for it until the map has somebody else. So this
//! does not wait for the end of a deployment. The one that refused gets nothing of it
//! back for a while, as everybody who has given something away.

use super::draft::Draft;
use super::plan::{Note, Reason};
use super::takers;
use crate::key::KeyPoint;
use crate::server::ServerId;

/// What an owner says of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refusal {
    pub(crate) point: KeyPoint,
    pub(crate) server: ServerId,
    pub(crate) owner: ServerId,
}

/// Exchanges replicas.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let refusals = std::mem::take(&mut draft.refusals);
    let mut stuck = Vec::new();
    for &Refusal {
        point,
        server,
        owner,
    } in &refusals
    {
        let at = draft
            .slices
            .partition_point(|slice| slice.slice.last() < point);
        let Some(slice) = draft.slices.get(at) else {
            continue;
        };
        let copies = slice.servers.split_first();
        if !copies.is_some_and(|(first, copies)| *first == owner && copies.contains(&server)) {
            // An older map's.
            continue;
        }
        let also = |taker: ServerId| {
            let refuses = |other: &Refusal| slice.slice.contains(other.point);
            refusals
                .iter()
                .any(|other| other.server == taker && refuses(other))
        };
        let taker = takers::coldest(draft, at, true).map(|to| draft.servers[to].member.id);
        match taker.filter(|taker| !also(*taker)) {
            Some(to) if draft.budget.allows(draft.slices[at].burden()) => {
                let reason = Reason::Unstored { server };
                draft.add_replica(at, to, reason);
                draft.drop_replica(at, server, reason);
            }
            _ => stuck.push(server),
        }
    }
    stuck.sort_unstable();
    stuck.dedup();
    if !stuck.is_empty() {
        draft.notes.push(Note::CannotStore { servers: stuck });
    }
}
