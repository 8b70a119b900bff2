//! Generates the stubs from the contract, without a system protobuf compiler.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/etcd.proto");
    let contract = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds_with_config(contract, Default::default())?;
    Ok(())
}
