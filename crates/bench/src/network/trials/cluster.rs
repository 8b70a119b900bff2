//! Servers on hosts of their own: one with all backends, or three with one each, over etcd.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_client::{CertFiles, CertUse, Tls};

use super::super::{NetworkBenchError, cell_error, connect_to, io_error, issue, issue_client};
use super::Ground;
use crate::hosts::{Host, Network, Wire};
use crate::peer::{PeerError, procfs};
use crate::server::{Server, ServerOptions};

const RPC_PORT: u16 = 7411;
const ENGINE_PORT: u16 = 7431;
const ETCD: &str = "etcd";
const ETCD_PORT: u16 = 2379;
const HOSTS: usize = 3;
const UP_WITHIN: Duration = Duration::from_secs(90);
const WHOLE_WITHIN: Duration = Duration::from_secs(60);

/// One server with an engine, and what lets a client in.
pub(super) struct Site {
    pub(super) address: String,
    pub(super) engine: SocketAddr,
    pub(super) tls: Tls,
    certs: PathBuf,
    server: Server,
    _dir: tempfile::TempDir,
}

fn own_dir() -> Result<tempfile::TempDir, NetworkBenchError> {
    let dir = tempfile::Builder::new().prefix("trefoil-bench-").tempdir();
    dir.map_err(io_error("make a directory"))
}

fn tls_of(certs: &std::path::Path, name: &str) -> Result<Tls, NetworkBenchError> {
    let files = CertFiles::in_directory(&certs.join(name));
    Tls::read(&files, CertUse::Client).map_err(cell_error)
}

impl Ground<'_> {
    /// `serve` at R=1, with certificates and an engine of its own.
    pub(super) fn site(&self, host: &Host) -> Result<Site, NetworkBenchError> {
        self.site_of("R=1", host)
    }

    /// The same in another mode, all backends on one host.
    pub(super) fn site_of(
        &self,
        mode: &'static str,
        host: &Host,
    ) -> Result<Site, NetworkBenchError> {
        let dir = own_dir()?;
        let certs = dir.path().join("certs");
        issue(
            self.program,
            &certs,
            &[("server", &host.address.to_string())],
        )?;
        let engine = SocketAddr::from((host.address, ENGINE_PORT));
        let more = [
            "--certs".to_owned(),
            certs.join("server").display().to_string(),
            "--engine".to_owned(),
            engine.to_string(),
        ];
        let options = ServerOptions {
            host: host.address,
            port: Some(RPC_PORT),
            more: more.to_vec(),
            is_silent: true,
            ..ServerOptions::new(self.program, mode, 256 << 20)
        };
        let server = host.enter(|| Server::start(&options))??;
        Ok(Site {
            address: format!("trefoil://{}:{RPC_PORT}", host.address),
            engine,
            tls: tls_of(&certs, "client")?,
            certs,
            server,
            _dir: dir,
        })
    }
}

impl Site {
    /// Of its backends and its engine so far.
    pub(super) fn cpu_time(&self) -> Result<Duration, PeerError> {
        self.server.cpu_time()
    }

    /// One more client's certificate.
    pub(super) fn another_client(
        &self,
        ground: &Ground<'_>,
        name: &str,
    ) -> Result<Tls, NetworkBenchError> {
        issue_client(ground.program, &self.certs, name)?;
        tls_of(&self.certs, name)
    }

    /// Those with these numbers are let in no more.
    pub(super) fn revoke(&self, serials: &[String]) -> std::io::Result<()> {
        let next = self.certs.join("revoked-next");
        std::fs::write(&next, serials.join("\n"))?;
        std::fs::rename(next, self.certs.join("server").join("revoked"))
    }
}

/// Three hosts with a backend and an engine each, every one behind a wire of its own.
pub(super) struct Cluster {
    /// For clients.
    pub(super) address: String,
    pub(super) tls: Tls,
    pub(super) hosts: Vec<(Host, Wire)>,
    servers: Vec<Server>,
    _etcd: Etcd,
    _dir: tempfile::TempDir,
}

