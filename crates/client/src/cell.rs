//! A connection to a cell: its configuration, from which clients are made.

use crate::carriers::Notices;
use crate::census::{Census, Hushed};
use crate::client::Client;
use crate::error::ConnectError;
use crate::etcd::EtcdSource;
use crate::list::Silent;
use crate::loading::Loading;
use crate::reaches::Reaches;
use crate::rpc::{Rpc, is_no_grpc, is_refused};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use trefoil_cell::{
    CellAddress, CellConfig, CellLocation, ConfigStore as _, DirectoryStore, Mode, RpcAddress,
};
use trefoil_driver::{Options, Topology};
use trefoil_fabric::shm::UserPolicy;
use trefoil_hot::HotKey;
use trefoil_rpc::v1;
use trefoil_tls::{CertError, CertFiles, CertUse, Tls};

/// How long establishing a connection may take.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Names a directory with this side's certificates: `ca.pem`, `cert.pem`, `key.pem`.
pub const CERTS_VARIABLE: &str = "TREFOIL_CERTS";

/// The certificates in the directory `certs` (`ca.pem`, `cert.pem`, `key.pem`), if
/// `address` leads to servers that are not on Unix sockets; they are not read otherwise.
/// For [`Cell::connect_with`].
pub fn tls_for(address: &str, certs: Option<&Path>) -> Result<Option<Tls>, CertError> {
    let directory = certs.filter(|_| asks_over_tcp(address));
    let read = |directory| Tls::read(&CertFiles::in_directory(directory), CertUse::Client);
    directory.map(read).transpose()
}

/// A cell as its clients know it. Cheap to clone; shared by threads, each of
/// which has a [`Client`] of its own.
#[derive(Clone)]
pub struct Cell {
    inner: Arc<Shared>,
}

pub(crate) struct Shared {
    address: String,
    location: CellLocation,
    /// Of a cell in etcd.
    etcd: Option<EtcdSource>,
    /// Whose shared memory is believed: the user's whose cell was asked for, where a
    /// directory or a socket says who that is.
    pub(crate) servers: UserPolicy,
    topology: RwLock<Arc<Topology>>,
    /// Of two that load the configuration, the one that began later has the last word.
    loading: Loading<Result<Arc<Topology>, Arc<ConnectError>>>,
    /// How often the known topology has changed.
    changes: AtomicU64,
    pub(crate) rpc: Arc<Rpc>,
    clients: AtomicUsize,
    /// Which server of the address has answered last: the others may hang.
    answered: AtomicUsize,
    pub(crate) census: Arc<Census>,
    pub(crate) silent: Silent,
    pub(crate) hushed: Hushed,
    pub(crate) notices: Notices,
    pub(crate) reaches: Arc<Reaches>,
}

impl Cell {
    /// Finds the cell at `address` (see `trefoil_cell::CellAddress`) and loads
    /// its configuration. Servers over TCP are spoken to with TLS if the environment
    /// variable `TREFOIL_CERTS` names a directory of certificates.
    pub fn connect(address: &str) -> Result<Cell, ConnectError> {
        let directory = std::env::var_os(CERTS_VARIABLE);
        let tls = tls_for(address, directory.as_deref().map(Path::new))?;
        Cell::connect_with(address, tls)
    }

