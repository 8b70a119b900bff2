//! The process of a server: lists of numbers in a linklet, behind the contract.
//!
//! ```text
//! stdout:  bound PORT       before it joins: whoever relays to it has to know
//!          ready ID         it is a member
//!          loss TEXT · drained · slow TEXT
//! ```

use crate::pauses::Pauses;
use crate::v1::lists_server::{Lists, ListsServer};
use crate::v1::{AppendRequest, Key, List, Nothing, Removed, ServerState, Way};
use crate::{CORPUS, Failure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::metadata::MetadataValue;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use trefoil_linklet::endpoint::{Process, Samples};
use trefoil_linklet::{
    Error, Linklet, Listener, Marshal, MarshalError, Replication, Security, StateLoss,
};
use trefoil_sharder::ServerId;

/// With every refusal: which of the linked store's outcomes it is.
pub(crate) const OUTCOME: &str = "lists-outcome";
/// How long the closure of an `update_async` waits.
const THOUGHT: Duration = Duration::from_millis(3);
/// What a handler may take beyond what it was promised and what the process stood still:
/// the machine has two cores, and dozens of threads.
pub(crate) const SLACK: Duration = Duration::from_millis(500);

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    #[arg(long)]
    assigner: String,
    /// Where others reach it: a relay.
    #[arg(long)]
    advertise: String,
    #[arg(long, default_value = "strong")]
    replication: String,
    #[arg(long)]
    patience_ms: u64,
    /// The form of values that it writes.
    #[arg(long, default_value_t = 1)]
    writes: u8,
    /// The forms that it reads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    reads: Vec<u8>,
    /// Bytes of memory, in which a list takes some 4,300; what exceeds it is spilled.
    #[arg(long)]
    memory: Option<u64>,
}

/// Bytes of disk, more than there ever is to be spilled.
const DISK: u64 = 1 << 30;

/// Numbers in one of several forms, which do not understand each other.
#[derive(Clone, Debug)]
struct Forms {
    writes: u8,
    reads: Vec<u8>,
    /// Bytes that a list is said to weigh beyond its numbers.
    heft: usize,
}

/// Where memory is bounded: lists are short, and only what is more than its key is spilled.
const HEFT: usize = 4_000;

impl Marshal<Vec<u64>> for Forms {
    fn marshal(&self, _: &[u8], value: &Vec<u64>, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.push(self.writes);
        out.extend(value.iter().flat_map(|id| id.to_le_bytes()));
        Ok(())
    }

    fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Vec<u64>, MarshalError> {
        let (form, rest) = bytes
            .split_first()
            .ok_or_else(|| MarshalError::new("a list begins with its form"))?;
        if !self.reads.contains(form) {
            let what = format!("form {form}, and this release reads {:?}", self.reads);
            return Err(MarshalError::new(what));
        }
        let (ids, []) = rest.as_chunks() else {
            return Err(MarshalError::new("a number has 8 bytes"));
        };
        Ok(ids.iter().copied().map(u64::from_le_bytes).collect())
    }

    fn weigh(&self, value: &Vec<u64>) -> usize {
        size_of_val(value) + size_of_val(value.as_slice()) + self.heft
    }
}

/// Prints what the application is told.
struct Print;

impl Listener for Print {
    fn rejoined(&self, id: ServerId) {
        println!("ready {}", id.0);
    }

    fn state_loss(&self, loss: &StateLoss) {
        println!("loss {loss}");
    }
}

/// What the crates log, where `RUST_LOG` asks for it.
pub(crate) fn log() {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let Ok(wanted) = std::env::var("RUST_LOG") else {
        return;
    };
    if let Ok(filter) = wanted.parse::<tracing_subscriber::filter::Targets>() {
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let _ = tracing_subscriber::registry()
            .with(layer)
            .with(filter)
            .try_init();
    }
}

/// Serves until SIGTERM, and gives everything away first.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // A panic in a handler only resets its connection, which looks like the network. As a
    // death that nobody asked for it is seen.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    log();
    let replication = match args.replication.as_str() {
        "strong" => Replication::Strong,
        "eventual" => Replication::Eventual,
        "none" => Replication::None,
        other => return Err(format!("no such mode: {other}").into()),
    };
    let mut stop = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("bound {}", listener.local_addr()?.port());
    let patience = Duration::from_millis(args.patience_ms);
    let forms = Forms {
        writes: args.writes,
        reads: args.reads,
        heft: args.memory.map_or(0, |_| HEFT),
    };
    let mut builder = Linklet::builder(CORPUS, forms);
    if let Some(memory) = args.memory {
        builder = builder.memory(memory).spill(std::env::temp_dir(), DISK);
    }
    let lists = builder
        .replication(replication)
        .patience(patience)
        .listener(Arc::new(Print) as Arc<dyn Listener>)
        .join(args.assigner, args.advertise)
        .await?;
    println!("ready {}", lists.server_id().ok_or("no member")?.0);
    let service = Service {
        lists: lists.clone(),
        patience,
        pauses: Pauses::watch(),
    };
    let leaving = lists.clone();
    let stopped = async move {
        stop.recv().await;
        leaving.drain().await;
        println!("drained");
        leaving.leave().await;
    };
    Server::builder()
        .add_service(ListsServer::new(service))
        .add_service(lists.service().into_server())
        .serve_with_incoming_shutdown(Security::Loopback.incoming(listener), stopped)
        .await?;
    Ok(())
}

struct Service {
    lists: Linklet<Vec<u64>>,
    patience: Duration,
    pauses: Pauses,
}

