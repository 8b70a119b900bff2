//! From keys to servers.

use crate::error::RouteError;
use crate::metadata::{Redirect, Routed};
use crate::metrics::Counters;
use crate::peer::Peer;
use crate::table::{Peers, Table};
use arc_swap::{ArcSwap, ArcSwapOption};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use tonic::{Request, Status};
use trefoil_channel::Security;
use trefoil_coordination::{View, Watcher};
use trefoil_layout::KeyHasher;
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, Learned, ServerId};

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Access {
    /// Only the primary may answer: writes, and reads that have to see them.
    #[default]
    Primary,
    /// Any replica may.
    AnyReplica,
}

/// What may be chosen.
#[derive(Clone, Debug, Default)]
pub struct RouterOptions {
    /// How keys become points; servers have to use the same.
    pub hasher: KeyHasher,
    /// What protects the connections to the servers; unless it is said, what protects
    /// the watcher's to the assigner.
    pub security: Option<Security>,
}

/// Finds servers for keys. Clones are the same router.
#[derive(Clone, Debug)]
pub struct Router {
    pub(crate) inner: Arc<Inner>,
    _task: Arc<Follower>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    hasher: KeyHasher,
    security: Security,
    watcher: Watcher,
    view: watch::Receiver<Arc<View>>,
    table: ArcSwap<Table>,
    /// Tables are replaced in the order of their versions.
    replacing: Mutex<()>,
    /// The newest version that a server has named.
    heard: ArcSwapOption<AssignmentVersion>,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
struct Follower(AbortHandle);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) peer: Arc<Peer>,
    pub(crate) routed: Routed,
}

impl Target {
    /// Which server.
    pub fn server(&self) -> ServerId {
        self.peer.id
    }

    /// Where it serves.
    pub fn address(&self) -> &str {
        &self.peer.address
    }

    /// By which assignment.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.routed.version
    }

    /// Where the key lies.
    pub fn point(&self) -> KeyPoint {
        self.routed.point
    }

    /// What the server is told beside the request.
    pub fn routed(&self) -> Routed {
        self.routed
    }

    /// A connection to it, shared by everybody.
    pub fn channel(&self) -> Channel {
        self.peer.channel()
    }
}

/// So that generated clients can be used as `Client::with_interceptor(
/// target.channel(), target)`.
impl tonic::service::Interceptor for Target {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.routed.apply(request.metadata_mut());
        Ok(request)
    }
}

impl Router {
    /// Routes by what the watcher sees. To be called in a tokio runtime.
    pub fn new(watcher: Watcher) -> Self {
        Router::with(watcher, RouterOptions::default())
    }

    /// Likewise, with something chosen.
    pub fn with(watcher: Watcher, options: RouterOptions) -> Self {
        let mut view = watcher.view();
        let given = options.security;
        let security = given.unwrap_or_else(|| watcher.security().clone());
        let corpus = watcher.corpus().to_owned();
        let first = Table::new(&view.borrow_and_update(), &Peers::new(), &security, &corpus);
        let inner = Arc::new(Inner {
            hasher: options.hasher,
            security,
            watcher,
            view: view.clone(),
            table: ArcSwap::from_pointee(first),
            replacing: Mutex::new(()),
            heard: ArcSwapOption::empty(),
            counters: Counters::default(),
        });
        let followed = Arc::clone(&inner);
        let task = tokio::spawn(async move {
            while view.changed().await.is_ok() {
                followed.replace();
            }
        });
        Router {
            inner,
            _task: Arc::new(Follower(task.abort_handle())),
        }
    }

    /// Where a key lies.
    pub fn point(&self, key: &[u8]) -> KeyPoint {
        KeyPoint::of(&self.inner.hasher, key)
    }

    /// The primary of a key.
    pub fn route(&self, key: &[u8]) -> Result<Target, RouteError> {
        self.route_point(self.point(key), Access::Primary)
    }

