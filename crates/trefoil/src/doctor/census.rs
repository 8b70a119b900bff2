//! What all backends of a cell say of themselves at one moment.

use super::replica::{Greeting, Replica, Standing, Trouble, TroubleKind};
use crate::cell::status::{silence, state_of};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use trefoil_cell::CellConfig;
use trefoil_client::{BackendStats, Cell, Options};
use trefoil_layout::ShardMap;
use trefoil_rpc::v1;
use trefoil_tls::Tls;

/// How long the metrics' listener may take to answer.
const METRICS_PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Census {
    pub(super) at: Instant,
    /// As whoever was asked for the cell has it.
    pub(super) config: Arc<CellConfig>,
    /// Of this host, to know backends that share it.
    pub(super) boot_id: String,
    /// In order of number.
    pub(super) backends: Vec<Backend>,
}

pub(super) struct Backend {
    pub(super) number: u32,
    /// "up", "recovering", "silent", "refuses" or "down".
    pub(super) state: &'static str,
    /// Where it is known.
    pub(super) pid: Option<u32>,
    pub(super) answer: Result<Box<Answered>, Trouble>,
}

/// What a backend that answers has said.
#[derive(Clone, Default)]
pub(super) struct Answered {
    pub(super) release: String,
    pub(super) layout_version: u32,
    pub(super) boot_id: String,
    pub(super) incarnation: u64,
    /// The configuration that it hands out, or why it makes no sense.
    pub(super) config: Option<Result<CellConfig, String>>,
    /// The config id that requests must name.
    pub(super) served_config_id: u32,
    /// How far its clock is ahead of this host's, and how far off that may be, in
    /// nanoseconds; `None` if it does not say.
    pub(super) clock_ns: Option<(i128, i128)>,
    pub(super) process: v1::ProcessStats,
    pub(super) member: v1::MemberStats,
    pub(super) fabric_socket: String,
    /// What carries a client's operations from here, and why not something faster.
    pub(super) carrier: &'static str,
    pub(super) carrier_why: Option<String>,
    /// Empty if there are none.
    pub(super) metrics_address: String,
    /// Whether the metrics answer; `None` if that cannot be tried from here.
    pub(super) metrics: Option<Result<(), String>>,
    /// By the cell's number of the shard.
    pub(super) standings: BTreeMap<u32, Result<Standing, Trouble>>,
}

impl Census {
    /// Asks every backend, all at once.
    pub(super) fn take(cell: &Cell, runtime: &Runtime) -> Census {
        let config = cell.config();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot_id = boot_id.unwrap_or_default().trim().to_owned();
        let mut answers = runtime.block_on(ask_all(&config, &boot_id, cell.tls()));
        // A client says of each backend how it gets there.
        let mut links = BTreeMap::new();
        let answering = answers.values().filter(|answer| answer.is_ok()).count();
        if answering > 0 {
            if answering < answers.len() {
                // The client does not wait for those whom this finds silent.
                cell.presence(answering);
            }
            for link in cell.client(Options::default()).carriers() {
                let why = link.why.map(|why| why.to_string());
                links.insert(link.backend, (link.carrier.name(), why));
            }
        }
        let backends = config.backends.iter().map(|backend| {
            let number = backend.number;
            let missing = || Err(Trouble::refused("it was not asked"));
            let mut answer = answers.remove(&number).unwrap_or_else(missing);
            if let Ok(answered) = &mut answer
                && let Some((carrier, why)) = links.remove(&number)
            {
                (answered.carrier, answered.carrier_why) = (carrier, why);
            }
            let (state, pid) = state(cell, number, &answer);
            Backend {
                number,
                state,
                pid,
                answer,
            }
        });
        let backends = backends.collect();
        Census {
            at: Instant::now(),
            config,
            boot_id,
            backends,
        }
    }

    pub(super) fn backend(&self, number: u32) -> Option<&Backend> {
        self.backends
            .iter()
            .find(|backend| backend.number == number)
    }

    /// The backends that answer.
    pub(super) fn answered(&self) -> impl Iterator<Item = (u32, &Answered)> {
        self.backends.iter().filter_map(|backend| {
            let answered = backend.answer.as_deref().ok()?;
            Some((backend.number, answered))
        })
    }
}

fn state(
    cell: &Cell,
    number: u32,
    answer: &Result<Box<Answered>, Trouble>,
) -> (&'static str, Option<u32>) {
    match answer {
        Ok(answered) => (state_of(&answered.member), Some(answered.process.pid)),
        Err(trouble) if trouble.kind == TroubleKind::Refused => ("refuses", None),
        Err(trouble) => {
            let unheard = BackendStats {
                number,
                stats: Err(trouble.why.clone()),
                is_silent: trouble.kind == TroubleKind::Silent,
            };
            silence(cell, &unheard)
        }
    }
}

