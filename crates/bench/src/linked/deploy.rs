//! One form of the service, running: its processes, each on a host of its own.

use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::call::Protocol;
use super::error::LinkedBenchError;
use super::placement::{CORPUS, Directory, Finding};
use super::process::Process;
use super::{LinkedOptions, Variant};
use crate::hosts::{Host, Network, any_port};
use crate::peer::{Endpoint, PeerKind, PeerOptions, PeerProcess};

/// Memory of each cache, in MiB: far more than the objects need.
const CACHE_MEMORY_MIB: u64 = 1024;
/// A marshalled object and its key.
const CACHED_LEN_MAX: usize = 2 << 20;

/// CPU time by what it was used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CpuTimes {
    /// App servers.
    pub app: Duration,
    /// Caches and stores behind them.
    pub store: Duration,
    /// The assigner.
    pub control: Duration,
}

impl CpuTimes {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.app + self.store + self.control
    }

    pub(super) fn since(&self, before: &CpuTimes) -> CpuTimes {
        CpuTimes {
            app: self.app.saturating_sub(before.app),
            store: self.store.saturating_sub(before.store),
            control: self.control.saturating_sub(before.control),
        }
    }
}

/// A form of the service.
pub(super) struct Deployment {
    pub(super) variant: Variant,
    /// Versions of the peers in it.
    pub(super) label: String,
    apps: Vec<Process>,
    assigner: Option<Process>,
    stores: Vec<Process>,
    caches: Vec<PeerProcess>,
    hosts: Vec<Host>,
}

impl Deployment {
    /// Starts everything; `network` is none where all is on loopback.
    pub(super) fn start(
        options: &LinkedOptions,
        variant: Variant,
        network: &mut Option<Network>,
    ) -> Result<Self, LinkedBenchError> {
        let mut deployment = Deployment {
            variant,
            label: variant.name().to_owned(),
            apps: Vec::new(),
            assigner: None,
            stores: Vec::new(),
            caches: Vec::new(),
            hosts: Vec::new(),
        };
        let mut host = |kind: &str, number: usize| match network {
            Some(network) => network.host(&format!("{}-{kind}{number}", variant.name())),
            None => Ok(Host::loopback()),
        };
        let mut more = Vec::new();
        if let Some((replication, replicas)) = variant.replication() {
            let host = host("assigner", 0)?;
            let assigner = deployment.start_assigner(options, &host, replicas)?;
            more = vec!["--assigner".into(), assigner];
            more.extend(["--replication".into(), replication.into()]);
            deployment.hosts.push(host);
        }
        let mut behind = Vec::new();
        for number in 0..options.servers_count {
            match variant {
                Variant::Memcached | Variant::Redis => {
                    let host = host("cache", number)?;
                    behind.push(deployment.start_cache(&host)?);
                    deployment.hosts.push(host);
                }
                Variant::CustomStore => {
                    let host = host("store", number)?;
                    let mut store = start_server(options, "store", &host, &[])?;
                    behind.push(store.await_ready()?.to_owned());
                    deployment.stores.push(store);
                    deployment.hosts.push(host);
                }
                _ => {}
            }
        }
        if !behind.is_empty() {
            more = vec!["--stores".into(), behind.join(",")];
        }
        // All at once: an assigner shares the keys out among those who are there.
        for number in 0..options.servers_count {
            let host = host("app", number)?;
            let mut more = more.clone();
            if options.protocol == Protocol::Frames {
                more.extend(["--frames".into(), any_port(&host)]);
            }
            let app = start_server(options, variant.mode(), &host, &more)?;
            deployment.apps.push(app);
            deployment.hosts.push(host);
        }
        for app in &mut deployment.apps {
            app.await_ready()?;
        }
        Ok(deployment)
    }

    fn start_assigner(
        &mut self,
        options: &LinkedOptions,
        host: &Host,
        replicas: usize,
    ) -> Result<String, LinkedBenchError> {
        let mut command = Command::new(&options.program);
        command.args(["assigner", "--insecure", "--listen", &any_port(host)]);
        command.args(["--corpus", &format!("{CORPUS}:{replicas}..{replicas}")]);
        let mut assigner = Process::start("assigner", host, &mut command)?;
        let address = assigner.await_ready()?.to_owned();
        self.assigner = Some(assigner);
        Ok(address)
    }

    fn start_cache(&mut self, host: &Host) -> Result<String, LinkedBenchError> {
        let kind = match self.variant {
            Variant::Redis => PeerKind::Redis,
            _ => PeerKind::Memcached,
        };
        let options = PeerOptions {
            listen: host.address,
            value_len_max: CACHED_LEN_MAX,
            ..PeerOptions::new(kind, CACHE_MEMORY_MIB)
        };
        let cache = host.enter(|| PeerProcess::start(options))??;
        let address = match cache.endpoint() {
            Endpoint::Tcp(address) => address.to_string(),
            Endpoint::Unix(path) => path.display().to_string(),
        };
        self.label = cache.label();
        self.caches.push(cache);
        Ok(address)
    }

    /// How callers find the server for a key.
    pub(super) fn directory(&self) -> Directory {
        Directory {
            addresses: self.apps.iter().map(|app| app.address.clone()).collect(),
            frames: self
                .apps
                .iter()
                .filter_map(|app| app.frames.clone())
                .collect(),
            finding: match (&self.assigner, self.variant) {
                (Some(assigner), _) => Finding::Assigned(assigner.address.clone()),
                (None, Variant::PlainMap) => Finding::ByKey,
                (None, _) => Finding::Any,
            },
        }
    }

    /// CPU used so far.
    pub(super) fn cpu_times(&self) -> Result<CpuTimes, LinkedBenchError> {
        let mut times = CpuTimes::default();
        for app in &self.apps {
            times.app += app.cpu_time()?;
        }
        for store in &self.stores {
            times.store += store.cpu_time()?;
        }
        for cache in &self.caches {
            times.store += cache.cpu_time()?;
        }
        if let Some(assigner) = &self.assigner {
            times.control += assigner.cpu_time()?;
        }
        Ok(times)
    }

    /// Bytes that its hosts and the callers have sent so far, where they can be
    /// told apart.
    pub(super) fn sent_bytes(
        &self,
        network: &Option<Network>,
        callers: &Host,
    ) -> Result<Option<u64>, LinkedBenchError> {
        let Some(network) = network else {
            return Ok(None);
        };
        let hosts: Vec<&Host> = self.hosts.iter().chain([callers]).collect();
        Ok(Some(network.sent_bytes(&hosts)?))
    }
}

fn start_server(
    options: &LinkedOptions,
    mode: &str,
    host: &Host,
    more: &[String],
) -> Result<Process, LinkedBenchError> {
    let mut command = Command::new(&options.service);
    command.args(["serve", "--mode", mode, "--listen", &any_port(host)]);
    // The network is of this benchmark's own namespaces.
    command.arg("--insecure");
    command.args(["--threads", &options.threads.to_string()]);
    command.args(more);
    Process::start(mode, host, &mut command)
}
