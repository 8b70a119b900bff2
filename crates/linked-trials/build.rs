//! Generates the messages, the client and the server from the contract.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/lists.proto");
    let contract = protox::compile(["lists.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(contract)?;
    Ok(())
}
