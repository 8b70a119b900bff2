//! Generates the stubs from the contract, without a system protobuf compiler.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/freshness.proto");
    let contract = protox::compile(["freshness.proto"], ["proto"])?;
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure().compile_fds_with_config(contract, config)?;
    Ok(())
}
