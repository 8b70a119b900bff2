//! Other parts of this process that have something to report: a front door.

use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use trefoil_hot::HotKey;
use trefoil_rpc::v1;

/// Reports through this server's metrics port and its RPC service.
pub trait Reporter: fmt::Debug + Send + Sync {
    /// Adds metrics; each carries the label `cell`.
    fn encode(&self, cell: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result;

    /// Statistics of the front door.
    fn statistics(&self) -> v1::GatewayStats;

    /// Keys asked for most by operations that no backend hears of.
    fn hot_keys(&self, count: usize) -> Vec<HotKey>;
}
