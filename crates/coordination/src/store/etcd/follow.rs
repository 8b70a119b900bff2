//! Follows everything below a corpus's prefix: lists it, then watches from the
//! next revision on, and lists again whenever the watch has ended, was
//! compacted, or has been quiet for long. A list that is older than what was
//! known is an etcd with old data, which [`CorpusState::after`] finds out.

use super::client::{EtcdClient, revision};
use super::corpus::{decode_assignment, decode_leader, decode_member};
use super::keys::Keys;
use crate::generated::etcd;
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN};
use crate::store::state::{CorpusState, Found, LeaderRecord};
use crate::wire::MemberRecord;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use trefoil_sharder::Assignment;
use trefoil_sharder::coordination::StoreError;

/// A quiet watch is checked against a list this often: a watch that waits for
/// revisions which a restored etcd has not reached again says nothing.
const RELIST_EVERY: Duration = Duration::from_secs(5);

/// The pause between a watch and the next list. A watch that ends soon is followed by one,
/// whatever has ended it: a list is all that is known, and not to be asked for as fast as etcd
/// cancels watches.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    /// After a watch that stood for so long.
    fn after(&mut self, stood: Duration) -> Duration {
        if stood >= BACKOFF_MAX {
            self.0 = BACKOFF_MIN;
            return Duration::ZERO;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(BACKOFF_MAX);
        pause
    }
}

pub(crate) async fn follow(
    client: Arc<EtcdClient>,
    keys: Keys,
    state: watch::Sender<Arc<CorpusState>>,
) {
    let mut backoff = Backoff(BACKOFF_MIN);
    while !state.is_closed() {
        let mut stands = None;
        if let Err(error) = follow_once(&client, &keys, &state, &mut stands).await {
            note(&keys, &state, error);
        }
        let stood = stands.map_or(Duration::ZERO, |since: Instant| since.elapsed());
        sleep(backoff.after(stood)).await;
    }
}

/// Says why etcd is not followed. What cannot be read does not pass by itself:
/// somebody has to look into it.
fn note(keys: &Keys, state: &watch::Sender<Arc<CorpusState>>, error: StoreError) {
    if !matches!(error, StoreError::Unreadable(_)) {
        tracing::debug!(prefix = %keys.all, %error, "following etcd");
        return;
    }
    state.send_if_modified(|state| {
        let news = state.unreadable.as_ref() != Some(&error);
        if news {
            tracing::error!(
                prefix = %keys.all,
                %error,
                "etcd is not followed any more: the map stays as it is until this is mended"
            );
            let mut now = CorpusState::clone(state);
            now.unreadable = Some(error);
            *state = Arc::new(now);
        }
        news
    });
}

/// One list and the watch that follows it; `Ok` when it is time for another. `stands` is
/// since when it watches.
async fn follow_once(
    client: &EtcdClient,
    keys: &Keys,
    state: &watch::Sender<Arc<CorpusState>>,
    stands: &mut Option<Instant>,
) -> Result<(), StoreError> {
    let (listed_at, kvs) = client.range_prefix(&keys.all).await?;
    let mut picture = Picture::default();
    for kv in kvs {
        picture.put(keys, &kv)?;
    }
    picture.show(state);
    let (_open, mut stream) = client.watch_prefix(&keys.all, listed_at + 1).await?;
    *stands = Some(Instant::now());
    loop {
        let answer = match timeout(RELIST_EVERY, stream.message()).await {
            Err(_) => return Ok(()),
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(status)) => return Err(StoreError::Unavailable(status.message().to_owned())),
        };
        if answer.canceled {
            // Compacted, most of the time: the list has what was missed.
            tracing::debug!(reason = answer.cancel_reason, "the watch was cancelled");
            return Ok(());
        }
        if revision(answer.header.as_ref()) < listed_at {
            // Another etcd, or this one with old data.
            return Ok(());
        }
        for event in &answer.events {
            if let Some(kv) = &event.kv {
                match event.r#type() {
                    etcd::event::EventType::Put => picture.put(keys, kv)?,
                    etcd::event::EventType::Delete => picture.delete(keys, &kv.key),
                }
            }
        }
        if !answer.events.is_empty() {
            picture.show(state);
        }
    }
}

/// What is below the prefix.
#[derive(Debug, Default)]
struct Picture {
    assignment: Option<Assignment>,
    members: BTreeMap<Vec<u8>, MemberRecord>,
    leader: Option<LeaderRecord>,
}

impl Picture {
    fn put(&mut self, keys: &Keys, kv: &etcd::KeyValue) -> Result<(), StoreError> {
        if kv.key == keys.assignment.as_bytes() {
            self.assignment = Some(decode_assignment(&kv.value)?);
        } else if kv.key == keys.leader.as_bytes() {
            self.leader = Some(decode_leader(&kv.value)?);
        } else if kv.key.starts_with(keys.members.as_bytes()) {
            self.members
                .insert(kv.key.clone(), decode_member(&kv.value)?);
        }
        Ok(())
    }

    fn delete(&mut self, keys: &Keys, key: &[u8]) {
        if key == keys.assignment.as_bytes() {
            self.assignment = None;
        } else if key == keys.leader.as_bytes() {
            self.leader = None;
        } else {
            self.members.remove(key);
        }
    }

    fn show(&self, state: &watch::Sender<Arc<CorpusState>>) {
        let found = Found {
            assignment: self.assignment.clone(),
            members: self.members.values().cloned().collect(),
            leader: self.leader.clone(),
        };
        let next = state.borrow().after(found);
        state.send_replace(Arc::new(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_ends_at_once_is_followed_by_a_pause() {
        let mut backoff = Backoff(BACKOFF_MIN);
        let long = BACKOFF_MAX.as_millis() as u64;
        let mut pause = |stood_ms| backoff.after(Duration::from_millis(stood_ms));
        let pauses = [0, 0, long - 1, 0, 0, 0].map(&mut pause);
        let doubled = |times: u32| (BACKOFF_MIN * (1 << times)).min(BACKOFF_MAX);
        assert_eq!(pauses, [0, 1, 2, 3, 4, 5].map(doubled));
        // None behind one that has stood for long enough.
        let none = Duration::ZERO;
        let pauses = [long, 10 * long, 1, 0].map(&mut pause);
        assert_eq!(pauses, [none, none, doubled(0), doubled(1)]);
    }
}
