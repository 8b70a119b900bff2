//! Values that are on disk, for whoever needs them.

use crate::error::Error;
use crate::flight::{Turn, outcome};
use crate::linklet::Linklet;
use crate::spill::{ReadBack, Record};
use crate::table::{Brought, Found, Key};
use std::sync::Arc;

impl<V: Send + Sync + 'static> Linklet<V> {
    /// A value as it was found. `None`: it is on disk, cannot be read back, and was given
    /// up, for a loader can bring it again; or another one has come in its place.
    pub(crate) async fn have(
        &self,
        key: Key<'_>,
        found: Found<V>,
    ) -> Result<Option<Arc<V>>, Error> {
        match found {
            Found::Here(value) => Ok(Some(value)),
            Found::There(record) => Ok(self.bring(key, record).await?.map(|found| found.value)),
        }
    }

    /// Reads a value from disk, once for everybody who wants it, and keeps it in memory if
    /// there is room. It is what the key had when its record was seen. `None`: as above.
    #[cold]
    pub(crate) async fn bring(
        &self,
        key: Key<'_>,
        record: Arc<Record>,
    ) -> Result<Option<Brought<V>>, Error> {
        let store = &self.inner().store;
        loop {
            let (read, value) = match store.reads.join(key.bytes) {
                Turn::Follow(done) => match outcome(done).await {
                    Some(landed) => landed,
                    // Who was reading it went away.
                    None => continue,
                },
                Turn::Lead(lead) => {
                    let landed = self.read_from_disk(key, &record).await;
                    lead.land(landed.clone());
                    landed
                }
            };
            if !Arc::ptr_eq(&read, &record) {
                // What somebody else has seen of the key.
                continue;
            }
            return match value {
                Ok(value) => Ok(Some(Brought { record, value })),
                Err(_) if store.unreadable(key, &record) && store.has_loader => Ok(None),
                Err(error) => Err(Error::Unreadable(error.to_string())),
            };
        }
    }

    async fn read_from_disk(&self, key: Key<'_>, record: &Arc<Record>) -> ReadBack<V> {
        let store = Arc::clone(&self.inner().store);
        let (name, place) = (key.bytes.to_vec(), Arc::clone(record));
        let read = tokio::task::spawn_blocking(move || store.read_back(&name, &place)).await;
        let store = &self.inner().store;
        // The runtime is about to stop: there is nobody else to wait for it.
        let value = read.unwrap_or_else(|_| store.read_back(key.bytes, record));
        if let Ok(value) = &value {
            let brought = Brought {
                record: Arc::clone(record),
                value: Arc::clone(value),
            };
            store.keep(key, &brought);
        }
        (Arc::clone(record), value)
    }
}
