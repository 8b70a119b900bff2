//! Immutable cells: loading, and replacing the corpus.

use crate::support::{CONFIG_ID, Caller, Cell, LIFE, Setup, request};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use trefoil_cell::{
    CellConfig, ConfigStore, ConfigStoreError, CorpusDigester, CorpusId, EmbeddedStore, Mode,
};
use trefoil_layout::op::{Action, Outcome, Rejection};
use trefoil_layout::{TopologyId, Version};
use trefoil_rpc::v1::{self, reload_request::Step, reload_response};

fn lines(numbers: std::ops::Range<u32>, value: &str) -> String {
    let line = |n| format!("{{\"key\":\"key-{n}\",\"value\":\"{value}-{n}\"}}\n");
    numbers.map(line).collect()
}

fn begin(config: &CellConfig, backend: u32) -> v1::ReloadBegin {
    v1::ReloadBegin {
        backend,
        format: v1::CorpusFormat::JsonLines as i32,
        config: Some(trefoil_cell::encode_config(config)),
        clear_first: false,
        check_only: false,
    }
}

/// An immutable cell whose corpus has so many lines.
fn with_old_corpus(len: u32) -> Cell {
    let setup = Setup::new(Mode::R2, 2);
    setup.corpus("c.jsonl", lines(0..len, "old")).start()
}

/// The cell's next configuration, for a corpus of this text.
fn next_config(cell: &Cell, text: &str) -> CellConfig {
    let (digest, len) = CorpusDigester::of(text.as_bytes()).unwrap();
    CellConfig {
        config_id: CONFIG_ID + 1,
        corpus: Some(CorpusId {
            digest,
            len,
            first: Version::new(1 << 60, 5, 0),
            path: None,
        }),
        ..cell.config.clone()
    }
}

/// Sends all steps and returns what came back.
fn reload(caller: &mut Caller<'_>, steps: Vec<Step>) -> Result<Vec<reload_response::Step>, Status> {
    let requests = steps
        .into_iter()
        .map(|step| v1::ReloadRequest { step: Some(step) });
    let requests: Vec<_> = requests.collect();
    let call = async {
        let answers = caller.client.reload(tokio_stream::iter(requests)).await?;
        let mut answers = answers.into_inner();
        let mut all = Vec::new();
        while let Some(answer) = answers.message().await? {
            all.extend(answer.step);
        }
        Ok(all)
    };
    caller.cell.runtime.block_on(call)
}

fn steps(begin: v1::ReloadBegin, text: &str) -> Vec<Step> {
    let mut steps = vec![Step::Begin(begin)];
    let chunks = text.as_bytes().chunks(1000).map(Bytes::copy_from_slice);
    steps.extend(chunks.map(Step::Chunk));
    steps.extend([
        Step::End(v1::ReloadEnd {}),
        Step::Commit(v1::ReloadCommit {}),
    ]);
    steps
}

#[test]
fn a_corpus_is_served_and_mutations_are_refused() {
    let cell = with_old_corpus(5000);
    let mut caller = cell.client();
    for backend in [0, 1] {
        for n in [0, 17, 4999] {
            let value = caller.get(backend, CONFIG_ID, format!("key-{n}").as_bytes());
            assert_eq!(value.unwrap(), format!("old-{n}").into_bytes());
        }
        let outcome = caller
            .mutate(request(backend, Action::Set, b"k", b"v"))
            .unwrap()
            .outcome;
        assert_eq!(outcome, Outcome::Rejected(Rejection::Immutable));
    }
    let stats = caller.stats();
    assert!(stats.members.iter().all(|m| m.items == 5000));
}

#[test]
fn csv_is_loaded_too_and_only_what_belongs_to_a_backend() {
    let rows: String = (0..1000).map(|n| format!("value-{n},key-{n}\n")).collect();
    let cell = Setup::new(Mode::R2, 4)
        .corpus("c.csv", format!("value,key\n{rows}"))
        .start();
    let stats = cell.client().stats();
    let items: Vec<u64> = stats.members.iter().map(|m| m.items).collect();
    assert_eq!(items.iter().sum::<u64>(), 2000, "two copies of each");
    assert!(items.iter().all(|n| (400..600).contains(n)), "{items:?}");
}

