//! Changes whose closures may wait: one at a time of a key.

use super::admit::{Gate, Pause, Wait, Woken};
use super::propose::{Change, Shown};
use super::write::{Needs, Plan};
use crate::error::Error;
use crate::linklet::Linklet;
use crate::table::Key;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tracing::Instrument as _;
use trefoil_linklet_core::{Access, Replication};

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Changes an object with a closure that may wait, for a database or another
    /// service; `Ok(None)` if the key is absent. One at a time for each key: the
    /// next one begins when this one has ended, and sees what it has done.
    ///
    /// The closure runs at most once, at the key's owner, on an object of its own
    /// that nobody sees before the commit. It may take `limit`; then it is dropped
    /// ([`Error::Overran`]). If it answers with an error that is the result, and
    /// nothing is changed; likewise if it panics, or the future is dropped while
    /// it runs. Once it has ended well, the commit is as for
    /// [`update`](Linklet::update): with [`Replication::Strong`] it goes on if the
    /// future is dropped, or was not begun.
    ///
    /// [`Error::Conflict`]: the key was changed, moved away, evicted, or has ended
    /// while the closure ran. Nothing was changed, but the closure has run.
    /// [`Error::Busy`]: another one was before this, and was not done within the
    /// [patience](crate::Builder::patience); this closure has not run. With
    /// [`Replication::Strong`] other changes of the key wait for it, too, and end
    /// with `Busy`, and the closure does not run before there are enough copies.
    /// With other modes they do not wait, and it is this one that ends with
    /// `Conflict`. Reads never wait.
    ///
    /// A closure that changes the key by itself waits for its own end: do not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use trefoil_linklet::{Error, Linklet};
    /// # async fn price_of(_: &str) -> Result<u64, tonic::Status> { Ok(1) }
    /// # async fn example(carts: &Linklet<Vec<(String, u64)>>) -> Result<(), tonic::Status> {
    /// let items = carts
    ///     .update_async(b"alice", Duration::from_secs(2), async |cart| {
    ///         let price = price_of("tea").await?;
    ///         cart.push(("tea".to_owned(), price));
    ///         Ok::<_, tonic::Status>(cart.len())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_async<R, E>(
        &self,
        key: &[u8],
        limit: Duration,
        change: impl AsyncFnOnce(&mut V) -> Result<R, E>,
    ) -> Result<Option<R>, E>
    where
        V: Clone,
        E: From<Error>,
    {
        let store = &self.inner().store;
        let is_strong = store.replication == Replication::Strong;
        let at = store.key(key);
        let mut wait = Wait::new(self.call().patience);
        let turn = self.turn(at, &wait).await?;
        turn.set_busy(true);
        if is_strong {
            let permitted = self.permitted(at, &mut wait).await;
            self.count(&permitted);
            permitted?;
        }
        store.fresh.check()?;
        // After the wait: the key may have changed meanwhile.
        let looked = self
            .look_at(Access::Commit, at, Needs::Value, &mut wait)
            .await?;
        let Some(seen) = looked.seen(Shown::Fresh) else {
            return Ok(None);
        };
        let (version, stamp) = (seen.version, seen.stamp);
        let mut value = V::clone(seen.value());
        let changing = store.meters.metered(at.point(), change(&mut value));
        let result = match timeout(limit, changing).await {
            Ok(result) => result?,
            Err(_) => return Err(Error::Overran { limit }.into()),
        };
        turn.set_busy(false);
        let value = Arc::new(value);
        if is_strong {
            let change = Change {
                access: Access::Commit,
                shown: Shown::Fresh,
                over: None,
            };
            let plan = Plan::Put(value, stamp);
            let mut wait = Wait::new(self.call().patience);
            let began = Instant::now();
            let span =
                tracing::debug_span!("linklet.commit", corpus = self.corpus(), point = %at.point());
            let done = self
                .carry_out(change, at, looked, plan, turn, &mut wait)
                .instrument(span)
                .await;
            self.count(&done);
            self.count_ended(began, &done);
            done?;
            return Ok(Some(result));
        }
        let weight = store.weight(key, &value);
        let (_, is_done) = self
            .write(key, Some(weight), |entry| match entry {
                Some(entry) if entry.version == version => (Plan::Put(value, stamp), true),
                _ => (Plan::Keep, false),
            })
            .await?;
        drop(turn);
        match is_done {
            true => Ok(Some(result)),
            false => Err(Error::Conflict.into()),
        }
    }

    /// Waits until a strong commit of the key could begin.
    async fn permitted(&self, key: Key<'_>, wait: &mut Wait) -> Result<(), Error> {
        let inner = self.inner();
        loop {
            let pause = {
                let mut guard = inner.life();
                let life = guard.as_mut().ok_or(Error::NotMember)?;
                let request = self.request(life, key, Access::Commit);
                let decision = life.drive(|core, now, values| core.request(now, values, &request));
                match self.decided(life, decision) {
                    Ok(Some(Gate::Owned { .. })) => return Ok(()),
                    Ok(Some(Gate::Copy)) => return Err(Error::NotMember),
                    Ok(None) => Pause::Woken(Woken::new(inner, life, request.ticket)),
                    Err(error) => self.again(error)?,
                }
            };
            self.wait_until(key, wait, pause).await?;
        }
    }
}
