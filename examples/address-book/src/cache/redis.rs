//! Redis through its own library, one multiplexed connection to each server.
//!
//! A plain SET cannot be conditional on what was read, short of a script or of
//! WATCH and a connection for it alone. This cache does without, as many services
//! do: concurrent changes of one book may lose one. It flatters Redis in
//! comparisons.

use super::{Cache, CacheError, Cached, Stored};
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use std::collections::BTreeMap;
use trefoil_layout::hash::KeyHasher;

/// Servers of one cache; keys are spread by their hash.
pub struct Redis {
    servers: Vec<MultiplexedConnection>,
    hasher: KeyHasher,
}

impl Redis {
    /// Connects to these servers, `host:port` each.
    pub async fn connect(addresses: &[String]) -> Result<Self, CacheError> {
        let mut servers = Vec::with_capacity(addresses.len());
        for address in addresses {
            let client = redis::Client::open(format!("redis://{address}/"))?;
            servers.push(client.get_multiplexed_async_connection().await?);
        }
        Ok(Redis {
            servers,
            hasher: KeyHasher::default(),
        })
    }

    fn index(&self, key: &str) -> usize {
        crate::books::spread(&self.hasher, key, self.servers.len())
    }
}

impl Cache for Redis {
    async fn get(&self, key: &str) -> Result<Option<Cached>, CacheError> {
        let mut server = self.servers[self.index(key)].clone();
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(key).query_async(&mut server).await?;
        Ok(value.map(|value| Cached {
            bytes: value.into(),
            token: 0,
        }))
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, CacheError> {
        let mut by_server: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (position, key) in keys.iter().enumerate() {
            by_server.entry(self.index(key)).or_default().push(position);
        }
        let mut values = vec![None; keys.len()];
        for (server, positions) in by_server {
            let mut command = redis::cmd("MGET");
            for &position in &positions {
                command.arg(&keys[position]);
            }
            let mut server = self.servers[server].clone();
            let found: Vec<Option<Vec<u8>>> = command.query_async(&mut server).await?;
            for (position, value) in positions.into_iter().zip(found) {
                values[position] = value.map(Bytes::from);
            }
        }
        Ok(values)
    }

    async fn set(&self, key: &str, value: Bytes, _over: Option<u64>) -> Result<Stored, CacheError> {
        let mut server = self.servers[self.index(key)].clone();
        let mut command = redis::cmd("SET");
        command.arg(key).arg(&value[..]);
        command.query_async::<()>(&mut server).await?;
        Ok(Stored::Yes)
    }
}
