//! Form (c) seen from the stateless app server: books are in stores that
//! understand them. What travels is the part that is asked for, and busy times
//! instead of calendars.

use super::{BookError, Books, spread};
use crate::calendar;
use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::v1::{BusyRequest, ChangeRequest, Interval, LookupRequest, StatsAnswer};
use address_book_contract::{EncodedAnswer, client, endpoint};
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Error};
use trefoil_layout::hash::KeyHasher;

/// Books in domain-specific stores, spread over them by the owner's hash.
pub struct RemoteBooks {
    stores: Vec<AddressBooksClient<Channel>>,
    hasher: KeyHasher,
}

impl RemoteBooks {
    /// Books in the stores at these addresses, `host:port` each. Connects when
    /// they are used.
    pub fn new(addresses: &[String]) -> Result<Self, Error> {
        let store = |address: &String| Ok(client(endpoint(address)?.connect_lazy()));
        Ok(RemoteBooks {
            stores: addresses.iter().map(store).collect::<Result<_, Error>>()?,
            hasher: KeyHasher::default(),
        })
    }

    fn store(&self, owner: &str) -> AddressBooksClient<Channel> {
        self.stores[spread(&self.hasher, owner, self.stores.len())].clone()
    }
}

impl Books for RemoteBooks {
    async fn lookup(
        &self,
        _sent: &MetadataMap,
        owner: &str,
        part: Range<usize>,
    ) -> Result<EncodedAnswer, BookError> {
        let request = LookupRequest {
            owner: owner.to_owned(),
            first: u32::try_from(part.start).unwrap_or(u32::MAX),
            count: u32::try_from(part.len()).unwrap_or(u32::MAX),
        };
        // As an app server that works with what it asked for: unmarshalled, then
        // marshalled for the caller.
        let answer = self.store(owner).lookup(request).await?.into_inner();
        Ok(answer.into())
    }

    async fn change(&self, _sent: &MetadataMap, change: ChangeRequest) -> Result<u64, BookError> {
        let mut store = self.store(&change.owner);
        Ok(store.change(change).await?.into_inner().version)
    }

    async fn busy(&self, owners: &[String], within: Interval) -> Result<Vec<Interval>, BookError> {
        let mut by_store: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for owner in owners {
            let store = spread(&self.hasher, owner, self.stores.len());
            by_store.entry(store).or_default().push(owner.clone());
        }
        let mut asked = JoinSet::new();
        for (store, owners) in by_store {
            let mut store = self.stores[store].clone();
            let within = Some(within);
            asked.spawn(async move { store.find_busy(BusyRequest { owners, within }).await });
        }
        let mut times = Vec::new();
        while let Some(answer) = asked.join_next().await {
            let answer = answer.map_err(|e| Status::internal(format!("a search ended: {e}")))?;
            times.extend(answer?.into_inner().busy);
        }
        Ok(calendar::merged(times))
    }

    fn add_stats(&self, _stats: &mut StatsAnswer) {}
}
