//! Replacing the corpus of an immutable cell: every backend loads the new
//! file; when all have it, they are told to serve it.
//!
//! The first one that is told puts the new configuration in force, and with it the new
//! corpus. After that nothing that happens here makes it fail: backends that are not told
//! any more find out by themselves. They are told in two turns, those with even numbers
//! first: while one of two neighbours, which hold the same keys, changes from the old
//! corpus to the new one, the other serves.

use crate::cell::Cell;
use crate::time;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use trefoil_cell::{CellConfig, CorpusDigester, CorpusId, Mode};
use trefoil_layout::Version;
use trefoil_rpc::v1::{self, reload_request, reload_response};

/// Bytes of the file in one message.
const CHUNK_LEN: usize = 256 * 1024;
/// How long a backend may take from being told to serve the new corpus to serving it.
const COMMIT_PATIENCE: Duration = Duration::from_secs(30);
/// How long it is looked what came of a reload whose backends do not say it.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Longer than a lease (500 ms): nobody believes the memory of a backend that has not
/// renewed its own.
const LEASE_OVER: Duration = Duration::from_millis(600);
/// Client id of the versions that a load gives.
const LOADER_ID: u64 = 1;

/// How a corpus is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorpusFormat {
    /// `{"key":…,"value":…}` a line; `key_base64`, `value_base64` for binary.
    JsonLines,
    /// With a header that names the columns `key` and `value`.
    Csv,
}

impl CorpusFormat {
    /// By the file's ending: `.csv` is CSV, everything else JSON lines.
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(ending) if ending.eq_ignore_ascii_case("csv") => CorpusFormat::Csv,
            _ => CorpusFormat::JsonLines,
        }
    }
}

/// Why a corpus was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Mutable cells are written item by item.
    #[error("the cell is {0}: only an immutable cell (R=2) is loaded from a file")]
    NotImmutable(Mode),
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; the old corpus stays")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Every reload takes one.
    #[error("the cell's config ids are used up: start it anew")]
    NoConfigId,
    /// What the cell serves now cannot be learned.
    #[error("the cell's configuration cannot be learned, the old corpus stays: {0}")]
    NoConfig(String),
    /// A backend refused it; no backend serves any of it.
    #[error("backend {number} did not load the corpus, the old one stays: {reason}")]
    Load {
        /// Which backend.
        number: u32,
        /// What it said.
        reason: String,
    },
    /// The same after the old one had been dropped to make room.
    #[error(
        "backend {number} did not load the corpus: {reason}. The old one was dropped before, as was asked for: backends load it again from its file, if that is still there; else load another"
    )]
    Cleared {
        /// Which backend.
        number: u32,
        /// What it said.
        reason: String,
    },
    /// Every backend had loaded it, and it was not put in force.
    #[error("the new corpus was not put in force, the old one stays: {0}")]
    NotCommitted(String),
    /// Nobody says which corpus is in force.
    #[error(
        "whether the new corpus is in force is not known ({0}): look with `trefoil cell status`; all backends agree on it as soon as they answer"
    )]
    Undecided(String),
}

/// What was loaded.
#[derive(Clone, Debug, Default)]
pub struct Reloaded {
    /// Lines of the file.
    pub lines: u64,
    /// Items held, summed over the backends.
    pub items: u64,
    /// The configuration that serves the new corpus.
    pub config_id: u32,
    /// Backends that have not said that they serve it, and what they said instead. They
    /// serve nothing older once their lease has ended, which this has waited for, and
    /// the new corpus when they have it.
    pub behind: Vec<(u32, String)>,
}

struct Stream {
    number: u32,
    requests: mpsc::Sender<v1::ReloadRequest>,
    answers: tonic::Streaming<v1::ReloadResponse>,
}

/// What every backend is told.
struct Offer<'o> {
    path: &'o Path,
    format: CorpusFormat,
    current: &'o CellConfig,
    next: CellConfig,
}