    /// The same with certificates of the caller's choice, whatever the environment says:
    /// servers over TCP are spoken to with TLS and nothing else. `None`: in plain text,
    /// with a token.
    pub fn connect_with(address: &str, tls: Option<Tls>) -> Result<Cell, ConnectError> {
        let bad = |source| ConnectError::Address {
            address: address.to_owned(),
            source,
        };
        let location = address
            .parse::<CellAddress>()
            .and_then(|a| a.locate())
            .map_err(bad)?;
        let rpc = Rpc::new(CONNECT_PATIENCE, tls);
        let etcd = match &location {
            CellLocation::Etcd(etcd) => Some(EtcdSource::open(etcd)?),
            _ => None,
        };
        let answered = AtomicUsize::new(0);
        let (config, owner) = match &etcd {
            Some(etcd) => (etcd.first(&rpc)?, None),
            None => load(&rpc, address, &location, &answered)?,
        };
        Ok(Cell {
            inner: Arc::new(Shared {
                address: address.to_owned(),
                location,
                etcd,
                servers: owner.map_or(UserPolicy::SameUser, |id| UserPolicy::Listed(vec![id])),
                topology: RwLock::new(Arc::new(Topology::new(Arc::new(config)))),
                loading: Loading::default(),
                changes: AtomicU64::new(0),
                rpc,
                clients: AtomicUsize::new(0),
                answered,
                census: Arc::default(),
                silent: Silent::default(),
                hushed: Hushed::default(),
                notices: Notices::default(),
                reaches: Arc::default(),
            }),
        })
    }

    /// The configuration that this process knows.
    pub fn config(&self) -> Arc<CellConfig> {
        self.inner.config()
    }

    /// The configuration as the cell says now, which this process knows from now on.
    pub fn learn(&self) -> Result<Arc<CellConfig>, ConnectError> {
        self.inner.reload_config()
    }

    /// Whose shared memory is believed to be the cell's.
    pub fn servers(&self) -> &UserPolicy {
        &self.inner.servers
    }

    /// The address that this cell was found at.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// What it speaks with servers over TCP, if that is TLS: how long its certificate
    /// is valid, for one.
    pub fn tls(&self) -> Option<&Tls> {
        self.inner.rpc.tls()
    }

    /// A client for one thread. Backends that cannot be reached now are tried
    /// again when they are needed.
    pub fn client(&self, options: Options) -> Client {
        let number = self.inner.clients.fetch_add(1, Ordering::Relaxed);
        Client::new(self.inner.clone(), options, number)
    }

    /// The same without waiting for its connections.
    pub(crate) fn begin_client(&self, options: Options) -> Client {
        let number = self.inner.clients.fetch_add(1, Ordering::Relaxed);
        Client::begin(self.inner.clone(), options, number)
    }

    /// Sets the memory bound of every process of the cell, in bytes.
    /// Returns for each backend the bytes resident now, or why it failed.
    pub fn set_memory_limit(&self, bytes: u64) -> Vec<(u32, Result<u64, String>)> {
        let config = self.config();
        let set = |number: u32| {
            let client = self.inner.rpc.backend(&config, number)?;
            let call = async move {
                let mut client = client;
                client
                    .set_memory_limit(v1::SetMemoryLimitRequest { bytes })
                    .await
                    .map(|r| r.into_inner())
            };
            self.inner
                .rpc
                .wait(call, CONNECT_PATIENCE)
                .map(|r| r.resident_bytes)
        };
        config
            .backends
            .iter()
            .map(|b| (b.number, set(b.number)))
            .collect()
    }

    /// Keys that are asked for most, by operations and by bytes, in the whole
    /// cell; backends that do not answer are passed over. Rates are estimates:
    /// they come from samples of what clients report.
    pub fn top_keys(&self, count: usize) -> Vec<HotKey> {
        let config = self.config();
        // A read is reported to all three replicas.
        let reports = if config.mode == Mode::R32 { 3.0 } else { 1.0 };
        let request = v1::TopKeysRequest {
            count: count as u32,
        };
        let mut lists = Vec::new();
        let mut answered = Vec::new();
        for answer in self.top_key_lists(request) {
            // One process may be several backends, and answers for all of them.
            let is_known = |list: &v1::BackendKeys| answered.contains(&list.backend);
            if answer.backends.iter().any(is_known) {
                continue;
            }
            lists.push(hot_keys(answer.gateway, 1.0));
            for list in answer.backends {
                answered.push(list.backend);
                lists.push(hot_keys(list.keys, reports));
            }
        }
        trefoil_hot::merge(lists, count)
    }

