//! Where books live: the one thing in which the forms of the service differ.

mod cached;
mod counters;
mod linked;
mod local;
mod remote;
mod sampled;

pub use cached::CachedBooks;
pub use counters::Counters;
pub use linked::{CORPUS, LinkedBooks, LinkedOptions};
pub use local::LocalBooks;
pub use remote::RemoteBooks;

use crate::cache::CacheError;
use crate::database::DatabaseError;
use crate::domain::RequestError;
use address_book_contract::EncodedAnswer;
use address_book_contract::v1::{ChangeRequest, Interval, StatsAnswer};
use std::future::Future;
use std::ops::Range;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use trefoil_layout::hash::KeyHasher;

/// Books, wherever they are. Requests have been checked. `sent` is what came
/// beside a request: a router says there by which map it goes.
pub trait Books: Send + Sync + 'static {
    /// Contacts of a book by position; of a book that nobody wrote, none.
    fn lookup(
        &self,
        sent: &MetadataMap,
        owner: &str,
        part: Range<usize>,
    ) -> impl Future<Output = Result<EncodedAnswer, BookError>> + Send;

    /// Makes a change and gives the book's new version.
    fn change(
        &self,
        sent: &MetadataMap,
        change: ChangeRequest,
    ) -> impl Future<Output = Result<u64, BookError>> + Send;

    /// When any of these people is busy: merged, within `within`.
    fn busy(
        &self,
        owners: &[String],
        within: Interval,
    ) -> impl Future<Output = Result<Vec<Interval>, BookError>> + Send;

    /// Adds what only the books know.
    fn add_stats(&self, stats: &mut StatsAnswer);
}

/// Why a book could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The request makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The remote cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The cache holds something else under this owner's name.
    #[error("the cache holds no book for {owner}: {source}")]
    NoBook {
        /// Whose.
        owner: String,
        /// What is wrong with it.
        source: prost::DecodeError,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Others wrote the same book each time that this change tried to.
    #[error("{owner}'s book was changed by others {attempts} times in a row")]
    Contended {
        /// Whose.
        owner: String,
        /// Tries.
        attempts: usize,
    },
    /// The linked store; also when another server has the book.
    #[error(transparent)]
    Linked(#[from] trefoil_linklet::Error),
    /// A store or a peer answered with an error; passed on as it is.
    #[error("{0}")]
    Remote(Box<Status>),
}

impl From<Status> for BookError {
    fn from(status: Status) -> Self {
        BookError::Remote(Box::new(status))
    }
}

impl From<BookError> for Status {
    fn from(error: BookError) -> Self {
        let code = match &error {
            BookError::Remote(status) => return Status::clone(status),
            BookError::Request(_) => Code::InvalidArgument,
            BookError::Contended { .. } => Code::Aborted,
            BookError::NoBook { .. } => Code::DataLoss,
            // With everything that a router needs to follow a redirect.
            BookError::Linked(error) => return Status::from(error.clone()),
            BookError::Cache(_) | BookError::Database(_) => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    }
}

/// Which of `count` servers has a key, where nobody moves any.
pub fn spread(hasher: &KeyHasher, key: &str, count: usize) -> usize {
    let place = hasher.hash(key.as_bytes()).place;
    // The high bits of the product: a fair share for each.
    ((u128::from(place) * count as u128) >> 64) as usize
}
