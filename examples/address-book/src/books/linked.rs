//! Form (b): books as objects in the app server itself, kept by a linked store.
//! The assigner says which server has which keys; books move with them. A
//! request for a book that another server has is redirected there.
//!
//! With a database the books follow it, if there is a relay (`trefoil relay`) that
//! tells of its changes: the version of each row that was changed. What is kept of
//! it is dropped unless it has that version already, which is what this server has
//! written itself.

use super::sampled::OwnBooks;
use super::{BookError, Books, Counters};
use crate::database::Database;
use crate::{calendar, domain};
use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::v1::{AddressBook, BusyRequest, ChangeRequest, Interval, StatsAnswer};
use address_book_contract::{EncodedAnswer, client, endpoint};
use futures_util::future::try_join_all;
use prost::Message as _;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use trefoil_freshness::{Sampler, SamplerOptions, SubscribeOptions, Subscription, read_columns};
use trefoil_linklet::{
    Error, Linklet, Listener, Loaded, LoaderError, Marshal, MarshalError, Replication, Security,
    StartError, StateLoss,
};

/// The corpus that all servers of this service join.
pub const CORPUS: &str = "address-book";

/// Resident bytes of a contact with a phone and an address, about.
const CONTACT_WEIGHT: usize = 400;
const EVENT_WEIGHT: usize = 80;

/// Tries of a change against others of the same book.
const CHANGE_ATTEMPTS_MAX: usize = 10;

/// Books in a linked store.
pub struct LinkedBooks {
    books: Linklet<AddressBook>,
    database: Option<Database>,
    counters: Counters,
    losses: Arc<Losses>,
    peers: Mutex<HashMap<String, AddressBooksClient<Channel>>>,
    /// Tells of what changes in the database, while it is kept.
    following: Option<Subscription>,
}

/// How to join.
#[derive(Debug, Clone)]
pub struct LinkedOptions {
    /// The assigner, `host:port`.
    pub assigner: String,
    /// Where this server serves.
    pub address: String,
    /// Copies on other servers.
    pub replication: Replication,
    /// Bytes of books to keep.
    pub memory: u64,
    /// Cores that may be used; all of them where nothing is said.
    pub cpu: Option<f64>,
    /// The relay that tells of the database's changes, `host:port`.
    pub relay: Option<String>,
    /// Books may cross a network in the clear.
    pub insecure: bool,
}

impl LinkedBooks {
    /// Joins the service's servers. Books that are not in memory come from the
    /// database; without one they live in the servers' memory only. With a relay
    /// what is in memory is no older than it says
    /// ([`Linklet::staleness`]).
    pub async fn join(
        options: LinkedOptions,
        database: Option<Database>,
    ) -> Result<Self, StartError> {
        let losses = Arc::new(Losses::default());
        let mut builder = Linklet::builder(CORPUS, BookMarshal)
            .replication(options.replication)
            .memory(options.memory)
            .insecure(options.insecure)
            .listener(losses.clone());
        if let Some(cores) = options.cpu {
            builder = builder.cpu(cores);
        }
        if let Some(database) = database.clone() {
            builder = builder.loader(move |key: Vec<u8>| {
                let database = database.clone();
                async move {
                    let owner = String::from_utf8_lossy(&key);
                    let book = database.load(&owner).await;
                    let book = book.map_err(LoaderError::from_error)?;
                    Ok(book.map(Loaded::from))
                }
            });
        }
        let books = builder.join(options.assigner, options.address).await?;
        let following = options.relay.map(|relay| {
            let mut to = SubscribeOptions::new(&relay);
            if options.insecure {
                to.security = Security::Plaintext;
            }
            let sink = books.sink_comparing(|book, told| {
                // Of a row that does not say its version nothing is kept.
                told_version(told).is_some_and(|version| book.version >= version)
            });
            Subscription::start(to, sink, None)
        });
        Ok(LinkedBooks {
            books,
            database,
            counters: Counters::default(),
            losses,
            peers: Mutex::default(),
            following,
        })
    }

