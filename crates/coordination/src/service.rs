//! The assigner's gRPC service.

use crate::address::AssignerAddress;
use crate::error::{CoordinationError, Refusal};
use crate::generated::v1;
use crate::generated::v1::coordination_client::CoordinationClient;
use crate::generated::v1::coordination_server::{Coordination, CoordinationServer};
use crate::limits::{MESSAGE_LEN_MAX, STORE_TIMEOUT, WATCH_BEAT};
use crate::link::{Grant, KeepAlive, Registration, behind};
use crate::node::{Node, NodeOptions, NodeStatus, Resigned, collect};
use crate::store::{CorpusState, News, Store, StoreAddress};
use crate::view::ServerInfo;
use crate::viewcell::Servers;
use crate::wire::{
    MemberRecord, WireError, assignment_from, assignment_to, diff_to, freeze_from, freeze_to,
    lease_from, member_from, member_to, refusal_from, report_from, state_from, status_of,
    version_from,
};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use trefoil_channel::{Right, Security, failure_text, permit};
use trefoil_endpoint::{Drain, Process, Samples};
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::coordination::{StoreError, Told};
use trefoil_sharder::{AssignmentVersion, Freeze, ServerId};

/// Events that wait for a slow watcher, which then gets several at once.
const EVENTS_MAX: usize = 4;