#[test]
fn a_reload_replaces_everything_under_the_next_config_id() {
    let cell = with_old_corpus(2000);
    let mut caller = cell.client();
    let text = lines(1000..4000, "new");
    let next = next_config(&cell, &text);
    for backend in [0, 1] {
        let answers = reload(&mut caller, steps(begin(&next, backend), &text)).unwrap();
        let [
            reload_response::Step::Loaded(loaded),
            reload_response::Step::Committed(done),
        ] = &answers[..]
        else {
            panic!("{answers:?}");
        };
        assert_eq!((loaded.lines, loaded.items), (3000, 3000));
        assert_eq!(done.config_id, CONFIG_ID + 1);
        // The old configuration finds nothing here any more, not even misses.
        let stale = v1::LookupRequest {
            backend,
            life: LIFE,
            config_id: CONFIG_ID,
            key: Bytes::from_static(b"key-1500"),
            ..v1::LookupRequest::default()
        };
        let answer = cell.runtime.block_on(caller.client.lookup(stale)).unwrap();
        let wrong = v1::lookup_response::Found::Rejected(v1::Rejection::StaleConfig as i32);
        assert_eq!(answer.into_inner().found, Some(wrong));
        assert_eq!(
            caller.get(backend, CONFIG_ID + 1, b"key-1500").unwrap(),
            b"new-1500"
        );
        assert_eq!(caller.get(backend, CONFIG_ID + 1, b"key-1"), None);
    }
    assert_eq!(cell.store.load().unwrap(), Some(next));
    let config = cell
        .runtime
        .block_on(caller.client.config(v1::ConfigRequest {}))
        .unwrap();
    assert_eq!(config.into_inner().config.unwrap().config_id, CONFIG_ID + 1);
    assert!(caller.stats().members.iter().all(|m| m.items == 3000));
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let cell = with_old_corpus(100);
    let mut caller = cell.client();
    let good = lines(0..100, "new");
    let next = next_config(&cell, &good);
    let whole = steps(begin(&next, 0), &good);
    let cut = |count: usize| whole[..count].to_vec();
    let with = |change: fn(&mut v1::ReloadBegin)| {
        let mut begin = begin(&next, 0);
        change(&mut begin);
        steps(begin, &good)
    };
    let cases: Vec<(Code, &str, Vec<Step>)> = vec![
        (
            Code::InvalidArgument,
            "line 101: expected",
            steps(begin(&next, 0), &format!("{good}oops")),
        ),
        (Code::Cancelled, "broken off", cut(2)),
        (
            Code::InvalidArgument,
            "starts with \"begin\"",
            whole[1..].to_vec(),
        ),
        (
            Code::InvalidArgument,
            "followed by \"end\"",
            [cut(1), cut(1)].concat(),
        ),
        (Code::Cancelled, "broken off", vec![]),
        (Code::NotFound, "backend 9", with(|b| b.backend = 9)),
        (Code::InvalidArgument, "format", with(|b| b.format = 0)),
        (
            Code::InvalidArgument,
            "\"config\"",
            with(|b| b.config = None),
        ),
        (
            Code::InvalidArgument,
            "\"corpus\"",
            with(|b| {
                b.config.as_mut().unwrap().corpus = None;
            }),
        ),
        (
            Code::Aborted,
            "changed while it was sent",
            with(|b| {
                let corpus = b.config.as_mut().unwrap().corpus.as_mut();
                corpus.unwrap().digest_low ^= 1;
            }),
        ),
        (
            Code::FailedPrecondition,
            "serves 3 already",
            with(|b| {
                b.config.as_mut().unwrap().config_id = CONFIG_ID;
            }),
        ),
        (
            Code::FailedPrecondition,
            "another configuration",
            with(|b| {
                b.config.as_mut().unwrap().eviction = "arc".into();
            }),
        ),
    ];
    for (code, hint, steps) in cases {
        let status = reload(&mut caller, steps).unwrap_err();
        assert!(status.message().contains(hint), "{hint}: {status}");
        assert_eq!(status.code(), code, "{hint}");
        assert_eq!(caller.get(0, CONFIG_ID, b"key-7").unwrap(), b"old-7");
    }
    assert_eq!(cell.store.load().unwrap(), Some(cell.config.clone()));
    // And a sound one still works afterwards, with or without clearing first.
    let mut cleared = begin(&next, 0);
    cleared.clear_first = true;
    reload(&mut caller, steps(cleared, &good)).unwrap();
    assert_eq!(caller.get(0, CONFIG_ID + 1, b"key-7").unwrap(), b"new-7");
}

