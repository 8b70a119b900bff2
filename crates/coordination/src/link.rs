//! skeleton
use crate::address::AssignerAddress;
use crate::error::{CoordinationError, Refusal};
use crate::node::Node;
use crate::viewcell::Servers;
use std::fmt;
use std::sync::Arc;
use trefoil_sharder::{Assignment, AssignmentDiff, AssignmentVersion, ServerId};
#[derive(Clone, Debug)]
pub(crate) struct Link;
pub(crate) struct Feed;
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0}")]
    Unreachable(String),
}
pub(crate) struct FeedEvent {
    pub(crate) assignment: Option<Assignment>,
    pub(crate) diffs: Vec<AssignmentDiff>,
    pub(crate) servers: Servers,
    pub(crate) as_of: Option<AssignmentVersion>,
}
impl Feed {
    pub(crate) async fn next(&mut self) -> Result<FeedEvent, CallError> {
        Err(CallError::Unreachable(String::new()))
    }
}
impl fmt::Display for Link {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
impl Link {
    pub(crate) fn remote(_: &AssignerAddress) -> Result<Self, CoordinationError> {
        Ok(Link)
    }
    pub(crate) fn local(_: Arc<Node>) -> Self {
        Link
    }
    pub(crate) async fn watch(
        &self,
        _: &str,
        _: Option<AssignmentVersion>,
    ) -> Result<Feed, CallError> {
        Ok(Feed)
    }
    pub(crate) fn turn_watch(&self) {}
    pub(crate) async fn leave(
        &self,
        _: &str,
        _: ServerId,
        _: u64,
    ) -> Result<(), CoordinationError> {
        Ok(())
    }
}
