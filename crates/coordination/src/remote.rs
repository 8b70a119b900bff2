//! Assigners across the network. Calls go to the one that leads, as far as it
//! is known; watches go to any.

use crate::address::AssignerAddress;
use crate::error::{CoordinationError, Refusal};
use crate::generated::v1;
use crate::generated::v1::coordination_client::CoordinationClient;
use crate::limits::{MESSAGE_LEN_MAX, STORE_TIMEOUT, WATCH_SILENCE_MAX};
use crate::link::{CallError, FeedEvent, Grant, KeepAlive, Registration};
use crate::viewcell::Servers;
use crate::vitals::Report;
use crate::wire::{
    assignment_from, assignment_to, diff_from, lease_from, lease_to, member_from, member_to,
    refusal_from, report_to, state_to, version_to,
};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};
use trefoil_channel::{Security, failure_text};
use trefoil_sharder::{AssignmentVersion, ServerId};

type Client = CoordinationClient<Channel>;

/// A call that takes longer has failed: an assigner that has been stopped
/// keeps its connections.
const CALL_TIMEOUT: Duration = Duration::from_millis(800);
const _: () = assert!(CALL_TIMEOUT.as_millis() < STORE_TIMEOUT.as_millis());

/// The assigners of one installation.
pub(crate) struct Remote {
    address: AssignerAddress,
    /// What protects the connections, and which corpus they are for.
    security: Security,
    corpus: String,
    clients: Mutex<BTreeMap<String, Client>>,
    leader: Mutex<Leader>,
    watched: AtomicUsize,
    /// Where to watch next, if somebody was named.
    watch_at: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom to ask.
struct Leader {
    /// Place in the list of addresses.
    turn: usize,
    /// Who was said to lead, if he is to be asked first.
    said: Option<String>,
}

impl Remote {
    pub(crate) fn new(
        address: &AssignerAddress,
        security: Security,
        corpus: &str,
    ) -> Result<Self, CoordinationError> {
        let remote = Remote {
            address: address.clone(),
            security,
            corpus: corpus.to_owned(),
            clients: Mutex::new(BTreeMap::new()),
            leader: Mutex::new(Leader {
                turn: 0,
                said: None,
            }),
            // Watches of many processes spread over the assigners.
            watched: AtomicUsize::new(rand::random::<u16>().into()),
            watch_at: Mutex::new(None),
        };
        for host in address.hosts() {
            remote
                .client(host)
                .map_err(|reason| CoordinationError::Address {
                    address: host.clone(),
                    what: "address of an assigner",
                    reason,
                })?;
        }
        Ok(remote)
    }

    pub(crate) async fn register(
        &self,
        corpus: &str,
        registration: Registration,
    ) -> Result<Grant, CallError> {
        let (granted_ms, granted_by) = registration.granted.map_or((0, String::new()), |grant| {
            (lease_to(grant.lease), grant.by)
        });
        let request = v1::RegisterRequest {
            corpus: corpus.to_owned(),
            server: Some(member_to(&registration.record)),
            known: registration.known.map(version_to),
            again: registration.again,
            granted_ms,
            granted_by,
            map: registration
                .told
                .as_ref()
                .map(|told| assignment_to(&told.map)),
            members: registration
                .told
                .iter()
                .flat_map(|told| &told.members)
                .map(|id| id.0)
                .collect(),
        };
        self.call(async |mut client| client.register(request).await)
            .await
            .and_then(|answer| self.grant_from(answer))
    }

    pub(crate) async fn keep_alive(
        &self,
        corpus: &str,
        call: KeepAlive,
    ) -> Result<Grant, CallError> {
        let request = v1::KeepAliveRequest {
            corpus: corpus.to_owned(),
            id: call.id.0,
            life: call.life,
            state: state_to(call.state).into(),
            known: call.known.map(version_to),
        };
        self.call(async |mut client| client.keep_alive(request).await)
            .await
            .and_then(|answer| self.grant_from(answer))
    }

