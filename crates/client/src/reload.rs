//! Replacing the corpus of an immutable cell: every backend loads the new
//! file; when all have it, all are told to serve it.

use crate::cell::Cell;
use crate::time;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use trefoil_cell::Mode;
use trefoil_layout::Version;
use trefoil_rpc::v1::{self, reload_request, reload_response};

/// Bytes of the file in one message.
const CHUNK_LEN: usize = 256 * 1024;

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
    #[error("cannot read {path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A backend refused it; no backend serves any of it.
    #[error("backend {number} did not load the corpus, the old one stays: {reason}")]
    Load {
        /// Which backend.
        number: u32,
        /// What it said.
        reason: String,
    },
    /// A backend failed after others had begun to serve the new corpus.
    #[error("backend {number} did not switch to the new corpus: {reason}; reload again")]
    Commit {
        /// Which backend.
        number: u32,
        /// What it said.
        reason: String,
    },
}

/// What was loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reloaded {
    /// Lines of the file.
    pub lines: u64,
    /// Items held, summed over the backends.
    pub items: u64,
    /// The configuration that serves the new corpus.
    pub config_id: u32,
}

struct Stream {
    number: u32,
    requests: mpsc::Sender<v1::ReloadRequest>,
    answers: tonic::Streaming<v1::ReloadResponse>,
}

impl Cell {
    /// Loads the file at `path` into every backend, then switches all of them
    /// to it under a higher config id.
    pub fn reload(
        &self,
        path: &Path,
        format: CorpusFormat,
        clear_first: bool,
    ) -> Result<Reloaded, ReloadError> {
        let config = self.config();
        if config.mode != Mode::R2 {
            return Err(ReloadError::NotImmutable(config.mode));
        }
        let fail = |source| ReloadError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(fail)?;
        self.shared().rpc.runtime().map_err(fail)?;
        let mut next = (*config).clone();
        next.config_id += 1;
        let begin = |number| v1::ReloadBegin {
            backend: number,
            format: match format {
                CorpusFormat::JsonLines => v1::CorpusFormat::JsonLines.into(),
                CorpusFormat::Csv => v1::CorpusFormat::Csv.into(),
            },
            config: Some(trefoil_cell::encode_config(&next)),
            version: Some(trefoil_rpc::encode_version(Version::new(
                time::unix_ns(),
                1,
                0,
            ))),
            clear_first,
        };
        let version_begin = begin(0).version;
        let replace = async {
            let mut streams = Vec::new();
            for backend in &config.backends {
                let mut begin = begin(backend.number);
                begin.version = version_begin;
                streams.push(self.open_stream(&config, backend.number, begin).await?);
            }
            send_file(file, path, &mut streams).await?;
            let mut total = Reloaded {
                config_id: next.config_id,
                ..Reloaded::default()
            };
            for stream in &mut streams {
                let loaded = stream.loaded().await?;
                total.lines = loaded.lines;
                total.items += loaded.items;
            }
            for stream in &mut streams {
                stream.commit().await?;
            }
            Ok(total)
        };
        let done = self.shared().rpc.block_on(replace);
        done.unwrap_or_else(|reason| Err(ReloadError::Load { number: 0, reason }))
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

    async fn commit(&mut self) -> Result<(), ReloadError> {
        let fail = |reason: String| ReloadError::Commit {
            number: self.number,
            reason,
        };
        let step = Some(reload_request::Step::Commit(v1::ReloadCommit {}));
        let sent = self.requests.send(v1::ReloadRequest { step }).await;
        sent.map_err(|_| fail("the connection broke".into()))?;
        match self.answers.message().await {
            Ok(Some(v1::ReloadResponse {
                step: Some(reload_response::Step::Committed(_)),
            })) => Ok(()),
            Ok(_) => Err(fail("it ended the transfer without a reason".into())),
            Err(status) => Err(fail(trefoil_rpc::failure_text(&status))),
        }
    }
}
