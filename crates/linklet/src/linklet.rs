//! The handle that an application has, and what stands behind it.

use crate::driver;
use crate::error::{Error, Redirect};
use crate::life::Life;
use crate::loader::Loader;
use crate::ops::Turns;
use crate::service::PeerService;
use crate::stats::Stats;
use crate::store::Store;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::Instrument as _;
use trefoil_channel::Security;
use trefoil_coordination::View;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::Config;
use trefoil_router::Routed;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// What a load comes to, for everybody who waited for it: the value, and what it
/// is known to contain.
pub(crate) type Landed<V> = Result<Option<(Arc<V>, Stamp)>, Error>;

/// The objects of one corpus in this server: those of the slices that are
/// assigned to it. Cheap to clone; when the last clone is dropped the server's
/// membership ends as if it had died. See the first page of this crate.
pub struct Linklet<V> {
    inner: Arc<Inner<V>>,
    tasks: Arc<Tasks>,
    call: Call,
}

/// What is known of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The assignment that the caller goes by.
    pub(crate) known: Option<AssignmentVersion>,
    /// It was redirected here, and is not to be redirected again.
    pub(crate) redirected: bool,
    /// How long it may wait for a key that is being moved here.
    pub(crate) patience: Duration,
}

impl<V> Clone for Linklet<V> {
    fn clone(&self) -> Self {
        Linklet {
            inner: Arc::clone(&self.inner),
            tasks: Arc::clone(&self.tasks),
            call: self.call,
        }
    }
}

impl<V> fmt::Debug for Linklet<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linklet")
            .field("corpus", &self.inner.corpus)
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner<V> {
    pub(crate) corpus: String,
    pub(crate) store: Arc<Store<V>>,
    pub(crate) config: Config,
    pub(crate) loader: Option<Arc<dyn Loader<V>>>,
    /// How long a load may take.
    pub(crate) load_within: Duration,
    /// Of its connections.
    pub(crate) security: Security,
    /// One change at a time of a key whose replicas confirm.
    pub(crate) turns: Arc<Turns>,
    life: Mutex<Option<Life<V>>>,
    pub(crate) progress: watch::Sender<Progress>,
}

/// How far the membership has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) version: Option<AssignmentVersion>,
    pub(crate) drained: bool,
    pub(crate) ended: bool,
    /// Nothing that is assigned to the server is still elsewhere.
    pub(crate) settled: bool,
}