async fn ask_all(
    config: &Arc<CellConfig>,
    boot_id: &str,
    tls: Option<&Tls>,
) -> BTreeMap<u32, Result<Box<Answered>, Trouble>> {
    let mut calls = JoinSet::new();
    for backend in &config.backends {
        let number = backend.number;
        let (config, boot_id) = (Arc::clone(config), boot_id.to_owned());
        let replica = Replica::new(&config, backend, tls);
        calls.spawn(async move {
            let answer = match replica {
                Ok(replica) => ask(&replica, &config, &boot_id).await,
                Err(trouble) => Err(trouble),
            };
            (number, answer.map(Box::new))
        });
    }
    calls.join_all().await.into_iter().collect()
}

async fn ask(replica: &Replica, config: &CellConfig, boot_id: &str) -> Result<Answered, Trouble> {
    let Greeting {
        hello,
        stats,
        asked_ns,
        error_ns,
    } = replica.greet().await?;
    let number = replica.number;
    let mut members = stats.members.into_iter();
    let member = members.find(|member| member.backend == number);
    let other = || Trouble::refused("another process answers at its address");
    let member = member.ok_or_else(other)?;
    let process = stats.process.unwrap_or_default();
    let clock_ns =
        (process.unix_ns > 0).then(|| (i128::from(process.unix_ns) - asked_ns, error_ns));
    let mut standings = BTreeMap::new();
    let shards = ShardMap::new(config.placement(), number);
    for local in 0..shards.shard_count() {
        let shard = shards.shard(local);
        standings.insert(shard, replica.standing(shard).await);
    }
    let metrics = metrics_from_here(&stats.metrics_address, hello.boot_id == boot_id);
    let metrics = match metrics {
        Some(address) => Some(fetch_metrics(address).await),
        None => None,
    };
    let decoded = hello.config.as_ref().map(trefoil_cell::decode_config);
    Ok(Answered {
        release: hello.release,
        layout_version: hello.layout_version,
        boot_id: hello.boot_id,
        incarnation: hello.incarnation,
        config: decoded.map(|config| config.map_err(|error| error.to_string())),
        served_config_id: member.config_id,
        clock_ns,
        process,
        member,
        fabric_socket: hello.fabric_socket,
        carrier: "",
        carrier_why: None,
        metrics_address: stats.metrics_address,
        metrics,
        standings,
    })
}

/// Where metrics that a backend serves at `address` are reached from here, if that can
/// be told.
fn metrics_from_here(address: &str, is_same_host: bool) -> Option<SocketAddr> {
    let mut address: SocketAddr = address.parse().ok()?;
    let ip = address.ip();
    if !is_same_host && (ip.is_unspecified() || ip.is_loopback()) {
        return None;
    }
    if ip.is_unspecified() {
        address.set_ip(match ip {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(address)
}

/// Whether `/metrics` is answered.
async fn fetch_metrics(address: SocketAddr) -> Result<(), String> {
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: trefoil\r\nConnection: close\r\n\r\n";
    const BEGIN: &[u8] = b"HTTP/1.1 200";
    let fetch = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(REQUEST).await?;
        let mut begin = [0; BEGIN.len()];
        stream.read_exact(&mut begin).await?;
        Ok::<_, std::io::Error>(begin == BEGIN)
    };
    match tokio::time::timeout(METRICS_PATIENCE, fetch).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(format!("{address} answers with another status than 200")),
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => {
            let seconds = METRICS_PATIENCE.as_secs();
            Err(format!("{address}: no answer within {seconds} s"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_tried_where_they_can_be_reached() {
        let from = |address: &str, is_same_host| {
            metrics_from_here(address, is_same_host).map(|address| address.to_string())
        };
        assert_eq!(from("", true), None);
        assert_eq!(from("127.0.0.1:9", true).as_deref(), Some("127.0.0.1:9"));
        assert_eq!(from("0.0.0.0:9", true).as_deref(), Some("127.0.0.1:9"));
        assert_eq!(from("[::]:9", true).as_deref(), Some("[::1]:9"));
        assert_eq!(from("127.0.0.1:9", false), None, "that is another loopback");
        assert_eq!(from("0.0.0.0:9", false), None);
        assert_eq!(from("10.0.0.1:9", false).as_deref(), Some("10.0.0.1:9"));
    }
}