    /// The linked store itself.
    pub fn linklet(&self) -> &Linklet<AddressBook> {
        &self.books
    }

    /// Compares what this server keeps with the database, if it follows one: a book
    /// each time.
    pub fn sample(&self, every: Duration) -> Option<Sampler> {
        self.following.as_ref()?;
        let options = SamplerOptions {
            interval: every,
            ..SamplerOptions::default()
        };
        let own = OwnBooks::new(self.books.clone(), self.database.clone()?);
        Some(Sampler::start(options, own))
    }

    /// Uses a book where it is.
    async fn read<R>(
        &self,
        books: &Linklet<AddressBook>,
        owner: &str,
        read: impl Fn(&AddressBook) -> R,
    ) -> Result<R, BookError> {
        let found = match self.database {
            Some(_) => books.read_or_load(owner.as_bytes(), &read).await?,
            None => books.read(owner.as_bytes(), &read).await?,
        };
        Ok(found.unwrap_or_else(|| read(&domain::empty(owner))))
    }

    /// Without a database: the book is changed where it is.
    async fn change_in_memory(
        books: &Linklet<AddressBook>,
        change: ChangeRequest,
    ) -> Result<u64, BookError> {
        let owner = change.owner.clone().into_bytes();
        if change.whole {
            let book = domain::replacement(change, domain::now_us());
            let version = book.version;
            books.insert(&owner, book).await?;
            return Ok(version);
        }
        // One step, whether somebody has written it before or not: of two first
        // changes at a time none is lost.
        let empty = domain::empty(&change.owner);
        let apply = |book: &mut AddressBook| {
            domain::apply(book, change, domain::now_us());
            book.version
        };
        Ok(books.upsert(&owner, || empty, apply).await?)
    }

    /// First the database, which refuses what was made of an older book, then memory.
    async fn change_in(
        &self,
        books: &Linklet<AddressBook>,
        database: &Database,
        change: ChangeRequest,
    ) -> Result<u64, BookError> {
        let owner = change.owner.clone();
        // What the book has to contain, after one that did not.
        let mut place = None;
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let held = match &place {
                Some(place) => books.get_at_least(owner.as_bytes(), place).await?,
                None => books.get_or_load(owner.as_bytes()).await?,
            };
            let mut book = match &held {
                Some(held) => AddressBook::clone(held),
                None => domain::empty(&owner),
            };
            let of = book.version;
            domain::apply(&mut book, change.clone(), domain::now_us());
            let version = book.version;
            if !database.save(&book, of).await? {
                // What is in memory is behind: it is loaded anew.
                match self.following {
                    Some(_) => place = Some(database.place().await?),
                    None => drop(books.remove(owner.as_bytes()).await?),
                }
                continue;
            }
            // It is done, whatever becomes of memory: a further try would do it twice.
            match held {
                Some(mut held) => {
                    held.replace(book);
                    match books.commit(held).await.map_err(|refused| refused.error) {
                        Ok(_) => {}
                        // Changed, loaded or dropped meanwhile, and what is there may
                        // be older.
                        Err(Error::Conflict) => drop(books.remove(owner.as_bytes()).await?),
                        Err(error) => return Err(error.into()),
                    }
                }
                // A later change may have been told already, while there was nothing
                // to be dropped: whoever asks for the book loads it.
                None if self.following.is_some() => {}
                None => drop(books.insert(owner.as_bytes(), book).await?),
            }
            return Ok(version);
        }
        Err(BookError::Contended {
            owner,
            attempts: CHANGE_ATTEMPTS_MAX,
        })
    }

    /// Asks the server that has an owner's book.
    async fn busy_elsewhere(
        &self,
        address: &str,
        owner: &str,
        within: Interval,
    ) -> Result<Vec<Interval>, BookError> {
        let request = BusyRequest {
            owners: vec![owner.to_owned()],
            within: Some(within),
        };
        let mut peer = self.peer(address)?;
        Ok(peer.find_busy(request).await?.into_inner().busy)
    }

    fn peer(&self, address: &str) -> Result<AddressBooksClient<Channel>, BookError> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(address) {
            return Ok(peer.clone());
        }
        let endpoint = endpoint(address).map_err(|error| Status::unavailable(error.to_string()))?;
        let peer = client(endpoint.connect_lazy());
        peers.insert(address.to_owned(), peer.clone());
        Ok(peer)
    }
}

