//! The port at which `assigner` and `relay` are watched.

use crate::args::LinkedPlaintext;
use crate::failure::Failure;
use std::net::TcpListener;
use std::sync::Arc;
use trefoil_backend::{ListenError, take_port};
use trefoil_endpoint::{Endpoint, Process, Users};

/// Takes it, unless it is off; before anything else begins, so that mistakes show
/// at once.
pub(crate) fn take(
    address: &str,
    plaintext: &[LinkedPlaintext],
) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = crate::serve::metrics_address(address)? else {
        return Ok(None);
    };
    let is_allowed = plaintext.contains(&LinkedPlaintext::Metrics);
    if !address.ip().is_loopback() && !is_allowed {
        let what = "metrics";
        return Err(Failure::of(ListenError::OffLoopback { address, what }));
    }
    let (listener, _) = take_port(address)
        .map_err(|error| error.with_option("metrics"))
        .map_err(Failure::of)?;
    Ok(Some(listener))
}

/// Begins to serve there; who may come in at the process's own port may drain it.
pub(crate) fn serve(
    listener: Option<TcpListener>,
    process: Arc<dyn Process>,
    drainers: Users,
) -> Result<Option<Endpoint>, Failure> {
    let served = listener.map(|listener| Endpoint::serve_for(listener, vec![process], drainers));
    served.transpose().map_err(Failure::of)
}