    pub(crate) async fn leave(
        &self,
        corpus: &str,
        id: ServerId,
        life: u64,
    ) -> Result<(), CallError> {
        let request = v1::LeaveRequest {
            corpus: corpus.to_owned(),
            id: id.0,
            life,
        };
        self.call(async |mut client| client.leave(request).await)
            .await
            .map(|_| ())
    }

    pub(crate) async fn report(&self, corpus: &str, report: &Report) -> Result<(), CallError> {
        let request = report_to(corpus, report);
        self.call(async |mut client| client.report(request).await)
            .await
            .map(|_| ())
    }

    pub(crate) async fn watch(
        &self,
        corpus: &str,
        after: Option<AssignmentVersion>,
    ) -> Result<RemoteFeed, CallError> {
        let said = lock(&self.watch_at).take();
        let hosts = self.address.hosts();
        let turn = &hosts[self.watched.load(Ordering::Relaxed) % hosts.len()];
        let host = said.as_ref().unwrap_or(turn);
        let mut client = self.client(host).map_err(CallError::NotSent)?;
        let request = v1::WatchRequest {
            corpus: corpus.to_owned(),
            after: after.map(version_to),
        };
        let stream = answer(host, WATCH_SILENCE_MAX, client.watch(request)).await;
        let stream = stream.inspect_err(|error| self.hang_up(host, error))?;
        Ok(RemoteFeed {
            host: host.clone(),
            stream,
            servers: Servers::default(),
            as_of: None,
            resumed: after,
        })
    }

    pub(crate) fn turn_watch(&self, said: Option<String>) {
        self.watched.fetch_add(1, Ordering::Relaxed);
        *lock(&self.watch_at) = said;
        // The silence may be the connection's.
        lock(&self.clients).clear();
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) fn assigners(&self) -> usize {
        self.address.hosts().len()
    }

    /// Asks whoever is thought to lead; remembers who else to ask next.
    async fn call<T>(
        &self,
        call: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
    ) -> Result<T, CallError> {
        let host = {
            let leader = lock(&self.leader);
            let hosts = self.address.hosts();
            leader
                .said
                .clone()
                .unwrap_or_else(|| hosts[leader.turn % hosts.len()].clone())
        };
        let client = self.client(&host).map_err(CallError::NotSent)?;
        let result = answer(&host, CALL_TIMEOUT, call(client)).await;
        if let Err(error) = &result {
            self.hang_up(&host, error);
        }
        match &result {
            Ok(_) => {}
            Err(CallError::Refused(Refusal::NotLeading {
                address: Some(other),
            })) if *other != host => self.ask_next(Some(other.clone())),
            // Another one may have been started with other flags.
            Err(
                CallError::Refused(Refusal::NotLeading { .. } | Refusal::UnknownCorpus { .. })
                | CallError::Unreachable(_)
                | CallError::NotSent(_),
            ) => self.ask_next(None),
            Err(CallError::Refused(_)) => {}
        }
        result
    }

    /// A lease that nobody grants is no answer: another one is asked next, after a pause.
    fn grant_from(&self, answer: v1::LeaseResponse) -> Result<Grant, CallError> {
        match lease_from("lease_ms", answer.lease_ms) {
            Ok(lease) => Ok(Grant {
                lease,
                by: answer.by,
            }),
            Err(error) => {
                self.ask_next(None);
                Err(CallError::Unreachable(error.to_string()))
            }
        }
    }

    /// Whoever has not answered is dialled anew: a firewall that has forgotten a connection
    /// swallows all that goes over it, for as long as the kernel goes on trying, and lets
    /// new ones through.
    fn hang_up(&self, host: &str, error: &CallError) {
        if matches!(error, CallError::Unreachable(_) | CallError::NotSent(_)) {
            lock(&self.clients).remove(host);
        }
    }

    fn ask_next(&self, said: Option<String>) {
        let mut leader = lock(&self.leader);
        leader.turn = leader.turn.wrapping_add(1);
        leader.said = said;
    }

