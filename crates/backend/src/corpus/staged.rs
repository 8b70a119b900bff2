//! A second corpus in a member's store; given up unless it is committed.

use crate::member::Member;
use crate::state::State;
use std::sync::Arc;
use trefoil_cell::CellConfig;
use trefoil_store::ReloadError;

/// See the module. Nobody else loads a corpus meanwhile.
pub(crate) struct Staged {
    member: Arc<Member>,
    committed: bool,
}

/// Why a corpus that was loaded is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// This process knows a later configuration, which names another one.
    #[error("config id {0}, which names another corpus, has come in force meanwhile")]
    Overtaken(u32),
    /// The store does not do it.
    #[error(transparent)]
    Store(#[from] ReloadError),
}

impl Staged {
    /// Begins an empty one beside what is served, for a fetch: it gives way to a reload.
    pub(super) fn fetch(member: &Arc<Member>) -> Result<Self, ReloadError> {
        match member.corpus_turn.take_to_fetch() {
            true => Staged::begin(member),
            false => Err(ReloadError::UnderWay),
        }
    }

    /// The same for a reload, when a fetch that is under way has given way.
    pub(crate) async fn reload(member: &Arc<Member>) -> Result<Self, ReloadError> {
        match member.corpus_turn.take_to_reload().await {
            true => Staged::begin(member),
            false => Err(ReloadError::UnderWay),
        }
    }

    fn begin(member: &Arc<Member>) -> Result<Self, ReloadError> {
        // From here on dropping it gives everything back.
        let staged = Staged {
            member: Arc::clone(member),
            committed: false,
        };
        member.store.begin_reload()?;
        Ok(staged)
    }

    /// Drops what is served: the backend has no corpus then, says so, and gets back the one
    /// that is in force if it gets no other.
    pub(crate) fn clear(&mut self) -> Result<(), ReloadError> {
        let member = &self.member;
        member.lacks_corpus();
        // An empty corpus takes the old one's place; then the real one begins.
        member.store.finish_reload()?;
        member.store.begin_reload()
    }

    /// Serves nothing under `config` from now on: its corpus is not here yet.
    pub(super) fn commit_nothing(
        mut self,
        state: &State,
        config: &CellConfig,
    ) -> Result<(), ReloadError> {
        let _adopting = state.adopting();
        if config.config_id <= self.member.config_id() {
            return Ok(());
        }
        self.clear()?;
        state.set_config(config.clone());
        self.member.change_config(config.config_id);
        Ok(())
    }

    /// Serves it as the corpus of `config` from now on: under its id, or under the one of a
    /// later configuration with the same corpus, if this process has followed to that while
    /// it was loaded. Config ids never go back. The id that it is served under.
    pub(crate) fn commit(mut self, state: &State, config: &CellConfig) -> Result<u32, CommitError> {
        // Nobody follows to another configuration until this is done.
        let _adopting = state.adopting();
        let current = state.config();
        let config = match current.config_id > config.config_id {
            true if current.corpus != config.corpus => {
                return Err(CommitError::Overtaken(current.config_id));
            }
            true => &*current,
            false => config,
        };
        self.member.change_corpus(config.config_id)?;
        self.committed = true;
        self.member.has_corpus(config.corpus.clone());
        state.set_config(config.clone());
        // The old one's, when nobody waits for it any more.
        self.member.store.give_back_unused();
        Ok(config.config_id)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            self.member.store.abort_reload();
        }
        self.member.corpus_turn.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{ListenOptions, Listeners};
    use crate::options::ServerOptions;
    use crate::server::Server;
    use trefoil_cell::{BackendConfig, ConfigStore as _, CorpusDigest, CorpusId};
    use trefoil_cell::{EmbeddedStore, Mode};
    use trefoil_layout::Version;

    /// An immutable cell of one process, that serves config id 1.
    fn start(home: &std::path::Path) -> Server {
        let listen = ListenOptions {
            unix: Some(home.join("rpc")),
            ..ListenOptions::default()
        };
        let listeners = Listeners::bind(&listen).unwrap();
        let file = home.join("corpus.jsonl");
        std::fs::write(&file, "{\"key\":\"a\",\"value\":\"1\"}\n").unwrap();
        let backend = |number| BackendConfig {
            number,
            addresses: listeners.rpc_addresses(),
            fabric_socket: None,
            place: None,
        };
        let config = CellConfig {
            life: 7,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R2,
            backends: (0..2).map(backend).collect(),
            hash: Default::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        let store = Arc::new(EmbeddedStore::new());
        store.compare_and_swap(None, &config).unwrap();
        let options = ServerOptions {
            load: Some(file),
            ..ServerOptions::new(store, vec![0, 1])
        };
        Server::start(options, listeners).unwrap()
    }

    fn put(state: &State, next: &CellConfig) {
        let before = state.config_store.load().unwrap().unwrap().topology_id();
        let swapped = state.config_store.compare_and_swap(Some(before), next);
        swapped.unwrap();
    }

    /// What comes in force between the last look and the commit is not undone by it.
    #[test]
    fn a_commit_never_leads_back_to_an_earlier_configuration() {
        let home = tempfile::tempdir().unwrap();
        let server = start(home.path());
        let state = server.state();
        let (member, loaded_for) = (&state.members[0], state.config());
        let staged = Staged::fetch(member).unwrap();
        let anew = loaded_for.anew().unwrap();
        put(state, &anew);
        state.catch_up().unwrap();
        assert_eq!(member.config_id(), 2);
        assert_eq!(staged.commit(state, &loaded_for).unwrap(), 2);
        assert_eq!((member.config_id(), state.config().config_id), (2, 2));
        assert!(!member.corpus_turn.is_reload());

        let staged = Staged::fetch(member).unwrap();
        let mut other = anew.anew().unwrap();
        other.corpus = Some(CorpusId {
            digest: CorpusDigest(5),
            len: 1,
            first: Version::new(1, 1, 0),
            path: None,
        });
        state.set_config(other);
        let refused = staged.commit(state, &anew);
        assert!(
            matches!(refused, Err(CommitError::Overtaken(3))),
            "{refused:?}"
        );
        assert_eq!(member.config_id(), 2);
        // Whoever was refused has given everything back.
        assert!(Staged::fetch(member).is_ok());
    }
}