/// Who has loaded everything does not know what the others have decided: the old
/// configuration is written anew, so that nobody puts the new one in force any more.
#[test]
fn a_client_that_goes_after_everything_is_loaded_leaves_the_old_corpus_in_force() {
    let cell = with_old_corpus(100);
    let mut caller = cell.client();
    let good = lines(0..100, "new");
    let next = next_config(&cell, &good);
    let whole = steps(begin(&next, 0), &good);
    let status = reload(&mut caller, whole[..whole.len() - 1].to_vec()).unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    let anew = CellConfig {
        config_id: CONFIG_ID + 1,
        ..cell.config.clone()
    };
    assert_eq!(cell.store.load().unwrap(), Some(anew.clone()));
    for backend in [0, 1] {
        assert_eq!(
            caller.get(backend, CONFIG_ID + 1, b"key-7").unwrap(),
            b"old-7"
        );
    }
    // What was prepared under the id that is taken now is refused.
    let status = reload(&mut caller, whole).unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let again = CellConfig {
        config_id: CONFIG_ID + 2,
        ..next
    };
    for backend in [0, 1] {
        reload(&mut caller, steps(begin(&again, backend), &good)).unwrap();
        assert_eq!(
            caller.get(backend, CONFIG_ID + 2, b"key-7").unwrap(),
            b"new-7"
        );
    }
    assert_eq!(cell.store.load().unwrap(), Some(again));
}

/// A reload whose steps are sent one by one; the first two at once.
struct Upload<'a> {
    cell: &'a Cell,
    requests: tokio::sync::mpsc::Sender<v1::ReloadRequest>,
    rest: std::vec::IntoIter<Step>,
    answers: tonic::Streaming<v1::ReloadResponse>,
}

impl<'a> Upload<'a> {
    fn begin(cell: &'a Cell, caller: &Caller<'_>, steps: Vec<Step>) -> Self {
        let (requests, receiver) = tokio::sync::mpsc::channel(8);
        let mut rest = steps.into_iter();
        for step in rest.by_ref().take(2) {
            let request = v1::ReloadRequest { step: Some(step) };
            cell.runtime.block_on(requests.send(request)).unwrap();
        }
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut client = caller.client.clone();
        let answers = cell.runtime.block_on(client.reload(stream));
        Upload {
            cell,
            requests,
            rest,
            answers: answers.unwrap().into_inner(),
        }
    }

    fn send(&mut self, step: Step) {
        let request = v1::ReloadRequest { step: Some(step) };
        let sent = self.requests.send(request);
        self.cell.runtime.block_on(sent).unwrap();
    }

    fn answer(&mut self) -> reload_response::Step {
        let answer = self.cell.runtime.block_on(self.answers.message());
        answer.unwrap().unwrap().step.unwrap()
    }

    /// Everything but the last word, and the answer to it.
    fn load(&mut self) {
        while self.rest.len() > 1 {
            let step = self.rest.next().unwrap();
            self.send(step);
        }
        let answer = self.answer();
        assert!(matches!(answer, reload_response::Step::Loaded(_)));
    }