impl Cell {
    /// Loads the file at `path` into every backend, then switches all of them
    /// to it under a higher config id. With `clear_first` the old corpus is dropped
    /// before, when all backends have read the new one once and found it sound.
    pub fn reload(
        &self,
        path: &Path,
        format: CorpusFormat,
        clear_first: bool,
    ) -> Result<Reloaded, ReloadError> {
        let fail = |source| ReloadError::File {
            path: path.to_owned(),
            source,
        };
        self.shared().rpc.runtime().map_err(fail)?;
        // Somebody else may have reloaded since this process looked.
        let current = self.shared().reload_config();
        let current = current.map_err(|error| ReloadError::NoConfig(error.to_string()))?;
        if current.mode != Mode::R2 {
            return Err(ReloadError::NotImmutable(current.mode));
        }
        let mut next = current.anew().ok_or(ReloadError::NoConfigId)?;
        let (digest, len) = File::open(path)
            .and_then(CorpusDigester::of)
            .map_err(fail)?;
        // Who reads it again tells the format by the name.
        let is_told = CorpusFormat::of(path) == format;
        let place = std::path::absolute(path).ok().filter(|_| is_told);
        next.corpus = Some(CorpusId {
            digest,
            len,
            first: Version::new(time::unix_ns(), LOADER_ID, 0),
            path: place.and_then(|place| place.to_str().map(str::to_owned)),
        });
        let offer = Offer {
            path,
            format,
            current: &current,
            next,
        };
        let replace = async {
            if clear_first {
                let checks = self.send(&offer, |begin| begin.check_only = true).await?;
                drop(checks);
            }
            let sent = self
                .send(&offer, |begin| begin.clear_first = clear_first)
                .await;
            let (streams, mut total) = sent.map_err(|error| match error {
                ReloadError::Load { number, reason } if clear_first => {
                    ReloadError::Cleared { number, reason }
                }
                error => error,
            })?;
            total.behind = self.commit(&offer, streams).await?;
            Ok(total)
        };
        let done = self.shared().rpc.block_on(replace);
        let reloaded =
            done.unwrap_or_else(|reason| Err(ReloadError::Load { number: 0, reason }))?;
        // For this process' own clients: they would notice at their next read.
        let _ = self.shared().reload_config();
        Ok(reloaded)
    }

    /// Sends the file to every backend; what they have loaded.
    async fn send(
        &self,
        offer: &Offer<'_>,
        change: impl Fn(&mut v1::ReloadBegin),
    ) -> Result<(Vec<Stream>, Reloaded), ReloadError> {
        let mut streams = Vec::new();
        for backend in &offer.current.backends {
            let mut begin = v1::ReloadBegin {
                backend: backend.number,
                format: match offer.format {
                    CorpusFormat::JsonLines => v1::CorpusFormat::JsonLines.into(),
                    CorpusFormat::Csv => v1::CorpusFormat::Csv.into(),
                },
                config: Some(trefoil_cell::encode_config(&offer.next)),
                clear_first: false,
                check_only: false,
            };
            change(&mut begin);
            streams.push(
                self.open_stream(offer.current, backend.number, begin)
                    .await?,
            );
        }
        let file = File::open(offer.path).map_err(|source| ReloadError::File {
            path: offer.path.to_owned(),
            source,
        })?;
        send_file(file, offer.path, &mut streams).await?;
        let mut total = Reloaded {
            config_id: offer.next.config_id,
            ..Reloaded::default()
        };
        for stream in &mut streams {
            let loaded = stream.loaded().await?;
            total.lines = loaded.lines;
            total.items += loaded.items;
        }
        Ok((streams, total))
    }

    /// Has all of them serve what they have loaded; those that have not said that they do.
    async fn commit(
        &self,
        offer: &Offer<'_>,
        streams: Vec<Stream>,
    ) -> Result<Vec<(u32, String)>, ReloadError> {
        let (first, then): (Vec<Stream>, Vec<Stream>) = streams
            .into_iter()
            .partition(|stream| stream.number.is_multiple_of(2));
        let count = first.len() + then.len();
        let mut behind = commit_all(first).await;
        // It may have been put in force by one that did not get to say so.
        behind.extend(commit_all(then).await);
        if behind.is_empty() {
            return Ok(behind);
        }
        let reasons = |behind: &[(u32, String)]| {
            let text = behind.iter().map(|(n, why)| format!("backend {n}: {why}"));
            text.collect::<Vec<_>>().join("; ")
        };
        if behind.len() == count {
            self.look(offer, &reasons(&behind)).await?;
        }
        // Until then clients may read what the process left that has died, or that hangs.
        tokio::time::sleep(LEASE_OVER).await;
        behind.sort_unstable_by_key(|(number, _)| *number);
        Ok(behind)
    }