/// Ends the tasks with the last handle.
#[derive(Debug, Default)]
pub(crate) struct Tasks(pub(crate) Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl<V: Send + Sync + 'static> Inner<V> {
    pub(crate) fn new(
        corpus: String,
        store: Arc<Store<V>>,
        config: Config,
        (loader, load_within): (Option<Arc<dyn Loader<V>>>, Duration),
        security: Security,
        life: Life<V>,
    ) -> Self {
        Inner {
            corpus,
            store,
            config,
            loader,
            load_within,
            security,
            turns: Arc::default(),
            life: Mutex::new(Some(life)),
            progress: watch::Sender::new(Progress::default()),
        }
    }

    /// The present membership; `None` between two, and after the last.
    pub(crate) fn life(&self) -> MutexGuard<'_, Option<Life<V>>> {
        self.life.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins another membership, unless the server was told to stop meanwhile.
    pub(crate) fn begin(&self, life: Life<V>) -> bool {
        let mut place = self.life();
        let wanted = !self.progress.borrow().ended;
        if wanted {
            *place = Some(life);
        }
        wanted
    }

    /// Somebody else serves the key.
    pub(crate) fn redirect(
        &self,
        life: &Life<V>,
        known: Option<AssignmentVersion>,
        to: Option<ServerId>,
        version: Option<AssignmentVersion>,
    ) -> Error {
        crate::stats::Counters::one(&self.store.counters.redirects);
        let view = life.session.view();
        let address = to.and_then(|to| Some(view.borrow().servers.get(&to)?.address.clone()));
        let newest = life.core().assignment();
        let assignment = newest
            .filter(|assignment| known < Some(assignment.version()))
            .map(|assignment| Arc::new(assignment.clone()));
        Error::NotMine(Redirect {
            to,
            address,
            version,
            assignment,
        })
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    pub(crate) fn new(inner: Arc<Inner<V>>, tasks: Vec<AbortHandle>, patience: Duration) -> Self {
        Linklet {
            inner,
            tasks: Arc::new(Tasks(tasks)),
            call: Call {
                known: None,
                redirected: false,
                patience,
            },
        }
    }

    /// Ends this task with the last handle, too.
    pub(crate) fn keep(&mut self, task: AbortHandle) {
        let mut tasks = vec![task];
        if let Some(held) = Arc::get_mut(&mut self.tasks) {
            tasks.append(&mut held.0);
        }
        self.tasks = Arc::new(Tasks(tasks));
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<V>> {
        &self.inner
    }

    pub(crate) fn call(&self) -> Call {
        self.call
    }

    /// For a caller that goes by this assignment: if it is newer than the one
    /// known here, requests wait until this server has it, too, so that nobody
    /// is sent back to where he came from.
    #[must_use]
    pub fn knowing(&self, version: Option<AssignmentVersion>) -> Self {
        let mut linklet = self.clone();
        linklet.call.known = version;
        linklet
    }

    /// For a caller that was redirected here: is not sent on again while there
    /// is time to learn who has the key.
    #[must_use]
    pub fn redirected(&self, version: Option<AssignmentVersion>) -> Self {
        let mut linklet = self.knowing(version);
        linklet.call.redirected = true;
        linklet
    }

    /// For a call with this metadata: see [`Routed`].
    #[must_use]
    pub fn routed(&self, metadata: &tonic::metadata::MetadataMap) -> Self {
        match Routed::of(metadata) {
            Some(routed) if routed.redirected => self.redirected(routed.version),
            Some(routed) => self.knowing(routed.version),
            None => self.clone(),
        }
    }

    /// Waits this long at most for keys that are being moved here.
    #[must_use]
    pub fn patient(&self, patience: Duration) -> Self {
        let mut linklet = self.clone();
        linklet.call.patience = patience;
        linklet
    }

    /// Runs a request for a key and counts all of its CPU time as the load of
    /// the key's slice, instead of that of single operations: what a request
    /// costs beyond them moves with its key, too.
    pub async fn metered<F: Future>(&self, key: &[u8], request: F) -> F::Output {
        let meters = &self.inner.store.meters;
        meters.metered(self.point(key), request).await
    }

    /// The corpus.
    pub fn corpus(&self) -> &str {
        &self.inner.corpus
    }

    /// Under which id the server is a member now; another one after it was
    /// taken for dead and has joined anew.
    pub fn server_id(&self) -> Option<ServerId> {
        self.inner.store.facts.server()
    }

    /// Where a key lies in the hashed key space.
    pub fn point(&self, key: &[u8]) -> KeyPoint {
        self.inner.store.key(key).point()
    }

    /// The assignment that the server goes by.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.inner.store.facts.version()
    }

    /// The map and the members, as the assigner tells them; `None` while the
    /// server is no member.
    pub fn view(&self) -> Option<watch::Receiver<Arc<View>>> {
        self.inner.store.facts.view()
    }

    /// What the server owns and serves, ascending.
    pub fn owned(&self) -> Vec<Slice> {
        self.inner.store.facts.owned()
    }

    /// Counters, and what is in memory.
    pub fn stats(&self) -> Stats {
        self.inner.store.stats()
    }

    /// The service that the other servers send to, to be mounted in the
    /// application's own tonic server at the address that was advertised.
    pub fn service(&self) -> PeerService {
        PeerService::new().with(self)
    }

    /// Waits until an assignment is in force here and everything that it
    /// assigns to this server has arrived.
    pub async fn settled(&self) {
        let mut progress = self.inner.progress.subscribe();
        let _ = progress
            .wait_for(|progress| progress.settled || progress.ended)
            .await;
    }

    /// Gives everything to the other servers and returns when nothing is left:
    /// it is safe to stop this server, and to go on with the next one. Until
    /// the process ends, requests are answered with redirects. To be called on
    /// SIGTERM.
    ///
    /// It takes as long as it takes; with a limit:
    /// `tokio::time::timeout(limit, linklet.drain())`. If there is no other
    /// server it never returns.
    pub async fn drain(&self) -> Drained {
        let span = tracing::info_span!("linklet.drain", corpus = self.corpus());
        self.drain_all().instrument(span).await
    }

    async fn drain_all(&self) -> Drained {
        driver::begin_drain(&self.inner);
        let mut progress = self.inner.progress.subscribe();
        let end = progress
            .wait_for(|progress| progress.drained || progress.ended)
            .await;
        match end {
            Ok(progress) if progress.drained => Drained::Empty,
            _ => Drained::NotMember,
        }
    }

    /// Ends the membership at once; what is in memory is lost unless it was
    /// drained before.
    pub async fn leave(&self) {
        driver::leave(&self.inner).await;
    }
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything is elsewhere: it is safe to stop, and to go on with a
    /// rollout.
    Empty,
    /// The server was no member any more; others have its slices.
    NotMember,
}