    /// The last word.
    fn commit(&mut self) {
        let step = self.rest.next().unwrap();
        self.send(step);
    }

    fn committed(&mut self) -> Option<v1::ReloadCommitted> {
        match self.answer() {
            reload_response::Step::Committed(committed) => Some(committed),
            _ => None,
        }
    }

    fn finish(&mut self) {
        self.load();
        self.commit();
        assert!(self.committed().is_some());
    }

    /// Ends the stream and waits until the backend has seen that.
    fn abandon(self) {
        drop(self.requests);
        let mut answers = self.answers;
        while let Ok(Some(_)) = self.cell.runtime.block_on(answers.message()) {}
    }
}

/// The second of two reloads at once is refused and does the first no harm.
#[test]
fn one_reload_at_a_time() {
    let cell = with_old_corpus(100);
    let mut caller = cell.client();
    let good = lines(0..100, "new");
    let next = next_config(&cell, &good);
    let mut clearing = begin(&next, 0);
    clearing.clear_first = true;
    let (mut first, status) = loop {
        let first = Upload::begin(&cell, &caller, steps(begin(&next, 0), &good));
        // The first may not have begun yet: then the second begins, and its
        // stream, which ends too early, is cut.
        match reload(&mut caller, vec![Step::Begin(clearing.clone())]) {
            Err(status) if status.code() == Code::FailedPrecondition => break (first, status),
            Err(status) => assert_eq!(status.code(), Code::Cancelled),
            Ok(answers) => panic!("{answers:?}"),
        }
        // Perhaps it was the first that was refused, perhaps it goes on: it ends.
        first.abandon();
        // What was cleared comes back from the other backend.
        let is_lacking = |m: &v1::MemberStats| {
            let recovery = m.recovery.as_ref();
            recovery.is_some_and(|recovery| recovery.shards_left > 0)
        };
        while caller.stats().members.iter().any(is_lacking) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    assert!(status.message().contains("under way"), "{status}");
    first.finish();
    assert_eq!(caller.get(0, CONFIG_ID + 1, b"key-7").unwrap(), b"new-7");
}

/// Another backend has put the new corpus in force and its client was killed; a later reload
/// came to nothing, and that wrote the configuration anew. Who waits with the corpus loaded
/// finds another configuration than it was told of, with its corpus: it serves that.
#[test]
fn a_corpus_in_force_under_a_later_id_is_not_dropped() {
    let cell = with_old_corpus(100);
    let mut caller = cell.client();
    let good = lines(0..100, "new");
    let next = next_config(&cell, &good);
    let mut upload = Upload::begin(&cell, &caller, steps(begin(&next, 1), &good));
    upload.load();
    let anew = next.anew().unwrap();
    for (before, after) in [(&cell.config, &next), (&next, &anew)] {
        let before = Some(before.topology_id());
        cell.store.compare_and_swap(before, after).unwrap();
    }
    let served = upload.committed();
    assert_eq!(served.map(|done| done.config_id), Some(anew.config_id));
    assert_eq!(
        caller.get(1, anew.config_id, b"key-7").unwrap(),
        b"new-7",
        "it was loaded, and is served without being fetched again"
    );
    let recovery = &caller.stats().members[1].recovery;
    assert!(recovery.is_none(), "{recovery:?}");
}

/// A configuration store on another machine, which goes away.
struct Remote {
    held: Arc<EmbeddedStore>,
    away: AtomicBool,
}

impl Remote {
    fn is_there(&self) -> Result<(), ConfigStoreError> {
        match self.away.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(ConfigStoreError::Unavailable {
                address: "far".to_owned(),
                reason: "it was unplugged".to_owned(),
            }),
        }
    }
}

impl ConfigStore for Remote {
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        self.is_there()?;
        self.held.load()
    }

    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError> {
        self.is_there()?;
        self.held.compare_and_swap(expected, next)
    }

    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        self.is_there()?;
        self.held.wait_for_change(known, timeout)
    }
}

