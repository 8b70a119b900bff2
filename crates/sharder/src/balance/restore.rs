//! Phase 4: slices that have lost replicas, or never had enough, get them.
//!
//! No budget limits this, and no deployment puts it off: in strong mode nothing of such a
//! slice can be changed until it has its copies, and in any other one more death loses it.

use super::draft::Draft;
use super::plan::Note;
use super::takers;

/// Adds what is missing. Slices that nobody had were placed in phase 1, if anybody is alive.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let mut too_few = 0;
    for at in 0..draft.slices.len() {
        let wanted = draft.config.replicas_min;
        while (1..wanted).contains(&draft.slices[at].servers.len()) {
            let Some(to) = takers::any(draft, at) else {
                too_few += 1;
                break;
            };
            let to = draft.servers[to].member.id;
            draft.restore_replica(at, to);
        }
    }
    if too_few > 0 {
        draft.notes.push(Note::StillTooFew { slices: too_few });
    }
}
