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
//! The client commits when every backend of the cell has loaded, so no backend serves the
//! new corpus before all have it. **The change is one compare-and-swap of the cell's
//! configuration**, made by the first backend that is told to commit: before it the old
//! corpus is in force everywhere, after it the new one.
//!
//! Until it has said *loaded*, a backend gives the new corpus up at any failure, here or
//! there. From then on another backend may have put it in force, so that this one decides
//! nothing by itself: if the client goes away, or is silent for too long, it looks into the
//! configuration. Is the new corpus in force, it serves it: under whatever id, because a
//! later reload that came to nothing may have written the configuration anew. If not, it writes the old
//! configuration anew under a higher id, by compare-and-swap: then nobody can put the new
//! one in force any more, and it is given up. A backend that dies meanwhile finds out from
//! the configuration when it is started again ([`crate::corpus`]).

use crate::corpus::{
    CorpusError, CorpusFormat, CorpusReader, Digested, Loaded, Staged, check, load,
};
use crate::member::Member;
use crate::state::State;
use bytes::{Buf as _, Bytes};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use trefoil_cell::{CellConfig, ConfigStore, ConfigStoreError, CorpusId, Mode};
use trefoil_rpc::v1::reload_request::Step;
use trefoil_rpc::v1::{self, reload_response};
use trefoil_store::ReloadError;

/// How often who has loaded looks whether somebody else has put the new corpus in force.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// How long one then still waits for its own word: clients have backends change in turn, so
/// that one of two copies is served at any time.
const TURN_PATIENCE: Duration = Duration::from_secs(1);
/// How long a client may say nothing when everything is loaded here: other backends may be
/// slower.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Before a configuration store that failed is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(100);

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
    let (backend, config_id) = (plan.member.number, plan.config.config_id);
    if begin.check_only {
        let counted = receive(&plan, &mut requests, Use::Check).await?;
        return send_loaded(answers, &plan, counted).await;
    }
    tracing::info!(backend, config_id, corpus = %plan.corpus, "reload begins");
    let refuse = |error: ReloadError| match error {
        ReloadError::NoRoom(_) => no_room("not even an empty one"),
        error => Status::failed_precondition(format!("backend {backend}: {error}")),
    };
    let mut staged = Staged::reload(&plan.member).await.map_err(refuse)?;
    if begin.clear_first {
        staged.clear().map_err(refuse)?;
    }
    let loaded = receive(&plan, &mut requests, Use::Load(begin.clear_first)).await?;
    let told = send_loaded(answers, &plan, loaded).await;
    let asked = match told {
        Ok(()) => await_word(&state, &plan.config, &mut requests).await,
        // It may have come through all the same.
        Err(status) => Word::Nothing(status),
    };
    let (deciding, config) = (Arc::clone(&state), plan.config.clone());
    let commits = matches!(asked, Word::Commit);
    let decide = move || {
        let is_stopping = || deciding.is_stopping();
        decide(&*deciding.config_store, &config, commits, &is_stopping)
    };
    let config = match blocking(decide).await? {
        Decision::Commit(config) => config,
        Decision::GiveUp(why) => {
            drop(staged);
            // What was written anew instead.
            let state = Arc::clone(&state);
            let _ = blocking(move || state.catch_up()).await;
            return Err(match asked {
                Word::Nothing(status) => status,
                Word::Commit => Status::failed_precondition(why),
            });
        }
    };
    if let Some(standing) = &plan.member.standing {
        standing.is_at(loaded);
    }
    let committed = blocking(move || {
        let committed = staged.commit(&state, &config);
        if committed.is_err() {
            let _ = state.catch_up();
        }
        committed
    });
    let config_id = committed
        .await?
        .map_err(|error| Status::internal(error.to_string()))?;
    tracing::info!(backend, config_id, items = loaded.items, "reload committed");
    let committed = v1::ReloadCommitted { config_id };
    send(answers, reload_response::Step::Committed(committed)).await
}

/// What the client wants after *loaded*.
enum Word {
    Commit,
    /// It is gone, or says nonsense, or nothing.
    Nothing(Status),
}

/// Waits for the client's word, and looks what others do meanwhile.
async fn await_word(
    state: &Arc<State>,
    config: &CellConfig,
    requests: &mut Streaming<v1::ReloadRequest>,
) -> Word {
    let since = Instant::now();
    let mut seen: Option<Instant> = None;
    let mut step = std::pin::pin!(next(requests));
    loop {
        match tokio::time::timeout(LOOK_PERIOD, step.as_mut()).await {
            Ok(Ok(Step::Commit(_))) => return Word::Commit,
            Ok(Ok(_)) => {
                let status = Status::invalid_argument("after \"end\" comes \"commit\"");
                return Word::Nothing(status);
            }
            Ok(Err(status)) => return Word::Nothing(status),
            Err(_) => {}
        }
        let looking = Arc::clone(state);
        let stored = blocking(move || looking.config_store.load()).await;
        if let Ok(Ok(Some(stored))) = stored
            && stored.config_id >= config.config_id
        {
            // Somebody else has put it in force, or something else.
            let seen = *seen.get_or_insert_with(Instant::now);
            if !config.is_in_force_by(&stored) || seen.elapsed() >= TURN_PATIENCE {
                return Word::Commit;
            }
        } else if since.elapsed() >= SILENCE_MAX {
            return Word::Nothing(Status::deadline_exceeded(format!(
                "the reload was given up: its client said nothing for {} s",
                SILENCE_MAX.as_secs()
            )));
        }
    }
}

