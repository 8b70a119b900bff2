//! A peer's life: found, started on its core, awaited, and gone with its guard.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::congestion::{CONGESTION, connection_congestion, set_listener_congestion};
use super::procfs::{self, Memory};
use super::{Endpoint, PeerError};
use crate::load::pin_current_thread;

const READY_WITHIN: Duration = Duration::from_secs(10);
/// Somebody else may take a free port between our look and the peer's.
const PORT_ATTEMPTS_COUNT: usize = 5;
const OUTPUT_SHOWN_MAX: usize = 500;

/// Which system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// memcached.
    Memcached,
    /// Redis.
    Redis,
    /// Valkey: `scripts/setup.sh valkey-8.1.1` builds it, to be found by the path.
    Valkey,
}

impl PeerKind {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }
}

/// What it listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A free port of an address of this machine.
    Tcp,
    /// A socket in a directory of its own.
    Unix,
}

/// How to start a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Which one.
    pub kind: PeerKind,
    /// Listening on what.
    pub transport: Transport,
    /// Memory for items; beyond it both evict.
    pub memory_mib: u64,
    /// The core to keep it on.
    pub core: Option<usize>,
    /// Longest value it must take.
    pub value_len_max: usize,
    /// The address of [`Transport::Tcp`].
    pub listen: Ipv4Addr,
}

impl PeerOptions {
    /// On TCP, anywhere, with values of up to a megabyte.
    pub fn new(kind: PeerKind, memory_mib: u64) -> Self {
        Self {
            kind,
            transport: Transport::Tcp,
            memory_mib,
            core: None,
            value_len_max: 1 << 20,
            listen: Ipv4Addr::LOCALHOST,
        }
    }
}

/// A running peer; dropping it kills it.
#[derive(Debug)]
pub struct PeerProcess {
    kind: PeerKind,
    child: Child,
    endpoint: Endpoint,
    version: String,
    congestion: Option<&'static str>,
    // Holds socket and output; removed after the child is gone.
    _dir: tempfile::TempDir,
}

