//! Calls to etcd: one member at a time, the next one after a failure. Nothing
//! is sent twice: whoever asked finds out what became of it.

use super::keys::prefix_end;
use crate::generated::etcd;
use crate::generated::etcd::kv_client::KvClient;
use crate::generated::etcd::lease_client::LeaseClient;
use crate::generated::etcd::watch_client::WatchClient;
use crate::limits::{MESSAGE_LEN_MAX, STORE_TIMEOUT};
use std::future::Future;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::coordination::StoreError;

/// The members of one etcd.
#[derive(Debug)]
pub(crate) struct EtcdClient {
    members: trefoil_etcd::EtcdClient,
    /// What may be missing where etcd closes a connection without a word.
    hint: &'static str,
}

pub(crate) type WatchStream = Streaming<etcd::WatchResponse>;

impl EtcdClient {
    pub(crate) fn new(hosts: &[String], access: &EtcdAccess) -> Result<Self, String> {
        let (of, hosts) = (access.clone(), hosts.to_vec());
        let read = move || {
            let mut options = of.options(hosts.clone())?;
            options.member_timeout = STORE_TIMEOUT;
            Ok(options)
        };
        let members = trefoil_etcd::EtcdClient::new(access.files(), read);
        Ok(EtcdClient {
            members: members.map_err(|error| error.to_string())?,
            hint: access.hint(),
        })
    }

    /// Everything below a prefix, and the revision of that moment.
    pub(crate) async fn range_prefix(
        &self,
        prefix: &str,
    ) -> Result<(i64, Vec<etcd::KeyValue>), StoreError> {
        let request = etcd::RangeRequest {
            key: prefix.into(),
            range_end: prefix_end(prefix.as_bytes()),
            ..Default::default()
        };
        self.call(request, |channel, request| async move {
            let mut kv = KvClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
            kv.range(request).await
        })
        .await
        .map(|found| (revision(found.header.as_ref()), found.kvs))
    }

    /// One key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<etcd::KeyValue>, StoreError> {
        let request = etcd::RangeRequest {
            key: key.into(),
            ..Default::default()
        };
        self.call(request, |channel, request| async move {
            let mut kv = KvClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
            kv.range(request).await
        })
        .await
        .map(|found| found.kvs.into_iter().next())
    }

    /// Compares and writes at one moment.
    pub(crate) async fn transact(
        &self,
        request: etcd::TxnRequest,
    ) -> Result<etcd::TxnResponse, StoreError> {
        self.call(request, |channel, request| async move {
            KvClient::new(channel).txn(request).await
        })
        .await
    }

    /// A lease of etcd; its id.
    pub(crate) async fn grant(&self, lease: Duration) -> Result<i64, StoreError> {
        let request = etcd::LeaseGrantRequest {
            ttl: lease.as_secs_f64().ceil() as i64,
            id: 0,
        };
        self.call(request, |channel, request| async move {
            LeaseClient::new(channel).lease_grant(request).await
        })
        .await
        .map(|granted| granted.id)
    }

    /// Ends a lease, and with it the keys that are bound to it.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), StoreError> {
        let request = etcd::LeaseRevokeRequest { id };
        self.call(request, |channel, request| async move {
            LeaseClient::new(channel).lease_revoke(request).await
        })
        .await
        .map(|_| ())
    }

    /// Extends a lease; whether there still is one.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<bool, StoreError> {
        let request = etcd::LeaseKeepAliveRequest { id };
        self.call(request, |channel, request: Request<_>| async move {
            let request = request.map(tokio_stream::once);
            let answers = LeaseClient::new(channel).lease_keep_alive(request).await?;
            let answer = answers.into_inner().message().await?;
            answer
                .map(Response::new)
                .ok_or_else(|| Status::unavailable("etcd has closed the stream"))
        })
        .await
        .map(|answer| answer.ttl > 0)
    }

    /// What changes below a prefix from a revision on. The sender keeps the
    /// watch open.
    pub(crate) async fn watch_prefix(
        &self,
        prefix: &str,
        start_revision: i64,
    ) -> Result<(tokio::sync::mpsc::Sender<etcd::WatchRequest>, WatchStream), StoreError> {
        let create = etcd::WatchCreateRequest {
            key: prefix.into(),
            range_end: prefix_end(prefix.as_bytes()),
            start_revision,
            progress_notify: false,
        };
        self.call(create, |channel, request: Request<_>| async move {
            let (requests, receiver) = tokio::sync::mpsc::channel(1);
            let request = request.map(|create| {
                let request = etcd::WatchRequest {
                    request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)),
                };
                // There is room for one, and nobody else sends.
                let _ = requests.try_send(request);
                tokio_stream::wrappers::ReceiverStream::new(receiver)
            });
            let mut client = WatchClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
            let answers = client.watch(request).await?.into_inner();
            Ok(Response::new((requests, answers)))
        })
        .await
    }

    async fn call<M, T, F, A>(&self, message: M, send: F) -> Result<T, StoreError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let answer = self.members.call_once(message, send).await;
        answer.map_err(|error| {
            let hint = if error.is_broken_off() { self.hint } else { "" };
            StoreError::Unavailable(format!("{error}{hint}"))
        })
    }
}

/// The store's revision as a header tells it.
pub(crate) fn revision(header: Option<&etcd::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// `key` has this value.
pub(crate) fn is_value(key: &str, value: &[u8]) -> etcd::Compare {
    compare(
        key,
        etcd::compare::CompareTarget::Value,
        etcd::compare::TargetUnion::Value(value.to_vec()),
    )
}

/// `key` was last written at this revision; 0: it does not exist.
pub(crate) fn is_revision(key: &str, revision: i64) -> etcd::Compare {
    compare(
        key,
        etcd::compare::CompareTarget::Mod,
        etcd::compare::TargetUnion::ModRevision(revision),
    )
}

fn compare(
    key: &str,
    target: etcd::compare::CompareTarget,
    union: etcd::compare::TargetUnion,
) -> etcd::Compare {
    etcd::Compare {
        result: etcd::compare::CompareResult::Equal.into(),
        target: target.into(),
        key: key.into(),
        target_union: Some(union),
    }
}

/// Writes a key, bound to a lease (0: to none).
pub(crate) fn put(key: &str, value: Vec<u8>, lease: i64) -> etcd::RequestOp {
    let put = etcd::PutRequest {
        key: key.into(),
        value,
        lease,
    };
    etcd::RequestOp {
        request: Some(etcd::request_op::Request::RequestPut(put)),
    }
}

/// Deletes a key.
pub(crate) fn delete(key: &str) -> etcd::RequestOp {
    let delete = etcd::DeleteRangeRequest {
        key: key.into(),
        range_end: Vec::new(),
    };
    etcd::RequestOp {
        request: Some(etcd::request_op::Request::RequestDeleteRange(delete)),
    }
}
