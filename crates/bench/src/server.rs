//! Trefoil servers for one measurement: this very program, started on its core
//! and gone with its guard.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::peer::procfs::{self, Memory};
use crate::peer::{PeerError, spawn_on_core};

const PROGRAM: &str = "trefoil";
/// Doors on free ports.
const FREE_DOORS: [&str; 4] = ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"];
/// Huge pages are gathered when nothing has grown for a second.
const SETTLE_AFTER: Duration = Duration::from_millis(1500);
/// Between two looks at how busy a server is.
const SETTLE_PERIOD: Duration = Duration::from_millis(200);
/// Looks before it is taken as it is.
const SETTLE_LOOKS: usize = 200;

/// What to start.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The program; its path, because what runs is what is measured.
    pub program: PathBuf,
    /// `R=1` or `R=3.2`.
    pub mode: &'static str,
    /// A process for each backend (`cell up`) instead of one for all (`serve`).
    pub processes: bool,
    /// Bound of resident memory, per process.
    pub memory: u64,
    /// The address of `serve`'s RPC service. Beyond loopback, `more` has certificates.
    pub host: Ipv4Addr,
    /// Its port; without it, any free one.
    pub port: Option<u16>,
    /// The core to keep all of it on.
    pub core: Option<usize>,
    /// Doors for memcached's and Redis's clients, on free ports (`serve` only).
    pub doors: bool,
    /// More options, as on the command line.
    pub more: Vec<String>,
    /// Where its configuration and sockets lie; without it, a directory of its
    /// own that goes with it.
    pub dir: Option<PathBuf>,
    /// Its log, which would tell of a death that is part of the plan, is dropped.
    pub is_silent: bool,
    /// Where its log is written instead.
    pub log: Option<PathBuf>,
}

impl ServerOptions {
    /// `serve` on any core.
    pub fn new(program: &Path, mode: &'static str, memory: u64) -> Self {
        Self {
            program: program.to_owned(),
            mode,
            processes: false,
            memory,
            host: Ipv4Addr::LOCALHOST,
            port: None,
            core: None,
            doors: false,
            more: Vec::new(),
            dir: None,
            is_silent: false,
            log: None,
        }
    }
}

/// A running cell; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// For `--cell`.
    pub address: String,
    /// Of the backends, by number.
    pub pids: Vec<u32>,
    /// Where memcached's clients are served.
    pub memcached: Option<SocketAddr>,
    /// Where Redis's are.
    pub redis: Option<SocketAddr>,
    _own_dir: Option<tempfile::TempDir>,
}

#[derive(serde::Deserialize)]
struct Ready {
    cell: String,
    pids: Vec<u32>,
    memcached: Option<SocketAddr>,
    redis: Option<SocketAddr>,
}

impl Server {
    /// Starts a cell and waits until it serves.
    pub fn start(options: &ServerOptions) -> Result<Self, PeerError> {
        let start_error = |source| PeerError::Start {
            program: PROGRAM,
            source,
        };
        let (dir, own_dir) = match &options.dir {
            Some(dir) => (dir.clone(), None),
            None => {
                let own = own_dir().map_err(start_error)?;
                (own.path().to_owned(), Some(own))
            }
        };
        let mut command = Command::new(&options.program);
        if options.processes {
            // What is killed here stays dead until somebody says otherwise.
            command.args(["cell", "up", "--dir"]).arg(&dir);
            if !options.more.iter().any(|option| option == "--restart") {
                command.args(["--restart", "never"]);
            }
        } else {
            let listen = format!("{}:{}", options.host, options.port.unwrap_or(0));
            command.args(["serve", "--listen", &listen, "--metrics", "off", "--socket"]);
            command.arg(dir.join("socket"));
            if options.doors {
                command.args(FREE_DOORS);
            } else {
                command.args(["--memcached", "off"]);
            }
        }
        command
            .args([
                "--mode",
                options.mode,
                "--memory",
                &options.memory.to_string(),
            ])
            .args(&options.more)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(log) = &options.log {
            let file = std::fs::File::create(log).map_err(start_error)?;
            command.stderr(file);
        } else if options.is_silent {
            command.stderr(Stdio::null());
        }
        let (child, ready) = start::<Ready>(command, options.core)?;
        Ok(Self {
            child,
            address: ready.cell,
            pids: ready.pids,
            memcached: ready.memcached,
            redis: ready.redis,
            _own_dir: own_dir,
        })
    }

