//! How a backend that has lost its corpus gets the one that is in force.
//!
//! **From the other replica of each shard, if there is one**: what it holds is what is
//! served, it need not be parsed, and nothing has to be believed of a file that may have
//! changed. **Else from the file**, if that is still the one that was loaded: its digest is
//! in the cell's configuration. Where neither is to be had the backend stays without a
//! corpus, says why, and tries again.
//!
//! **Nothing is served before the configuration store has said that it is in force.** What
//! this process knows may be old: another corpus may have come in force while it was
//! starting, or copying, without anybody who could have told it. A store that does not
//! answer is waited for, with the corpus at hand.
//!
//! A fetch gives way to a reload, which brings what somebody wants now
//! ([`Turn`](super::Turn)).

use super::file::load_file;
use super::load::{Loaded, finish, put};
use super::staged::Staged;
use super::{CorpusError, Standing};
use crate::member::Member;
use crate::pace::{self, CopyPace};
use crate::recovery::Peer;
use crate::state::State;
use crate::stop::Stop;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use trefoil_cell::{CellConfig, CorpusId};
use trefoil_layout::data::DataEntry;
use trefoil_layout::{Version, epoch};
use trefoil_recovery::Data;
use trefoil_store::PLACES;

/// Between two looks whether a corpus is to be fetched.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// After an attempt that came to nothing.
const PAUSE: Duration = Duration::from_millis(500);
/// Before a configuration store that has not answered is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(100);
/// Why a fetch ends that a reload has asked to.
const GIVES_WAY: &str = "a reload is under way";

/// Fetches what the members lack, and what has come in force without them, until stopped.
/// `file` is what this process was started with.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, runtime: &Handle, file: Option<PathBuf>) {
    loop {
        if let Some(newer) = state.take_newer() {
            for member in &state.members {
                follow(state, member, &newer);
            }
        }
        let mut pause = LOOK_PERIOD;
        for member in &state.members {
            let Some(standing) = member.standing.as_ref().filter(|s| s.is_lacking()) else {
                continue;
            };
            let fetch = Fetch {
                state,
                member,
                standing,
                config: &state.config(),
            };
            if let Err(why) = fetch.attempt(runtime, file.as_deref()) {
                if state.is_stopping() {
                    return;
                }
                standing.waits_for(member.number, &why);
                pause = PAUSE;
            }
        }
        if stop.wait(pause) {
            return;
        }
    }
}

/// Another corpus is in force, and this backend has not loaded it: it serves nothing until
/// it has.
fn follow(state: &State, member: &Arc<Member>, newer: &CellConfig) {
    if newer.config_id <= member.config_id() {
        return;
    }
    // The old one's memory is needed, and nobody may find it any more.
    let emptied = Staged::fetch(member).and_then(|staged| staged.commit_nothing(state, newer));
    match emptied {
        Ok(()) => tracing::warn!(
            backend = member.number,
            config_id = newer.config_id,
            "another corpus came in force without this backend: it is fetched"
        ),
        // A reload that goes on finds out by itself; else the next look.
        Err(error) => {
            tracing::debug!(backend = member.number, %error, "cannot follow a reload yet");
        }
    }
}

struct Fetch<'f> {
    state: &'f Arc<State>,
    member: &'f Arc<Member>,
    standing: &'f Standing,
    config: &'f CellConfig,
}

