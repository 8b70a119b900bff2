//! Where a value comes from that is not in memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use trefoil_freshness_core::position::Place;

/// A value as loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    /// The value.
    pub value: V,
    /// A place in the database's log whose commit was known to be acknowledged
    /// *before* the database was read: the value contains it. Where nothing is
    /// given, or a place of another history than the one that is followed, it is
    /// known to contain what had been told to this linklet when the load began.
    pub place: Option<Place>,
}

impl<V> From<V> for Loaded<V> {
    fn from(value: V) -> Self {
        Loaded { value, place: None }
    }
}

/// What loads values, from a database for example. Concurrent misses of one
/// key run it once; what it answers with "there is none" is not remembered.
///
/// Closures are loaders: `|key: Vec<u8>| async move { … }`.
pub trait Loader<V>: Send + Sync + 'static {
    /// Loads the value of a key; `None` if there is none.
    fn load(&self, key: Vec<u8>) -> LoadFuture<V>;
}

/// What a loader returns.
pub type LoadFuture<V> =
    Pin<Box<dyn Future<Output = Result<Option<Loaded<V>>, LoaderError>> + Send>>;

impl<V, F, Fut> Loader<V> for F
where
    F: Fn(Vec<u8>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Loaded<V>>, LoaderError>> + Send + 'static,
{
    fn load(&self, key: Vec<u8>) -> LoadFuture<V> {
        Box::pin(self(key))
    }
}

/// Why nothing was loaded. Cheap to clone: everybody who waited for the load
/// gets it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct LoaderError {
    reason: Arc<str>,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl LoaderError {
    /// With the reason in words.
    pub fn new(reason: impl AsRef<str>) -> Self {
        LoaderError {
            reason: reason.as_ref().into(),
            source: None,
        }
    }

    /// From an error of the database's client, kept as the source.
    pub fn from_error(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        LoaderError {
            reason: error.to_string().into(),
            source: Some(Arc::new(error)),
        }
    }

    /// The reason in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