    /// A cell's part on one host, by a command of one's own that says when it is ready.
    pub fn of_command(command: Command) -> Result<Self, PeerError> {
        let (child, ready) = start::<Ready>(command, None)?;
        Ok(Self {
            child,
            address: ready.cell,
            pids: ready.pids,
            memcached: None,
            redis: None,
            _own_dir: None,
        })
    }

    /// Its first process: with `cell up` the one that starts and moves the others.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// kill -9 of backend `number`'s process, as a crash does it.
    pub fn kill(&self, number: usize) {
        self.signal(number, rustix::process::Signal::KILL);
    }

    /// Sends backend `number`'s process a signal.
    pub fn signal(&self, number: usize, signal: rustix::process::Signal) {
        let pid = self.pids.get(number).map(|pid| *pid as i32);
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // It fails only if the process is gone already.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// CPU time that all its backends have used so far.
    pub fn cpu_time(&self) -> Result<Duration, PeerError> {
        let mut sum = Duration::ZERO;
        for pid in &self.pids {
            sum += procfs::cpu_time(*pid)?;
        }
        Ok(sum)
    }

    /// Waits until the background work that filling has left (huge pages being
    /// gathered) is done: until its processes use next to no CPU. Whoever
    /// measures afterwards does not see the stalls of that work, and has to say
    /// so: how long it took is returned.
    pub fn settle(&self) -> Result<Duration, PeerError> {
        let begin = std::time::Instant::now();
        std::thread::sleep(SETTLE_AFTER);
        let mut before = self.cpu_time()?;
        for _ in 0..SETTLE_LOOKS {
            std::thread::sleep(SETTLE_PERIOD);
            let now = self.cpu_time()?;
            if now.saturating_sub(before) < SETTLE_PERIOD / 20 {
                break;
            }
            before = now;
        }
        Ok(begin.elapsed())
    }

    /// Bytes on huge pages in the first backend's process.
    pub fn huge_pages(&self) -> Result<u64, PeerError> {
        procfs::huge_pages(self.pids.first().copied().unwrap_or(self.child.id()))
    }

    /// All that its process holds; see [`procfs::resident_with_program`].
    pub fn resident(&self) -> Result<u64, PeerError> {
        procfs::resident_with_program(self.pids.first().copied().unwrap_or(self.child.id()))
    }

    /// Resident memory of the first backend's process.
    pub fn memory(&self) -> Result<Memory, PeerError> {
        procfs::memory(self.pids.first().copied().unwrap_or(self.child.id()))
    }
}

/// Runs a command on a core until it says on one line that it is ready.
fn start<R: serde::de::DeserializeOwned>(
    command: Command,
    core: Option<usize>,
) -> Result<(Child, R), PeerError> {
    let start_error = |source| PeerError::Start {
        program: PROGRAM,
        source,
    };
    let mut child = spawn_on_core(command, core).map_err(start_error)?;
    let mut line = String::new();
    let read = match child.stdout.take() {
        Some(out) => BufReader::new(out)
            .read_line(&mut line)
            .map_err(start_error),
        None => Ok(0),
    };
    let ready = line
        .strip_prefix("ready ")
        .and_then(|json| serde_json::from_str::<R>(json).ok());
    match (read, ready) {
        (Ok(_), Some(ready)) => Ok((child, ready)),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(PeerError::NotReady {
                program: PROGRAM,
                why: "no ready line".to_owned(),
                output: line,
            })
        }
    }
}

/// A running `trefoil gateway`; dropping it stops it.
#[derive(Debug)]
pub struct Door {
    child: Child,
    /// Its process.
    pub pid: u32,
    /// Where memcached's clients are served.
    pub memcached: Option<SocketAddr>,
    /// Where Redis's are.
    pub redis: Option<SocketAddr>,
}

#[derive(serde::Deserialize)]
struct DoorReady {
    memcached: Option<SocketAddr>,
    redis: Option<SocketAddr>,
}

