//! What the build script made of the contract.

/// Messages, client and server of `trefoil.freshness.v1`; documented in the
/// contract.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("trefoil.freshness.v1");
}
