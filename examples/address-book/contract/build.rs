//! Generates the messages, the client and the server from the contract.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/address_book.proto");
    let contract = protox::compile(["address_book.proto"], ["proto"])?;
    // Servers answer with contacts that were encoded where the book is, without
    // a copy of each in between; everybody else uses the plain message.
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds_with_config(contract.clone(), tonic_prost_build::Config::new())?;
    let mut config = tonic_prost_build::Config::new();
    config
        .extern_path(".addressbook.v1", "crate::v1")
        .extern_path(".addressbook.v1.LookupAnswer", "crate::EncodedAnswer");
    let server = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("server");
    std::fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(server)
        .compile_fds_with_config(contract, config)?;
    Ok(())
}