    fn client(&self, host: &str) -> Result<Client, String> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(host) {
            return Ok(client.clone());
        }
        let channel = self
            .security
            .channel(host, Some(&self.corpus), |endpoint| {
                endpoint.connect_timeout(CALL_TIMEOUT)
            })?;
        let client = CoordinationClient::new(channel)
            .max_decoding_message_size(MESSAGE_LEN_MAX)
            .max_encoding_message_size(MESSAGE_LEN_MAX);
        clients.insert(host.to_owned(), client.clone());
        Ok(client)
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

async fn answer<T>(
    host: &str,
    patience: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    match timeout(patience, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(error_of(host, &status)),
        Err(_) => Err(CallError::Unreachable(format!(
            "{host} has not answered for {patience:?}"
        ))),
    }
}

fn error_of(host: &str, status: &Status) -> CallError {
    if let Some(refusal) = refusal_from(status) {
        return CallError::Refused(refusal);
    }
    let why = format!("{host}: {}", failure_text(status));
    match is_not_connected(status) {
        true => CallError::NotSent(why),
        false => CallError::Unreachable(why),
    }
}

/// Whether no connection could be made on which anything could have been said.
fn is_not_connected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// A watch over the network.
pub(crate) struct RemoteFeed {
    host: String,
    stream: Streaming<v1::WatchEvent>,
    /// As this stream has told them: another assigner may have known less.
    servers: Servers,
    /// The version up to which this stream has told everything.
    as_of: Option<AssignmentVersion>,
    resumed: Option<AssignmentVersion>,
}

impl RemoteFeed {
    pub(crate) async fn next(&mut self) -> Result<FeedEvent, CallError> {
        let broken = |error: crate::wire::WireError| CallError::Unreachable(error.to_string());
        let event = match self.stream.message().await {
            Ok(Some(event)) => event,
            Ok(None) => {
                return Err(CallError::Unreachable(format!(
                    "{} has closed the watch",
                    self.host
                )));
            }
            Err(status) => return Err(error_of(&self.host, &status)),
        };
        let assignment = event
            .assignment
            .map(assignment_from)
            .transpose()
            .map_err(broken)?;
        let diffs = event
            .diffs
            .into_iter()
            .map(diff_from)
            .collect::<Result<Vec<_>, _>>()
            .map_err(broken)?;
        if let Some(members) = event.members {
            let servers = members
                .servers
                .into_iter()
                .map(|server| member_from(server).map(|record| (record.id, record.info)))
                .collect::<Result<_, _>>()
                .map_err(broken)?;
            self.servers = Servers::new(servers);
            // The first event brings everything since what was resumed.
            self.as_of = self.as_of.max(self.resumed.take());
        }
        let told = assignment.as_ref().map(|assignment| assignment.version());
        let told = diffs.iter().map(|diff| diff.to).chain(told).max();
        self.as_of = self.as_of.max(told);
        Ok(FeedEvent {
            assignment,
            diffs,
            servers: self.servers.clone(),
            as_of: self.as_of,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_that_nobody_grants_is_no_answer_and_another_is_asked() {
        let address = "127.0.0.1:1,127.0.0.1:2".parse().unwrap();
        let remote = Remote::new(&address, Security::Loopback, "mail").unwrap();
        let grant = |lease_ms| {
            let by = "somebody".to_owned();
            remote.grant_from(v1::LeaseResponse { lease_ms, by })
        };
        assert_eq!(grant(2_500).unwrap().lease, Duration::from_millis(2_500));
        assert_eq!(lock(&remote.leader).turn, 0);
        for (turn, lease_ms) in [0, 299, 3_600_001, u64::MAX].into_iter().enumerate() {
            // As if it did not answer: a member asks again, later each time.
            let refused = grant(lease_ms);
            assert!(
                matches!(refused, Err(CallError::Unreachable(_))),
                "{lease_ms}"
            );
            assert_eq!(lock(&remote.leader).turn, turn + 1);
        }
    }
}