impl Books for LinkedBooks {
    async fn lookup(
        &self,
        sent: &MetadataMap,
        owner: &str,
        part: Range<usize>,
    ) -> Result<EncodedAnswer, BookError> {
        let books = self.books.routed(sent);
        self.read(&books, owner, |book| domain::answer(book, part.clone()))
            .await
    }

    async fn change(&self, sent: &MetadataMap, change: ChangeRequest) -> Result<u64, BookError> {
        let books = self.books.routed(sent);
        match &self.database {
            Some(database) => self.change_in(&books, database, change).await,
            None => Self::change_in_memory(&books, change).await,
        }
    }

    async fn busy(&self, owners: &[String], within: Interval) -> Result<Vec<Interval>, BookError> {
        // All at the same time: the answer takes as long as that of the slowest.
        let times = owners.iter().map(|owner| async move {
            let found = self
                .read(&self.books, owner, |book| calendar::busy(book, within))
                .await;
            match found {
                // Only the answer travels, not the calendar. A server that is
                // asked about one person never passes it on.
                Err(BookError::Linked(Error::NotMine(redirect))) if owners.len() > 1 => {
                    let address = redirect.address.as_deref().unwrap_or_default();
                    self.busy_elsewhere(address, owner, within).await
                }
                found => found,
            }
        });
        let times = try_join_all(times).await?;
        Ok(calendar::merged(times.into_iter().flatten().collect()))
    }

    fn add_stats(&self, stats: &mut StatsAnswer) {
        self.counters.add_to(stats);
        let held = self.books.stats();
        stats.hits += held.hits;
        stats.misses += held.misses;
        stats.books += held.entries;
        stats.book_bytes += held.bytes;
        stats.losses += self.losses.count.load(Ordering::Relaxed);
    }
}

/// The version of a row that has changed: the only column that the relay sends.
fn told_version(columns: &[u8]) -> Option<u64> {
    let columns = read_columns(columns).ok()?;
    str::from_utf8(columns.first().copied()??)
        .ok()?
        .parse()
        .ok()
}

/// How a book leaves the process: when it moves or is copied, and never else.
#[derive(Debug, Clone, Copy)]
struct BookMarshal;

impl Marshal<AddressBook> for BookMarshal {
    fn marshal(
        &self,
        _key: &[u8],
        book: &AddressBook,
        out: &mut Vec<u8>,
    ) -> Result<(), MarshalError> {
        book.encode(out)
            .map_err(|error| MarshalError::new(error.to_string()))
    }

    fn unmarshal(&self, _key: &[u8], bytes: &[u8]) -> Result<AddressBook, MarshalError> {
        AddressBook::decode(bytes).map_err(|error| MarshalError::new(error.to_string()))
    }

    fn weigh(&self, book: &AddressBook) -> usize {
        size_of_val(book) + book.contacts.len() * CONTACT_WEIGHT + book.events.len() * EVENT_WEIGHT
    }
}

/// Says on stderr what was lost. With a database nothing is gone for good: it
/// is loaded again.
#[derive(Debug, Default)]
struct Losses {
    count: AtomicU64,
}

impl Listener for Losses {
    fn state_loss(&self, loss: &StateLoss) {
        let count = loss.ranges.len() + loss.keys.len();
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        eprintln!(
            "address-book: lost: {}, {} key ranges and {} keys",
            loss.reason,
            loss.ranges.len(),
            loss.keys.len()
        );
    }
}
