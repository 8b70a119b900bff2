//! skeleton
use crate::error::{CoordinationError, Refusal};
use crate::limits;
use crate::store::Store;
use std::time::Duration;
use trefoil_sharder::{BalanceConfig, Freeze};

/// How an assigner works.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// How long a server is a member after it was last heard.
    pub lease: Duration,
    /// Between two rounds of balancing.
    pub step_every: Duration,
    /// How long a first assignment waits for more servers.
    pub gather: Duration,
    /// Slices for each server in a first assignment.
    pub slices_per_server: usize,
    /// Thresholds of every corpus without thresholds of its own: how many
    /// replicas, how much may move.
    pub balance: BalanceConfig,
    /// Thresholds of single corpora.
    pub corpora: std::collections::BTreeMap<String, BalanceConfig>,
    /// Only the corpora with thresholds of their own are served; others are
    /// refused.
    pub closed: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions {
            lease: limits::LEASE,
            step_every: limits::STEP_EVERY,
            gather: limits::GATHER,
            slices_per_server: 32,
            balance: BalanceConfig::default(),
            corpora: Default::default(),
            closed: false,
        }
    }
}
#[derive(Debug)]
pub(crate) struct Node;
impl Node {
    pub(crate) fn start(_: Store, _: NodeOptions) -> Result<Self, CoordinationError> {
        Ok(Node)
    }
    pub(crate) fn cut_off(&self, _: bool) {}
    pub(crate) async fn set_freeze(&self, _: &str, _: Freeze) -> Result<Vec<String>, Refusal> {
        Ok(Vec::new())
    }
}
