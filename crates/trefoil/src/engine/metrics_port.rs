//! The port of an engine's metrics. An engine that is started again serves even if another
//! process has that port meanwhile: the port is tried again until it is free.

use crate::failure::Failure;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use trefoil_backend::take_port;
use trefoil_endpoint::{Endpoint, Text};

/// Between two attempts at a port that another process has.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) enum MetricsPort {
    Off,
    Taken(TcpListener),
    Awaited(SocketAddr),
}

impl MetricsPort {
    /// Takes it; one that another process has is refused, unless it `may_come_later`.
    pub(super) fn take(at: Option<SocketAddr>, may_come_later: bool) -> Result<Self, Failure> {
        let Some(at) = at else {
            return Ok(MetricsPort::Off);
        };
        match take_port(at) {
            Ok((listener, _)) => Ok(MetricsPort::Taken(listener)),
            Err(error) if may_come_later && error.is_port_in_use() => {
                tracing::warn!("no metrics of the engine until their port is free: {error}");
                Ok(MetricsPort::Awaited(at))
            }
            Err(error) => Err(Failure::of(error)),
        }
    }

    /// Answers there with `text`, now or when the port is free. What is awaited is answered
    /// until the process ends: `text` must keep nothing that ends before.
    pub(super) fn serve(self, text: Arc<Text>) -> Result<Option<Endpoint>, Failure> {
        match self {
            MetricsPort::Off => Ok(None),
            MetricsPort::Taken(listener) => {
                let served = Endpoint::of(listener, text);
                served.map(Some).map_err(Failure::of)
            }
            MetricsPort::Awaited(at) => {
                let thread = std::thread::Builder::new().name("metrics-port".into());
                let spawned = thread.spawn(move || serve_later(at, &text));
                spawned.map_err(|e| Failure::doing("cannot start a thread", e))?;
                Ok(None)
            }
        }
    }
}

fn serve_later(at: SocketAddr, text: &Arc<Text>) {
    loop {
        std::thread::sleep(AGAIN);
        let Ok((listener, _)) = take_port(at) else {
            continue;
        };
        match Endpoint::of(listener, Arc::clone(text)) {
            Ok(served) => {
                tracing::info!("the metrics of the engine are at {at} again");
                // As long as this process.
                std::mem::forget(served);
                return;
            }
            Err(error) => tracing::warn!("no metrics of the engine at {at} yet: {error}"),
        }
    }
}
