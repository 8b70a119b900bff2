//! Phase 3: what servers cannot store is given to others.
//!
//! A server of another release, or without room, refuses copies for as long as it is
//! what it is; strong commits wait for it until the map has somebody else. Likewise an
//! owner: what it cannot store stays with who had it before, or has no owner. So this
//! does not wait for the end of a deployment. Nobody gets a slice who has refused it, or
//! another key of it, lately: so it goes round once at most, and if there is nobody else
//! it stays where it is.

use super::draft::Draft;
use super::plan::{Note, Reason};
use super::refusals::Refusal;
use super::takers;

/// Exchanges replicas, those of owners too.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let mut stuck = Vec::new();
    for Refusal { point, server } in std::mem::take(&mut draft.refused) {
        let slices = &draft.slices;
        let at = slices.partition_point(|slice| slice.slice.last() < point);
        let slice = slices.get(at);
        if !slice.is_some_and(|slice| slice.servers.contains(&server)) {
            // An older map's.
            continue;
        }
        match takers::storing(draft, at) {
            Some(to) if draft.budget.allows(draft.slices[at].burden()) => {
                let to = draft.servers[to].member.id;
                draft.transfer(at, server, to, Reason::Unstored { server });
            }
            // In the next round.
            Some(_) => {}
            None => stuck.push(server),
        }
    }
    stuck.sort_unstable();
    stuck.dedup();
    if !stuck.is_empty() {
        draft.notes.push(Note::CannotStore { servers: stuck });
    }
}