/// An assigner that serves.
#[derive(Debug)]
pub struct AssignerServer {
    node: Arc<Node>,
    store: String,
    address: SocketAddr,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl AssignerServer {
    /// Opens the store and listens. An address in `options` is what others are
    /// told; where it is empty, that is where it listens.
    pub async fn start(
        listen: SocketAddr,
        store: &StoreAddress,
        mut options: NodeOptions,
    ) -> Result<Self, CoordinationError> {
        let failed = |error: std::io::Error| CoordinationError::Listen {
            address: listen.to_string(),
            reason: error.to_string(),
        };
        let security = options.security.clone();
        security
            .check_listen(listen)
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let opened = Store::open(store, &options.etcd)?;
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if options.address.is_empty() {
            options.address = address.to_string();
        }
        let node = Arc::new(Node::start(opened, options)?);
        match timeout(STORE_TIMEOUT, node.resume()).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => tracing::warn!(%store, %refusal, "the store does not answer yet"),
            Err(_) => tracing::warn!(%store, "the store does not answer yet"),
        }
        if !node.has_resumed() {
            tokio::spawn(resume_later(Arc::downgrade(&node)));
        }
        let service = CoordinationServer::new(Service {
            node: Arc::clone(&node),
            store: store.to_string(),
            security: security.clone(),
        })
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let server = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .http2_keepalive_interval(Some(Duration::from_secs(5)))
            .http2_keepalive_timeout(Some(Duration::from_secs(5)))
            .add_service(service)
            .serve_with_incoming_shutdown(security.incoming(listener), async {
                let _ = stopped.await;
            });
        Ok(AssignerServer {
            node,
            store: store.to_string(),
            address,
            task: tokio::spawn(server),
            stop: Some(stop),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it tells at a port for metrics. To be called in its runtime.
    pub fn process(&self) -> Arc<dyn Process> {
        Arc::new(AssignerProcess {
            node: Arc::clone(&self.node),
            store: self.store.clone(),
            runtime: Handle::current(),
        })
    }

    /// Stops leading, so that another assigner can at once, and ends.
    pub async fn shutdown(mut self) {
        let _ = timeout(STORE_TIMEOUT * 2, self.node.resign()).await;
        self.end();
        let _ = timeout(STORE_TIMEOUT, &mut self.task).await;
    }

    /// Watches end with the node, and connections with the watches.
    fn end(&mut self) {
        self.node.end();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// Without resigning: for those who ask, it is as if the process had died.
impl Drop for AssignerServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Between two attempts to learn what the store has.
const RESUME_EVERY: Duration = Duration::from_secs(1);

/// Goes on asking a store that did not answer at the start.
async fn resume_later(node: Weak<Node>) {
    loop {
        tokio::time::sleep(RESUME_EVERY).await;
        let Some(node) = node.upgrade() else { return };
        if let Ok(Ok(())) = timeout(STORE_TIMEOUT, node.resume()).await {
            tracing::info!("the store answers");
            return;
        }
    }
}

/// An assigner, as it tells of itself.
struct AssignerProcess {
    node: Arc<Node>,
    store: String,
    runtime: Handle,
}

impl AssignerProcess {
    /// `None` if it does not answer: its tasks stand still.
    fn status(&self) -> Option<NodeStatus> {
        let status = async { timeout(PATIENCE, self.node.status(&self.store)).await };
        self.runtime.block_on(status).ok()?.ok()
    }
}

impl Process for AssignerProcess {
    fn collect(&self, samples: &mut Samples) -> std::fmt::Result {
        collect(&self.status().ok_or(std::fmt::Error)?, samples);
        Ok(())
    }

    fn live(&self) -> Result<(), String> {
        let stuck = || format!("the assigner's tasks do not answer for {PATIENCE:?}");
        self.status().map(|_| ()).ok_or_else(stuck)
    }

    /// Also one that does not lead is of use: it is watched.
    fn ready(&self) -> Result<(), String> {
        match (self.node.has_resumed(), self.node.resigned()) {
            (_, Resigned::UnderWay | Resigned::Done) => {
                Err("it has stopped leading, and is about to end".to_owned())
            }
            (false, _) => Err(format!("the store {} has not answered yet", self.store)),
            (true, Resigned::No) => Ok(()),
        }
    }

    fn drain(&self) {
        // Said at once: whoever asks next hears that it is under way.
        if self.node.begin_to_resign() {
            let node = Arc::clone(&self.node);
            self.runtime.spawn(async move { node.give_up().await });
        }
    }

    fn drained(&self) -> Option<Drain> {
        Some(match self.node.resigned() {
            Resigned::No => Drain::NotBegun,
            Resigned::UnderWay => Drain::UnderWay("it stops leading".to_owned()),
            Resigned::Done => Drain::Done,
        })
    }
}

/// For people: steers the assigners at an address.
#[derive(Clone, Debug)]
pub struct AssignerClient {
    address: AssignerAddress,
    security: Security,
}

/// How long a person waits for one assigner.
const PATIENCE: Duration = Duration::from_secs(5);

impl AssignerClient {
    /// Connects with each call.
    pub fn new(address: AssignerAddress) -> Self {
        AssignerClient::with(address, Security::default())
    }

    /// Likewise, with what protects the connections.
    pub fn with(address: AssignerAddress, security: Security) -> Self {
        AssignerClient { address, security }
    }

    /// The assigners that lead, by what their store says: those that follow are
    /// not in it. `access` is how this process comes into etcd, `security` what
    /// protects the connections to the assigners.
    ///
    /// # Errors
    /// The store does not answer, or nobody leads anything in it.
    pub async fn of_store(
        store: &StoreAddress,
        access: &EtcdAccess,
        security: Security,
    ) -> Result<Self, CoordinationError> {
        let failed = |reason: String| CoordinationError::Store {
            store: store.to_string(),
            reason,
        };
        let opened = Store::open(store, access)?;
        let leaders = async {
            let mut hosts = Vec::new();
            for corpus in opened.corpora().await? {
                let leader = opened.leader(&corpus).await?;
                let address = leader.map(|leader| leader.address).unwrap_or_default();
                if !address.is_empty() && !hosts.contains(&address) {
                    hosts.push(address);
                }
            }
            Ok::<_, StoreError>(hosts)
        };
        let hosts = match timeout(PATIENCE, leaders).await {
            Ok(Ok(hosts)) => hosts,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("no answer for {PATIENCE:?}"))),
        };
        if hosts.is_empty() {
            let none = "no assigner leads anything in it: is one running with this --store?";
            return Err(failed(none.to_owned()));
        }
        Ok(AssignerClient::with(hosts.join(",").parse()?, security))
    }

    /// What every assigner says of itself, as JSON documents
    /// ([`NodeStatus`]); those that do not answer, by name with the reason.
    pub async fn status(&self) -> Vec<(String, Result<String, CoordinationError>)> {
        let mut all = Vec::new();
        for host in self.address.hosts() {
            let result = self
                .ask(host, "", async |mut client| {
                    client.status(v1::StatusRequest {}).await
                })
                .await;
            all.push((host.clone(), result.map(|answer| answer.json)));
        }
        all
    }

    /// Sets the switch for deployments, for one corpus or (empty) all; which
    /// ones.
    pub async fn set_freeze(
        &self,
        corpus: &str,
        freeze: Freeze,
    ) -> Result<Vec<String>, CoordinationError> {
        let request = v1::SetFreezeRequest {
            corpus: corpus.to_owned(),
            mode: freeze_to(freeze).into(),
        };
        self.ask_leader(corpus, async |mut client| {
            client.set_freeze(request.clone()).await
        })
        .await
        .map(|answer| answer.corpora)
    }

    /// Goes on from what the store has under a new incarnation: the answer to
    /// a store that is behind and will not catch up.
    pub async fn begin_incarnation(&self, corpus: &str) -> Result<(), CoordinationError> {
        let request = v1::BeginIncarnationRequest {
            corpus: corpus.to_owned(),
        };
        self.ask_leader(corpus, async |mut client| {
            client.begin_incarnation(request.clone()).await
        })
        .await
        .map(|_| ())
    }

    /// One after the other until one leads.
    async fn ask_leader<T>(
        &self,
        corpus: &str,
        call: impl AsyncFn(CoordinationClient<tonic::transport::Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, CoordinationError> {
        let mut last = None;
        for host in self.address.hosts() {
            match self.ask(host, corpus, &call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| CoordinationError::Unreachable {
            addresses: self.address.to_string(),
            reason: "there is none".to_owned(),
        }))
    }

    async fn ask<T>(
        &self,
        host: &str,
        corpus: &str,
        call: impl AsyncFnOnce(
            CoordinationClient<tonic::transport::Channel>,
        ) -> Result<Response<T>, Status>,
    ) -> Result<T, CoordinationError> {
        let unreachable = |reason: String| CoordinationError::Unreachable {
            addresses: host.to_owned(),
            reason,
        };
        let channel = self
            .security
            .channel(host, None, |endpoint| endpoint.connect_timeout(PATIENCE))
            .map_err(unreachable)?;
        let client = CoordinationClient::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX);
        match timeout(PATIENCE, call(client)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(match refusal_from(&status) {
                Some(refusal) => CoordinationError::Refused {
                    corpus: corpus.to_owned(),
                    refusal,
                },
                None if status.code() == Code::Unimplemented => {
                    unreachable("something else answers there, and no assigner".to_owned())
                }
                None => unreachable(failure_text(&status)),
            }),
            Err(_) => Err(unreachable(format!("no answer for {PATIENCE:?}"))),
        }
    }
}

struct Service {
    node: Arc<Node>,
    store: String,
    security: Security,
}

impl Service {
    /// What was asked for, if the caller may have it.
    fn permitted<T>(
        &self,
        request: Request<T>,
        right: impl FnOnce(&T) -> Right<'_>,
    ) -> Result<T, Status> {
        let right = right(request.get_ref());
        permit(&self.security, request.extensions(), right)?;
        Ok(request.into_inner())
    }
}

fn invalid(error: WireError) -> Status {
    status_of(&Refusal::Invalid(error.to_string()))
}

fn refused(refusal: Refusal) -> Status {
    status_of(&refusal)
}

fn lease(grant: Grant) -> Response<v1::LeaseResponse> {
    Response::new(v1::LeaseResponse {
        // Rounded down: the server counts on no more than it has.
        lease_ms: u64::try_from(grant.lease.as_millis()).unwrap_or(u64::MAX),
        by: grant.by,
    })
}

#[tonic::async_trait]
impl Coordination for Service {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::LeaseResponse>, Status> {
        let request = self.permitted(request, |r| Right::Serve(&r.corpus))?;
        let server = request
            .server
            .ok_or_else(|| invalid(WireError::new("server", "it is missing")))?;
        let granted = match request.granted_ms {
            0 => None,
            granted_ms => Some(Grant {
                lease: lease_from("granted_ms", granted_ms).map_err(invalid)?,
                by: request.granted_by,
            }),
        };
        let members = request.members.into_iter().map(ServerId).collect();
        let map = request.map.map(assignment_from).transpose();
        let registration = Registration {
            record: member_from(server).map_err(invalid)?,
            known: request.known.map(version_from),
            again: request.again,
            granted,
            told: map.map_err(invalid)?.map(|map| Told { map, members }),
        };
        self.node
            .register(&request.corpus, registration)
            .await
            .map(lease)
            .map_err(refused)
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::LeaseResponse>, Status> {
        let request = self.permitted(request, |r| Right::Serve(&r.corpus))?;
        let call = KeepAlive {
            id: ServerId(request.id),
            life: request.life,
            state: state_from(request.state).map_err(invalid)?,
            known: request.known.map(version_from),
        };
        self.node
            .keep_alive(&request.corpus, call)
            .await
            .map(lease)
            .map_err(refused)
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        let request = self.permitted(request, |r| Right::Serve(&r.corpus))?;
        self.node
            .leave(&request.corpus, ServerId(request.id), request.life)
            .await
            .map(|()| Response::new(v1::LeaveResponse {}))
            .map_err(refused)
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        let request = self.permitted(request, |r| Right::Serve(&r.corpus))?;
        let corpus = request.corpus.clone();
        let report = report_from(request).map_err(invalid)?;
        self.node
            .report(&corpus, report)
            .await
            .map(|()| Response::new(v1::ReportResponse {}))
            .map_err(refused)
    }

    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = self.permitted(request, |r| Right::Follow(&r.corpus))?;
        let after = request.after.map(version_from);
        let state = self.node.watch(&request.corpus).await.map_err(refused)?;
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(tell(state, after, events));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        self.permitted(request, |_| Right::Look)?;
        let status: NodeStatus = self.node.status(&self.store).await.map_err(refused)?;
        let json =
            serde_json::to_string(&status).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::StatusResponse { json }))
    }

    async fn set_freeze(
        &self,
        request: Request<v1::SetFreezeRequest>,
    ) -> Result<Response<v1::SetFreezeResponse>, Status> {
        let request = self.permitted(request, |_| Right::Steer)?;
        let freeze = freeze_from(request.mode).map_err(invalid)?;
        self.node
            .set_freeze(&request.corpus, freeze)
            .await
            .map(|corpora| Response::new(v1::SetFreezeResponse { corpora }))
            .map_err(refused)
    }

    async fn begin_incarnation(
        &self,
        request: Request<v1::BeginIncarnationRequest>,
    ) -> Result<Response<v1::BeginIncarnationResponse>, Status> {
        let request = self.permitted(request, |_| Right::Steer)?;
        self.node
            .begin_incarnation(&request.corpus)
            .await
            .map(|()| Response::new(v1::BeginIncarnationResponse {}))
            .map_err(refused)
    }
}

/// One watcher: everything since `after`, then every change, and a sign of
/// life in between.
async fn tell(
    mut state: watch::Receiver<Arc<CorpusState>>,
    mut after: Option<AssignmentVersion>,
    events: mpsc::Sender<Result<v1::WatchEvent, Status>>,
) {
    // An assigner that follows may lag behind the one who has told the asker.
    let caught_up = |state: &Arc<CorpusState>| state.version() >= after;
    let _ = timeout(STORE_TIMEOUT, state.wait_for(caught_up)).await;
    let mut told: Option<Servers> = None;
    loop {
        let now = Arc::clone(&state.borrow_and_update());
        let mut event = v1::WatchEvent::default();
        match now.news(after) {
            News::None => {}
            News::Diffs(diffs) => event.diffs = diffs.iter().map(|diff| diff_to(diff)).collect(),
            News::Whole(assignment) => event.assignment = Some(assignment_to(&assignment)),
            News::Behind => {
                let _ = events.send(Err(refused(behind(&now, after)))).await;
                return;
            }
        }
        after = now.version();
        if told.as_ref().is_none_or(|told| *told != now.servers) {
            event.members = Some(members_to(&now.servers));
            told = Some(Arc::clone(&now.servers));
        }
        if events.send(Ok(event)).await.is_err() {
            return;
        }
        tokio::select! {
            changed = timeout(WATCH_BEAT, state.changed()) => {
                if matches!(changed, Ok(Err(_))) {
                    return;
                }
            }
            () = events.closed() => return,
        }
    }
}

fn members_to(servers: &Servers) -> v1::Members {
    let server = |(&id, info): (&ServerId, &ServerInfo)| {
        member_to(&MemberRecord {
            id,
            life: 0,
            info: info.clone(),
        })
    };
    v1::Members {
        servers: servers.iter().map(server).collect(),
    }
}