    /// A server for a point.
    pub fn route_point(&self, point: KeyPoint, access: Access) -> Result<Target, RouteError> {
        let table = self.inner.table.load();
        let peer = match access {
            Access::Primary => table.primary(point),
            Access::AnyReplica => table.replica(point),
        };
        let Some(peer) = peer else {
            return Err(match table.version {
                None => RouteError::Unassigned {
                    corpus: self.inner.watcher.corpus().to_owned(),
                },
                Some(version) => RouteError::Unserved { point, version },
            });
        };
        Ok(Target {
            peer: Arc::clone(peer),
            routed: Routed {
                version: self.inner.newest(&table),
                point,
                redirected: false,
            },
        })
    }

    /// The servers of all these keys, each with the places of its keys in the
    /// list: for requests that fan out.
    pub fn partition<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<(Target, Vec<usize>)>, RouteError> {
        let mut parts: Vec<(Target, Vec<usize>)> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let target = self.route(key.as_ref())?;
            match parts
                .iter_mut()
                .find(|(other, _)| other.server() == target.server())
            {
                Some((_, places)) => places.push(place),
                None => parts.push((target, vec![place])),
            }
        }
        Ok(parts)
    }

    /// The assignment gone by.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.inner.table.load().version
    }

    /// The newest view.
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.inner.view.clone()
    }

    /// Hears of an assignment from a server; older ones are refused.
    pub fn learn(&self, assignment: Assignment) -> Learned {
        let learned = self.inner.watcher.learn(assignment);
        if learned == Learned::Adopted {
            self.inner.replace();
        }
        learned
    }

    /// Where a redirected request goes: to whom the redirect names, or by the
    /// newest assignment. Waits for at most `patience` for the assignment that
    /// the redirect names, if it names nobody.
    pub async fn redirected(
        &self,
        point: KeyPoint,
        access: Access,
        redirect: Redirect,
        patience: Duration,
    ) -> Result<Target, RouteError> {
        if let Some(assignment) = redirect.assignment {
            self.learn(assignment);
        }
        let named = redirect.version;
        self.inner.hear(named);
        let routed = Routed {
            version: self.inner.newest(&self.inner.table.load()),
            point,
            redirected: true,
        };
        if let Some(to) = redirect.to {
            let table = self.inner.table.load();
            let known = table.peers.get(&to).cloned();
            let peer = known.or_else(|| {
                let address = redirect.address.as_deref()?;
                let corpus = self.inner.watcher.corpus();
                Peer::new(to, address, &self.inner.security, corpus)
                    .ok()
                    .map(Arc::new)
            });
            if let Some(peer) = peer {
                return Ok(Target { peer, routed });
            }
        }
        let mut view = self.inner.view.clone();
        let new_enough = view.wait_for(|view| view.version() >= named);
        // Too late is no error: the present assignment may do.
        let _ = tokio::time::timeout(patience, new_enough).await;
        self.inner.replace();
        let target = self.route_point(point, access)?;
        Ok(Target { routed, ..target })
    }
}

impl Inner {
    pub(crate) fn corpus(&self) -> &str {
        self.watcher.corpus()
    }

    /// How many servers are known, and their unanswered requests.
    pub(crate) fn peers(&self) -> (usize, u64) {
        let table = self.table.load();
        let outstanding = table
            .peers
            .values()
            .map(|peer| u64::from(peer.outstanding()));
        (table.peers.len(), outstanding.sum())
    }

    /// Goes over to the newest view.
    fn replace(&self) {
        let _turn = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let view = self.view.borrow().clone();
        let before = self.table.load();
        let (security, corpus) = (&self.security, self.watcher.corpus());
        let next = Table::new(&view, &before.peers, security, corpus);
        self.table.store(Arc::new(next));
    }

    fn hear(&self, version: Option<AssignmentVersion>) {
        let Some(version) = version else { return };
        self.heard.rcu(|heard| match heard {
            Some(heard) if **heard >= version => Some(Arc::clone(heard)),
            _ => Some(Arc::new(version)),
        });
    }

    /// The newest version known of, though its assignment may not be here yet.
    fn newest(&self, table: &Table) -> Option<AssignmentVersion> {
        let heard = self.heard.load();
        table.version.max(heard.as_deref().copied())
    }
}