impl Door {
    /// Starts a gateway in front of the cell at `address`, on free ports.
    pub fn start(program: &Path, address: &str, core: Option<usize>) -> Result<Self, PeerError> {
        Self::start_with(program, address, core, &FREE_DOORS)
    }

    /// The same with so many event loops.
    pub fn start_with_threads(
        program: &Path,
        address: &str,
        core: Option<usize>,
        threads: usize,
    ) -> Result<Self, PeerError> {
        let threads = threads.to_string();
        let [first, second, third, fourth] = FREE_DOORS;
        let more = [first, second, third, fourth, "--threads", &threads];
        Self::start_with(program, address, core, &more)
    }

    /// The same with these options besides.
    pub fn start_also(program: &Path, address: &str, options: &[&str]) -> Result<Self, PeerError> {
        let more = [&FREE_DOORS[..], options].concat();
        Self::start_with(program, address, None, &more)
    }

    /// Starts one for memcached's clients at a free port of `host`, which others may reach,
    /// too, with these options besides.
    pub fn start_at(
        program: &Path,
        address: &str,
        host: &str,
        options: &[&str],
    ) -> Result<Self, PeerError> {
        let door = format!("{host}:0");
        let more = ["--memcached", &door, "--plaintext", "memcached"];
        Self::start_with(program, address, None, &[&more[..], options].concat())
    }

    fn start_with(
        program: &Path,
        address: &str,
        core: Option<usize>,
        more: &[&str],
    ) -> Result<Self, PeerError> {
        let mut command = Command::new(program);
        command
            .args(["gateway", "--cell", address, "--metrics", "off"])
            .args(more)
            // Once, whether SETs are acknowledged before they are executed, if that is wanted.
            .env(
                "RUST_LOG",
                "warn,trefoil_gateway::keyspace::cell::committing=info",
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let (child, ready) = start::<DoorReady>(command, core)?;
        Ok(Door {
            pid: child.id(),
            child,
            memcached: ready.memcached,
            redis: ready.redis,
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// How to start an engine beside a cell.
#[derive(Debug, Clone, Copy)]
pub struct EngineSetup<'a> {
    /// The program.
    pub program: &'a Path,
    /// The cell whose backends it reads.
    pub cell: &'a str,
    /// Where it listens, at a free port.
    pub host: Ipv4Addr,
    /// Threads that read.
    pub engines: usize,
    /// The core to keep it on.
    pub core: Option<usize>,
    /// How long it looks for requests before it sleeps, if not as long as it does by
    /// itself.
    pub spin: Option<&'a str>,
    /// A backend's certificates; without them the token is enough.
    pub certs: Option<&'a Path>,
    /// File with the token.
    pub token: &'a Path,
}

/// A running `trefoil engine`; dropping it stops it.
#[derive(Debug)]
pub struct EngineGuard {
    child: Child,
    /// Its process.
    pub pid: u32,
    /// Where it listens.
    pub address: SocketAddr,
}

#[derive(serde::Deserialize)]
struct EngineReady {
    engine: SocketAddr,
}

impl EngineGuard {
    /// Starts one, in the network namespace of this thread.
    pub fn start(setup: &EngineSetup<'_>) -> Result<Self, PeerError> {
        let mut command = Command::new(setup.program);
        command
            .args(["engine", "--cell", setup.cell])
            .args(["--listen", &format!("{}:0", setup.host)])
            .args(["--engines", &setup.engines.to_string()])
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        match setup.certs {
            Some(certs) => command.arg("--certs").arg(certs),
            None => command
                .args(["--plaintext", "--token-file"])
                .arg(setup.token),
        };
        if let Some(spin) = setup.spin {
            command.args(["--spin", spin]);
        }
        let (child, ready) = start::<EngineReady>(command, setup.core)?;
        Ok(EngineGuard {
            pid: child.id(),
            child,
            address: ready.engine,
        })
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

fn own_dir() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("trefoil-bench-").tempdir()
}

impl Drop for Server {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// SIGTERM lets it tell its children and remove its sockets.
fn stop(child: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    for _ in 0..500 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}