    /// One empty RPC call to backend `number`: the floor of every call's cost.
    pub fn ping(&self, number: u32) -> Result<(), String> {
        let config = self.config();
        let mut client = self.inner.rpc.backend(&config, number)?;
        let call = async move { client.ping(v1::PingRequest {}).await.map(|_| ()) };
        self.inner.rpc.wait(call, CONNECT_PATIENCE)
    }

    /// Waits until every mutation that any client of this cell has sent by RPC was
    /// answered or given up; `false` if some are still under way after `patience`.
    pub fn finish(&self, patience: Duration) -> bool {
        self.inner.rpc.finish(patience)
    }

    /// Whether none of the cell's backends could be reached when the clients of this
    /// process tried last. What fails meanwhile fails with [`UNREACHABLE`](crate::UNREACHABLE).
    pub fn is_unreachable(&self) -> bool {
        self.inner.is_unreachable()
    }

    /// Why none of the cell's backends could be reached: what was wrong with the first
    /// of them. `None` if some can be.
    pub fn why_unreachable(&self) -> Option<String> {
        let count = self.inner.topology().config().backends.len();
        self.inner.reaches.why_all_away(count)
    }

    /// Logs which backends went or came back since that was logged last: changes that
    /// came too fast to be logged one by one. Of use now and then in processes that
    /// run for long.
    pub fn tell_changes(&self) {
        self.inner.reaches.tell();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner
    }
}

/// Whether an address leads to servers that are not on Unix sockets. (What is no
/// address is told of later.)
fn asks_over_tcp(address: &str) -> bool {
    let is_tcp = |server: &RpcAddress| matches!(server, RpcAddress::Tcp { .. });
    match address.parse::<CellAddress>() {
        Ok(CellAddress::Servers(servers)) => servers.iter().any(is_tcp),
        // They may be anywhere.
        Ok(CellAddress::Etcd(_)) => true,
        Ok(CellAddress::Path(_)) | Err(_) => false,
    }
}

fn hot_keys(keys: Vec<v1::HotKey>, reports: f64) -> Vec<HotKey> {
    let key = |key: v1::HotKey| HotKey {
        key: key.key.into(),
        key_len: key.key_len,
        hash: key.hash,
        ops_per_s: key.ops_per_s / reports,
        bytes_per_s: key.bytes_per_s / reports,
    };
    keys.into_iter().map(key).collect()
}

impl Shared {
    pub(crate) fn is_unreachable(&self) -> bool {
        let count = self.topology().config().backends.len();
        self.reaches.are_all_away(count)
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.topology
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }

    pub(crate) fn config(&self) -> Arc<CellConfig> {
        Arc::clone(self.topology().config())
    }

    /// Loads the configuration anew; an older one of the same life is ignored. Of a
    /// process's clients those that ask while it is loaded have one more load together.
    pub(crate) fn learn(&self) -> Result<Arc<Topology>, ConnectError> {
        let load = || self.load().map_err(Arc::new);
        self.loading
            .load(load)
            .map_err(|error| Arc::try_unwrap(error).unwrap_or_else(ConnectError::Shared))
    }

    fn load(&self) -> Result<Arc<Topology>, ConnectError> {
        let fresh = match &self.etcd {
            Some(etcd) => etcd.next(&self.rpc, &self.config())?,
            None => load(&self.rpc, &self.address, &self.location, &self.answered)?.0,
        };
        let mut known = self.topology.write().unwrap_or_else(|e| e.into_inner());
        if fresh.topology_id() != known.id() && !fresh.topology_id().is_followed_by(known.id()) {
            *known = Arc::new(Topology::new(Arc::new(fresh)));
            self.reaches.keep(known.config().backends.len());
            self.changes.fetch_add(1, Ordering::Release);
        }
        Ok(known.clone())
    }

    /// How often the known topology has changed: clients compare it before every
    /// operation, so that what one has learned all know.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The same, for those who want the configuration.
    pub(crate) fn reload_config(&self) -> Result<Arc<CellConfig>, ConnectError> {
        Ok(Arc::clone(self.learn()?.config()))
    }
}

