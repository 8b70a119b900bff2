//! The store over etcd, for several assigners.
//!
//! | key below `prefix/corpus/` | value | written if |
//! |---|---|---|
//! | `leader` | who leads, in which term; bound to a lease of etcd | nobody leads |
//! | `term` | the last term | with `leader`, if it is still the one that was read |
//! | `assignment` | the assignment in force | the writer is `leader`, and it is still the one that was read |
//! | `members/ID` | a member | the writer is `leader` |
//! | `freeze` | the switch for deployments | the writer is `leader` |
//! | `lease` | the length that no member's lease in force exceeds | the writer is `leader` |
//!
//! Each condition is a comparison in the transaction that writes, so no clock
//! but etcd's own decides who leads, and a former leader writes nothing. The
//! leader's lease is an etcd lease; etcd's locks are not used.

mod client;
mod corpus;
mod follow;
mod keys;
#[cfg(test)]
mod tests;

pub(crate) use corpus::EtcdCorpus;

use super::LeaderRecord;
use client::EtcdClient;
use corpus::decode_leader;
use keys::Keys;
use std::sync::Arc;
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::coordination::StoreError;

/// An etcd that several installations may share.
#[derive(Clone, Debug)]
pub(crate) struct EtcdStore {
    client: Arc<EtcdClient>,
    prefix: String,
}

impl EtcdStore {
    /// Connects when it is first asked.
    pub(crate) fn new(hosts: &[String], prefix: &str, access: &EtcdAccess) -> Result<Self, String> {
        Ok(EtcdStore {
            client: Arc::new(EtcdClient::new(hosts, access)?),
            prefix: prefix.to_owned(),
        })
    }

    /// Who leads a corpus.
    pub(crate) async fn leader(&self, corpus: &str) -> Result<Option<LeaderRecord>, StoreError> {
        let keys = Keys::of(&self.prefix, corpus);
        let found = self.client.get(&keys.leader).await?;
        found.map(|kv| decode_leader(&kv.value)).transpose()
    }

    /// The corpora that have had a leader.
    pub(crate) async fn corpora(&self) -> Result<Vec<String>, StoreError> {
        let (_, kvs) = self
            .client
            .range_prefix(&format!("{}/", self.prefix))
            .await?;
        let mut names: Vec<String> = kvs
            .iter()
            .filter_map(|kv| Keys::corpus_of(&self.prefix, &kv.key))
            .collect();
        names.dedup();
        Ok(names)
    }
}
