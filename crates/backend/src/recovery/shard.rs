//! One shard's recovery.

use super::merge::{Held, Merged, Second};
use super::peer::{Peer, Standing};
use super::progress::Progress;
use super::{Setback, merge};
use crate::clock;
use crate::member::Member;
use crate::state::State;
use std::sync::Arc;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHash, Version, epoch};
use trefoil_rpc::v1;
use trefoil_store::PLACES;

/// Rounds of raising the epochs of a cohort until all are the same: others may be
/// raising them, too.
const ROUNDS_MAX: usize = 16;

/// The other two of a shard's cohort: values come from the first one.
pub(super) async fn peers(
    state: &Arc<State>,
    member: &Member,
    shard: usize,
) -> Result<[Peer; 2], Setback> {
    let config = state.config();
    let number = member.store.config().shards.shard(shard);
    let cohort = config.placement().cohort_of_shard(number);
    let others = cohort.as_slice().iter().filter(|n| **n != member.number);
    let mut peers = others.map(|other| Peer::new(state, &config, *other, number));
    let mut next = || {
        peers.next().unwrap_or(Err(Setback::Unreachable {
            number: member.number,
            why: "its cohort has no two others".into(),
        }))
    };
    let mut peers = [next()?, next()?];
    // Not always the same one has the work.
    if shard % 2 == 1 {
        peers.swap(0, 1);
    }
    Ok(peers)
}

/// Recovers a shard, from where an attempt before was interrupted.
pub(super) async fn recover(
    state: &Arc<State>,
    member: &Member,
    shard: usize,
    progress: &Progress,
) -> Result<(), Setback> {
    if !member.store.is_recovering(shard) {
        return Ok(());
    }
    let [mut first, mut second] = peers(state, member, shard).await?;
    let (one, other) = tokio::join!(first.raise_epoch(0), second.raise_epoch(0));
    let standings = raise_epochs(member, shard, [&mut first, &mut second], [one?, other?]).await?;
    match standings.map(|standing| standing.recovering) {
        [false, false] => {
            let incarnations = standings.map(|standing| standing.incarnation);
            let copy = Copy {
                member,
                progress,
                peers: [&first, &second],
            };
            copy.items(progress.resume(shard, incarnations)).await?;
            copy.bounds(shard).await?;
        }
        recovering => {
            let floor = standings.iter().map(|standing| standing.newest).max();
            member.store.raise_floor(shard, floor.unwrap_or_default());
            progress.shard_lost();
            tracing::error!(
                backend = member.number,
                shard = member.store.config().shards.shard(shard),
                also_lost_by = recovering.iter().filter(|lost| **lost).count(),
                "two of three replicas have lost this shard before one had recovered: it is empty now"
            );
        }
    }
    member.store.set_recovering(shard, false);
    Ok(())
}

/// Raises the shard's epoch at both peers and here until all are the same.
async fn raise_epochs(
    member: &Member,
    shard: usize,
    [first, second]: [&mut Peer; 2],
    standings: [Standing; 2],
) -> Result<[Standing; 2], Setback> {
    let known = standings.map(|standing| standing.epoch);
    let highest = known[0].max(known[1]).max(member.store.epoch(shard));
    let mut target = epoch::shared_above(highest).ok_or(Setback::EpochsUsedUp)?;
    for _ in 0..ROUNDS_MAX {
        let (one, other) = tokio::join!(first.raise_epoch(target), second.raise_epoch(target));
        let standings = [one?, other?];
        member.store.raise_epoch(shard, target);
        let own = member.store.epoch(shard);
        if standings.iter().all(|standing| standing.epoch == own) {
            return Ok(standings);
        }
        let highest = standings.map(|standing| standing.epoch);
        target = highest[0].max(highest[1]).max(own);
    }
    Err(Setback::Unreachable {
        number: first.number,
        why: "others are raising the shard's epoch all the time".into(),
    })
}

/// A shard's copy.
struct Copy<'c> {
    member: &'c Member,
    progress: &'c Progress,
    peers: [&'c Peer; 2],
}

