//! Where books live: the one thing in which the forms of the service differ.

mod cached;
mod counters;
mod linked;
mod local;
mod remote;

pub use cached::CachedBooks;
pub use counters::Counters;
pub use linked::{CORPUS, LinkedBooks, LinkedOptions};
pub use local::LocalBooks;
pub use remote::RemoteBooks;

use crate::cache::CacheError;
use crate::database::DatabaseError;
use crate::domain::RequestError;
use address_book_contract::v1::{ChangeRequest, Interval, StatsAnswer};
use address_book_contract::{EncodedAnswer, SERVER_METADATA};
use std::future::Future;
use std::ops::Range;
use tonic::{Code, Status};
use trefoil_layout::hash::KeyHasher;

/// Books, wherever they are. Requests have been checked.
pub trait Books: Send + Sync + 'static {
    /// Contacts of a book by position; of a book that nobody wrote, none.
    fn lookup(
        &self,
        owner: &str,
        part: Range<usize>,
    ) -> impl Future<Output = Result<EncodedAnswer, BookError>> + Send;

    /// Makes a change and gives the book's new version.
    fn change(&self, change: ChangeRequest) -> impl Future<Output = Result<u64, BookError>> + Send;

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
            BookError::Linked(trefoil_linklet::Error::NotMine(to)) => {
                return redirected(&error, to.address.as_deref());
            }
            BookError::Cache(_) | BookError::Database(_) | BookError::Linked(_) => {
                Code::Unavailable
            }
        };
        Status::new(code, error.to_string())
    }
}

/// The caller is told where to go.
fn redirected(error: &BookError, address: Option<&str>) -> Status {
    let mut status = Status::new(Code::FailedPrecondition, error.to_string());
    if let Some(address) = address.and_then(|address| address.parse().ok()) {
        status.metadata_mut().insert(SERVER_METADATA, address);
    }
    status
}

/// Which of `count` servers has a key, where nobody moves any.
pub fn spread(hasher: &KeyHasher, key: &str, count: usize) -> usize {
    let place = hasher.hash(key.as_bytes()).place;
    // The high bits of the product: a fair share for each.
    ((u128::from(place) * count as u128) >> 64) as usize
}
