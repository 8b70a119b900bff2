//! Form (a): nothing is kept; every request fetches the whole book from a remote
//! cache and unmarshals it, and every change marshals it and sends it back.

use super::{BookError, Books, Counters};
use crate::cache::{Cache, Cached, Stored};
use crate::database::Database;
use crate::{calendar, domain};
use address_book_contract::EncodedAnswer;
use address_book_contract::v1::{AddressBook, ChangeRequest, Interval, StatsAnswer};
use bytes::Bytes;
use prost::Message as _;
use std::ops::Range;
use tonic::metadata::MetadataMap;

/// Tries of a change against others of the same book.
const CHANGE_ATTEMPTS_MAX: usize = 10;

/// Books in a remote cache.
pub struct CachedBooks<C> {
    cache: C,
    database: Option<Database>,
    counters: Counters,
}

impl<C: Cache> CachedBooks<C> {
    /// Books in `cache`, loaded from `database` on a miss.
    pub fn new(cache: C, database: Option<Database>) -> Self {
        CachedBooks {
            cache,
            database,
            counters: Counters::default(),
        }
    }

    /// The book, and what it takes to write it back.
    async fn fetch(&self, owner: &str) -> Result<(AddressBook, Option<u64>), BookError> {
        if let Some(Cached { bytes, token }) = self.cache.get(owner).await? {
            self.counters.hit();
            return Ok((decode(owner, bytes)?, Some(token)));
        }
        Ok((self.load(owner).await?, None))
    }

    async fn load(&self, owner: &str) -> Result<AddressBook, BookError> {
        self.counters.miss();
        let Some(database) = &self.database else {
            return Ok(domain::empty(owner));
        };
        match database.load(owner).await? {
            Some(book) => {
                self.cache.set(owner, encode(&book), None).await?;
                Ok(book)
            }
            None => Ok(domain::empty(owner)),
        }
    }
}

impl<C: Cache> Books for CachedBooks<C> {
    async fn lookup(
        &self,
        _sent: &MetadataMap,
        owner: &str,
        part: Range<usize>,
    ) -> Result<EncodedAnswer, BookError> {
        let (book, _) = self.fetch(owner).await?;
        Ok(domain::answer(&book, part))
    }

    async fn change(&self, _sent: &MetadataMap, change: ChangeRequest) -> Result<u64, BookError> {
        let owner = change.owner.clone();
        if change.whole && self.database.is_none() {
            // Nothing of the old book is needed.
            let book = domain::replacement(change, domain::now_us());
            self.cache.set(&owner, encode(&book), None).await?;
            return Ok(book.version);
        }
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let (mut book, token) = self.fetch(&owner).await?;
            let of = book.version;
            domain::apply(&mut book, change.clone(), domain::now_us());
            if let Some(database) = &self.database
                && !database.save(&book, of).await?
            {
                // The cache was behind: the database has another book, or none.
                let found = self.load(&owner).await?;
                if found.version == 0 {
                    self.cache.set(&owner, encode(&found), None).await?;
                }
                continue;
            }
            let stored = self.cache.set(&owner, encode(&book), token).await?;
            if stored == Stored::Yes {
                return Ok(book.version);
            }
            if self.database.is_some() {
                // It is done, and must not be done again. The cache has what somebody
                // else has put there: the database says what it should be.
                self.load(&owner).await?;
                return Ok(book.version);
            }
        }
        Err(BookError::Contended {
            owner,
            attempts: CHANGE_ATTEMPTS_MAX,
        })
    }

    async fn busy(&self, owners: &[String], within: Interval) -> Result<Vec<Interval>, BookError> {
        let mut times = Vec::new();
        // Whole books travel, for a few numbers of each.
        let found = self.cache.get_many(owners).await?;
        for (owner, bytes) in owners.iter().zip(found) {
            let book = match bytes {
                Some(bytes) => {
                    self.counters.hit();
                    decode(owner, bytes)?
                }
                None => self.load(owner).await?,
            };
            times.extend(calendar::busy(&book, within));
        }
        Ok(calendar::merged(times))
    }

    fn add_stats(&self, stats: &mut StatsAnswer) {
        self.counters.add_to(stats);
    }
}

fn encode(book: &AddressBook) -> Bytes {
    book.encode_to_vec().into()
}

fn decode(owner: &str, bytes: Bytes) -> Result<AddressBook, BookError> {
    AddressBook::decode(bytes).map_err(|source| BookError::NoBook {
        owner: owner.to_owned(),
        source,
    })
}
