//! Phase 5: a key that is too hot for one server gets more replicas, and loses them when
//! it has cooled.
//!
//! Only a key with a slice of its own is replicated because of its heat: a
//! wide slice that is hot is split instead, which costs no memory.

use super::draft::Draft;
use super::plan::{Note, Reason};
use super::takers;
use crate::server::ServerId;

/// Adds and drops replicas.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    for at in 0..draft.slices.len() {
        while draft.slices[at].servers.len() > draft.config.replicas_max {
            drop_one(draft, at, Reason::TooManyReplicas);
        }
        if draft.slices[at].slice.is_point() && draft.slices[at].estimate.known {
            heat(draft, at);
        }
    }
}

/// Follows the heat of one key.
fn heat(draft: &mut Draft<'_>, at: usize) {
    let load =
        |draft: &Draft<'_>, replicas: usize| draft.weight(draft.slices[at].burden_with(replicas));
    let mut grown = false;
    loop {
        let have = draft.slices[at].servers.len();
        let now = load(draft, have);
        // Where writes or sheer size are what is heavy, copies do not help.
        let total = draft.slices[at].estimate.total;
        let helps = total.cpu_shared / have.max(1) as f64 > total.cpu_each;
        if have == 0
            || have >= draft.config.replicas_max
            || now <= draft.config.replicate_above
            || !helps
        {
            break;
        }
        if !add(draft, at, Reason::Hot { load: now }) {
            break;
        }
        grown = true;
    }
    let have = draft.slices[at].servers.len();
    let now = load(draft, have);
    if now > draft.config.give_above && have >= draft.config.replicas_max {
        draft.notes.push(Note::Indivisible {
            point: draft.slices[at].slice.start(),
            load: now,
            replicas: have,
        });
    }
    let held =
        draft
            .history
            .changed_within(draft.slices[at].slice, draft.now, draft.config.replica_hold);
    if !grown
        && !held
        && !draft.slices[at].touched
        && have > draft.config.replicas_min
        && load(draft, have - 1) < draft.config.dereplicate_below
    {
        drop_one(draft, at, Reason::Cooled { load: now });
    }
}

/// Whether there is one more now.
fn add(draft: &mut Draft<'_>, at: usize, reason: Reason) -> bool {
    if !draft.budget.allows(draft.slices[at].burden()) {
        return false;
    }
    // A replica may come back to where one was dropped, if there is nobody
    // else: it takes part of the load, it does not chase the slice away.
    let Some(to) = takers::any(draft, at) else {
        return false;
    };
    let to = draft.servers[to].member.id;
    draft.add_replica(at, to, reason);
    true
}

/// Drops the replica of whoever carries most; of equals the last one, so that
/// the primary stays.
fn drop_one(draft: &mut Draft<'_>, at: usize, reason: Reason) {
    let servers = &draft.slices[at].servers;
    let load = |id: ServerId| {
        draft
            .server(id)
            .map_or(f64::MAX, |server| draft.load(server))
    };
    let most = servers
        .iter()
        .copied()
        .enumerate()
        .max_by(|a, b| load(a.1).total_cmp(&load(b.1)).then(a.0.cmp(&b.0)));
    if let Some((_, from)) = most {
        draft.drop_replica(at, from, reason);
    }
}
