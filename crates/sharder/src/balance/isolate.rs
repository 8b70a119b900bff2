//! Phase 9: a hot key gets a slice of exactly one key point, so that it can be
//! moved and replicated without its neighbours. Nothing moves.

use super::draft::{Draft, DraftSlice};
use super::plan::{Action, Note, Reason};
use crate::key::{KeyPoint, Slice};

/// Isolates hot keys.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let limit = draft.slices_max();
    let mut refused = false;
    let mut at = 0;
    while at < draft.slices.len() {
        let Some((point, burden)) = draft.hot_points(at).next() else {
            at += 1;
            continue;
        };
        let load = draft.weight(burden);
        if draft.slices.len() + 2 > limit {
            refused = true;
            break;
        }
        let reason = Reason::Hot { load };
        draft.log(at, Action::Isolate { point }, reason, false);
        let whole = draft.slices[at].clone();
        let own = Slice::of_point(point);
        let mut parts = Vec::with_capacity(3);
        let mut rest = whole.slice;
        if let Some((before, from_point)) = rest.split_before(point) {
            parts.push(before);
            rest = from_point;
        }
        parts.push(own);
        if let Some(last) = Slice::new(point, rest.end()).filter(|rest| !rest.is_point()) {
            parts.push(Slice::spanning(KeyPoint(last.start().0 + 1), last.last()));
        }
        let parts = parts.into_iter().map(|part| DraftSlice {
            slice: part,
            servers: whole.servers.clone(),
            estimate: whole.estimate.part(whole.slice, part),
            touched: whole.touched,
        });
        // Looked at again from the first part: there may be more hot points.
        draft.slices.splice(at..=at, parts);
    }
    if refused {
        draft.notes.push(Note::TooManySlices { limit });
    }
}
