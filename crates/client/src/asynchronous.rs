//! The client for async callers.
//!
//! A lookup on the backend's host takes about a microsecond and waits for
//! nobody, so it runs where it is called. Mutations, and lookups that have to
//! ask somebody, wait: they run on the runtime's blocking threads, each with a
//! client of the pool.

use crate::cell::Cell;
use crate::client::Client;
use crate::error::{Mutated, OpError};
use crate::get::{Lookup, Miss};
use crate::mutate::{FillTicket, SetOptions};
use crate::options::Options;
use std::sync::{Arc, Mutex};
use trefoil_layout::Version;
use trefoil_layout::op::Expected;

/// A client that tasks share. Cheap to clone.
#[derive(Clone)]
pub struct AsyncClient {
    pool: Arc<Pool>,
}

struct Pool {
    cell: Cell,
    options: Options,
    idle: Mutex<Vec<Client>>,
}

/// A hit that owns its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedHit {
    /// The value's bytes.
    pub value: Vec<u8>,
    /// The mutation that wrote it.
    pub version: Version,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
}

/// A lookup's result that owns its value.
#[derive(Clone, Debug)]
pub enum OwnedLookup {
    /// A value.
    Hit(OwnedHit),
    /// None, and why.
    Miss(Miss),
}

impl Lookup<'_> {
    /// Copies the value out of the client's memory.
    pub fn into_owned(self) -> OwnedLookup {
        match self {
            Lookup::Hit(hit) => OwnedLookup::Hit(OwnedHit {
                value: hit.value.to_vec(),
                version: hit.version,
                client_flags: hit.client_flags,
                expiry_ms: hit.expiry_ms,
            }),
            Lookup::Miss(miss) => OwnedLookup::Miss(miss),
        }
    }
}

impl Cell {
    /// A client for async callers. Needs a tokio runtime when it is used.
    pub fn async_client(&self, options: Options) -> AsyncClient {
        let pool = Pool {
            cell: self.clone(),
            options,
            idle: Mutex::new(Vec::new()),
        };
        AsyncClient {
            pool: Arc::new(pool),
        }
    }
}

impl Pool {
    fn take(&self) -> Client {
        let idle = self.idle.lock().unwrap_or_else(|e| e.into_inner()).pop();
        idle.unwrap_or_else(|| self.cell.client(self.options))
    }

    fn put(&self, client: Client) {
        self.idle
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(client);
    }
}

impl AsyncClient {
    /// See [`Client::get`].
    pub async fn get(&self, key: &[u8]) -> Result<OwnedLookup, OpError> {
        let mut client = self.pool.take();
        if client.reads_without_waiting(key) {
            let result = client.get(key).map(Lookup::into_owned);
            self.pool.put(client);
            return result;
        }
        let key = key.to_vec();
        self.blocking(client, move |client| {
            client.get(&key).map(Lookup::into_owned)
        })
        .await
    }

    /// See [`Client::set`].
    pub async fn set(
        &self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        let client = self.pool.take();
        self.blocking(client, move |client| client.set(&key, &value, options))
            .await
    }

    /// See [`Client::fill`].
    pub async fn fill(
        &self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        let client = self.pool.take();
        self.blocking(client, move |client| {
            client.fill(ticket, &key, &value, options)
        })
        .await
    }

    /// See [`Client::erase`].
    pub async fn erase(&self, key: &[u8]) -> Result<Mutated, OpError> {
        let key = key.to_vec();
        let client = self.pool.take();
        self.blocking(client, move |client| client.erase(&key))
            .await
    }

    /// See [`Client::cas`].
    pub async fn cas(
        &self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        let client = self.pool.take();
        self.blocking(client, move |client| {
            client.cas(&key, expected, &value, options)
        })
        .await
    }

    /// Runs to its end even if the caller goes away: a mutation that was sent
    /// to one replica is sent to all.
    async fn blocking<T: Send + 'static>(
        &self,
        mut client: Client,
        run: impl FnOnce(&mut Client) -> Result<T, OpError> + Send + 'static,
    ) -> Result<T, OpError> {
        let pool = self.pool.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = run(&mut client);
            pool.put(client);
            result
        });
        task.await.map_err(|error| {
            OpError::Indeterminate(format!("the operation was aborted: {error}"))
        })?
    }
}