/// What a handler may take: a wait for the key, one for others who change it, and one for
/// the replicas, with what its closure takes.
pub(crate) fn handler_max(patience: Duration) -> Duration {
    patience * 3 + THOUGHT
}

impl Service {
    fn lists<T>(&self, request: &Request<T>) -> Linklet<Vec<u64>> {
        self.lists.routed(request.metadata())
    }

    /// Notes a handler that took longer than it may.
    fn timed<T>(&self, what: &str, began: Instant, done: Result<T, Error>) -> Result<T, Status> {
        let now = Instant::now();
        let stood = self.pauses.within(began, now);
        let took = now - began;
        if took > handler_max(self.patience) + stood + SLACK {
            println!("slow {what} took {took:.2?}, of which {stood:.2?} stood still");
        }
        done.map_err(refusal)
    }

    async fn append(
        &self,
        lists: &Linklet<Vec<u64>>,
        asked: &AppendRequest,
    ) -> Result<Option<Vec<u64>>, Error> {
        let (key, id) = (asked.key.as_bytes(), asked.id);
        let push = move |list: &mut Vec<u64>| {
            list.push(id);
            list.clone()
        };
        match asked.way() {
            Way::Upsert => lists.upsert(key, Vec::new, push).await.map(Some),
            Way::Commit => {
                let Some(mut held) = lists.get(key).await? else {
                    return Ok(None);
                };
                let list = push(held.edit());
                let done = lists.commit(held).await;
                done.map(|_| Some(list)).map_err(|failed| failed.error)
            }
            Way::Async => {
                let change = async |list: &mut Vec<u64>| {
                    tokio::time::sleep(THOUGHT).await;
                    Ok::<_, Error>(push(list))
                };
                lists.update_async(key, self.patience, change).await
            }
        }
    }
}

/// What a linklet tells Prometheus, of one gauge.
pub(crate) fn gauge(process: &dyn Process, name: &str) -> Option<f64> {
    let mut samples = Samples::default();
    process.collect(&mut samples).ok()?;
    let text = samples.text().ok()?;
    let mut lines = text.lines();
    let line = lines.find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('{'))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

fn list(found: Option<Vec<u64>>) -> Response<List> {
    Response::new(List {
        there: found.is_some(),
        ids: found.unwrap_or_default(),
    })
}

/// A status as applications answer it, and beside it the outcome's own name.
fn refusal(error: Error) -> Status {
    let name = outcome(&error);
    let mut status = Status::from(error);
    if let Some(name) = name {
        status
            .metadata_mut()
            .insert(OUTCOME, MetadataValue::from_static(name));
    }
    status
}

/// Redirects have none: routers know them. What is `?…` may have been done.
fn outcome(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::NotMine(_) => return None,
        Error::Moving { .. } => "moving",
        Error::Sent { .. } => "sent",
        Error::NoLease => "no-lease",
        Error::TooFewCopies { .. } => "too-few-copies",
        Error::OtherHistory { .. } => "other-history",
        Error::NotMember => "not-member",
        Error::NoRoom { .. } => "no-room",
        Error::NoRoomForCopy { .. } => "no-room-for-copy",
        Error::TooLong { .. } => "too-long",
        Error::Stale { .. } => "stale",
        Error::Marshal(_) => "marshal",
        Error::Conflict => "conflict",
        Error::Unsettled { .. } => "unsettled",
        Error::Busy { .. } => "busy",
        Error::Overran { .. } => "overran",
        Error::Indeterminate(_) => "?indeterminate",
        Error::Load(_) => "load",
        Error::LoadOverran { .. } => "load-overran",
        Error::NoLoader => "no-loader",
        Error::Unreadable(_) => "unreadable",
    })
}

#[tonic::async_trait]
impl Lists for Service {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<List>, Status> {
        let began = Instant::now();
        let lists = self.lists(&request);
        let asked = request.into_inner();
        let done = Service::append(self, &lists, &asked).await;
        self.timed(asked.way().as_str_name(), began, done).map(list)
    }

    async fn read(&self, request: Request<Key>) -> Result<Response<List>, Status> {
        let began = Instant::now();
        let lists = self.lists(&request);
        let key = request.into_inner().key;
        let found = lists.read(key.as_bytes(), Vec::clone).await;
        self.timed("READ", began, found).map(list)
    }

    async fn remove(&self, request: Request<Key>) -> Result<Response<Removed>, Status> {
        let began = Instant::now();
        let lists = self.lists(&request);
        let key = request.into_inner().key;
        let removed = lists.remove(key.as_bytes()).await;
        let was_there = self.timed("REMOVE", began, removed)?;
        Ok(Response::new(Removed { was_there }))
    }

    async fn state(&self, _: Request<Nothing>) -> Result<Response<ServerState>, Status> {
        let process = self.lists.process();
        let figure = |name| gauge(&*process, name).map_or(u64::MAX, |value| value as u64);
        let stats = self.lists.stats();
        Ok(Response::new(ServerState {
            not_ready: process.ready().err().unwrap_or_default(),
            short: figure("trefoil_linklet_slices_short"),
            unconfirmed: figure("trefoil_linklet_unconfirmed_bytes"),
            copies_refused: stats.copies_refused,
            moves_refused: stats.moves_refused,
            entries: stats.entries,
            received: stats.received,
            lease_ms: gauge(&*process, "trefoil_linklet_lease_seconds")
                .map_or(0, |lease| (lease * 1e3) as u64),
            read_back: stats.spill_reads,
        }))
    }
}
