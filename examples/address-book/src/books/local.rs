//! The memory of a domain-specific store, form (c): books as objects in one
//! process. Which process has which book is the callers' matter ([`spread`]);
//! nothing moves. The stateful form, where books do move, is `linked`.
//!
//! [`spread`]: super::spread

use super::{BookError, Books, Counters, spread};
use crate::database::Database;
use crate::{calendar, domain};
use address_book_contract::EncodedAnswer;
use address_book_contract::v1::{AddressBook, ChangeRequest, Interval, StatsAnswer};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tonic::metadata::MetadataMap;
use trefoil_layout::hash::KeyHasher;

const SHARDS_COUNT: usize = 64;

type Shard = HashMap<String, AddressBook>;

/// Books of this process.
pub struct LocalBooks {
    shards: Vec<Mutex<Shard>>,
    hasher: KeyHasher,
    database: Option<Database>,
    counters: Counters,
}

impl LocalBooks {
    /// No books yet; those of `database` are loaded when they are asked for.
    pub fn new(database: Option<Database>) -> Self {
        LocalBooks {
            shards: (0..SHARDS_COUNT).map(|_| Mutex::default()).collect(),
            hasher: KeyHasher::default(),
            database,
            counters: Counters::default(),
        }
    }

    fn shard(&self, owner: &str) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[spread(&self.hasher, owner, SHARDS_COUNT)];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a book where it is, after loading it if it has to be.
    async fn read<R>(
        &self,
        owner: &str,
        read: impl Fn(&AddressBook) -> R + Send,
    ) -> Result<R, BookError> {
        if let Some(book) = self.shard(owner).get(owner) {
            self.counters.hit();
            return Ok(read(book));
        }
        self.counters.miss();
        let loaded = match &self.database {
            Some(database) => database.load(owner).await?,
            None => None,
        };
        let Some(loaded) = loaded else {
            return Ok(read(&domain::empty(owner)));
        };
        let mut shard = self.shard(owner);
        // A change may have been made since: it is never undone by what was
        // loaded before it.
        let book = shard.entry(owner.to_owned()).or_insert_with(|| loaded);
        Ok(read(book))
    }
}

impl Books for LocalBooks {
    async fn lookup(
        &self,
        _sent: &MetadataMap,
        owner: &str,
        part: Range<usize>,
    ) -> Result<EncodedAnswer, BookError> {
        self.read(owner, |book| domain::answer(book, part.clone()))
            .await
    }

    async fn change(&self, _sent: &MetadataMap, change: ChangeRequest) -> Result<u64, BookError> {
        let owner = change.owner.clone();
        let Some(database) = &self.database else {
            let mut shard = self.shard(&owner);
            if let Some(book) = shard.get_mut(&owner) {
                domain::apply(book, change, domain::now_us());
                return Ok(book.version);
            }
            let book = domain::replacement(change, domain::now_us());
            let version = book.version;
            shard.insert(owner, book);
            return Ok(version);
        };
        loop {
            let mut book = self.read(&owner, AddressBook::clone).await?;
            let of = book.version;
            domain::apply(&mut book, change.clone(), domain::now_us());
            // First the database, which refuses what was made of an older book.
            if !database.save(&book, of).await? {
                self.shard(&owner).remove(&owner);
                continue;
            }
            let version = book.version;
            let mut shard = self.shard(&owner);
            match shard.get(&owner) {
                Some(newer) if newer.version > version => {}
                _ => drop(shard.insert(owner, book)),
            }
            return Ok(version);
        }
    }

    async fn busy(&self, owners: &[String], within: Interval) -> Result<Vec<Interval>, BookError> {
        let mut times = Vec::new();
        for owner in owners {
            times.extend(
                self.read(owner, |book| calendar::busy(book, within))
                    .await?,
            );
        }
        Ok(calendar::merged(times))
    }

    fn add_stats(&self, stats: &mut StatsAnswer) {
        self.counters.add_to(stats);
        let lock = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.len() as u64
        };
        stats.books += self.shards.iter().map(lock).sum::<u64>();
    }
}
