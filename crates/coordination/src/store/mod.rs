//! Where assignments, members and the switch for deployments are kept: the
//! promises of `sharder::coordination`, kept for real.
//!
//! Whoever writes names his term, and writes nothing once somebody else leads.
//! Whoever reads follows [`CorpusState`], which never goes back: a store that
//! does is told of in `behind`, and what was known stays.

mod address;
mod embedded;
mod etcd;
mod file;
mod state;

pub use address::StoreAddress;
pub(crate) use state::{CorpusState, LeaderRecord, News};

use crate::error::CoordinationError;
use crate::wire::MemberRecord;
use embedded::{EmbeddedCorpus, EmbeddedFile};
use etcd::{EtcdCorpus, EtcdStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::coordination::{CandidateId, Reply, Request, StoreError};
use trefoil_sharder::{AssignmentVersion, Freeze, ServerId};

/// Who writes: told to those who ask the wrong assigner.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) candidate: CandidateId,
    /// Where its service is; empty if it has none.
    pub(crate) address: String,
}

/// What a leader begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roll {
    pub(crate) members: Vec<MemberRecord>,
    pub(crate) freeze: Freeze,
    /// No lease in force is longer; nothing in stores that were never told.
    pub(crate) lease: Option<Duration>,
    /// The assignment of the same moment.
    pub(crate) version: Option<AssignmentVersion>,
}

/// An opened store.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Embedded(Arc<EmbeddedFile>),
    Etcd(EtcdStore),
}

impl Store {
    /// In memory, for this process alone.
    pub(crate) fn embedded() -> Self {
        Store::Embedded(Arc::new(EmbeddedFile::none()))
    }

    /// Opens what the address names; `access` is for etcd.
    pub(crate) fn open(
        address: &StoreAddress,
        access: &EtcdAccess,
    ) -> Result<Self, CoordinationError> {
        match address {
            StoreAddress::Memory => Ok(Store::embedded()),
            StoreAddress::File(path) => {
                let file = EmbeddedFile::open(path).map_err(|reason| CoordinationError::Store {
                    store: address.to_string(),
                    reason,
                })?;
                Ok(Store::Embedded(Arc::new(file)))
            }
            StoreAddress::Etcd { hosts, prefix } => {
                let store = EtcdStore::new(hosts, prefix, access);
                let store = store.map_err(|reason| CoordinationError::Store {
                    store: address.to_string(),
                    reason,
                })?;
                Ok(Store::Etcd(store))
            }
        }
    }

    /// The corpora that it has something of.
    pub(crate) async fn corpora(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Store::Embedded(file) => Ok(file.corpora()),
            Store::Etcd(store) => store.corpora().await,
        }
    }

    /// Who leads a corpus, as the store has it now.
    pub(crate) async fn leader(&self, corpus: &str) -> Result<Option<LeaderRecord>, StoreError> {
        match self {
            // One process has it, and it knows what it leads.
            Store::Embedded(_) => Ok(None),
            Store::Etcd(store) => store.leader(corpus).await,
        }
    }

    /// One corpus of it, followed from now on.
    pub(crate) fn corpus(&self, name: &str, writer: Writer) -> CorpusStore {
        match self {
            Store::Embedded(file) => {
                CorpusStore::Embedded(Arc::new(EmbeddedCorpus::open(file, name, writer)))
            }
            Store::Etcd(store) => {
                CorpusStore::Etcd(Arc::new(EtcdCorpus::open(store, name, writer)))
            }
        }
    }
}

/// One corpus of a store.
#[derive(Clone, Debug)]
pub(crate) enum CorpusStore {
    Embedded(Arc<EmbeddedCorpus>),
    Etcd(Arc<EtcdCorpus>),
}

impl CorpusStore {
    /// What the assigner asks.
    pub(crate) async fn request(&self, request: Request) -> Result<Reply, StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.request(request).await,
            CorpusStore::Etcd(corpus) => corpus.request(request).await,
        }
    }

    /// The members and the switch, as they are now.
    pub(crate) async fn roll(&self) -> Result<Roll, StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => Ok(corpus.roll().await),
            CorpusStore::Etcd(corpus) => corpus.roll().await,
        }
    }

    /// Writes a member, if `term` is that of the present leader.
    pub(crate) async fn put_member(
        &self,
        term: u64,
        record: &MemberRecord,
    ) -> Result<(), StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.put_member(term, record).await,
            CorpusStore::Etcd(corpus) => corpus.put_member(term, record).await,
        }
    }

    /// Strikes a member off, likewise.
    pub(crate) async fn remove_member(&self, term: u64, id: ServerId) -> Result<(), StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.remove_member(term, id).await,
            CorpusStore::Etcd(corpus) => corpus.remove_member(term, id).await,
        }
    }

    /// Sets the switch for deployments, likewise.
    pub(crate) async fn set_freeze(&self, term: u64, freeze: Freeze) -> Result<(), StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.set_freeze(term, freeze).await,
            CorpusStore::Etcd(corpus) => corpus.set_freeze(term, freeze).await,
        }
    }

    /// Sets the length that no lease in force exceeds, likewise.
    pub(crate) async fn set_lease(&self, term: u64, lease: Duration) -> Result<(), StoreError> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.set_lease(term, lease).await,
            CorpusStore::Etcd(corpus) => corpus.set_lease(term, lease).await,
        }
    }

    /// Whether it belongs to this process alone, as long as that lives.
    pub(crate) fn is_sole(&self) -> bool {
        matches!(self, CorpusStore::Embedded(_))
    }

    /// What is in force, now and whenever it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<CorpusState>> {
        match self {
            CorpusStore::Embedded(corpus) => corpus.watch(),
            CorpusStore::Etcd(corpus) => corpus.watch(),
        }
    }
}
