//! What backends say of the configuration that they serve.

use crate::cell::CONNECT_PATIENCE;
use crate::rpc::{Rpc, is_refused};
#[cfg(feature = "etcd")]
use std::ops::ControlFlow;
use std::time::Duration;
use trefoil_cell::{CellConfig, Incarnations, RpcAddress};
use trefoil_rpc::{Client, failure_text, v1};
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

/// Asks the server at each address, all at once, for those who want to know what the first
/// of them says that suits: `on` takes the answers as they come, until one breaks off.
/// Those that hang cost their patience once, and nothing where another one suits.
#[cfg(feature = "etcd")]
pub(crate) fn ask_all<T: Send>(
    rpc: &Rpc,
    addresses: impl Iterator<Item = RpcAddress>,
    patience: Duration,
    mut on: impl FnMut(Result<Served, Unanswered>) -> ControlFlow<T> + Send,
) -> Option<T> {
    let clients: Vec<_> = addresses.map(|address| rpc.open(&address)).collect();
    let found = rpc.block_on(async {
        let mut asked = tokio::task::JoinSet::new();
        for client in clients {
            asked.spawn(async move { served_by(client?, patience).await });
        }
        while let Some(answer) = asked.join_next().await {
            let died = |_| Err("the call panicked".to_owned().into());
            if let ControlFlow::Break(found) = on(answer.unwrap_or_else(died)) {
                return Some(found);
            }
        }
        None
    });
    found.ok().flatten()
}

fn ask(rpc: &Rpc, address: &RpcAddress, patience: Duration) -> Result<Served, Unanswered> {
    let client = rpc.open(address)?;
    rpc.block_on(served_by(client, patience))?
}

async fn served_by(mut client: Client, patience: Duration) -> Result<Served, Unanswered> {
    let call = client.config(v1::ConfigRequest {});
    let answer = match tokio::time::timeout(patience, call).await {
        Ok(answer) => answer.map_err(|status| {
            // One that was broken off may have been on its way through a busy moment.
            let is_other = |why: &&HandshakeError| matches!(why, HandshakeError::Other { .. });
            let handshake = trefoil_rpc::handshake_error(&status);
            Unanswered {
                why: failure_text(&status),
                handshake: handshake.filter(|why| !is_other(why)).cloned(),
                is_refusal: is_refused(&status),
            }
        }),
        Err(_) => Err(format!("no answer within {} ms", patience.as_millis()).into()),
    };
    let answer = answer?.into_inner();
    let config = trefoil_cell::decode_config(&answer.config.unwrap_or_default());
    let begun = answer.begun.into_iter();
    Ok(Served {
        config: config.map_err(|error| error.to_string())?,
        begun: begun.map(|b| (b.backend, b.incarnation)).collect(),
    })
}

#[cfg(all(test, feature = "etcd"))]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn who_answers_is_not_heard_behind_those_who_hang() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let address = |listener: &TcpListener| RpcAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        // They take connections, and say nothing.
        let hang: [TcpListener; 4] = std::array::from_fn(|_| bind());
        let gone = address(&bind());
        let rpc = Rpc::new(PATIENCE, None);
        let addresses = hang.iter().map(address).chain([gone]);
        let first = ask_all(&rpc, addresses, PATIENCE, ControlFlow::Break);
        let why = first.unwrap().unwrap_err().why;
        assert!(why.contains("refused"), "{why}");
    }
}
