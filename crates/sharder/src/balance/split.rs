//! Phase 8: slices that are too big to be moved well are cut where half of
//! their load lies. Nothing moves.

use super::draft::{Burden, Draft, DraftSlice};
use super::plan::{Action, Change, Note, Reason};
use crate::key::KeyPoint;

/// Splits big slices.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let limit = draft.slices_max();
    let mut room = limit.saturating_sub(draft.slices.len());
    let mut refused = false;
    let mut done: Vec<DraftSlice> = Vec::with_capacity(draft.slices.len());
    for at in 0..draft.slices.len() {
        if !draft.slices[at].estimate.known || draft.hot_points(at).next().is_some() {
            // What is not known is not judged; a hot key is cut out first.
            done.push(draft.slices[at].clone());
            continue;
        }
        let mut open = vec![draft.slices[at].clone()];
        while let Some(slice) = open.pop() {
            let load = draft.weight(slice.burden());
            if !is_big(draft, &slice, load) {
                done.push(slice);
                continue;
            }
            if room == 0 {
                refused = true;
                done.push(slice);
                continue;
            }
            match cut(draft, &slice, load) {
                Some((left, right, at)) => {
                    room -= 1;
                    draft.changes.push(Change {
                        slice: slice.slice,
                        action: Action::Split { at },
                        reason: Reason::Big { load },
                        bytes: 0,
                    });
                    open.push(right);
                    open.push(left);
                }
                None => done.push(slice),
            }
        }
    }
    draft.slices = done;
    if refused {
        draft.notes.push(Note::TooManySlices { limit });
    }
}

/// Whether this round is going to cut the slice, be it for a hot key.
pub(crate) fn cuts(draft: &Draft<'_>, at: usize) -> bool {
    if draft.slices.len() + 2 > draft.slices_max() {
        return false;
    }
    let slice = &draft.slices[at];
    let load = draft.weight(slice.burden());
    let halved = || is_big(draft, slice, load) && cut(draft, slice, load).is_some();
    draft.hot_points(at).next().is_some() || (slice.estimate.known && halved())
}

fn is_big(draft: &Draft<'_>, slice: &DraftSlice, load: f64) -> bool {
    // Too wide for a round's budget is too big, whatever its load.
    let wide = slice.slice.fraction() > draft.config.churn_max / 2.0;
    !slice.slice.is_point() && (load > draft.config.split_above || wide)
}

/// Both sides and the point between them; `None` if cutting does not help.
fn cut(
    draft: &Draft<'_>,
    slice: &DraftSlice,
    load: f64,
) -> Option<(DraftSlice, DraftSlice, KeyPoint)> {
    let replicas = slice.servers.len();
    let weigh = |part| {
        let burden = Burden::of(slice.slice, part, replicas);
        draft.weight(Burden {
            keys: 0.0,
            ..burden
        })
    };
    let at = slice.estimate.middle(slice.slice, weigh)?;
    let (left, right) = slice.slice.split_before(at)?;
    let part = |part| DraftSlice {
        slice: part,
        servers: slice.servers.clone(),
        estimate: slice.estimate.part(slice.slice, part),
        touched: slice.touched,
    };
    let (left, right) = (part(left), part(right));
    let heavier = draft
        .weight(left.burden())
        .max(draft.weight(right.burden()));
    // One heavy point: cutting beside it would go on for ever.
    (heavier <= 0.9 * load).then_some((left, right, at))
}