impl Copy<'_> {
    /// What stands in the indexes, from place `from` on.
    async fn items(&self, from: u64) -> Result<(), Setback> {
        let [first, second] = self.peers;
        let mut from = from;
        let mut page = match from < PLACES.end {
            true => first.items((from, PLACES.end), true).await?,
            false => return Ok(()),
        };
        loop {
            let until = page.next;
            // While this page is compared and installed, the next one is on its way.
            let next = async {
                match until < PLACES.end {
                    true => first.items((until, PLACES.end), true).await.map(Some),
                    false => Ok(None),
                }
            };
            let (held, next) = tokio::join!(held(second, from, until), next);
            self.install(first, page, held?).await?;
            from = until;
            self.progress.came_to(from);
            // Its index grows as fast as it is filled.
            while self.member.store.maintain(clock::now()).more {}
            match next? {
                Some(next) => page = next,
                None => return Ok(()),
            }
        }
    }

    /// What comes of one page.
    async fn install(
        &self,
        first: &Peer,
        page: v1::CopyItemsResponse,
        mut second: Second,
    ) -> Result<(), Setback> {
        for item in page.items {
            let Some(item) = Item::of(self.member, first, item).await? else {
                // It is another one by now, acknowledged in the new epoch.
                continue;
            };
            let held = Held {
                version: item.version,
                is_value: true,
            };
            match second.merge(item.hash, held) {
                Merged::Value => self.value(&item),
                Merged::Bound(version) => self.bound(item.hash, version),
            }
        }
        for (hash, version) in bounds(first, &page.bounds)? {
            let is_value = false;
            match second.merge(hash, Held { version, is_value }) {
                Merged::Value => {}
                Merged::Bound(version) => self.bound(hash, version),
            }
        }
        for (hash, version) in second.rest() {
            self.bound(hash, version);
        }
        Ok(())
    }

    fn value(&self, item: &Item) {
        match item.install(self.member) {
            Some(Outcome::Applied) => self.progress.installed(item.data.len()),
            // Something newer came meanwhile.
            Some(Outcome::Superseded { .. }) => {}
            _ => self.bound(item.hash, item.version),
        }
    }

    fn bound(&self, hash: KeyHash, version: Version) {
        self.progress.has_disagreed();
        self.member.bound(hash, version);
    }

    /// Tombstones and floors: what was known of keys that have left the indexes.
    async fn bounds(&self, shard: usize) -> Result<(), Setback> {
        for peer in self.peers {
            let mut page = None;
            loop {
                let next = peer.bounds(page.as_ref()).await?;
                for (hash, version) in bounds(peer, &next.bounds)? {
                    self.member.bound(hash, version);
                }
                if let Some(floor) = next.floor {
                    let floor = trefoil_rpc::decode_version(floor);
                    self.member.store.raise_floor(shard, floor);
                }
                if next.done {
                    break;
                }
                page = Some(next);
            }
        }
        Ok(())
    }
}

/// What a peer holds at which version, at some places.
async fn held(peer: &Peer, from: u64, until: u64) -> Result<merge::Second, Setback> {
    let mut second = merge::Second::default();
    let mut from = from;
    while from < until {
        let page = peer.items((from, until), false).await?;
        for (at, (hash, version)) in bounds(peer, &page.bounds)?.enumerate() {
            let is_value = at < page.held as usize;
            second.holds(hash, Held { version, is_value });
        }
        from = page.next;
    }
    Ok(second)
}

/// Bounds that a peer has sent.
pub(super) fn bounds<'w>(
    peer: &Peer,
    words: &'w [u64],
) -> Result<impl ExactSizeIterator<Item = (KeyHash, Version)> + use<'w>, Setback> {
    trefoil_rpc::decode_bounds(words).map_err(|error| peer.malformed(error))
}

/// A value that a peer has sent, sound and of the key that it says.
pub(super) struct Item {
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    data: bytes::Bytes,
}

impl Item {
    /// `None` if it is long, and no longer there.
    pub(super) async fn of(
        member: &Member,
        peer: &Peer,
        item: v1::CopiedItem,
    ) -> Result<Option<Self>, Setback> {
        let version = item.version.map(trefoil_rpc::decode_version);
        let version = version.ok_or_else(|| peer.nonsense("an item without a version"))?;
        let data = match item.data.is_empty() {
            false => item.data,
            true => match peer.long_item(&item.key, version).await? {
                Some(data) => data,
                None => return Ok(None),
            },
        };
        let hasher = member.store.config().hasher;
        let key = DataEntry::decode(&data).map(|entry| entry.key);
        let key = key.ok_or_else(|| peer.nonsense("an item without a key"))?;
        let hash = hasher.hash(key);
        if DataEntry::validate(&data, hash.tag, version, key).is_err() {
            return Err(peer.nonsense("an item whose checksum fails"));
        }
        Ok(Some(Item {
            hash,
            version,
            data,
        }))
    }

    /// Stores it at its own version, under the rules of any SET.
    pub(super) fn install(&self, member: &Member) -> Option<Outcome> {
        let mutation = Mutation {
            action: Action::Set,
            version: self.version,
            entry: DataEntry::decode(&self.data)?,
        };
        Some(member.import(&mutation))
    }
}

impl Member {
    /// What recovery and repair install.
    fn import(&self, mutation: &Mutation<'_>) -> Outcome {
        let _turn = self.make_fit(mutation);
        self.store.import(clock::now(), mutation).outcome
    }

    /// Nothing older than `version` is to be stored of a key. One of another shard is
    /// nonsense, and changes nothing.
    fn bound(&self, hash: KeyHash, version: Version) {
        let _ = self.store.import_bound(hash, version);
    }
}
