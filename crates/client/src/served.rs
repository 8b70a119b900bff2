//! What backends say of the configuration that they serve.

use crate::cell::CONNECT_PATIENCE;
use crate::rpc::{Rpc, is_refused};
use std::time::Duration;
use trefoil_cell::{CellConfig, Incarnations, RpcAddress};
use trefoil_rpc::v1;
use trefoil_tls::{HandshakeError, Tls};

/// What a process with backends serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The configuration.
    pub config: CellConfig,
    /// How often each of the process's backends has begun in the cell's life.
    pub begun: Incarnations,
}

/// Asks the server at each address, all at once, what it serves; over TCP with TLS, if
/// certificates are given.
pub fn served(addresses: &[RpcAddress], tls: Option<&Tls>) -> Vec<Result<Served, Unanswered>> {
    let rpc = Rpc::new(CONNECT_PATIENCE, tls.cloned());
    let ask_one = |address: &RpcAddress| ask(&rpc, address, CONNECT_PATIENCE);
    // One behind a dead link takes all of its patience.
    std::thread::scope(|scope| {
        let asking = |address| scope.spawn(move || ask_one(address));
        let asked: Vec<_> = addresses.iter().map(asking).collect();
        let died = |_| Err("the call panicked".to_owned().into());
        let answers = asked.into_iter().map(|one| one.join().unwrap_or_else(died));
        answers.collect()
    })
}

/// Sets the memory bound of the process that serves at `address`, in bytes; what it holds
/// now.
pub fn set_memory_limit_at(address: &RpcAddress, bytes: u64) -> Result<u64, String> {
    let rpc = Rpc::new(CONNECT_PATIENCE, None);
    let mut client = rpc.open(address)?;
    let request = v1::SetMemoryLimitRequest { bytes };
    let call = async { client.set_memory_limit(request).await };
    let answer = rpc.wait(call, CONNECT_PATIENCE)?;
    Ok(answer.into_inner().resident_bytes)
}

/// Why a server has not said what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// For people.
    pub why: String,
    /// The two have no authority in common, or one's certificate is not what it has to be:
    /// waiting does not help.
    pub handshake: Option<HandshakeError>,
    /// It does not let this process in.
    pub is_refusal: bool,
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<String> for Unanswered {
    fn from(why: String) -> Self {
        Unanswered {
            why,
            handshake: None,
            is_refusal: false,
        }
    }
}

pub(crate) fn ask(
    rpc: &Rpc,
    address: &RpcAddress,
    patience: Duration,
) -> Result<Served, Unanswered> {
    let mut client = rpc.open(address)?;
    let (mut handshake, mut is_refusal) = (None, false);
    let call = async {
        let answer = client.config(v1::ConfigRequest {}).await;
        if let Err(status) = &answer {
            // One that was broken off may have been on its way through a busy moment.
            let is_other = |why: &&HandshakeError| matches!(why, HandshakeError::Other { .. });
            let why = trefoil_rpc::handshake_error(status);
            handshake = why.filter(|why| !is_other(why)).cloned();
            is_refusal = is_refused(status);
        }
        answer
    };
    let answer = rpc.wait(call, patience);
    let answer = answer.map_err(|why| Unanswered {
        why,
        handshake,
        is_refusal,
    })?;
    let answer = answer.into_inner();
    let config = trefoil_cell::decode_config(&answer.config.unwrap_or_default());
    let begun = answer.begun.into_iter();
    Ok(Served {
        config: config.map_err(|error| error.to_string())?,
        begun: begun.map(|b| (b.backend, b.incarnation)).collect(),
    })
}