    /// Finds out whether the new corpus is in force, where no backend says so.
    async fn look(&self, offer: &Offer<'_>, why: &str) -> Result<(), ReloadError> {
        let deadline = Instant::now() + LOOK_PATIENCE;
        loop {
            let shared = std::sync::Arc::clone(self.shared());
            let known = tokio::task::spawn_blocking(move || shared.reload_config()).await;
            if let Ok(Ok(known)) = known {
                if known.corpus == offer.next.corpus {
                    return Ok(());
                }
                if known.config_id >= offer.next.config_id {
                    return Err(ReloadError::NotCommitted(why.to_owned()));
                }
            }
            if Instant::now() >= deadline {
                return Err(ReloadError::Undecided(why.to_owned()));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn open_stream(
        &self,
        config: &trefoil_cell::CellConfig,
        number: u32,
        begin: v1::ReloadBegin,
    ) -> Result<Stream, ReloadError> {
        let fail = |reason: String| ReloadError::Load { number, reason };
        let mut client = self.shared().rpc.backend(config, number).map_err(fail)?;
        let (requests, receiver) = mpsc::channel(4);
        let first = v1::ReloadRequest {
            step: Some(reload_request::Step::Begin(begin)),
        };
        requests
            .send(first)
            .await
            .map_err(|e| fail(e.to_string()))?;
        let stream = RequestStream(receiver);
        let answers = client
            .reload(stream)
            .await
            .map_err(|status| fail(trefoil_rpc::failure_text(&status)))?;
        Ok(Stream {
            number,
            requests,
            answers: answers.into_inner(),
        })
    }
}

/// What a channel holds, as the stream that a call sends.
struct RequestStream(mpsc::Receiver<v1::ReloadRequest>);

impl tokio_stream::Stream for RequestStream {
    type Item = v1::ReloadRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

async fn send_file(mut file: File, path: &Path, streams: &mut [Stream]) -> Result<(), ReloadError> {
    loop {
        let mut chunk = vec![0; CHUNK_LEN];
        let len = file.read(&mut chunk).map_err(|source| ReloadError::File {
            path: path.to_owned(),
            source,
        })?;
        chunk.truncate(len);
        let chunk = bytes::Bytes::from(chunk);
        let step = match len {
            0 => reload_request::Step::End(v1::ReloadEnd {}),
            _ => reload_request::Step::Chunk(chunk),
        };
        for stream in streams.iter_mut() {
            let request = v1::ReloadRequest {
                step: Some(step.clone()),
            };
            if stream.requests.send(request).await.is_err() {
                // It has refused already: its answer says why.
                stream.loaded().await?;
            }
        }
        if len == 0 {
            return Ok(());
        }
    }
}

impl Stream {
    async fn loaded(&mut self) -> Result<v1::ReloadLoaded, ReloadError> {
        let fail = |reason: String| ReloadError::Load {
            number: self.number,
            reason,
        };
        match self.answers.message().await {
            Ok(Some(v1::ReloadResponse {
                step: Some(reload_response::Step::Loaded(loaded)),
            })) => Ok(loaded),
            Ok(_) => Err(fail("it ended the transfer without a reason".into())),
            Err(status) => Err(fail(trefoil_rpc::failure_text(&status))),
        }
    }

    /// `Err`: why it is not known whether it serves the new corpus.
    async fn commit(&mut self) -> Result<(), String> {
        let step = Some(reload_request::Step::Commit(v1::ReloadCommit {}));
        let sent = self.requests.send(v1::ReloadRequest { step }).await;
        if sent.is_err() {
            return Err("the connection broke".into());
        }
        let answer = tokio::time::timeout(COMMIT_PATIENCE, self.answers.message()).await;
        match answer {
            Ok(Ok(Some(v1::ReloadResponse {
                step: Some(reload_response::Step::Committed(_)),
            }))) => Ok(()),
            Ok(Ok(_)) => Err("it ended the transfer without a reason".into()),
            Ok(Err(status)) => Err(trefoil_rpc::failure_text(&status)),
            Err(_) => Err(format!("no answer within {} s", COMMIT_PATIENCE.as_secs())),
        }
    }
}

/// Has some of them change at once; those that did not say that they have.
async fn commit_all(streams: Vec<Stream>) -> Vec<(u32, String)> {
    let mut tasks = tokio::task::JoinSet::new();
    for mut stream in streams {
        tasks.spawn(async move { (stream.number, stream.commit().await) });
    }
    let done = tasks.join_all().await;
    done.into_iter()
        .filter_map(|(number, done)| done.err().map(|why| (number, why)))
        .collect()
}
