//! What the membership comes to at the moment, for whoever asks: under a lock of
//! its own, which is held for a copy and under which no other is taken. So it may
//! be asked for from anywhere, also by a closure that runs under a key's lock.

use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use trefoil_coordination::{Session, View};
use trefoil_linklet_core::{Core, Table};
use trefoil_sharder::{AssignmentVersion, ServerId, Slice};

#[derive(Debug, Default)]
struct Now {
    server: Option<ServerId>,
    view: Option<watch::Receiver<Arc<View>>>,
    version: Option<AssignmentVersion>,
    table: Option<Arc<Table>>,
}

/// See the page of this module.
#[derive(Debug, Default)]
pub(crate) struct Facts(Mutex<Now>);

impl Facts {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A membership begins.
    pub(crate) fn begin(&self, session: &Session) {
        *self.now() = Now {
            server: Some(session.server_id()),
            view: Some(session.view()),
            ..Now::default()
        };
    }

    /// The protocol has done something.
    pub(crate) fn follow(&self, core: &Core) {
        let mut now = self.now();
        let same = now
            .table
            .as_ref()
            .is_some_and(|table| Arc::ptr_eq(table, core.table()));
        if same && now.version == core.version() {
            return;
        }
        now.version = core.version();
        now.table = Some(Arc::clone(core.table()));
    }

    /// A membership is over, unless another one has begun.
    pub(crate) fn end(&self, server: ServerId) {
        let mut now = self.now();
        if now.server == Some(server) {
            *now = Now::default();
        }
    }

    pub(crate) fn server(&self) -> Option<ServerId> {
        self.now().server
    }

    pub(crate) fn view(&self) -> Option<watch::Receiver<Arc<View>>> {
        self.now().view.clone()
    }

    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.now().version
    }

    pub(crate) fn owned(&self) -> Vec<Slice> {
        let table = self.now().table.clone();
        table.map_or_else(Vec::new, |table| table.owned())
    }
}
