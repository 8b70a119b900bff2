//! A key that lives as long as its process extends a lease, and that one process at a
//! time can have.

use super::calls::{Calls, name_of_change};
use super::runtime::OwnRuntime;
use crate::store::ConfigStoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use trefoil_etcd::Transaction;

/// A lease is extended so many times in its life.
const EXTENSIONS: u32 = 3;
/// How long its end may take; the lease ends it anyway.
const FAREWELL: Duration = Duration::from_millis(500);

/// What is to stand under a key.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) lease: Duration,
    /// Whether to write it again when it has gone, or leave it to others then.
    pub(super) is_renewed: bool,
}

/// A key of this process.
#[derive(Debug)]
pub(super) struct Leased {
    calls: Arc<Calls>,
    runtime: Arc<OwnRuntime>,
    key: String,
    value: Vec<u8>,
    keeper: AbortHandle,
}

/// Writes it, if nobody has that key: the lease then.
pub(super) async fn take(calls: &Calls, wanted: &Wanted) -> Result<Option<i64>, ConfigStoreError> {
    let id = calls.client.grant(wanted.lease).await;
    let id = id.map_err(|error| calls.translate(error))?;
    let transaction = Transaction::new().if_revision(&wanted.key, 0).put(
        &wanted.key,
        wanted.value.clone(),
        Some(id),
    );
    let written = calls.client.transact(transaction).await;
    if written.map_err(|error| calls.translate(error))? {
        return Ok(Some(id));
    }
    let _ = calls.client.revoke(id).await;
    // An attempt whose answer was lost: its lease is not known, and ends by itself.
    Ok(None)
}

impl Leased {
    /// Keeps what was taken.
    pub(super) fn keep(
        calls: Arc<Calls>,
        runtime: Arc<OwnRuntime>,
        wanted: Wanted,
        id: i64,
    ) -> Self {
        let (key, value) = (wanted.key.clone(), wanted.value.clone());
        let keeper = runtime
            .handle()
            .spawn(extend(Arc::clone(&calls), wanted, id));
        Leased {
            calls,
            runtime,
            key,
            value,
            keeper: keeper.abort_handle(),
        }
    }

    /// Whether it is not extended any more, because it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.keeper.is_finished()
    }
}

impl Drop for Leased {
    /// Others need not wait for the lease's end. Where etcd is away, they do.
    fn drop(&mut self) {
        self.keeper.abort();
        let calls = Arc::clone(&self.calls);
        let (key, value) = (self.key.clone(), self.value.clone());
        let farewell = async move { timeout(FAREWELL, forget(&calls, &key, &value)).await };
        let _ = self.runtime.wait(farewell);
    }
}

async fn extend(calls: Arc<Calls>, wanted: Wanted, mut id: i64) {
    loop {
        sleep(wanted.lease / EXTENSIONS).await;
        match is_extended(&calls, &wanted, id).await {
            Ok(true) | Err(_) => {}
            Ok(false) if !wanted.is_renewed => return,
            Ok(false) => {
                if let Ok(Some(new)) = take(&calls, &wanted).await {
                    id = new;
                }
            }
        }
    }
}

async fn is_extended(calls: &Calls, wanted: &Wanted, id: i64) -> Result<bool, ConfigStoreError> {
    let extended = calls.client.keep_alive(id).await;
    if !extended.map_err(|error| calls.translate(error))? {
        return Ok(false);
    }
    // The lease may outlive the key: an etcd with old data may have one without the other.
    let found = calls.client.get(&wanted.key).await;
    let found = found.map_err(|error| calls.translate(error))?;
    let stored = found.stored.first();
    Ok(stored.is_some_and(|stored| stored.value == wanted.value))
}

/// Takes the key away, if it is still this process's.
async fn forget(calls: &Calls, key: &str, value: &[u8]) {
    let Ok(found) = calls.client.get(key).await else {
        return;
    };
    if let Some(stored) = found.stored.first()
        && stored.value == value
    {
        let delete = Transaction::new()
            .if_revision(key, stored.revision)
            .delete(key);
        let _ = calls.client.transact(delete).await;
    }
}

/// A name that no other process has.
pub(super) fn name() -> String {
    name_of_change()
}
