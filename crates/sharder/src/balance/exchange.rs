//! Where no single move helps, two may: a server full of big values and one
//! full of busy keys can only both come down by giving each other something.
//!
//! Tried for a giver above its limit for which phase 6 has found no move. Only
//! the most promising slices of both sides are looked at: those in which the
//! giver's heavier metric outweighs the other, against those where it is the
//! other way round.

use super::draft::{Burden, Draft, Shares};

/// Takers looked at, and slices of each side.
const TAKERS: usize = 8;
const SLICES: usize = 12;

/// Two slices that change places.
pub(crate) struct Exchange {
    /// The giver's.
    pub(crate) given: usize,
    /// The taker's.
    pub(crate) returned: usize,
    pub(crate) taker: usize,
}

/// The exchange that is worth most for what it costs, if there is one.
pub(crate) fn best(draft: &Draft<'_>, giver: usize) -> Option<Exchange> {
    let giver_burden = draft.servers[giver].burden;
    let giver_before = draft.shares_with(giver, giver_burden);
    // How far the giver's heavier metric outweighs the other.
    let by_bytes = giver_before.bytes > giver_before.cpu;
    let lean = |shares: Shares| {
        let lean = shares.bytes - shares.cpu;
        if by_bytes { lean } else { -lean }
    };
    let metric = |shares: Shares| if by_bytes { shares.bytes } else { shares.cpu };
    let given = leaning(draft, giver, lean);
    let mut takers: Vec<(f64, usize)> = draft
        .active()
        .filter(|&server| server != giver)
        .map(|server| {
            (
                metric(draft.shares_with(server, draft.servers[server].burden)),
                server,
            )
        })
        .collect();
    takers.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    takers.truncate(TAKERS);
    let mut best: Option<(f64, Exchange)> = None;
    for (_, taker) in takers {
        let taker_burden = draft.servers[taker].burden;
        let taker_before = draft.shares_with(taker, taker_burden);
        if taker_before.larger() >= giver_before.larger() {
            continue;
        }
        let returned = leaning(draft, taker, |shares| -lean(shares));
        for &given in &given {
            for &returned in &returned {
                if !may_pass(draft, given, taker) || !may_pass(draft, returned, giver) {
                    continue;
                }
                let (x, y) = (
                    draft.slices[given].burden(),
                    draft.slices[returned].burden(),
                );
                if !draft.budget.allows_both(x, y) {
                    continue;
                }
                let giver_after = giver_burden.minus(x).plus(y);
                let taker_after = taker_burden.minus(y).plus(x);
                let memory = |server, burden: Burden| draft.memory_fits(server, burden.bytes);
                if !memory(taker, taker_after) || !memory(giver, giver_after) {
                    continue;
                }
                let giver_after = draft.shares_with(giver, giver_after);
                let taker_after = draft.shares_with(taker, taker_after);
                let config = draft.config;
                let fits = taker_after.larger() <= config.take_up_to
                    || taker_after.larger() + config.margin <= giver_after.larger();
                let benefit = draft.strain(giver, giver_before) + draft.strain(taker, taker_before)
                    - draft.strain(giver, giver_after)
                    - draft.strain(taker, taker_after);
                if !fits || benefit <= 1e-9 || giver_after.larger() >= giver_before.larger() {
                    continue;
                }
                let worth = benefit / (draft.cost(x) + draft.cost(y));
                if best.as_ref().is_none_or(|(most, _)| worth > *most) {
                    let exchange = Exchange {
                        given,
                        returned,
                        taker,
                    };
                    best = Some((worth, exchange));
                }
            }
        }
    }
    best.map(|(_, exchange)| exchange)
}

/// The slices of a server that may move and lean most, in this order.
fn leaning(draft: &Draft<'_>, server: usize, lean: impl Fn(Shares) -> f64) -> Vec<usize> {
    let id = draft.servers[server].member.id;
    let mut slices: Vec<(f64, usize)> = (0..draft.slices.len())
        .filter(|&at| draft.slices[at].servers.contains(&id))
        .filter(|&at| !draft.is_cooling(at) && draft.hot_points(at).next().is_none())
        .map(|at| {
            (
                lean(draft.shares_with(server, draft.slices[at].burden())),
                at,
            )
        })
        .collect();
    slices.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    slices.truncate(SLICES);
    slices.into_iter().map(|(_, at)| at).collect()
}

/// Whether a slice may go to a server at all.
fn may_pass(draft: &Draft<'_>, at: usize, to: usize) -> bool {
    let slice = &draft.slices[at];
    !slice.servers.contains(&draft.servers[to].member.id) && !draft.would_return(to, slice.slice)
}
