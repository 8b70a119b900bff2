//! Changes that wait for something while they are made.

use super::admit::Wait;
use crate::error::Error;
use crate::linklet::Linklet;

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Changes an object with a closure that may wait, for a call to another service for
    /// example; `None` if the key is absent. One at a time for each key: a second one
    /// waits until the first has ended, for as long as its
    /// [patience](crate::Linklet::patient), and is [`Error::Busy`] then. It sees what
    /// the first has done.
    ///
    /// Nobody sees the change before the closure has ended. Reads, and changes by other
    /// ways than this, go on meanwhile: if the key was changed so, or has moved to
    /// another server, nothing of this one is seen, and the error says so
    /// ([`Error::Conflict`], [`Error::NotMine`]). If the future is dropped, or the
    /// closure panics, nothing was changed, unless the closure had ended; and it is the
    /// next one's turn.
    pub async fn update_async<R, C>(
        &self,
        key: &[u8],
        change: impl FnOnce(V) -> C,
    ) -> Result<Option<R>, Error>
    where
        V: Clone,
        C: Future<Output = (V, R)>,
    {
        let exclusive = self.inner().exclusive.take(key);
        let waited = self.call().patience;
        let Some(turn) = Wait::new(waited).within(exclusive).await else {
            return Err(Error::Busy { waited });
        };
        let Some(mut held) = self.get(key).await? else {
            return Ok(None);
        };
        let (value, result) = change(V::clone(&held)).await;
        held.replace(value);
        let committed = self.commit(held).await;
        drop(turn);
        match committed {
            Ok(_) => Ok(Some(result)),
            Err(refused) => Err(refused.error),
        }
    }
}
