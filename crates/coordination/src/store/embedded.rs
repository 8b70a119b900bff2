//! The store inside the assigner: `sharder`'s own, with members beside it, and
//! a file below it if there is to be one.
//!
//! Memory first, then the file, then everybody else: what the file has not
//! taken is told to nobody. A write that failed may have been carried out, as
//! everywhere; the next request writes it before anything is answered.

use super::file::Document;
use super::state::{CorpusState, Found, LeaderRecord};
use super::{Roll, Writer};
use crate::clock::BootInstant;
use crate::generated::v1;
use crate::wire::{
    MemberRecord, assignment_from, assignment_to, freeze_from, freeze_to, lease_from, lease_to,
    member_from, member_to,
};
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, watch};
use trefoil_sharder::coordination::{EmbeddedStore, Reply, Request, StoreError};
use trefoil_sharder::{Freeze, ServerId};

/// All corpora of one assigner.
#[derive(Debug)]
pub(crate) struct EmbeddedFile {
    document: Option<Arc<Document>>,
    /// As they are to be in the file.
    corpora: Mutex<BTreeMap<String, v1::CorpusRecord>>,
    /// Whole files are written one after the other.
    writing: AsyncMutex<()>,
}

impl EmbeddedFile {
    pub(crate) fn none() -> Self {
        EmbeddedFile {
            document: None,
            corpora: Mutex::new(BTreeMap::new()),
            writing: AsyncMutex::new(()),
        }
    }

    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let (document, content) = Document::open(path)?;
        let damaged = |reason: String| format!("{} is damaged: {reason}", path.display());
        let record = match content {
            Some(content) => v1::FileRecord::decode(content.as_slice())
                .map_err(|error| damaged(error.to_string()))?,
            None => v1::FileRecord::default(),
        };
        for corpus in &record.corpora {
            Contents::from_record(corpus).map_err(damaged)?;
        }
        let corpora = record
            .corpora
            .into_iter()
            .map(|corpus| (corpus.corpus.clone(), corpus))
            .collect();
        Ok(EmbeddedFile {
            document: Some(Arc::new(document)),
            corpora: Mutex::new(corpora),
            writing: AsyncMutex::new(()),
        })
    }

    pub(crate) fn corpora(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, v1::CorpusRecord>> {
        self.corpora.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing reaches the file until this is dropped.
    #[cfg(test)]
    pub(crate) async fn hold_writes(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    async fn write(&self, name: &str, contents: &Contents) -> Result<(), StoreError> {
        let Some(document) = self.document.clone() else {
            return Ok(());
        };
        self.lock()
            .insert(name.to_owned(), contents.to_record(name));
        let _turn = self.writing.lock().await;
        let corpora = self.lock().values().cloned().collect();
        let bytes = v1::FileRecord { corpora }.encode_to_vec();
        tokio::task::spawn_blocking(move || document.write(&bytes))
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?
            .map_err(StoreError::Unavailable)
    }
}

/// One corpus.
#[derive(Debug)]
pub(crate) struct EmbeddedCorpus {
    file: Arc<EmbeddedFile>,
    name: String,
    writer: Writer,
    origin: BootInstant,
    contents: AsyncMutex<Contents>,
    state: watch::Sender<Arc<CorpusState>>,
}

#[derive(Debug, Default)]
struct Contents {
    store: EmbeddedStore,
    term: u64,
    members: BTreeMap<ServerId, MemberRecord>,
    freeze: Freeze,
    /// No lease in force is longer.
    lease: Option<Duration>,
    leads: bool,
    /// Something here has not reached the file.
    unwritten: bool,
}

impl Contents {
    fn from_record(record: &v1::CorpusRecord) -> Result<Self, String> {
        let assignment = record
            .assignment
            .clone()
            .map(assignment_from)
            .transpose()
            .map_err(|error| error.to_string())?;
        let members = record
            .members
            .iter()
            .map(|member| member_from(member.clone()).map(|record| (record.id, record)))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        Ok(Contents {
            store: EmbeddedStore::resuming(assignment, record.term),
            term: record.term,
            members,
            freeze: freeze_from(record.freeze).map_err(|error| error.to_string())?,
            lease: Some(record.lease_ms)
                .filter(|&lease| lease > 0)
                .map(|lease_ms| lease_from("lease_ms", lease_ms))
                .transpose()
                .map_err(|error| error.to_string())?,
            leads: false,
            unwritten: false,
        })
    }

    fn to_record(&self, name: &str) -> v1::CorpusRecord {
        v1::CorpusRecord {
            corpus: name.to_owned(),
            term: self.term,
            assignment: self.store.current().map(assignment_to),
            members: self.members.values().map(member_to).collect(),
            freeze: freeze_to(self.freeze).into(),
            lease_ms: self.lease.map_or(0, lease_to),
        }
    }

    fn found(&self, writer: &Writer) -> Found {
        Found {
            assignment: self.store.current().cloned(),
            members: self.members.values().cloned().collect(),
            leader: self.leads.then(|| LeaderRecord {
                candidate: writer.candidate,
                term: self.term,
                address: writer.address.clone(),
            }),
        }
    }

    /// For changes that the embedded store of `sharder` knows nothing of: only
    /// one process is here, and it leads in the last term or not at all.
    fn check(&self, term: u64) -> Result<(), StoreError> {
        if self.leads && term == self.term {
            Ok(())
        } else {
            Err(StoreError::NotLeader {
                term,
                last: self.term,
            })
        }
    }
}

impl EmbeddedCorpus {
    pub(crate) fn open(file: &Arc<EmbeddedFile>, name: &str, writer: Writer) -> Self {
        let record = file.lock().get(name).cloned();
        // Records were checked when the file was opened.
        let contents = record
            .and_then(|record| Contents::from_record(&record).ok())
            .unwrap_or_default();
        let state = CorpusState::default().after(contents.found(&writer));
        EmbeddedCorpus {
            file: Arc::clone(file),
            name: name.to_owned(),
            writer,
            origin: BootInstant::now(),
            contents: AsyncMutex::new(contents),
            state: watch::Sender::new(Arc::new(state)),
        }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<CorpusState>> {
        self.state.subscribe()
    }

    pub(crate) async fn roll(&self) -> Roll {
        let contents = self.contents.lock().await;
        Roll {
            members: contents.members.values().cloned().collect(),
            freeze: contents.freeze,
            lease: contents.lease,
            version: contents.store.version(),
        }
    }

    pub(crate) async fn request(&self, request: Request) -> Result<Reply, StoreError> {
        let now = self.origin.elapsed();
        self.change(|contents| {
            let before = (contents.store.version(), contents.term);
            let result = contents.store.request(now, request);
            match &result {
                Ok(Reply::Elected { term }) => {
                    contents.term = *term;
                    contents.leads = true;
                }
                Ok(Reply::Resigned) => contents.leads = false,
                _ => {}
            }
            let changed = (contents.store.version(), contents.term) != before;
            (result, changed)
        })
        .await?
    }

    pub(crate) async fn put_member(
        &self,
        term: u64,
        record: &MemberRecord,
    ) -> Result<(), StoreError> {
        self.change(|contents| {
            let allowed = contents.check(term);
            if allowed.is_ok() {
                contents.members.insert(record.id, record.clone());
            }
            let changed = allowed.is_ok();
            (allowed, changed)
        })
        .await?
    }

    pub(crate) async fn remove_member(&self, term: u64, id: ServerId) -> Result<(), StoreError> {
        self.change(|contents| {
            let allowed = contents.check(term);
            let changed = allowed.is_ok() && contents.members.remove(&id).is_some();
            (allowed, changed)
        })
        .await?
    }

    pub(crate) async fn set_freeze(&self, term: u64, freeze: Freeze) -> Result<(), StoreError> {
        self.change(|contents| {
            let allowed = contents.check(term);
            if allowed.is_ok() {
                contents.freeze = freeze;
            }
            let changed = allowed.is_ok();
            (allowed, changed)
        })
        .await?
    }

    pub(crate) async fn set_lease(&self, term: u64, lease: Duration) -> Result<(), StoreError> {
        self.change(|contents| {
            let allowed = contents.check(term);
            if allowed.is_ok() {
                contents.lease = Some(lease);
            }
            let changed = allowed.is_ok();
            (allowed, changed)
        })
        .await?
    }

    /// Changes memory, then the file, then what others see.
    async fn change<T>(
        &self,
        change: impl FnOnce(&mut Contents) -> (T, bool),
    ) -> Result<T, StoreError> {
        let mut contents = self.contents.lock().await;
        let late = contents.unwritten;
        if late {
            self.file.write(&self.name, &contents).await?;
            contents.unwritten = false;
        }
        let (result, changed) = change(&mut contents);
        if changed {
            contents.unwritten = true;
            self.file.write(&self.name, &contents).await?;
            contents.unwritten = false;
        }
        let next = self.state.borrow().after(contents.found(&self.writer));
        self.state.send_if_modified(|state| {
            let news = late || changed || state.leader != next.leader;
            if news {
                *state = Arc::new(next);
            }
            news
        });
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServerInfo;
    use trefoil_sharder::coordination::CandidateId;
    use trefoil_sharder::{Assignment, AssignmentVersion, Capacity};

    const LEASE: Duration = Duration::from_millis(2_500);

    fn writer() -> Writer {
        Writer {
            candidate: CandidateId(1),
            address: "here:1".to_owned(),
        }
    }

    fn member(id: u64) -> MemberRecord {
        let capacity = Capacity { cpu: 1.0, bytes: 1 };
        MemberRecord {
            id: ServerId(id),
            life: id,
            info: ServerInfo::new(format!("s{id}:1"), capacity),
        }
    }

    async fn lead(corpus: &EmbeddedCorpus) -> u64 {
        let request = Request::Campaign {
            candidate: CandidateId(1),
            lease: Duration::from_secs(60),
        };
        match corpus.request(request).await {
            Ok(Reply::Elected { term }) => term,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_restart_finds_everything_and_a_higher_term() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let first = Assignment::even(AssignmentVersion::first_of(1), &[ServerId(5)], 4, 1);
        let term = {
            let file = Arc::new(EmbeddedFile::open(&path).unwrap());
            let corpus = EmbeddedCorpus::open(&file, "c", writer());
            let term = lead(&corpus).await;
            corpus.put_member(term, &member(5)).await.unwrap();
            corpus.set_freeze(term, Freeze::OnlyDead).await.unwrap();
            corpus.set_lease(term, LEASE).await.unwrap();
            let swap = Request::Swap {
                term,
                expected: None,
                next: first.clone(),
            };
            assert_eq!(
                corpus.request(swap).await,
                Ok(Reply::Swapped(first.version()))
            );
            term
        };
        let file = Arc::new(EmbeddedFile::open(&path).unwrap());
        assert_eq!(file.corpora(), ["c"]);
        let corpus = EmbeddedCorpus::open(&file, "c", writer());
        assert_eq!(corpus.watch().borrow().assignment.as_deref(), Some(&first));
        let roll = corpus.roll().await;
        assert_eq!(roll.members, [member(5)]);
        assert_eq!(roll.freeze, Freeze::OnlyDead);
        assert_eq!(roll.lease, Some(LEASE));
        assert!(lead(&corpus).await > term);
        let refused = corpus.remove_member(term, ServerId(5)).await;
        assert!(matches!(refused, Err(StoreError::NotLeader { .. })));
        assert_eq!(corpus.roll().await.members.len(), 1);
    }

    #[tokio::test]
    async fn a_damaged_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, b"\xff\xff no record").unwrap();
        let error = EmbeddedFile::open(&path).unwrap_err();
        assert!(error.contains("is damaged"), "{error}");
        // One of which a word is: no leader waits for the end of such leases.
        for lease_ms in [1, 299, 3_600_001, u64::MAX] {
            let corpora = vec![v1::CorpusRecord {
                corpus: "c".to_owned(),
                lease_ms,
                freeze: freeze_to(Freeze::Off).into(),
                ..v1::CorpusRecord::default()
            }];
            std::fs::write(&path, v1::FileRecord { corpora }.encode_to_vec()).unwrap();
            let error = EmbeddedFile::open(&path).unwrap_err();
            assert!(error.contains("lease_ms"), "{lease_ms}: {error}");
        }
    }

    #[tokio::test]
    async fn what_the_file_does_not_take_is_told_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/state");
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let file = Arc::new(EmbeddedFile::open(&path).unwrap());
        let corpus = EmbeddedCorpus::open(&file, "c", writer());
        let term = lead(&corpus).await;
        std::fs::remove_dir_all(folder.path().join("sub")).unwrap();
        let failed = corpus.put_member(term, &member(5)).await;
        assert!(matches!(failed, Err(StoreError::Unavailable(_))));
        assert!(corpus.watch().borrow().servers.is_empty());
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        lead(&corpus).await;
        assert_eq!(corpus.watch().borrow().servers.len(), 1);
    }
}
