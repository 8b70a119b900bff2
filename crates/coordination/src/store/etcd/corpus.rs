//! What assigners ask, as transactions.

use super::EtcdStore;
use super::client::{EtcdClient, delete, is_revision, is_value, put};
use super::follow::follow;
use super::keys::Keys;
use crate::generated::etcd;
use crate::generated::v1;
use crate::limits::ASSIGNMENT_LEN_MAX;
use crate::session::Tasks;
use crate::store::state::{CorpusState, LeaderRecord};
use crate::store::{Roll, Writer};
use crate::wire::{
    MemberRecord, assignment_from, encode_assignment, freeze_from, freeze_to, lease_from, lease_to,
    member_from, member_to,
};
use prost::Message as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use trefoil_sharder::coordination::{CandidateId, Reply, Request, StoreError};
use trefoil_sharder::{Assignment, AssignmentVersion, Freeze, ServerId};

/// One corpus.
#[derive(Debug)]
pub(crate) struct EtcdCorpus {
    client: Arc<EtcdClient>,
    keys: Keys,
    writer: Writer,
    /// What this candidate was elected with.
    leads: Mutex<Option<Leadership>>,
    state: watch::Receiver<Arc<CorpusState>>,
    _follower: Tasks,
}

#[derive(Clone, Debug)]
struct Leadership {
    term: u64,
    lease: i64,
    /// The value of the leader key, which every write compares.
    record: Vec<u8>,
}

