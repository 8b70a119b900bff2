//! The promise, measured: books that this server keeps are compared with the
//! database, one after another.

use crate::database::{Database, DatabaseError};
use address_book_contract::v1::AddressBook;
use bytes::Bytes;
use prost::Message as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trefoil_freshness::{Sampled, key_hash};
use trefoil_linklet::{EachOwned, Linklet};

/// Books that this server owns, and the database behind them.
pub(super) struct OwnBooks {
    books: Linklet<AddressBook>,
    database: Database,
    /// Where it is in going through all of them.
    parts: EachOwned<AddressBook>,
}

impl OwnBooks {
    pub(super) fn new(books: Linklet<AddressBook>, database: Database) -> Self {
        OwnBooks {
            parts: books.each_owned(),
            books,
            database,
        }
    }
}

/// Of what a book is, not of how somebody has encoded it.
fn fingerprint(book: &AddressBook) -> u64 {
    key_hash(&book.encode_to_vec())
}

impl Sampled for OwnBooks {
    type Error = DatabaseError;

    /// One of each part, so that all parts have their turn.
    async fn pick(&mut self, number: u64) -> Option<Bytes> {
        let Ok(Some(part)) = self.parts.next().await else {
            // All were seen, or nothing may be served now.
            self.parts = self.books.each_owned();
            return None;
        };
        let (key, _) = part.get(number as usize % part.len().max(1))?;
        Some(Bytes::copy_from_slice(key))
    }

    fn kept(&mut self, key: &Bytes) -> Option<u64> {
        // What is in memory is answered at once; otherwise it is on its way.
        let read = pin!(self.books.read(key, fingerprint));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(found)) => found,
            _ => None,
        }
    }

    async fn stored(&mut self, key: &Bytes) -> Result<Option<u64>, DatabaseError> {
        let book = self.database.load(&String::from_utf8_lossy(key)).await?;
        Ok(book.as_ref().map(fingerprint))
    }

    fn staleness(&mut self) -> Option<Duration> {
        self.books.staleness()
    }
}
