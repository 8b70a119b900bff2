//! Phase 7: slices move from servers with too much to servers with little,
//! those first that even out most for what they cost.
//!
//! *Benefit* is how much the squares of giver's and taker's loads fall, of both
//! metrics: most for a slice that makes both alike, nothing for one that would
//! only swap their roles. Both metrics count, not the larger alone: a taker with
//! idle CPU may get some memory along.
//! *Cost* is the part of the round's budget that the slice takes, of key space
//! or of resident bytes, whichever is more.
//!
//! What keeps slices from swinging: a giver is above `give_above`, a taker
//! ends at `take_up_to` or clearly below what the giver has left; a slice that
//! has just changed servers cools; and nobody is given what he gave away.

use super::draft::{Burden, Draft};
use super::exchange;
use super::plan::{Note, Obstacles, Reason};
use std::collections::BTreeMap;

/// Moves slices.
pub(crate) fn run(draft: &mut Draft<'_>) {
    draft.rescale();
    // A hot key that is about to be isolated is next round's business: nothing
    // else leaves a server because of it.
    let waiting: Vec<Burden> = draft
        .servers
        .iter()
        .map(|server| draft.burden_of_hot_points(server.member.id))
        .collect();
    let mut obstacles = BTreeMap::new();
    while draft.budget.moves > 0 {
        let mut order: Vec<(f64, usize)> = draft
            .active()
            .map(|server| (draft.load(server), server))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let Some(&(lowest, _)) = order.last() else {
            return;
        };
        let cold = lowest < draft.config.cold_below;
        let mut moved = false;
        for &(load, giver) in &order {
            let above = load > draft.config.give_above;
            let gives = above || (cold && load > 1.0);
            if !gives {
                break;
            }
            let rest = draft.servers[giver].burden.minus(waiting[giver]);
            if waiting[giver].cpu > 0.0 && draft.load_with(giver, rest) <= giving_from(draft, above)
            {
                continue;
            }
            let mut met = Obstacles::default();
            if let Some(found) = best(draft, giver, above, &order, &mut met) {
                let from = draft.servers[giver].member.id;
                let to = draft.servers[found.taker].member.id;
                let reason = Reason::Unbalanced {
                    from: load,
                    to: draft.load(found.taker),
                };
                draft.transfer(found.at, from, to, reason);
                moved = true;
                break;
            }
            if above && let Some(found) = exchange::best(draft, giver) {
                let from = draft.servers[giver].member.id;
                let to = draft.servers[found.taker].member.id;
                let with = draft.load(found.taker);
                let reason = Reason::Exchanged { from: load, with };
                draft.transfer(found.given, from, to, reason);
                draft.transfer(found.returned, to, from, reason);
                moved = true;
                break;
            }
            obstacles.insert(giver, met);
        }
        if !moved {
            break;
        }
    }
    for (giver, met) in obstacles {
        let load = draft.load(giver);
        if load > draft.config.give_above {
            draft.notes.push(Note::StillAbove {
                server: draft.servers[giver].member.id,
                load,
                obstacles: met,
            });
        }
    }
}

/// From where on a server gives.
fn giving_from(draft: &Draft<'_>, above: bool) -> f64 {
    if above { draft.config.give_above } else { 1.0 }
}

struct Found {
    at: usize,
    taker: usize,
    worth: f64,
}

/// The best move away from `giver`, if there is one.
fn best(
    draft: &Draft<'_>,
    giver: usize,
    above: bool,
    order: &[(f64, usize)],
    met: &mut Obstacles,
) -> Option<Found> {
    let config = draft.config;
    let id = draft.servers[giver].member.id;
    let giver_before = draft.shares_with(giver, draft.servers[giver].burden);
    let before = giver_before.larger();
    let mut best: Option<Found> = None;
    for at in 0..draft.slices.len() {
        let slice = &draft.slices[at];
        if !slice.servers.contains(&id) {
            continue;
        }
        if draft.is_cooling(at) {
            met.cooling += 1;
            continue;
        }
        if draft.hot_points(at).next().is_some() {
            met.isolating += 1;
            continue;
        }
        let burden = slice.burden();
        if !draft.budget.allows(burden) {
            met.budget += 1;
            continue;
        }
        let giver_shares = draft.shares_with(giver, draft.servers[giver].burden.minus(burden));
        let giver_after = giver_shares.larger();
        let cost = draft.cost(burden);
        // How far the nearest taker is from taking it: for the explanation.
        let mut reached = Reached::TooBig;
        for &(load, taker) in order.iter().rev() {
            if load >= before || (!above && load >= config.cold_below) {
                break;
            }
            if slice.servers.contains(&draft.servers[taker].member.id) {
                continue;
            }
            let carried = draft.servers[taker].burden;
            let taker_before = draft.shares_with(taker, carried);
            let taker_shares = draft.shares_with(taker, carried.plus(burden));
            let taker_after = taker_shares.larger();
            let fits =
                taker_after <= config.take_up_to || taker_after + config.margin <= giver_after;
            let overturns = !above && taker_after > giver_after;
            let benefit = draft.strain(giver, giver_before) + draft.strain(taker, taker_before)
                - draft.strain(giver, giver_shares)
                - draft.strain(taker, taker_shares);
            if !fits || overturns || benefit <= 1e-9 {
                continue;
            }
            if !draft.has_memory(taker, burden.bytes) {
                reached = reached.max(Reached::NoMemory);
                continue;
            }
            if draft.would_return(taker, slice.slice) {
                reached = reached.max(Reached::NoReturn);
                continue;
            }
            reached = Reached::Allowed;
            let worth = benefit / cost;
            if best.as_ref().is_none_or(|best| worth > best.worth) {
                best = Some(Found { at, taker, worth });
            }
        }
        match reached {
            Reached::TooBig => met.too_big += 1,
            Reached::NoMemory => met.no_memory += 1,
            Reached::NoReturn => met.no_return += 1,
            Reached::Allowed => {}
        }
    }
    best
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    TooBig,
    NoMemory,
    NoReturn,
    Allowed,
}
