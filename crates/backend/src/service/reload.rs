//! Another corpus for an immutable cell.
//!
//! ```text
//! client              backend
//! begin ───────────►  checks the configuration, begins a second corpus
//! chunk… ──────────►  parsed and loaded beside the one that is served
//! end ─────────────►
//!       ◄─── loaded
//! commit ──────────►  puts the configuration in force, then the corpus
//!       ◄ committed
//! ```
//!
//! The client commits when every backend of the cell has loaded. Until then
//! any failure, here or there, leaves the old corpus and configuration in
//! force; a stream that ends early is one.

use crate::corpus::{CorpusError, CorpusFormat, CorpusReader, Loaded, load};
use crate::member::Member;
use crate::state::State;
use bytes::{Buf as _, Bytes};
use std::io::{self, Read};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use trefoil_cell::{CellConfig, ConfigStoreError, Mode};
use trefoil_layout::Version;
use trefoil_rpc::v1::reload_request::Step;
use trefoil_rpc::v1::{self, reload_response};
use trefoil_store::ReloadError;

type Answer = Result<v1::ReloadResponse, Status>;

/// Serves one reload; its answers.
pub(super) fn start(
    state: Arc<State>,
    requests: Streaming<v1::ReloadRequest>,
) -> ReceiverStream<Answer> {
    let (answers, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        if let Err(status) = serve(state, requests, &answers).await {
            // Its text may quote the corpus, which is nothing for a log.
            tracing::warn!(code = ?status.code(), "reload failed");
            // Nobody may be listening any more.
            let _ = answers.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

async fn serve(
    state: Arc<State>,
    mut requests: Streaming<v1::ReloadRequest>,
    answers: &mpsc::Sender<Answer>,
) -> Result<(), Status> {
    let begin = match next(&mut requests).await? {
        Step::Begin(begin) => begin,
        _ => return Err(Status::invalid_argument("a reload starts with \"begin\"")),
    };
    let plan = Plan::new(&state, &begin)?;
    tracing::info!(
        backend = plan.member.number,
        config_id = plan.config.config_id,
        "reload begins"
    );
    let staged = Staged::begin(&plan.member, begin.clear_first)?;
    let loaded = receive(&plan, &mut requests).await?;
    let resident_bytes = plan.member.store.stats().resident.total();
    send(
        answers,
        reload_response::Step::Loaded(v1::ReloadLoaded {
            lines: loaded.lines,
            items: loaded.items,
            resident_bytes,
        }),
    )
    .await?;
    match next(&mut requests).await? {
        Step::Commit(_) => {}
        _ => return Err(Status::invalid_argument("after \"end\" comes \"commit\"")),
    }
    let config_id = plan.config.config_id;
    blocking(move || staged.commit(&state, plan.config)).await??;
    tracing::info!(config_id, items = loaded.items, "reload committed");
    let committed = v1::ReloadCommitted { config_id };
    send(answers, reload_response::Step::Committed(committed)).await
}

async fn next(requests: &mut Streaming<v1::ReloadRequest>) -> Result<Step, Status> {
    let request = requests.message().await?;
    let request = request.ok_or_else(|| Status::cancelled("the reload was broken off"))?;
    let step = request.step;
    step.ok_or_else(|| Status::invalid_argument("the field \"step\" is missing"))
}

async fn send(answers: &mpsc::Sender<Answer>, step: reload_response::Step) -> Result<(), Status> {
    let response = v1::ReloadResponse { step: Some(step) };
    let sent = answers.send(Ok(response)).await;
    sent.map_err(|_| Status::cancelled("the client has gone"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(format!("the reload failed: {error}")))
}

/// What a sound *begin* asks for.
struct Plan {
    member: Arc<Member>,
    config: CellConfig,
    format: CorpusFormat,
    first: Version,
}

impl Plan {
    fn new(state: &State, begin: &v1::ReloadBegin) -> Result<Self, Status> {
        let member = state.member(begin.backend).ok_or_else(|| {
            Status::not_found(format!("backend {} is not served here", begin.backend))
        })?;
        let format = match v1::CorpusFormat::try_from(begin.format) {
            Ok(v1::CorpusFormat::JsonLines) => CorpusFormat::JsonLines,
            Ok(v1::CorpusFormat::Csv) => CorpusFormat::Csv,
            _ => return Err(Status::invalid_argument("the corpus has no known format")),
        };
        let missing = |field| Status::invalid_argument(format!("the field \"{field}\" is missing"));
        let version = begin.version.ok_or_else(|| missing("version"))?;
        let config = begin.config.as_ref().ok_or_else(|| missing("config"))?;
        let config = trefoil_cell::decode_config(config)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        check_config(member.config_id(), &state.config(), &config)?;
        Ok(Plan {
            member: Arc::clone(member),
            config,
            format,
            first: trefoil_rpc::decode_version(version),
        })
    }
}

/// A reload changes the corpus and the config id, nothing else.
fn check_config(served: u32, current: &CellConfig, next: &CellConfig) -> Result<(), Status> {
    if current.mode != Mode::R2 {
        return Err(Status::failed_precondition(format!(
            "only an immutable cell (R=2) is loaded from a file; this one is {}",
            current.mode
        )));
    }
    if next.config_id <= served {
        return Err(Status::failed_precondition(format!(
            "the reload was made for config id {}, this backend serves {served} already: fetch the configuration and try again",
            next.config_id
        )));
    }
    if !current.differs_by_reload(next) {
        return Err(Status::failed_precondition(
            "the reload was made for another configuration of the cell: fetch it and try again",
        ));
    }
    Ok(())
}

/// A second corpus in a member's store; given up unless it is committed.
struct Staged {
    member: Arc<Member>,
    committed: bool,
}

impl Staged {
    fn begin(member: &Arc<Member>, clear_first: bool) -> Result<Self, Status> {
        let refuse = |error: ReloadError| {
            Status::failed_precondition(format!("backend {}: {error}", member.number))
        };
        if !member.begin_reloading() {
            return Err(refuse(ReloadError::UnderWay));
        }
        // From here on dropping it gives everything back.
        let staged = Staged {
            member: Arc::clone(member),
            committed: false,
        };
        let store = &member.store;
        store.begin_reload().map_err(refuse)?;
        if clear_first {
            // An empty corpus takes the old one's place; then the real one begins.
            store.finish_reload().map_err(refuse)?;
            store.begin_reload().map_err(refuse)?;
        }
        Ok(staged)
    }

    fn commit(mut self, state: &State, config: CellConfig) -> Result<(), Status> {
        publish(state, &config).map_err(|error| Status::failed_precondition(error.to_string()))?;
        let changed = self.member.change_corpus(config.config_id);
        changed.map_err(|error| Status::internal(error.to_string()))?;
        self.committed = true;
        state.set_config(config);
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            self.member.store.abort_reload();
        }
        self.member.end_reloading();
    }
}

/// Puts the new configuration in force for the cell. The first of its backends
/// does; the others find it there.
fn publish(state: &State, config: &CellConfig) -> Result<(), ConfigStoreError> {
    let store = &state.config_store;
    let current = store.load()?;
    if current.as_ref() == Some(config) {
        return Ok(());
    }
    match store.compare_and_swap(current.map(|c| c.topology_id()), config) {
        Err(ConfigStoreError::Conflict { .. }) if store.load()?.as_ref() == Some(config) => Ok(()),
        result => result,
    }
}

/// Loads the chunks that arrive until *end*.
async fn receive(
    plan: &Plan,
    requests: &mut Streaming<v1::ReloadRequest>,
) -> Result<Loaded, Status> {
    let (chunks, receiver) = mpsc::channel(1);
    let (member, format, first) = (Arc::clone(&plan.member), plan.format, plan.first);
    let value_len_max = plan.config.value_len_max as usize;
    let loading = tokio::task::spawn_blocking(move || {
        let source = Chunks::new(receiver);
        let reader = CorpusReader::new(source, format, value_len_max)?;
        load(&member, reader, first)
    });
    let received = forward(requests, chunks).await;
    let loaded = loading.await;
    // A broken stream is the cause of whatever the loader then found.
    received?;
    let loaded = loaded.map_err(|error| Status::internal(format!("the reload failed: {error}")))?;
    loaded.map_err(|error| match error {
        CorpusError::TooLarge { .. } => Status::resource_exhausted(error.to_string()),
        error => Status::invalid_argument(error.to_string()),
    })
}

async fn forward(
    requests: &mut Streaming<v1::ReloadRequest>,
    chunks: mpsc::Sender<Feed>,
) -> Result<(), Status> {
    loop {
        let feed = match next(requests).await? {
            Step::Chunk(bytes) => Feed::Bytes(bytes),
            Step::End(_) => Feed::End,
            _ => return Err(Status::invalid_argument("chunks are followed by \"end\"")),
        };
        let ended = matches!(feed, Feed::End);
        // A loader that has stopped listening has failed and says why.
        if chunks.send(feed).await.is_err() || ended {
            return Ok(());
        }
    }
}

/// What the loader is fed.
enum Feed {
    Bytes(Bytes),
    End,
}

/// The chunks as one file.
struct Chunks {
    receiver: mpsc::Receiver<Feed>,
    current: Bytes,
    ended: bool,
}

impl Chunks {
    fn new(receiver: mpsc::Receiver<Feed>) -> Self {
        Chunks {
            receiver,
            current: Bytes::new(),
            ended: false,
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.receiver.blocking_recv() {
                Some(Feed::Bytes(bytes)) => self.current = bytes,
                Some(Feed::End) => self.ended = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let count = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}
