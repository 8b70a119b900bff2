//! An assigner inside the process: for tests and for one process alone. The
//! same sessions and watchers, the same leases and the same balancing; only
//! nothing goes over a network.

use crate::error::CoordinationError;
use crate::limits::JOIN_TIMEOUT;
use crate::link::Link;
use crate::node::{Node, NodeOptions};
use crate::session::{JoinOptions, Session};
use crate::store::Store;
use crate::view::ServerInfo;
use crate::watcher::Watcher;
use std::sync::Arc;
use trefoil_sharder::Freeze;

/// An assigner in this process. Clones are the same one; it ends with the
/// last clone, session and watcher.
#[derive(Clone, Debug)]
pub struct LocalCoordinator {
    node: Arc<Node>,
}

impl LocalCoordinator {
    /// With the usual thresholds. To be called in a tokio runtime.
    pub fn new() -> Self {
        LocalCoordinator::with(NodeOptions::default()).expect("the usual thresholds fit together")
    }

    /// With other ones.
    pub fn with(options: NodeOptions) -> Result<Self, CoordinationError> {
        Ok(LocalCoordinator {
            node: Arc::new(Node::start(Store::embedded(), options)?),
        })
    }

    /// Like [`Session::join`].
    pub async fn join(
        &self,
        corpus: &str,
        server: ServerInfo,
    ) -> Result<Session, CoordinationError> {
        self.join_with(corpus, server, JoinOptions::default()).await
    }

    /// Like [`Session::join_with`].
    pub async fn join_with(
        &self,
        corpus: &str,
        server: ServerInfo,
        options: JoinOptions,
    ) -> Result<Session, CoordinationError> {
        Session::over(self.link(), corpus, server, options).await
    }

    /// Like [`Watcher::open`].
    pub async fn watcher(&self, corpus: &str) -> Result<Watcher, CoordinationError> {
        Watcher::over(self.link(), corpus, JOIN_TIMEOUT).await
    }

    /// The switch for deployments.
    pub async fn set_freeze(&self, corpus: &str, freeze: Freeze) -> Result<(), CoordinationError> {
        self.node
            .set_freeze(corpus, freeze)
            .await
            .map(|_| ())
            .map_err(|refusal| CoordinationError::Refused {
                corpus: corpus.to_owned(),
                refusal,
            })
    }

    /// Makes the assigner unreachable for everybody, or reachable again. While
    /// it is cut off it hears no keep-alive, and ends no lease because of that:
    /// it is as if it had stood still.
    pub fn cut_off(&self, cut: bool) {
        self.node.cut_off(cut);
    }

    fn link(&self) -> Link {
        Link::local(Arc::clone(&self.node))
    }
}

impl Default for LocalCoordinator {
    fn default() -> Self {
        LocalCoordinator::new()
    }
}
