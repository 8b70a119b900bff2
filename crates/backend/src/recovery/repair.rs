//! Repair of a shard that votes again: what was written while it was copying, and did
//! not reach it.
//!
//! A value that both others hold at one version, in one epoch, is a quorum's; it is
//! stored here at its own version, under the rules of any SET (rule 11). Nothing else is
//! changed.

use super::Setback;
use super::peer::Peer;
use super::progress::Progress;
use super::shard::{Item, bounds, peers};
use crate::member::Member;
use crate::state::State;
use std::collections::HashMap;
use std::sync::Arc;
use trefoil_layout::op::Outcome;
use trefoil_layout::{KeyHash, Version, epoch};
use trefoil_store::{PLACES, Position};

/// Goes once through a shard.
pub(super) async fn repair(
    state: &Arc<State>,
    member: &Member,
    shard: usize,
    progress: &Progress,
) -> Result<(), Setback> {
    let [mut first, mut second] = peers(state, member, shard).await?;
    let (one, other) = tokio::join!(first.raise_epoch(0), second.raise_epoch(0));
    if one?.recovering || other?.recovering {
        // It asks this one; what it has lost has no quorum.
        return Ok(());
    }
    let mut from = 0;
    while from < PLACES.end {
        let page = first.items((from, PLACES.end), false).await?;
        let until = page.next;
        let mut agreed = HashMap::new();
        let theirs = bounds(&first, &page.bounds)?.take(page.held as usize);
        if page.epoch != epoch::NONE {
            agreed.extend(theirs.filter(|(hash, version)| lacks(member, *hash, *version)));
        }
        if !agreed.is_empty() {
            keep_agreed(&second, (from, until), page.epoch, &mut agreed).await?;
        }
        for (hash, version) in agreed {
            fetch(&first, member, hash, version, progress).await?;
        }
        from = until;
    }
    Ok(())
}

/// Whether this replica knows nothing as new of a key.
fn lacks(member: &Member, hash: KeyHash, version: Version) -> bool {
    let bound = member.store.bound(hash);
    bound.is_some_and(|bound| bound < version)
}

/// Keeps of `agreed` what this peer holds at the same version and in the same epoch.
async fn keep_agreed(
    peer: &Peer,
    (from, until): (u64, u64),
    epoch: u32,
    agreed: &mut HashMap<KeyHash, Version>,
) -> Result<(), Setback> {
    let mut held = HashMap::new();
    let mut from = from;
    while from < until {
        let page = peer.items((from, until), false).await?;
        if page.epoch == epoch {
            held.extend(bounds(peer, &page.bounds)?.take(page.held as usize));
        }
        from = page.next;
    }
    agreed.retain(|hash, version| held.get(hash) == Some(version));
    Ok(())
}

/// Stores a value that a quorum holds.
async fn fetch(
    peer: &Peer,
    member: &Member,
    hash: KeyHash,
    version: Version,
    progress: &Progress,
) -> Result<(), Setback> {
    let place = Position::place_of(hash);
    let page = peer.items((place, place + 1), true).await?;
    for item in page.items {
        if let Some(item) = Item::of(member, peer, item).await?
            && item.hash == hash
            && item.version == version
            && item.install(member) == Some(Outcome::Applied)
        {
            progress.has_repaired();
        }
    }
    Ok(())
}
