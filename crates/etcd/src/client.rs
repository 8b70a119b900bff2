//! Calls: one member at a time, the next one after a failure.
//!
//! Everything asked here may be asked twice: reads, transactions that compare what
//! they write ([`Transaction`]), leases (one too many ends by itself).

use crate::error::EtcdError;
use crate::generated as pb;
use crate::generated::auth_client::AuthClient;
use crate::generated::kv_client::KvClient;
use crate::generated::lease_client::LeaseClient;
use crate::generated::watch_client::WatchClient;
use crate::options::EtcdOptions;
use crate::reach::{Reach, Renewed, Token};
use crate::transaction::{Transaction, prefix_end};
use crate::watch::Watch;
use std::error::Error as _;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Longest answer taken: etcd itself takes values of 1.5 MiB.
const MESSAGE_LEN_MAX: usize = 64 << 20;
/// Under which name etcd looks for the token of whoever has authenticated.
const TOKEN_KEY: &str = "token";

/// A client of one etcd, connecting when first used.
#[derive(Debug)]
pub struct EtcdClient {
    reach: Renewed,
    /// Who answered last.
    current: AtomicUsize,
    member_timeout: Duration,
}

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it was written last: etcd's revision of that moment.
    pub revision: i64,
    /// The lease that it goes with; 0 for none.
    pub lease: i64,
}

/// What was read, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The keys that exist, in order.
    pub stored: Vec<Stored>,
    /// etcd's revision at that moment.
    pub revision: i64,
}

impl EtcdClient {
    /// Reads certificates and a password, if there are any, by `read`; connects to nothing
    /// yet. Has to be called inside a tokio runtime. When one of `files` has changed, it reads
    /// them again: connections from then on are made with what they hold. What does not do is
    /// told of in the log, and what was read before goes on.
    pub fn new(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<EtcdOptions, EtcdError> + Send + Sync + 'static,
    ) -> Result<Self, EtcdError> {
        let member_timeout = read()?.member_timeout;
        Ok(EtcdClient {
            reach: Renewed::new(files, Box::new(read))?,
            current: AtomicUsize::new(0),
            member_timeout,
        })
    }

    /// One key, as a majority of etcd's members has it.
    pub async fn get(&self, key: &str) -> Result<Found, EtcdError> {
        self.range(key.into(), Vec::new()).await
    }

    /// Everything whose name begins with `prefix`.
    pub async fn get_prefix(&self, prefix: &str) -> Result<Found, EtcdError> {
        let end = prefix_end(prefix.as_bytes());
        self.range(prefix.into(), end).await
    }

    async fn range(&self, key: Vec<u8>, range_end: Vec<u8>) -> Result<Found, EtcdError> {
        let request = pb::RangeRequest {
            key,
            range_end,
            ..Default::default()
        };
        let found = self
            .call(request, |channel, request| async move {
                let mut kv = KvClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
                kv.range(request).await
            })
            .await?;
        let stored = |kv: pb::KeyValue| Stored {
            key: kv.key,
            value: kv.value,
            revision: kv.mod_revision,
            lease: kv.lease,
        };
        Ok(Found {
            stored: found.kvs.into_iter().map(stored).collect(),
            revision: found.header.map_or(0, |header| header.revision),
        })
    }

    /// Whether its comparisons held, and so its writes were carried out.
    pub async fn transact(&self, transaction: Transaction) -> Result<bool, EtcdError> {
        self.call(transaction.into_request(), |channel, request| async move {
            KvClient::new(channel).txn(request).await
        })
        .await
        .map(|answer| answer.succeeded)
    }

    /// A lease that ends after `lease` without [`EtcdClient::keep_alive`]; its id.
    pub async fn grant(&self, lease: Duration) -> Result<i64, EtcdError> {
        let request = pb::LeaseGrantRequest {
            ttl: lease.as_secs_f64().ceil() as i64,
            id: 0,
        };
        self.call(request, |channel, request| async move {
            LeaseClient::new(channel).lease_grant(request).await
        })
        .await
        .map(|granted| granted.id)
    }