/// Gone with its guard.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cluster {
    /// Builds it; takes some seconds.
    pub(super) fn build(
        ground: &Ground<'_>,
        network: &mut Network,
    ) -> Result<Self, NetworkBenchError> {
        let dir = own_dir()?;
        let store_host = network.host("store")?;
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            hosts.push(network.host_by_wire(&format!("server{number}"))?);
        }
        let certs = dir.path().join("certs");
        let named: Vec<(String, String)> = (hosts.iter().enumerate())
            .map(|(number, (host, _))| (format!("server{number}"), host.address.to_string()))
            .collect();
        let named: Vec<(&str, &str)> = (named.iter())
            .map(|(name, host)| (name.as_str(), host.as_str()))
            .collect();
        issue(ground.program, &certs, &named)?;
        let etcd = store_host.enter(|| start_etcd(&store_host, dir.path()))?;
        let etcd = etcd.map_err(|source| match source.kind() {
            ErrorKind::NotFound => PeerError::Missing {
                program: ETCD,
                package: "etcd-server",
            }
            .into(),
            _ => io_error("start etcd")(source),
        })?;
        let etcd = Etcd(etcd);
        await_etcd(&store_host)?;
        let store = format!("etcd://{}:{ETCD_PORT}/cells/bench", store_host.address);
        let start = |number: usize, host: &Host| -> Result<Server, NetworkBenchError> {
            let own = dir.path().join(format!("host{number}"));
            std::fs::create_dir(&own).map_err(io_error(format!("make {}", own.display())))?;
            // A boot and files of its own: neither clients nor the other hosts find its sockets.
            let boot = dir.path().join(format!("boot{number}"));
            let id = format!("00000000-0000-4000-8000-{:012x}\n", number + 1);
            std::fs::write(&boot, id).map_err(io_error(format!("write {}", boot.display())))?;
            let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && \
                          mount -t tmpfs tmpfs \"$1\" && shift && exec \"$@\"";
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "--propagation", "private", "sh", "-c", script])
                .args([&boot, &own])
                .arg(ground.program)
                .args(["cell", "up", "--dir"])
                .arg(own.join("cell"))
                .args(["--store", &store, "--memory", "64MiB"])
                .args(["--here", &number.to_string()])
                .args(["--listen", &format!("{}:{RPC_PORT}", host.address)])
                .args(["--engine", &format!("{}:{ENGINE_PORT}", host.address)])
                .arg("--certs")
                .arg(certs.join(format!("server{number}")))
                .env("TREFOIL_ETCD_PLAINTEXT", "yes")
                .env("RUST_LOG", "error")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            Ok(host.enter(|| Server::of_command(command))??)
        };
        // The first ones wait for the last.
        let started: Result<Vec<Server>, NetworkBenchError> = std::thread::scope(|scope| {
            let starting: Vec<_> = (hosts.iter().enumerate())
                .map(|(number, (host, _))| scope.spawn(move || start(number, host)))
                .collect();
            let started = starting.into_iter().map(|one| one.join());
            let started = started.map(|one| one.unwrap_or_else(|p| std::panic::resume_unwind(p)));
            started.collect()
        });
        let addresses: Vec<String> = (hosts.iter())
            .map(|(host, _)| format!("{}:{RPC_PORT}", host.address))
            .collect();
        Ok(Cluster {
            address: format!("trefoil://{}", addresses.join(",")),
            tls: tls_of(&certs, "client")?,
            servers: started?,
            hosts,
            _etcd: etcd,
            _dir: dir,
        })
    }

    /// The process of a host that has this word in its command line: `engine`, `backend`.
    pub(super) fn process(&self, host: usize, word: &str) -> Option<u32> {
        let children = procfs::children(self.servers.get(host)?.process());
        children.into_iter().find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|part| part == word.as_bytes())
        })
    }

    /// kill -9.
    pub(super) fn kill(&self, host: usize, word: &str) -> Result<u32, NetworkBenchError> {
        let none = || cell_error(format!("host {host} has no {word}"));
        let pid = self.process(host, word).ok_or_else(none)?;
        if let Some(process) = rustix::process::Pid::from_raw(pid as i32) {
            // It fails only if the process is gone already.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        Ok(pid)
    }

    /// Waits until every backend serves and has recovered, as a client on `host` sees it.
    pub(super) fn await_whole(&self, host: &Host) -> Result<(), NetworkBenchError> {
        let begin = Instant::now();
        host.enter(|| {
            let tls = Some(self.tls.clone());
            let cell = connect_to(&self.address, tls)?;
            while begin.elapsed() < WHOLE_WITHIN {
                let backends = cell.stats();
                let is_whole = backends.iter().all(|backend| {
                    let members = backend.stats.as_ref().map(|stats| &stats.members);
                    members.is_ok_and(|members| {
                        let mut recoveries = members.iter().map(|member| &member.recovery);
                        recoveries.all(|one| one.as_ref().is_none_or(|one| one.done))
                    })
                });
                if is_whole && backends.len() == HOSTS {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(cell_error("the cell is not whole again in time"))
        })?
    }
}

fn start_etcd(host: &Host, dir: &std::path::Path) -> std::io::Result<Child> {
    let client = format!("http://{}:{ETCD_PORT}", host.address);
    let peer = "http://127.0.0.1:2380";
    Command::new(ETCD)
        .args(["--name", "one", "--data-dir"])
        .arg(dir.join("etcd"))
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
        ])
        .args(["--initial-cluster", &format!("one={peer}")])
        .args(["--unsafe-no-fsync", "--log-level", "error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn await_etcd(host: &Host) -> Result<(), NetworkBenchError> {
    let begin = Instant::now();
    let connect = || std::net::TcpStream::connect((host.address, ETCD_PORT));
    while host.enter(connect)?.is_err() {
        if begin.elapsed() > UP_WITHIN {
            return Err(cell_error("etcd does not come up"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
