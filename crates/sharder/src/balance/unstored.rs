//! Phase 3: copies that their servers cannot store are given to others.
//!
//! A server of another release, or without room, refuses copies for as long as it is
//! what it is; strong commits wait for it until the map has somebody else. So this
//! does not wait for the end of a deployment. Nobody gets one who has refused it, or
//! another key of the slice, before; if there is nobody else, it stays where it is.

use super::draft::Draft;
use super::plan::{Note, Reason};
use super::refusals::Refusal;
use super::takers;

/// Exchanges replicas.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let mut stuck = Vec::new();
    for Refusal { point, server } in std::mem::take(&mut draft.refused) {
        let slices = &draft.slices;
        let at = slices.partition_point(|slice| slice.slice.last() < point);
        let copies = slices.get(at).and_then(|slice| slice.servers.split_first());
        if !copies.is_some_and(|(_, copies)| copies.contains(&server)) {
            // An older map's, or the owner has become another one.
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
