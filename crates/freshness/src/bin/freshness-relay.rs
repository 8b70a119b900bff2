//! The smallest relay: what `trefoil relay` does, without its options. Tests
//! kill it.
//!
//! `freshness-relay DATABASE PUBLICATION SLOT HOST:PORT TABLE=TEMPLATE…`

use std::error::Error;
use std::net::TcpListener;
use std::process::ExitCode;
use trefoil_freshness::{HubOptions, KeyMap, RelayOptions, RelayServer, Slot, TableMap};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("freshness-relay: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [database, publication, slot, listen, maps @ ..] = arguments else {
        return Err("expected DATABASE PUBLICATION SLOT HOST:PORT TABLE=TEMPLATE…".into());
    };
    let mut map = KeyMap::new();
    for text in maps {
        let (table, template) = text.split_once('=').ok_or("a map is TABLE=TEMPLATE")?;
        map = map.table(table, TableMap::template(template)?);
    }
    let slot = Slot::Persistent(slot.clone());
    let options = RelayOptions::new(database.parse()?, publication, slot, map);
    let listener = TcpListener::bind(listen)?;
    let mut server = RelayServer::start(options, HubOptions::default(), listener).await?;
    println!("ready {}", server.address());
    Ok(server.ended().await?)
}
