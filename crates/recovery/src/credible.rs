//! What a peer can truly say of a shard.
//!
//! Whoever copies a shard takes over its floor and its epoch, and hands both on. A floor
//! beyond every clock would refuse all that is written, an epoch near the last one all that
//! would recover; and both stay. One wrong clock, or one flipped bit, must not reach a second
//! backend.

use crate::machine::Nonsense;
use trefoil_layout::limits::FLOOR_AHEAD_NS_MAX;
use trefoil_layout::{Version, epoch};
use trefoil_store::Now;

/// Refuses bounds that no clock explains, and epochs that the shards of one cell cannot be
/// in together. Clocks that differ a little are no reason: [`FLOOR_AHEAD_NS_MAX`] is more
/// than any replica takes that is written.
pub(crate) fn check(
    bounds: impl IntoIterator<Item = Version>,
    epochs: impl IntoIterator<Item = u32>,
    now: Now,
) -> Result<(), Nonsense> {
    if bounds.into_iter().any(|bound| is_too_far_ahead(bound, now)) {
        return Err(Nonsense(
            "versions further ahead of this clock than any may be: compare the clocks",
        ));
    }
    let span = epochs.into_iter().fold(None, |span, epoch| match span {
        None => Some((epoch, epoch)),
        Some((lowest, highest)) => Some((epoch.min(lowest), epoch.max(highest))),
    });
    match span.is_none_or(|(lowest, highest)| epoch::are_of_one_cell(lowest, highest)) {
        true => Ok(()),
        false => Err(Nonsense("an epoch that no shard can be in")),
    }
}

/// Whether no clock that is right, or nearly so, can have given that version by now.
pub(crate) fn is_too_far_ahead(version: Version, now: Now) -> bool {
    version.time_ns > now.unix_ns.saturating_add(FLOOR_AHEAD_NS_MAX)
}