    /// Ends a lease, and the keys that are bound to it.
    pub async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        let request = pb::LeaseRevokeRequest { id };
        self.call(request, |channel, request| async move {
            LeaseClient::new(channel).lease_revoke(request).await
        })
        .await
        .map(|_| ())
    }

    /// Extends a lease; whether it still was one.
    pub async fn keep_alive(&self, id: i64) -> Result<bool, EtcdError> {
        let request = pb::LeaseKeepAliveRequest { id };
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

    /// What happens to one key from `revision` on.
    pub async fn watch(&self, key: &str, revision: i64) -> Result<Watch, EtcdError> {
        let create = pb::WatchCreateRequest {
            key: key.into(),
            start_revision: revision,
            ..Default::default()
        };
        self.call(create, |channel, request: Request<_>| async move {
            let (requests, receiver) = tokio::sync::mpsc::channel(1);
            let request = request.map(|create| {
                let request = pb::WatchRequest {
                    request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
                };
                // There is room for one, and nobody else sends.
                let _ = requests.try_send(request);
                tokio_stream::wrappers::ReceiverStream::new(receiver)
            });
            let mut client = WatchClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
            let answers = client.watch(request).await?.into_inner();
            Ok(Response::new(Watch {
                _requests: requests,
                answers,
            }))
        })
        .await
    }

    /// A call of the caller's own, to the member that answered last, and to nobody else: after
    /// a failure the next call goes to the next member. It is sent once, but for one that etcd
    /// did not look at because the token of before had ended.
    pub async fn call_once<M, T, F, A>(&self, message: M, send: F) -> Result<T, EtcdError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let reach = self.reach.now();
        let current = self.current.load(Ordering::Relaxed);
        let answer = self.call_member(&reach, current, &message, &send).await;
        if answer.is_err() {
            self.turn_from(current);
        }
        answer
    }

    /// Asks each member at most once, beginning with the one that answered last.
    async fn call<M, T, F, A>(&self, message: M, send: F) -> Result<T, EtcdError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let mut last = EtcdError::Unavailable("it has no members".to_owned());
        let reach = self.reach.now();
        for _ in 0..reach.members.len() {
            let current = self.current.load(Ordering::Relaxed);
            match self.call_member(&reach, current, &message, &send).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_outage() => last = error,
                Err(error) => return Err(error),
            }
            self.turn_from(current);
        }
        Err(last)
    }

    /// The next call goes to the next member, unless somebody else has seen to that.
    fn turn_from(&self, current: usize) {
        let _ = self.current.compare_exchange(
            current,
            current.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    async fn call_member<M, T, F, A>(
        &self,
        reach: &Reach,
        member: usize,
        message: &M,
        send: &F,
    ) -> Result<T, EtcdError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = &reach.members[member % reach.members.len()];
        let attempt = async {
            let mut is_second = false;
            loop {
                let mut request = Request::new(message.clone());
                if let Some(token) = token(reach, channel).await? {
                    request.metadata_mut().insert(TOKEN_KEY, token);
                }
                match send(channel.clone(), request).await {
                    Ok(response) => return Ok(response.into_inner()),
                    // Tokens end, and with a restart of etcd they are forgotten.
                    Err(status) if !is_second && reach.credentials.is_some() && is_old(&status) => {
                        is_second = true;
                        *reach.token() = Token::None;
                    }
                    Err(status) => return Err(judge(&status)),
                }
            }
        };
        let patience = self.member_timeout;
        timeout(patience, attempt).await.unwrap_or_else(|_| {
            let ms = patience.as_millis();
            Err(EtcdError::Unavailable(format!("no answer for {ms} ms")))
        })
    }
}

/// What shows etcd who asks, if it wants to know.
async fn token(
    reach: &Reach,
    channel: &Channel,
) -> Result<Option<MetadataValue<Ascii>>, EtcdError> {
    let Some(credentials) = &reach.credentials else {
        return Ok(None);
    };
    match reach.token().clone() {
        Token::Shown(token) => return Ok(Some(token)),
        Token::NotNeeded => return Ok(None),
        Token::None => {}
    }
    let request = pb::AuthenticateRequest {
        name: credentials.user.clone(),
        password: credentials.password.clone(),
    };
    let token = match AuthClient::new(channel.clone()).authenticate(request).await {
        Ok(answer) => {
            let token = answer.into_inner().token;
            let token = token.parse().map_err(|_| {
                EtcdError::Unexpected("a token that no header can carry".to_owned())
            })?;
            Token::Shown(token)
        }
        Err(status) if status.message().contains("authentication is not enabled") => {
            Token::NotNeeded
        }
        Err(status) => return Err(judge(&status)),
    };
    *reach.token() = token.clone();
    Ok(match token {
        Token::Shown(token) => Some(token),
        _ => None,
    })
}

/// Whether a token was good once, or may be needed by now: authentication can be
/// enabled while clients are connected.
fn is_old(status: &Status) -> bool {
    is_of_old_users(status) || status.message().contains("user name is empty")
}

/// Whether etcd's users were changed, or forgotten their tokens, since this one was given.
/// A fresh token may be as old when it arrives: that passes.
fn is_of_old_users(status: &Status) -> bool {
    let message = status.message();
    [
        "invalid auth token",
        "revision of auth store is old",
        "revision in header is old",
    ]
    .iter()
    .any(|text| message.contains(text))
}

/// What a status means to whoever asked.
pub(crate) fn judge(status: &Status) -> EtcdError {
    let message = status.message();
    let is_about_users = [
        "user name is empty",
        "authentication failed",
        "permission denied",
    ]
    .iter()
    .any(|text| message.contains(text));
    match status.code() {
        _ if is_of_old_users(status) => EtcdError::Unavailable(message.to_owned()),
        Code::Unauthenticated | Code::PermissionDenied => EtcdError::Refused(message.to_owned()),
        _ if is_about_users => EtcdError::Refused(message.to_owned()),
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => EtcdError::Unavailable(reason(status)),
        // Too many requests, no room on its disk; of a proxy: too many of anything. Nobody
        // who asks did anything wrong.
        Code::ResourceExhausted | Code::Aborted | Code::DataLoss => {
            EtcdError::Exhausted(message.to_owned())
        }
        code => EtcdError::Unexpected(format!("{message} ({code:?})")),
    }
}

/// The whole of it: of a connection that was not made, the last cause tells most.
fn reason(status: &Status) -> String {
    match status.source() {
        Some(source) => causes(source),
        None => status.message().to_owned(),
    }
}

pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_an_outage_and_what_somebody_has_to_mend_is_none() {
        let outage = |code, text: &str| judge(&Status::new(code, text)).is_outage();
        for (code, text) in [
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
            ),
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::DataLoss, "etcdserver: corrupt cluster"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
            ),
        ] {
            assert!(outage(code, text), "{text}");
        }
        for (code, text) in [
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::Unimplemented, "unknown service"),
        ] {
            assert!(!outage(code, text), "{text}");
        }
    }
}
