//! Going through everything that this server owns.

use crate::error::Error;
use crate::linklet::Linklet;
use crate::spill::Record;
use crate::table::{Found, FoundOwned};
use std::fmt;
use std::sync::Arc;
use tokio::task::yield_now;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// Objects handed out at once, or a few more.
const PART_COUNT_MAX: usize = 256;

/// A key with its object.
type Owned<V> = (Arc<[u8]>, Arc<V>);

/// Everything that a server owns, in parts. Made by [`Linklet::each_owned`].
pub struct EachOwned<V> {
    linklet: Linklet<V>,
    server: Option<ServerId>,
    /// What was not seen yet.
    rest: Option<Slice>,
}

impl<V> fmt::Debug for EachOwned<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EachOwned")
            .field("rest", &self.rest)
            .finish_non_exhaustive()
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Goes through the objects that this server owns, some hundred at a time. No
    /// lock is held between the parts: take as long as you like, wait, change
    /// objects, or stop.
    ///
    /// An object that the server owns from the beginning to the end is handed out
    /// once, as it was when its part was. One that comes or goes meanwhile may be
    /// among them or not; so is one that is put in anew. Copies of other servers'
    /// objects are not. Being handed out is no use of an object
    /// ([`Builder::idle`](crate::Builder::idle)). To see a whole corpus ask every
    /// server while nothing moves.
    ///
    /// ```
    /// # use trefoil_linklet::{Error, Linklet};
    /// # async fn example(sessions: &Linklet<String>) -> Result<usize, Error> {
    /// let mut bytes = 0;
    /// let mut parts = sessions.each_owned();
    /// while let Some(part) = parts.next().await? {
    ///     for (_key, session) in part {
    ///         bytes += session.len();
    ///     }
    /// }
    /// # Ok(bytes) }
    /// ```
    pub fn each_owned(&self) -> EachOwned<V> {
        EachOwned {
            linklet: self.clone(),
            server: self.server_id(),
            rest: Some(Slice::ALL),
        }
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Objects as they were found; those on disk are read, and stay there, for whoever goes
    /// through everything uses nothing. What cannot be read is lost, and reported, or is
    /// loaded when somebody asks for it.
    async fn have_all(&self, found: Vec<FoundOwned<V>>) -> Vec<Owned<V>> {
        type Away = Vec<(Arc<[u8]>, Arc<Record>)>;
        let (mut all, mut away) = (Vec::with_capacity(found.len()), Away::new());
        for (key, found) in found {
            match found {
                Found::Here(value) => all.push((key, value)),
                Found::There(record) => away.push((key, record)),
            }
        }
        if away.is_empty() {
            return all;
        }
        let store = Arc::clone(&self.inner().store);
        let read = move || {
            away.iter().for_each(|(_, record)| record.prefetch());
            let mut read = Vec::with_capacity(away.len());
            for (key, record) in away {
                match store.read_back(&key, &record) {
                    Ok(value) => read.push((key, value)),
                    Err(_) => {
                        store.unreadable(store.key(&key), &record);
                    }
                }
            }
            read
        };
        // It is broken off only with the runtime.
        all.extend(tokio::task::spawn_blocking(read).await.unwrap_or_default());
        all
    }
}

impl<V: Send + Sync + 'static> EachOwned<V> {
    /// The next part; `None` at the end. [`Error::NoLease`]: nothing may be served
    /// now, and the same part can be asked for again. [`Error::NotMember`]: the
    /// membership in which it was begun is over. [`Error::Stale`]: what is kept may
    /// be too old; likewise.
    pub async fn next(&mut self) -> Result<Option<Vec<Owned<V>>>, Error> {
        while let Some(rest) = self.rest {
            let store = &self.linklet.inner().store;
            store.fresh.check()?;
            let served = |until| store.clock() < until;
            let (part, last) = store
                .table
                .owned_of(rest, PART_COUNT_MAX, served)
                .ok_or(Error::NoLease)?;
            // Looked at afterwards: what a former membership had is gone by now.
            if self.server.is_none() || self.linklet.server_id() != self.server {
                return Err(Error::NotMember);
            }
            let part = self.linklet.have_all(part).await;
            // Not before: who gives up waiting sees the same part again.
            let next = last.0.checked_add(1).filter(|&next| next <= rest.last().0);
            self.rest = next.map(|next| Slice::spanning(KeyPoint(next), rest.last()));
            if !part.is_empty() {
                return Ok(Some(part));
            }
            yield_now().await;
        }
        Ok(None)
    }
}