impl PeerProcess {
    /// Starts a peer and waits until it accepts connections.
    pub fn start(options: PeerOptions) -> Result<Self, PeerError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::start_once(options) {
                Err(PeerError::NotReady { .. }) if attempts < PORT_ATTEMPTS_COUNT => {}
                result => return result,
            }
        }
    }

    fn start_once(options: PeerOptions) -> Result<Self, PeerError> {
        let program = options.kind.program();
        let start_error = |source| PeerError::Start { program, source };
        let version = version(options.kind)?;
        let dir = tempfile::Builder::new()
            .prefix("trefoil-peer-")
            .tempdir()
            .map_err(start_error)?;
        let endpoint = match options.transport {
            Transport::Unix => Endpoint::Unix(dir.path().join("socket")),
            Transport::Tcp => Endpoint::Tcp(free_address(options.listen).map_err(start_error)?),
        };
        let output = dir.path().join("output");
        let file = File::create(&output).map_err(start_error)?;
        let mut command = command(&options, &endpoint, dir.path());
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(start_error)?)
            .stderr(file);
        let child = spawn_on_core(command, options.core).map_err(start_error)?;
        let mut peer = Self {
            kind: options.kind,
            child,
            endpoint,
            version,
            congestion: None,
            _dir: dir,
        };
        peer.await_ready(&output)?;
        if options.transport == Transport::Tcp {
            let set = set_listener_congestion(peer.pid(), CONGESTION);
            peer.congestion = matches!(set, Ok(1..)).then_some(CONGESTION);
        }
        Ok(peer)
    }

    fn await_ready(&mut self, output: &PathBuf) -> Result<(), PeerError> {
        let deadline = Instant::now() + READY_WITHIN;
        let why = loop {
            let connected = match &self.endpoint {
                Endpoint::Tcp(address) => TcpStream::connect(address).map(drop),
                Endpoint::Unix(path) => UnixStream::connect(path).map(drop),
            };
            // Only a living child is ours: the port might answer for another.
            match (self.child.try_wait(), connected) {
                (Ok(Some(status)), _) => break format!("it ended with {status}"),
                (_, Ok(())) => return Ok(()),
                (_, Err(error)) if Instant::now() > deadline => break error.to_string(),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = std::fs::read(output).unwrap_or_default();
        let said = &said[said.len().saturating_sub(OUTPUT_SHOWN_MAX)..];
        Err(PeerError::NotReady {
            program: self.kind.program(),
            why,
            output: String::from_utf8_lossy(said).trim().to_owned(),
        })
    }

    /// Which system this is.
    pub fn kind(&self) -> PeerKind {
        self.kind
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where to connect.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The number of its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Name and version, for every figure that it appears in.
    pub fn label(&self) -> String {
        format!("{} {}", self.kind.name(), self.version)
    }

    /// The congestion control set on its side of TCP; nothing when the kernel's
    /// default had to stay, which a result should then say.
    pub fn congestion(&self) -> Option<&'static str> {
        self.congestion
    }

    /// The congestion control in force on each of its TCP connections now.
    pub fn connection_congestion(&self) -> io::Result<Vec<String>> {
        connection_congestion(self.pid())
    }

    /// CPU time used so far.
    pub fn cpu_time(&self) -> Result<Duration, PeerError> {
        procfs::cpu_time(self.pid())
    }

    /// Resident memory now.
    pub fn memory(&self) -> Result<Memory, PeerError> {
        procfs::memory(self.pid())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The version that the installed program reports.
fn version(kind: PeerKind) -> Result<String, PeerError> {
    let program = kind.program();
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => PeerError::Missing {
                program,
                package: program,
            },
            _ => PeerError::Start { program, source },
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = match kind {
        // memcached 1.6.18
        PeerKind::Memcached => text.split_whitespace().nth(1),
        // Redis server v=7.0.15 sha=…
        // Valkey server v=8.1.1 sha=…
        PeerKind::Redis | PeerKind::Valkey => {
            text.split_whitespace().find_map(|w| w.strip_prefix("v="))
        }
    };
    Ok(number.unwrap_or("unknown").to_owned())
}

fn free_address(listen: Ipv4Addr) -> io::Result<SocketAddr> {
    let port = trefoil_ports::free_port(listen)?;
    Ok(SocketAddr::from((listen, port)))
}

fn command(options: &PeerOptions, endpoint: &Endpoint, dir: &std::path::Path) -> Command {
    let mut command = Command::new(options.kind.program());
    command.current_dir(dir);
    match options.kind {
        PeerKind::Memcached => {
            let memory = options.memory_mib.max(1).to_string();
            // The largest item (value, key and header) is whole slab chunks, and
            // never below the default.
            let item = (options.value_len_max + 1024).next_power_of_two();
            let item = item.max(1 << 20).to_string();
            command.args(["-t", "1", "-U", "0", "-m", &memory, "-I", &item]);
            if rustix::process::geteuid().is_root() {
                command.args(["-u", "root"]);
            }
            match endpoint {
                Endpoint::Tcp(address) => {
                    let (ip, port) = (address.ip().to_string(), address.port().to_string());
                    command.args(["-l", &ip, "-p", &port]);
                }
                Endpoint::Unix(path) => {
                    command.arg("-s").arg(path);
                }
            }
        }
        PeerKind::Redis | PeerKind::Valkey => {
            let memory = format!("{}mb", options.memory_mib.max(1));
            command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
            command.args(["--maxmemory", &memory, "--maxmemory-policy", "allkeys-lru"]);
            match endpoint {
                Endpoint::Tcp(address) => {
                    let (ip, port) = (address.ip().to_string(), address.port().to_string());
                    // Protected mode refuses callers from other addresses.
                    command.args(["--bind", &ip, "--port", &port, "--protected-mode", "no"]);
                }
                Endpoint::Unix(path) => {
                    command.args(["--port", "0", "--unixsocket"]).arg(path);
                }
            }
        }
    }
    command
}

/// A child inherits the core of the thread that spawns it, so that none of its
/// own threads can be born elsewhere.
pub(crate) fn spawn_on_core(mut command: Command, core: Option<usize>) -> io::Result<Child> {
    let spawner = std::thread::spawn(move || {
        if let Some(core) = core {
            pin_current_thread(core)?;
        }
        command.spawn()
    });
    spawner
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the spawning thread panicked")))
}