impl EtcdCorpus {
    pub(crate) fn open(store: &EtcdStore, name: &str, writer: Writer) -> Self {
        let keys = Keys::of(&store.prefix, name);
        let (sender, state) = watch::channel(Arc::new(CorpusState::default()));
        let follower = follow(Arc::clone(&store.client), keys.clone(), sender);
        EtcdCorpus {
            client: Arc::clone(&store.client),
            keys,
            writer,
            leads: Mutex::new(None),
            state,
            _follower: Tasks(vec![tokio::spawn(follower).abort_handle()]),
        }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<CorpusState>> {
        self.state.clone()
    }

    pub(crate) async fn request(&self, request: Request) -> Result<Reply, StoreError> {
        match request {
            Request::Load => Ok(Reply::Loaded(self.load().await?.map(|(_, found)| found))),
            Request::Swap {
                term,
                expected,
                next,
            } => self.swap(term, expected, next).await,
            Request::Campaign { candidate, lease } => self.campaign(candidate, lease).await,
            Request::Resign { term, .. } => self.resign(term).await,
        }
    }

    pub(crate) async fn roll(&self) -> Result<Roll, StoreError> {
        let (_, kvs) = self.client.range_prefix(&self.keys.all).await?;
        let mut roll = Roll::default();
        for kv in kvs {
            if kv.key.starts_with(self.keys.members.as_bytes()) {
                roll.members.push(decode_member(&kv.value)?);
            } else if kv.key == self.keys.freeze.as_bytes() {
                roll.freeze = decode_freeze(&kv.value)?;
            } else if kv.key == self.keys.lease.as_bytes() {
                roll.lease = Some(decode_lease(&kv.value)?);
            } else if kv.key == self.keys.assignment.as_bytes() {
                roll.version = Some(decode_assignment(&kv.value)?.version());
            }
        }
        Ok(roll)
    }

    pub(crate) async fn put_member(
        &self,
        term: u64,
        record: &MemberRecord,
    ) -> Result<(), StoreError> {
        let value = member_to(record).encode_to_vec();
        self.write(term, put(&self.keys.member(record.id), value, 0))
            .await
    }

    pub(crate) async fn remove_member(&self, term: u64, id: ServerId) -> Result<(), StoreError> {
        self.write(term, delete(&self.keys.member(id))).await
    }

    pub(crate) async fn set_freeze(&self, term: u64, freeze: Freeze) -> Result<(), StoreError> {
        let record = v1::FreezeRecord {
            mode: freeze_to(freeze).into(),
        };
        self.write(term, put(&self.keys.freeze, record.encode_to_vec(), 0))
            .await
    }

    pub(crate) async fn set_lease(&self, term: u64, lease: Duration) -> Result<(), StoreError> {
        let record = v1::LeaseRecord {
            lease_ms: lease_to(lease),
        };
        self.write(term, put(&self.keys.lease, record.encode_to_vec(), 0))
            .await
    }

    /// The assignment and the revision at which it was written.
    async fn load(&self) -> Result<Option<(i64, Assignment)>, StoreError> {
        match self.client.get(&self.keys.assignment).await? {
            None => Ok(None),
            Some(kv) => Ok(Some((kv.mod_revision, decode_assignment(&kv.value)?))),
        }
    }

    async fn swap(
        &self,
        term: u64,
        expected: Option<AssignmentVersion>,
        next: Assignment,
    ) -> Result<Reply, StoreError> {
        let leadership = self.leadership(term)?;
        let found = self.load().await?;
        let revision = found.as_ref().map_or(0, |(revision, _)| *revision);
        let current = found.map(|(_, assignment)| assignment.version());
        if current != expected {
            return Err(StoreError::Conflict {
                expected,
                found: current,
            });
        }
        let version = next.version();
        if let Some(current) = current.filter(|&current| version <= current) {
            return Err(StoreError::NotNewer {
                current,
                next: version,
            });
        }
        let value = encode_assignment(&next);
        if value.len() > ASSIGNMENT_LEN_MAX {
            return Err(StoreError::Unavailable(format!(
                "an assignment of {} slices takes {} bytes; {ASSIGNMENT_LEN_MAX} are allowed",
                next.slices().len(),
                value.len()
            )));
        }
        let answer = self
            .client
            .transact(etcd::TxnRequest {
                compare: vec![
                    is_value(&self.keys.leader, &leadership.record),
                    is_revision(&self.keys.assignment, revision),
                ],
                success: vec![put(&self.keys.assignment, value, 0)],
                failure: Vec::new(),
            })
            .await?;
        if answer.succeeded {
            return Ok(Reply::Swapped(version));
        }
        match self.leader().await? {
            Some((record, _)) if record.term == term => Err(StoreError::Conflict {
                expected,
                found: self.load().await?.map(|(_, found)| found.version()),
            }),
            leader => Err(self.lost(term, leader.map_or(0, |(record, _)| record.term))),
        }
    }

    async fn campaign(&self, candidate: CandidateId, lease: Duration) -> Result<Reply, StoreError> {
        if let Some(leadership) = self.held() {
            let extended = self.client.keep_alive(leadership.lease).await?;
            // The lease may outlive the key: an etcd with old data has neither
            // or another one.
            if extended
                && let Some((record, _)) = self.leader().await?
                && record.term == leadership.term
                && record.candidate == candidate
            {
                return Ok(Reply::Elected { term: record.term });
            }
            self.set_held(None);
        }
        if let Some((record, kv)) = self.leader().await? {
            if record.candidate != candidate {
                return Ok(Reply::Following {
                    leader: record.candidate,
                    term: record.term,
                });
            }
            // This candidate's own election, whose answer was lost.
            self.set_held(Some(Leadership {
                term: record.term,
                lease: kv.lease,
                record: kv.value,
            }));
            if self.client.keep_alive(kv.lease).await? {
                return Ok(Reply::Elected { term: record.term });
            }
            return Err(StoreError::Unavailable(
                "the lease of the own election has ended".to_owned(),
            ));
        }
        self.stand(candidate, lease).await
    }

    /// Nobody leads: tries to.
    async fn stand(&self, candidate: CandidateId, lease: Duration) -> Result<Reply, StoreError> {
        let last = self.client.get(&self.keys.term).await?;
        let revision = last.as_ref().map_or(0, |kv| kv.mod_revision);
        let term = match last {
            None => 1,
            Some(kv) => decode_term(&kv.value)?.saturating_add(1),
        };
        let id = self.client.grant(lease).await?;
        let record = v1::LeaderRecord {
            candidate: candidate.0,
            term,
            address: self.writer.address.clone(),
        }
        .encode_to_vec();
        let answer = self
            .client
            .transact(etcd::TxnRequest {
                compare: vec![
                    is_revision(&self.keys.leader, 0),
                    is_revision(&self.keys.term, revision),
                ],
                success: vec![
                    put(&self.keys.leader, record.clone(), id),
                    put(&self.keys.term, term.to_string().into_bytes(), 0),
                ],
                failure: Vec::new(),
            })
            .await?;
        if answer.succeeded {
            self.set_held(Some(Leadership {
                term,
                lease: id,
                record,
            }));
            return Ok(Reply::Elected { term });
        }
        self.client.revoke(id).await?;
        match self.leader().await? {
            Some((record, _)) => Ok(Reply::Following {
                leader: record.candidate,
                term: record.term,
            }),
            None => Err(StoreError::Unavailable(
                "the election was undecided: campaign again".to_owned(),
            )),
        }
    }

    async fn resign(&self, term: u64) -> Result<Reply, StoreError> {
        if let Ok(leadership) = self.leadership(term) {
            self.set_held(None);
            self.client.revoke(leadership.lease).await?;
        }
        Ok(Reply::Resigned)
    }

    /// One write under the condition that `term` is the present leader's.
    async fn write(&self, term: u64, operation: etcd::RequestOp) -> Result<(), StoreError> {
        let leadership = self.leadership(term)?;
        let answer = self
            .client
            .transact(etcd::TxnRequest {
                compare: vec![is_value(&self.keys.leader, &leadership.record)],
                success: vec![operation],
                failure: Vec::new(),
            })
            .await?;
        if answer.succeeded {
            Ok(())
        } else {
            Err(self.lost(term, 0))
        }
    }

    async fn leader(&self) -> Result<Option<(LeaderRecord, etcd::KeyValue)>, StoreError> {
        match self.client.get(&self.keys.leader).await? {
            None => Ok(None),
            Some(kv) => Ok(Some((decode_leader(&kv.value)?, kv))),
        }
    }

    fn leadership(&self, term: u64) -> Result<Leadership, StoreError> {
        match self.held() {
            Some(leadership) if leadership.term == term => Ok(leadership),
            held => Err(StoreError::NotLeader {
                term,
                last: held.map_or(0, |leadership| leadership.term),
            }),
        }
    }

    /// Somebody else leads, or nobody.
    fn lost(&self, term: u64, last: u64) -> StoreError {
        self.set_held(None);
        StoreError::NotLeader { term, last }
    }

    fn held(&self) -> Option<Leadership> {
        let leads = self.leads.lock().unwrap_or_else(PoisonError::into_inner);
        leads.clone()
    }

    fn set_held(&self, leadership: Option<Leadership>) {
        *self.leads.lock().unwrap_or_else(PoisonError::into_inner) = leadership;
    }
}

fn unreadable(what: &str, reason: impl std::fmt::Display) -> StoreError {
    StoreError::Unreadable(format!("a {what} that is none: {reason}"))
}

pub(super) fn decode_assignment(value: &[u8]) -> Result<Assignment, StoreError> {
    let message = v1::Assignment::decode(value).map_err(|error| unreadable("assignment", error))?;
    assignment_from(message).map_err(|error| unreadable("assignment", error))
}

pub(super) fn decode_member(value: &[u8]) -> Result<MemberRecord, StoreError> {
    let message = v1::Server::decode(value).map_err(|error| unreadable("member", error))?;
    member_from(message).map_err(|error| unreadable("member", error))
}

pub(super) fn decode_leader(value: &[u8]) -> Result<LeaderRecord, StoreError> {
    let record = v1::LeaderRecord::decode(value).map_err(|error| unreadable("leader", error))?;
    Ok(LeaderRecord {
        candidate: CandidateId(record.candidate),
        term: record.term,
        address: record.address,
    })
}

fn decode_freeze(value: &[u8]) -> Result<Freeze, StoreError> {
    let record = v1::FreezeRecord::decode(value).map_err(|error| unreadable("switch", error))?;
    freeze_from(record.mode).map_err(|error| unreadable("switch", error))
}

fn decode_lease(value: &[u8]) -> Result<Duration, StoreError> {
    let record = v1::LeaseRecord::decode(value).map_err(|error| unreadable("lease", error))?;
    lease_from("lease_ms", record.lease_ms).map_err(|error| unreadable("lease", error))
}

fn decode_term(value: &[u8]) -> Result<u64, StoreError> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| unreadable("term", String::from_utf8_lossy(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_lease_that_nobody_grants_is_unreadable() {
        let stored = |lease_ms| decode_lease(&v1::LeaseRecord { lease_ms }.encode_to_vec());
        assert_eq!(stored(2_500), Ok(Duration::from_millis(2_500)));
        for lease_ms in [0, 299, 3_600_001, u64::MAX] {
            let error = stored(lease_ms).unwrap_err();
            assert!(matches!(error, StoreError::Unreadable(_)), "{error}");
        }
    }
}