impl Fetch<'_> {
    /// `Err`: why there is nothing yet.
    fn attempt(&self, runtime: &Handle, file: Option<&Path>) -> Result<(), String> {
        let begun = Instant::now();
        let from_replicas = match self.stage()? {
            Some(staged) => {
                let copied = runtime.block_on(async {
                    tokio::select! {
                        copied = self.copy_from_replicas() => copied,
                        () = self.member.corpus_turn.asked_to_give_way() => Err(GIVES_WAY.into()),
                    }
                });
                match copied {
                    Ok(loaded) => return self.serve(staged, loaded, "the other replica", begun),
                    Err(why) => why,
                }
            }
            None => return Ok(()),
        };
        self.goes_on()?;
        let Some(corpus) = &self.config.corpus else {
            return Err(format!(
                "no replica has the corpus ({from_replicas}): load it with `trefoil cell reload`"
            ));
        };
        let mut from_files = String::new();
        for path in paths(corpus, file) {
            let Some(staged) = self.stage()? else {
                return Ok(());
            };
            let as_told = (corpus.first, self.config.value_len_max as usize);
            let is_over = || self.goes_on().err();
            match load_file(self.member, &path, Some(corpus), as_told, &is_over) {
                Ok(loaded) => return self.serve(staged, loaded, "its file", begun),
                Err(why) => {
                    // Only while it has the turn it is told to give way.
                    self.goes_on()?;
                    drop(staged);
                    let why = why.unquoted();
                    from_files = format!("{from_files}{}: {why}; ", path.display());
                }
            }
        }
        if from_files.is_empty() {
            from_files = "nobody has said which file it was; ".to_owned();
        }
        Err(format!(
            "no replica has the corpus ({from_replicas}), nor is its file to be had ({}): put it back, or load another with `trefoil cell reload`",
            from_files.trim_end_matches("; ")
        ))
    }

    /// `Err`: this is of no use any more, or has to be put off.
    fn goes_on(&self) -> Result<(), String> {
        let why = if self.state.is_stopping() {
            "the server is shutting down"
        } else if self.member.corpus_turn.must_give_way() {
            GIVES_WAY
        } else if self.state.has_newer() {
            "another corpus has come in force meanwhile"
        } else {
            return Ok(());
        };
        Err(why.to_owned())
    }

    /// `None`: a reload is under way, which may bring another one.
    fn stage(&self) -> Result<Option<Staged>, String> {
        use trefoil_store::ReloadError::UnderWay;
        match Staged::fetch(self.member) {
            Ok(staged) => Ok(Some(staged)),
            Err(UnderWay) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn serve(
        &self,
        staged: Staged,
        loaded: Loaded,
        source: &'static str,
        begun: Instant,
    ) -> Result<(), String> {
        self.standing.is_at(loaded);
        let config = self.confirm()?;
        let config_id = staged
            .commit(self.state, &config)
            .map_err(|e| e.to_string())?;
        // What came in force between the store's word and this is followed now.
        if let Err(error) = self.state.catch_up() {
            tracing::debug!(%error, "cannot look once more which corpus is in force");
        }
        tracing::info!(
            backend = self.member.number,
            config_id,
            items = loaded.items,
            took_ms = begun.elapsed().as_millis() as u64,
            "the corpus was fetched from {source}"
        );
        Ok(())
    }

    /// The configuration in force, if its corpus is the one that was fetched. Waits for a
    /// store that does not answer, or whose word is not believed.
    fn confirm(&self) -> Result<CellConfig, String> {
        loop {
            let why = match self.state.config_store.load() {
                Ok(Some(stored)) if self.config.is_in_force_by(&stored) => return Ok(stored),
                Ok(Some(stored)) => {
                    let config_id = stored.config_id;
                    if self.config.differs_by_reload(&stored) {
                        self.state.note_newer(stored);
                    }
                    return Err(format!(
                        "config id {config_id}, which names another corpus, has come in force meanwhile"
                    ));
                }
                Ok(None) => return Err("the cell's configuration is gone".to_owned()),
                Err(error) => error,
            };
            self.standing.waits_for(
                self.member.number,
                &format!("the corpus is there; whether it is in force is not known yet: {why}"),
            );
            std::thread::sleep(STORE_PAUSE);
            self.goes_on()?;
        }
    }

    /// Copies each shard from the other backend that holds it.
    async fn copy_from_replicas(&self) -> Result<Loaded, String> {
        let mut loaded = Loaded::default();
        let mut pace = CopyPace::new(self.state.recovery_rate);
        let shards = &self.member.store.config().shards;
        for local in 0..self.member.store.shard_count() {
            let shard = shards.shard(local);
            let cohort = self.config.placement().cohort_of_shard(shard);
            let own = self.member.number;
            let others = cohort.as_slice().iter().filter(|number| **number != own);
            let mut why = "it is the only one".to_owned();
            let mut is_copied = false;
            for &number in others {
                let before = loaded;
                match self
                    .shard_from((number, shard), &mut loaded, &mut pace)
                    .await
                {
                    Ok(()) => is_copied = true,
                    Err(error) => {
                        loaded = before;
                        why = error;
                    }
                }
                if is_copied {
                    break;
                }
            }
            if !is_copied {
                return Err(why);
            }
        }
        finish(self.member, &loaded, 0).map_err(|e| e.unquoted())?;
        Ok(loaded)
    }

    async fn shard_from(
        &self,
        (number, shard): (u32, u32),
        loaded: &mut Loaded,
        pace: &mut CopyPace,
    ) -> Result<(), String> {
        let text = |setback: crate::recovery::Setback| setback.to_string();
        let peer = Peer::new(self.state, self.config, number, shard).map_err(text)?;
        let mut from = PLACES.start;
        while from < PLACES.end {
            pace.wait(|| self.goes_on()).await?;
            let page = peer
                .corpus_page(from, self.config.config_id)
                .await
                .map_err(text)?;
            if page.epoch == epoch::NONE {
                return Err(format!("backend {number} has lost its corpus, too"));
            }
            if page.next <= from || page.next > PLACES.end {
                return Err(format!("backend {number} answers nonsense"));
            }
            from = page.next;
            pace.moved(pace::page_len(&page));
            for item in page.items {
                let data = match item.data {
                    Data::Whole(data) => data,
                    Data::Long { key } => {
                        let long = peer.long(key.to_vec(), item.version).await;
                        let long = long.map_err(text)?.ok_or_else(|| {
                            format!("backend {number} has lost an item meanwhile")
                        })?;
                        pace.moved(long.len() as u64);
                        long
                    }
                };
                self.install(number, &data, item.version, loaded)?;
            }
            self.standing.is_at(*loaded);
        }
        Ok(())
    }

    fn install(
        &self,
        number: u32,
        data: &Bytes,
        version: Version,
        loaded: &mut Loaded,
    ) -> Result<(), String> {
        let hasher = self.member.store.config().hasher;
        let sound = DataEntry::decode(data).filter(|entry| {
            let tag = hasher.hash(entry.key).tag;
            DataEntry::validate(data, tag, version, entry.key).is_ok()
        });
        let entry = sound.ok_or_else(|| format!("backend {number} holds a damaged item"))?;
        put(self.member, &entry, version, 0, loaded).map_err(|error: CorpusError| error.to_string())
    }
}

/// Where the file may be: where it was when it was loaded, and where this process was told.
fn paths(corpus: &CorpusId, file: Option<&Path>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = corpus.path.iter().map(PathBuf::from).collect();
    if let Some(file) = file
        && !paths.iter().any(|path| path == file)
    {
        paths.push(file.to_owned());
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ListenOptions, Listeners, Server, ServerOptions};
    use trefoil_cell::{
        BackendConfig, BackendRegistry as _, ConfigStore as _, CorpusDigester, DirectoryStore,
        Mode, RpcAddress,
    };
    use trefoil_layout::KeyHasher;

    const SECRET: &str = "4711-not-for-a-log";

    /// A process comes back without its corpus, whose file is damaged by now: why it waits.
    fn waits_for(name: &str, text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let store = DirectoryStore::create(&dir.path().join("cell")).unwrap();
        let RpcAddress::Unix(unix) = store.rpc_socket(0).unwrap() else {
            panic!("a directory's backends have sockets there");
        };
        let listeners = Listeners::bind(&ListenOptions {
            unix: Some(unix),
            ..ListenOptions::default()
        });
        let (digest, len) = CorpusDigester::of(text.as_bytes()).unwrap();
        let backend = |number| BackendConfig {
            number,
            addresses: vec![store.rpc_socket(number).unwrap()],
            fabric_socket: None,
            place: None,
        };
        let config = CellConfig {
            life: 11,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R2,
            backends: (0..2).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: Some(CorpusId {
                digest,
                len,
                first: Version::new(1, 1, 0),
                path: None,
            }),
        };
        store.compare_and_swap(None, &config).unwrap();
        let lock = store.claim(0).unwrap();
        // Its predecessor's.
        lock.begin_incarnation(config.life).unwrap();
        let options = ServerOptions {
            // Generous: the bound counts what parallel tests hold, too.
            memory_limit: 1 << 30,
            locks: vec![lock],
            load: Some(path),
            ..ServerOptions::new(Arc::new(store), vec![0])
        };
        let server = Server::start(options, listeners.unwrap()).unwrap();
        let standing = server.state().members[0].standing.as_ref().unwrap();
        loop {
            // What the log says is the same.
            let why = standing
                .recovery()
                .map_or_else(String::new, |r| r.waits_for);
            if why.contains(name) {
                return why;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_without_a_word_of_it() {
        let sound = r#"{"key": "a", "value": "b"}"#;
        for (name, text) in [
            ("names.jsonl", format!("{sound}\n{{\"{SECRET}\": 1}}\n")),
            ("types.jsonl", format!("{sound}\n\"{SECRET}\"\n")),
            (
                "coded.csv",
                format!("key,value_base64\n{SECRET},{SECRET}\n"),
            ),
        ] {
            let why = waits_for(name, &text);
            assert!(why.contains("line 2") && !why.contains(SECRET), "{why}");
            // It would be quoted, as it is to who loads the file.
            let reader = |value_len_max| {
                let format = super::super::CorpusFormat::of(Path::new(name));
                super::super::CorpusReader::new(text.as_bytes(), format, value_len_max)
            };
            let mut reader = reader(1 << 20).unwrap();
            let mut item = super::super::Item::default();
            let error = loop {
                match reader.next(&mut item) {
                    Ok(true) => {}
                    Ok(false) => panic!("{name}: no item is wrong"),
                    Err(error) => break error,
                }
            };
            let quotes = error.to_string().contains(SECRET);
            assert_eq!(quotes, name.ends_with(".jsonl"), "{error}");
        }
    }
}
