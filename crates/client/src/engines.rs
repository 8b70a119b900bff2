//! The engines beside a cell's backends: where they are, and what they have counted.

use crate::cell::Cell;
use crate::rpc::{Rpc, is_of_the_way};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;
use trefoil_cell::{CellConfig, RpcAddress};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_rpc::{failure_text, v1};
use trefoil_softnic::{DatagramUse, EngineAddress};
use trefoil_tls::Tls;

/// Patience with a backend that is asked for its engine, and with the engine.
const PATIENCE: Duration = Duration::from_millis(500);

/// An engine, as the backends tell of it.
#[derive(Clone, Debug)]
pub struct EngineStats {
    /// Where it is reached from here.
    pub address: SocketAddr,
    /// Those that tell of it.
    pub backends: Vec<u32>,
    /// Each counter that it has with its name, or why there is no answer.
    pub counters: Result<Vec<(&'static str, u64)>, String>,
}

impl EngineStats {
    /// The counter with this name; 0 where there is none, or no answer.
    pub fn count(&self, name: &str) -> u64 {
        self.known(name).unwrap_or(0)
    }

    /// The counter with this name; `None` where there is none, as in an engine of an earlier
    /// release, or no answer.
    pub fn known(&self, name: &str) -> Option<u64> {
        let counters = self.counters.as_deref().unwrap_or_default();
        let mut counters = counters.iter();
        let found = counters.find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// Lookups and reads that it has carried out.
    pub fn operations(&self) -> u64 {
        self.count("scans") + self.count("reads")
    }
}

impl Cell {
    /// The engines that the cell's backends tell of.
    pub fn engines(&self) -> Vec<EngineStats> {
        let rpc = &self.shared().rpc;
        let config = self.config();
        let mut engines: Vec<(EngineAddress, Vec<u32>)> = Vec::new();
        for backend in &config.backends {
            let number = backend.number;
            let found = engine_of(rpc, &config, number, By::AnyWay, PATIENCE);
            let Ok(Some(engine)) = found else {
                continue;
            };
            match engines
                .iter_mut()
                .find(|(known, _)| known.address == engine.address)
            {
                Some((_, backends)) => backends.push(number),
                None => engines.push((engine, vec![number])),
            }
        }
        let stats = |(engine, backends): (EngineAddress, Vec<u32>)| EngineStats {
            address: engine.address,
            backends,
            counters: trefoil_softnic::ask_counters(&engine, PATIENCE).map_err(|e| e.to_string()),
        };
        engines.into_iter().map(stats).collect()
    }
}

/// Which engines are of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Those of backends that are reached over the network: what a Unix socket reaches is
    /// on this host, as is its memory.
    Network,
    /// All.
    AnyWay,
}

/// An engine, what its certificate has to name, and what this user shows to it: a
/// certificate, or else the token that they have for it.
pub(crate) fn engine_address(
    address: SocketAddr,
    host: String,
    tls: Option<&Tls>,
) -> EngineAddress {
    let server = RpcAddress::Tcp {
        host: address.ip().to_string(),
        port: address.port(),
    };
    let token = match tls {
        Some(_) => None,
        None => trefoil_cell::credentials(&server).token(),
    };
    EngineAddress {
        address,
        host,
        tls: tls.cloned(),
        datagrams: DatagramUse::No,
        token: token.map_or_else(|| Arc::from([]), |token| token.as_bytes().into()),
    }
}

/// Why a backend has told of no engine, nor that it has none.
pub(crate) enum NoHello {
    /// It was not asked: it is reached by nothing that leaves this host.
    NotAsked,
    /// It has answered something else.
    Refused,
    /// It has not answered, and why.
    Silent(String),
}

/// The engine that a backend tells of, as it is reached from here; `None` if there is none.
pub(crate) fn engine_of(
    rpc: &Rpc,
    config: &CellConfig,
    backend: u32,
    by: By,
    patience: Duration,
) -> Result<Option<EngineAddress>, NoHello> {
    let addresses = config.backend(backend).map(|config| &config.addresses[..]);
    let tcp = |address: &RpcAddress| match address {
        RpcAddress::Tcp { host, port } => Some((host.clone(), *port, address.is_local())),
        RpcAddress::Unix(_) => None,
    };
    let tcp = addresses.unwrap_or_default().iter().find_map(tcp);
    let (host, port, is_local) = match (tcp, by) {
        (Some(found), _) => found,
        (None, By::Network) => return Err(NoHello::NotAsked),
        (None, By::AnyWay) => (Ipv4Addr::LOCALHOST.to_string(), 0, true),
    };
    let mut client = rpc.backend(config, backend).map_err(NoHello::Silent)?;
    let request = v1::HelloRequest {
        backend,
        layout_version: LAYOUT_VERSION.into(),
    };
    let call = async move { tokio::time::timeout(patience, client.hello(request)).await };
    let said = rpc
        .block_on(call)
        .map_err(NoHello::Silent)?
        .map_err(|_| NoHello::Silent(format!("no answer within {} ms", patience.as_millis())))?;
    let said = said.map_err(|status| {
        let is_silent = is_of_the_way(&status) || status.code() == tonic::Code::DeadlineExceeded;
        match is_silent {
            true => NoHello::Silent(failure_text(&status)),
            false => NoHello::Refused,
        }
    })?;
    let engine = said.into_inner().engine;
    let Ok(mut address) = engine.parse::<SocketAddr>() else {
        return Ok(None);
    };
    if address.ip().is_unspecified() {
        // Where the backend itself is reached.
        let found = (host.as_str(), port).to_socket_addrs();
        let Some(found) = found.ok().and_then(|mut found| found.next()) else {
            return Ok(None);
        };
        address.set_ip(found.ip());
    }
    // Of that host alone.
    if address.ip().is_loopback() && !is_local {
        return Ok(None);
    }
    Ok(Some(engine_address(address, host, rpc.tls())))
}
