//! A reload by hand, step by step, so that something can die between any two.

use crate::support::Cell;
use bytes::Bytes;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use trefoil_cell::{CellConfig, ConfigStore as _, CorpusDigester, CorpusId, DirectoryStore};
use trefoil_layout::Version;
use trefoil_rpc::v1::{self, reload_request::Step, reload_response};

/// A client that reloads and can stop anywhere.
pub(super) struct ByHand {
    runtime: Runtime,
    next: CellConfig,
    bytes: Bytes,
    streams: Vec<Stream>,
}

struct Stream {
    requests: mpsc::Sender<v1::ReloadRequest>,
    answers: tonic::Streaming<v1::ReloadResponse>,
}

impl ByHand {
    /// Opens a stream to each backend, and begins.
    pub(super) fn begin(dir: &Path, _cell: &Cell, file: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = DirectoryStore::open(&dir.join("cell")).unwrap();
        let current = store.load().unwrap().unwrap();
        let bytes = Bytes::from(std::fs::read(file).unwrap());
        let (digest, len) = CorpusDigester::of(&bytes[..]).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let next = CellConfig {
            config_id: current.config_id + 1,
            corpus: Some(CorpusId {
                digest,
                len,
                first: Version::new(now.unwrap().as_nanos() as u64, 1, 0),
                path: Some(file.to_owned()),
            }),
            ..current.clone()
        };
        let open = |number: u32| {
            let address = &current.backends[number as usize].addresses[0];
            let endpoint = trefoil_cell::endpoint(address).unwrap();
            let begin = v1::ReloadBegin {
                backend: number,
                format: v1::CorpusFormat::JsonLines.into(),
                config: Some(trefoil_cell::encode_config(&next)),
                clear_first: false,
                check_only: false,
            };
            runtime.block_on(async {
                let channel = endpoint.connect().await.unwrap();
                let credentials = trefoil_rpc::Credentials::none();
                let mut client = trefoil_rpc::client(channel, credentials);
                let (requests, receiver) = mpsc::channel(64);
                let step = Some(Step::Begin(begin));
                requests.send(v1::ReloadRequest { step }).await.unwrap();
                let answers = client.reload(ReceiverStream::new(receiver)).await;
                Stream {
                    requests,
                    answers: answers.unwrap().into_inner(),
                }
            })
        };
        let streams = current.backends.iter().map(|b| open(b.number)).collect();
        ByHand {
            runtime,
            next,
            bytes,
            streams,
        }
    }

    pub(super) fn config(&self) -> &CellConfig {
        &self.next
    }

    /// One whose process is gone is passed over.
    fn say(&self, number: usize, step: Step) {
        let request = v1::ReloadRequest { step: Some(step) };
        let requests = &self.streams[number].requests;
        let _ = self.runtime.block_on(requests.send(request));
    }

    /// Half of the file.
    pub(super) fn half(&self) {
        let half = self.bytes.slice(..self.bytes.len() / 2);
        (0..self.streams.len()).for_each(|number| self.say(number, Step::Chunk(half.clone())));
    }

    /// The rest, and what the backends say of it.
    pub(super) fn rest(&mut self) {
        let half = self.bytes.slice(self.bytes.len() / 2..);
        for number in 0..self.streams.len() {
            self.say(number, Step::Chunk(half.clone()));
            self.say(number, Step::End(v1::ReloadEnd {}));
        }
        for number in 0..self.streams.len() {
            let answer = self.answer(number);
            let is_loaded = matches!(answer, Some(reload_response::Step::Loaded(_)));
            assert!(is_loaded, "{answer:?}");
        }
    }

    /// Tells one to serve it.
    pub(super) fn commit(&self, number: usize) {
        self.say(number, Step::Commit(v1::ReloadCommit {}));
    }

    /// What one says next, if it can.
    pub(super) fn answer(&mut self, number: usize) -> Option<reload_response::Step> {
        let answers = &mut self.streams[number].answers;
        let answer = async { tokio::time::timeout(super::PATIENCE, answers.message()).await };
        let answer = self.runtime.block_on(answer).expect("it says nothing");
        answer.ok().flatten().and_then(|answer| answer.step)
    }

    /// Goes away without a word.
    pub(super) fn go(self) {
        drop(self.streams);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}