/// Backend 0 has lost its corpus, and has copied that of backend 1, while the configuration
/// store is away.
fn fetched_without_store() -> (Cell, Arc<Remote>) {
    let mut setup = Setup::new(Mode::R2, 2).corpus("c.jsonl", lines(0..100, "old"));
    let remote = Arc::new(Remote {
        held: Arc::clone(&setup.store),
        away: AtomicBool::new(false),
    });
    setup.options.config_store = Arc::clone(&remote) as _;
    let cell = setup.start();
    let mut caller = cell.client();
    remote.away.store(true, Ordering::SeqCst);
    let mut clearing = begin(&next_config(&cell, "x"), 0);
    clearing.clear_first = true;
    let status = reload(&mut caller, vec![Step::Begin(clearing)]).unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    eventually("it has copied, and waits for the store", || {
        let recovery = caller.stats().members[0].recovery.clone();
        recovery.is_some_and(|recovery| {
            recovery.shards_left > 0
                && recovery.items == 100
                && recovery.waits_for.contains("it was unplugged")
        })
    });
    (cell, remote)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What was copied may be old: another corpus may have come in force meanwhile. It is served
/// when the configuration store says that it is not.
#[test]
fn what_was_fetched_is_served_when_the_store_says_that_it_is_in_force() {
    let (cell, remote) = fetched_without_store();
    let mut caller = cell.client();
    remote.away.store(false, Ordering::SeqCst);
    eventually("it is served", || {
        caller.stats().members[0].recovery.as_ref().unwrap().done
    });
    assert_eq!(caller.get(0, CONFIG_ID, b"key-7").unwrap(), b"old-7");
}

/// The same, and the configuration was written anew meanwhile: the corpus is served under
/// the later id.
#[test]
fn what_was_fetched_is_served_under_the_id_that_is_in_force() {
    let (cell, remote) = fetched_without_store();
    let mut caller = cell.client();
    let anew = cell.config.anew().unwrap();
    let before = Some(cell.config.topology_id());
    remote.held.compare_and_swap(before, &anew).unwrap();
    remote.away.store(false, Ordering::SeqCst);
    eventually("it is served", || {
        caller.stats().members[0].recovery.as_ref().unwrap().done
    });
    assert_eq!(caller.get(0, anew.config_id, b"key-7").unwrap(), b"old-7");
}

/// The same, and another corpus has come in force: what was copied is never served.
#[test]
fn what_was_fetched_is_given_up_if_another_corpus_has_come_in_force() {
    let (cell, remote) = fetched_without_store();
    let mut caller = cell.client();
    let next = next_config(&cell, "another file");
    let before = Some(cell.config.topology_id());
    remote.held.compare_and_swap(before, &next).unwrap();
    remote.away.store(false, Ordering::SeqCst);
    eventually("it follows, and has nothing", || {
        let stats = caller.stats();
        let member = &stats.members[0];
        assert!(
            !member.recovery.as_ref().unwrap().done,
            "it serves what is old"
        );
        member.config_id == next.config_id
    });
}

/// Whoever has lost its corpus, and cannot get it back, takes another one.
#[test]
fn a_fetch_gives_way_to_a_reload() {
    let (cell, remote) = fetched_without_store();
    let mut caller = cell.client();
    let good = lines(0..100, "new");
    let next = next_config(&cell, &good);
    let mut upload = Upload::begin(&cell, &caller, steps(begin(&next, 0), &good));
    upload.load();
    remote.away.store(false, Ordering::SeqCst);
    upload.commit();
    let served = upload.committed();
    assert_eq!(served.map(|done| done.config_id), Some(next.config_id));
    assert_eq!(caller.get(0, next.config_id, b"key-7").unwrap(), b"new-7");
}

#[test]
fn mutable_cells_are_not_reloaded() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    let next = CellConfig {
        corpus: None,
        ..next_config(&cell, "")
    };
    let status = reload(&mut caller, steps(begin(&next, 0), "")).unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("this one is R=1"), "{status}");
}
