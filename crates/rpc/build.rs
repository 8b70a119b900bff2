//! Generates the stubs from the contract, without a system protobuf compiler.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/trefoil.proto");
    let contract = protox::compile(["trefoil.proto"], ["proto"])?;
    let mut config = tonic_prost_build::Config::new();
    // Keys and values stay slices of the received message.
    config.bytes(["."]);
    // Statistics are printed as JSON under the contract's own names.
    for message in [
        "StatsResponse",
        "ProcessStats",
        "CertificateStats",
        "MemberStats",
        "ResidentBytes",
        "Evictions",
        "MutationCount",
        "SizeClassStats",
        "RecoveryStats",
        "RepairStats",
        "TakeoverStats",
        "GatewayStats",
        "CommandStats",
        "DurationCount",
        "FaultCount",
        "Corpus",
        "Version",
    ] {
        config.type_attribute(
            format!("trefoil.v1.{message}"),
            "#[derive(serde::Serialize)]",
        );
    }
    tonic_prost_build::configure().compile_fds_with_config(contract, config)?;
    Ok(())
}
