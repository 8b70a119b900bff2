//! Other parts of this process that have something to report: a front door, an engine.

use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use trefoil_hot::HotKey;
use trefoil_rpc::v1;

/// Reports through this server's metrics port.
pub trait MetricSource: fmt::Debug + Send + Sync {
    /// Adds metrics; each carries the label `cell`.
    fn encode(&self, cell: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result;
}

/// Reports through its RPC service as well.
pub trait Reporter: MetricSource {
    /// Statistics of the front door.
    fn statistics(&self) -> v1::GatewayStats;

    /// Keys asked for most by operations that no backend hears of.
    fn hot_keys(&self, count: usize) -> Vec<HotKey>;
}