/// The configuration, and the user id of the cell's owner if its place in the file
/// system says it. `answered` is which of several servers has answered last.
fn load(
    rpc: &Rpc,
    address: &str,
    location: &CellLocation,
    answered: &AtomicUsize,
) -> Result<(CellConfig, Option<u32>), ConnectError> {
    match location {
        CellLocation::Directory(path) => {
            let (store, owner) = DirectoryStore::find(path)?;
            let config = store.load()?;
            let none = || trefoil_cell::ConfigStoreError::NoCell(path.clone());
            Ok((config.ok_or_else(none)?, Some(owner)))
        }
        CellLocation::Socket {
            address: server,
            owner,
        } => {
            let config = load_from_servers(rpc, address, std::slice::from_ref(server), answered)?;
            Ok((config, Some(*owner)))
        }
        CellLocation::Servers(servers) => {
            Ok((load_from_servers(rpc, address, servers, answered)?, None))
        }
        CellLocation::Etcd(etcd) => Err(ConnectError::EtcdLeftOut(etcd.to_string())),
    }
}

/// A configuration as one sees it who got it from `server`: a process that listens on
/// all addresses of its host is reached by the one that it was asked at. (Others of the
/// cell on other hosts have to listen on addresses that lead to them.)
fn reached_by(mut config: CellConfig, server: &RpcAddress) -> CellConfig {
    let RpcAddress::Tcp { host: asked, .. } = server else {
        return config;
    };
    let addresses = config.backends.iter_mut().flat_map(|of| &mut of.addresses);
    for address in addresses {
        if let RpcAddress::Tcp { host, .. } = address
            && host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
        {
            host.clone_from(asked);
        }
    }
    config
}

/// Asks the one first that has answered last: each one that hangs takes all of its patience.
fn load_from_servers(
    rpc: &Rpc,
    address: &str,
    servers: &[RpcAddress],
    answered: &AtomicUsize,
) -> Result<CellConfig, ConnectError> {
    rpc.runtime().map_err(ConnectError::Runtime)?;
    let mut reason = "the address names no server".to_owned();
    let (mut is_refusal, mut no_cell, mut handshake) = (false, None, None);
    let first = answered.load(Ordering::Relaxed);
    for turn in 0..servers.len() {
        let at = (first + turn) % servers.len();
        let server = &servers[at];
        let mut is_other = false;
        (is_refusal, handshake) = (false, None);
        let answer = rpc.open(server).and_then(|mut client| {
            let call = async {
                let answer = client.config(v1::ConfigRequest {}).await;
                if let Err(status) = &answer {
                    is_other = is_no_grpc(status);
                    is_refusal = is_refused(status);
                    handshake = trefoil_rpc::handshake_error(status).cloned();
                }
                answer
            };
            rpc.wait(call, CONNECT_PATIENCE)
        });
        match answer {
            Ok(response) => {
                let config = response.into_inner().config.unwrap_or_default();
                let config = trefoil_cell::decode_config(&config);
                return match config {
                    Ok(config) => {
                        // One that answers nonsense is not asked first the next time.
                        answered.store(at, Ordering::Relaxed);
                        Ok(reached_by(config, server))
                    }
                    Err(source) => Err(ConnectError::Wire {
                        address: server.to_string(),
                        source,
                    }),
                };
            }
            Err(error) => {
                no_cell = is_other.then(|| server.to_string());
                reason = error;
            }
        }
    }
    if let Some(address) = no_cell {
        return Err(ConnectError::NoCell { address, reason });
    }
    if let Some(source) = handshake {
        let address = address.to_owned();
        return Err(ConnectError::Handshake { address, source });
    }
    if reason.contains(trefoil_rpc::OWN_USER_ONLY)
        && let Some(problem) = trefoil_cell::named_token_problem()
    {
        reason = format!("{}: {problem}", trefoil_cell::TOKEN_FILE_VARIABLE);
    }
    Err(ConnectError::Unreachable {
        address: address.to_owned(),
        reason,
        is_refusal,
    })
}