/// What came of it.
enum Decision {
    /// The new corpus is in force, by this configuration.
    Commit(CellConfig),
    /// It is not, and never will be, for this reason.
    GiveUp(String),
}

/// Finds out what is in force, and has it decided if nothing is yet. A store that fails is
/// asked again until it says: what is loaded here may be in force.
fn decide(
    store: &dyn ConfigStore,
    config: &CellConfig,
    commits: bool,
    is_stopping: &dyn Fn() -> bool,
) -> Decision {
    let mut told = false;
    loop {
        let error = match store.load() {
            Ok(Some(stored)) if config.is_in_force_by(&stored) => return Decision::Commit(stored),
            Ok(Some(stored))
                if stored.life == config.life && stored.config_id < config.config_id =>
            {
                let next = if commits && stored.differs_by_reload(config) {
                    Some(config.clone())
                } else {
                    stored.anew()
                };
                let Some(next) = next else {
                    return Decision::GiveUp("the cell's config ids are used up".into());
                };
                match store.compare_and_swap(Some(stored.topology_id()), &next) {
                    // What it says now counts.
                    Ok(()) | Err(ConfigStoreError::Conflict { .. }) => continue,
                    Err(error) => error,
                }
            }
            Ok(_) => {
                return Decision::GiveUp(
                    "the cell's configuration was changed meanwhile, the old corpus stays: try again"
                        .into(),
                );
            }
            Err(error) => error,
        };
        if is_stopping() {
            return Decision::GiveUp("the server is shutting down".into());
        }
        if !std::mem::replace(&mut told, true) {
            tracing::error!(%error, "whether the new corpus is in force cannot be found out yet");
        }
        std::thread::sleep(STORE_PAUSE);
    }
}

async fn send_loaded(
    answers: &mpsc::Sender<Answer>,
    plan: &Plan,
    loaded: Loaded,
) -> Result<(), Status> {
    let resident_bytes = plan.member.store.stats().resident.total();
    let loaded = v1::ReloadLoaded {
        lines: loaded.lines,
        items: loaded.items,
        resident_bytes,
    };
    send(answers, reload_response::Step::Loaded(loaded)).await
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
    corpus: CorpusId,
    format: CorpusFormat,
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
        let config = begin.config.as_ref().ok_or_else(|| missing("config"))?;
        let config = trefoil_cell::decode_config(config)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        check_config(member.config_id(), &state.config(), &config)?;
        let corpus = config.corpus.clone().ok_or_else(|| missing("corpus"))?;
        Ok(Plan {
            member: Arc::clone(member),
            config,
            corpus,
            format,
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

/// What becomes of the chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Check,
    /// Into the second corpus; whether the first was cleared.
    Load(bool),
}

/// Takes the chunks that arrive until *end*.
async fn receive(
    plan: &Plan,
    requests: &mut Streaming<v1::ReloadRequest>,
    purpose: Use,
) -> Result<Loaded, Status> {
    let (chunks, receiver) = mpsc::channel(1);
    let (member, corpus) = (Arc::clone(&plan.member), plan.corpus.clone());
    let (format, value_len_max) = (plan.format, plan.config.value_len_max as usize);
    let loading = tokio::task::spawn_blocking(move || {
        let source = Digested::new(Chunks::new(receiver));
        let mut reader = CorpusReader::new(source, format, value_len_max)?;
        let loaded = match purpose {
            Use::Check => check(&member, &mut reader),
            Use::Load(_) => load(&member, &mut reader, corpus.first),
        }?;
        reader.source().check(&corpus)?;
        Ok(loaded)
    });
    let received = forward(requests, chunks).await;
    let loaded = loading.await;
    // A broken stream is the cause of whatever the loader then found.
    received?;
    let loaded = loaded.map_err(|error| Status::internal(format!("the reload failed: {error}")))?;
    loaded.map_err(|error| refusal(&error, purpose))
}

/// The second corpus does not fit beside the first, and what to do.
fn no_room(how_far: &str) -> Status {
    Status::resource_exhausted(format!(
        "the memory limit does not hold the corpus that is served and the new one beside it ({how_far} fits): raise the limit (`trefoil cell memory --limit`), or have the old corpus dropped before (`--clear-first`: nothing is served until the new one is loaded). Nothing was dropped"
    ))
}

/// Why a corpus was not loaded, and what to do.
fn refusal(error: &CorpusError, purpose: Use) -> Status {
    match error {
        CorpusError::TooLarge { line, .. } if purpose == Use::Load(false) => {
            no_room(&format!("as much of it as stands before line {line}"))
        }
        CorpusError::TooLarge { .. } => Status::resource_exhausted(error.to_string()),
        CorpusError::OtherFile => Status::aborted(
            "what arrived is not the file whose digest was taken: it was changed while it was sent; try again when nobody writes it",
        ),
        error => Status::invalid_argument(error.to_string()),
    }
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
