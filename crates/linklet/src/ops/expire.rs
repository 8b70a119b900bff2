//! Taking out what has ended by itself.

use super::owned::is_mine;
use super::write::Plan;
use crate::error::Error;
use crate::event::Event;
use crate::linklet::{Inner, Linklet};
use crate::stats::Counters;
use crate::table::STEP;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;
use trefoil_linklet_core::{Access, Table as Rules};

/// How long one removal waits for replicas; the next sweep tries again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Removals that wait for replicas at a time.
const AT_ONCE: usize = 64;

/// Looks at all objects now and then, for as long as the linklet exists.
pub(crate) async fn sweep<V: Send + Sync + 'static>(inner: Weak<Inner<V>>) {
    loop {
        let every = inner
            .upgrade()
            .and_then(|present| present.store.table.sweep_every());
        let Some(every) = every else {
            return;
        };
        sleep(every).await;
        let Some(present) = inner.upgrade() else {
            return;
        };
        let store = &present.store;
        let step = (store.clock().as_millis() / STEP.as_millis()) as u32;
        let mine = |status, rules: &Rules| is_mine(store, status, rules);
        let over = store.table.sweep(step, mine);
        if over.is_empty() {
            continue;
        }
        let linklet = Linklet::new(Arc::clone(&present), Vec::new(), PATIENCE);
        let mut expired = Vec::new();
        let mut under_way = JoinSet::new();
        for key in over {
            if under_way.len() >= AT_ONCE
                && let Some(Ok(Some(key))) = under_way.join_next().await
            {
                expired.push(key);
            }
            let linklet = linklet.clone();
            under_way.spawn(async move {
                let taken = linklet.take_out_ended(&key).await;
                taken.then(|| key.to_vec())
            });
        }
        let rest = under_way.join_all().await;
        expired.extend(rest.into_iter().flatten());
        if !expired.is_empty() {
            store.tell(Event::Expired(expired));
        }
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Whether it was taken out. Somebody may have put another one in its place.
    async fn take_out_ended(&self, key: &[u8]) -> bool {
        let taken = self.write_as(Access::Refresh, key, None, |entry| match entry {
            Some(_) => (Plan::Keep, false),
            None => (Plan::Remove, true),
        });
        match taken.await {
            // The latter goes on, until the replicas have confirmed.
            Ok((_, true)) | Err(Error::Indeterminate(_)) => {
                Counters::one(&self.inner().store.counters.expired);
                true
            }
            Ok((_, false)) => false,
            Err(error) => {
                tracing::debug!(%error, "an object that has ended stays for now");
                false
            }
        }
    }
}
