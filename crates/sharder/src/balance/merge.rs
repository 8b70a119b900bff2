//! Phase 6: cold neighbours become one slice when there are many slices, so
//! that splitting does not make the map grow for ever.
//!
//! Neighbours with the same servers merge for nothing. Otherwise the one with
//! less to carry over goes to the other's server, within a small budget of its
//! own.

use super::draft::{Draft, DraftSlice};
use super::plan::{Action, Reason};
use crate::server::ServerId;

/// Merges cold neighbours.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    let wanted = draft.config.merge_from * draft.servers.len().max(1);
    let mut excess = draft.slices.len().saturating_sub(wanted);
    if excess == 0 {
        return;
    }
    let mut pairs: Vec<(usize, f64)> = (0..draft.slices.len() - 1)
        .filter_map(|at| Some((at, combined(draft, at)?)))
        .collect();
    pairs.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut merge_keys = draft.config.merge_churn_max.min(draft.budget.keys);
    let mut taken = vec![false; draft.slices.len()];
    let mut joins = vec![false; draft.slices.len()];
    for (at, _) in pairs {
        if excess == 0 {
            break;
        }
        if taken[at] || taken[at + 1] {
            continue;
        }
        if !same_servers(&draft.slices[at], &draft.slices[at + 1])
            && !gather(draft, at, &mut merge_keys)
        {
            continue;
        }
        (taken[at], taken[at + 1], joins[at]) = (true, true, true);
        let with = draft.slices[at + 1].slice;
        draft.log(at, Action::Merge { with }, Reason::Cold, false);
        excess -= 1;
    }
    let mut merged: Vec<DraftSlice> = Vec::with_capacity(draft.slices.len());
    let mut joining = false;
    for (slice, joins) in std::mem::take(&mut draft.slices).into_iter().zip(joins) {
        match merged.last_mut() {
            Some(last) if joining => match last.slice.join(slice.slice) {
                Some(whole) => {
                    last.slice = whole;
                    last.estimate = last.estimate.joined(&slice.estimate);
                    last.touched |= slice.touched;
                }
                None => merged.push(slice),
            },
            _ => merged.push(slice),
        }
        joining = joins;
    }
    draft.slices = merged;
}

/// The weight of a slice and the one behind it, if they may be merged.
fn combined(draft: &Draft<'_>, at: usize) -> Option<f64> {
    let (a, b) = (&draft.slices[at], &draft.slices[at + 1]);
    if !a.estimate.known || !b.estimate.known || a.servers.len() != b.servers.len() {
        return None;
    }
    let keys = a.slice.fraction() + b.slice.fraction();
    // What is merged has to stay small enough to be moved again.
    if keys > draft.config.churn_max / 4.0 {
        return None;
    }
    let weight = draft.weight(a.burden().plus(b.burden()));
    (weight <= draft.config.merge_below).then_some(weight)
}

fn same_servers(a: &DraftSlice, b: &DraftSlice) -> bool {
    a.servers == b.servers
}

/// Brings a slice and the one behind it to one server.
fn gather(draft: &mut Draft<'_>, at: usize, merge_keys: &mut f64) -> bool {
    if draft.slices[at].servers.len() != 1 {
        return false;
    }
    let cost = |slice: &DraftSlice| (slice.estimate.total.bytes, slice.slice.width());
    let (a, b) = (cost(&draft.slices[at]), cost(&draft.slices[at + 1]));
    let (moving, staying) = if (b.0, b.1 as f64) <= (a.0, a.1 as f64) {
        (at + 1, at)
    } else {
        (at, at + 1)
    };
    let from: ServerId = draft.slices[moving].servers[0];
    let to: ServerId = draft.slices[staying].servers[0];
    let (Some(giver), Some(taker)) = (draft.server(from), draft.server(to)) else {
        return false;
    };
    let burden = draft.slices[moving].burden();
    let after = draft.load_with(taker, draft.servers[taker].burden.plus(burden));
    let allowed = draft.servers[giver].active
        && draft.servers[taker].active
        && !draft.is_cooling(moving)
        && !draft.is_cooling(staying)
        && after <= draft.config.take_up_to
        && draft.has_memory(taker, burden.bytes)
        && !draft.would_return(taker, draft.slices[moving].slice)
        && burden.keys <= *merge_keys
        && draft.budget.allows(burden);
    if allowed {
        *merge_keys -= burden.keys;
        draft.transfer(moving, from, to, Reason::Cold);
    }
    allowed
}
