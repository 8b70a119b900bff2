//! Remote caches of strings, as stateless servers use them: keys and values are
//! bytes, and the cache knows nothing of what they mean.

mod memcached;
mod redis;

pub use memcached::Memcached;
pub use redis::Redis;

use bytes::Bytes;
use std::future::Future;
use std::io;

/// A value, and what a conditional write needs.
#[derive(Debug, Clone)]
pub struct Cached {
    /// The value's bytes.
    pub bytes: Bytes,
    /// Changes with every write.
    pub token: u64,
}

/// How a conditional write went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// The value is there.
    Yes,
    /// Somebody else wrote in between.
    Conflict,
}

/// Why a cache did not answer.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The connection.
    #[error("cache at {address}: {source}")]
    Io {
        /// Which server.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// An answer that is none.
    #[error("cache at {address}: unexpected answer {answer:?}")]
    Unexpected {
        /// Which server.
        address: String,
        /// What it said.
        answer: String,
    },
    /// What the redis library says.
    #[error("cache: {0}")]
    Redis(#[from] ::redis::RedisError),
}

/// A cache.
pub trait Cache: Send + Sync + 'static {
    /// A value, if it is there.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Cached>, CacheError>> + Send;

    /// Several values.
    fn get_many(
        &self,
        keys: &[String],
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>, CacheError>> + Send;

    /// Stores a value. With a token, only over the value that it came with,
    /// where the cache can do that.
    fn set(
        &self,
        key: &str,
        value: Bytes,
        over: Option<u64>,
    ) -> impl Future<Output = Result<Stored, CacheError>> + Send;
}
