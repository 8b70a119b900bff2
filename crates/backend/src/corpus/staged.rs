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

impl Staged {
    /// Begins an empty one beside what is served.
    pub(crate) fn begin(member: &Arc<Member>) -> Result<Self, ReloadError> {
        if !member.begin_reloading() {
            return Err(ReloadError::UnderWay);
        }
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
    pub(crate) fn commit_nothing(
        mut self,
        state: &State,
        config: &CellConfig,
    ) -> Result<(), ReloadError> {
        self.clear()?;
        let _adopting = state.adopting();
        state.set_config(config.clone());
        self.member.change_config(config.config_id);
        Ok(())
    }

    /// Serves it under `config` from now on.
    pub(crate) fn commit(mut self, state: &State, config: &CellConfig) -> Result<(), ReloadError> {
        let _adopting = state.adopting();
        self.member.change_corpus(config.config_id)?;
        self.committed = true;
        self.member.has_corpus(config.corpus.clone());
        state.set_config(config.clone());
        // The old one's, when nobody waits for it any more.
        self.member.store.give_back_unused();
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
