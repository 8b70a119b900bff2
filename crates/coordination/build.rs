//! Generates the stubs from the contracts, without a system protobuf compiler.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let contracts = protox::compile(["coordination.proto", "etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds_with_config(contracts, Default::default())?;
    Ok(())
}
