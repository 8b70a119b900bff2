//! Off the host: GETs by way of an engine, beside memcached and beside a bare echo, between
//! two network namespaces that a bridge joins. Servers have one core, the client the other.
//!
//! Every case runs once in each round, in turn, so that what the machine does meanwhile
//! meets all of them; figures are medians over the rounds. Trials ([`Trial`]) run once each,
//! after them, between hosts of their own.

mod crowd;
mod echo;
mod floor;
mod report;
mod trials;

pub use crowd::{CONNECTIONS_COUNT, CrowdOptions, EngineKeys, Whom, crowd};
pub use echo::{Echo, EchoBy, EchoClient, EchoLens};
pub use report::{Case, Report, Row};
pub use trials::{Figure, Finding, Trial, TrialReport};

use hdrhistogram::Histogram;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trefoil_client::{CarrierInUse, Cell, CertFiles, CertUse, Client, Options, SetOptions, Tls};
use trefoil_softnic_core::datagram::piece::{PIECE_HEAD_LEN, REQUEST_LEN};
use trefoil_softnic_core::datagram::{DATAGRAM_HEAD_LEN, DATAGRAM_LEN_USUAL, TAG_LEN};

use crate::hosts::{Host, Network, NetworkError};
use crate::load::{Latency, pin_current_thread};
use crate::peer::{
    Endpoint, Memcached, PeerError, PeerKind, PeerOptions, PeerProcess, Waiting, procfs,
};
use crate::server::{EngineGuard, EngineSetup, Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, Target, TargetError};
use crowd::{ask_all, connect, crowd_of_clients};
use floor::Floor;
use trials::Ground;

/// Where servers run, and where the client does.
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Keys of a case, all of them stored.
const KEYS_COUNT: usize = 20_000;
/// Keys of one `get_many`.
const BATCH_COUNT: usize = 100;
/// Requests under way on each of many connections, of a deep case.
const DEPTH: usize = 32;
/// Bytes of a SCAR's question and of its answer besides the value (`docs/softnic.md`):
/// frame, request; frame, answer, the item's head and its key.
const ASK_LEN: usize = 8 + 48;
const ANSWER_LEN: usize = 8 + 80 + 48;
/// The same of a request and its answer in a batch, where frames hardly count.
const ASK_OF_BATCH_LEN: usize = 48;
const ANSWER_OF_BATCH_LEN: usize = 80 + 48;
/// The same in datagrams: head and seal, attempt, request; head and seal, head of a piece,
/// answer, the item's head and its key.
const UDP_ASK_LEN: usize = DATAGRAM_HEAD_LEN + TAG_LEN + REQUEST_LEN;
const UDP_ANSWER_LEN: usize = DATAGRAM_HEAD_LEN + TAG_LEN + PIECE_HEAD_LEN + 80 + 48;
/// An engine that never sleeps while it is measured.
const ALWAYS: &str = "10s";

/// Patience with a server that is up, and with its engine.
const CONNECTED_WITHIN: Duration = Duration::from_secs(15);

/// How to measure.
#[derive(Debug, Clone)]
pub struct NetworkOptions {
    /// The program; its path, because what runs is what is measured.
    pub program: PathBuf,
    /// Each case runs so long in each round.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Lengths of values, in bytes.
    pub value_lens: Vec<usize>,
    /// Words of titles: only cases that have one of them; empty: all cases.
    pub only: Vec<String>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum NetworkBenchError {
    /// No namespaces.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A server.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// An operation.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The cell.
    #[error("{0}")]
    Cell(String),
    /// A socket, a file or a thread.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and where.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Nothing is called so.
    #[error("no case or trial has {0} in its title")]
    NoCase(String),
    /// A lookup that found nothing: the figures would be of misses.
    #[error("{0}: a key that was stored was not found")]
    Miss(String),
}

impl NetworkBenchError {
    /// Whether this host has no such rights, devices or programs: nothing was tried then.
    fn is_of_this_host(&self) -> bool {
        matches!(
            self,
            NetworkBenchError::Network(NetworkError::NotRoot | NetworkError::Device { .. })
                | NetworkBenchError::Peer(PeerError::Missing { .. })
        )
    }
}

/// What was being done, and where.
fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> NetworkBenchError {
    move |source| NetworkBenchError::Io {
        what: what.into(),
        source,
    }
}

fn cell_error(error: impl std::fmt::Display) -> NetworkBenchError {
    NetworkBenchError::Cell(error.to_string())
}

/// Runs all cases and trials that are wanted; `tell` is told what is being done.
pub fn network(
    options: &NetworkOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Report, NetworkBenchError> {
    let has_word = |has: &dyn Fn(&str) -> bool| {
        options.only.is_empty() || options.only.iter().any(|word| has(word))
    };
    let cases: Vec<Case> = (Case::ALL.into_iter())
        .filter(|case| has_word(&|word| case.has(word)))
        .collect();
    let trials: Vec<Trial> = (Trial::ALL.into_iter())
        .filter(|trial| has_word(&|word| trial.has(word)))
        .collect();
    if cases.is_empty() && trials.is_empty() {
        return Err(NetworkBenchError::NoCase(options.only.join(", ")));
    }
    let mut report = Report::default();
    let mut hosts = Network::create()?;
    let (server, client) = (hosts.host("server")?, hosts.host("client")?);
    let secrets = Secrets::draw(&options.program, &server.address.to_string())?;
    for &value_len in options.value_lens.iter().filter(|_| !cases.is_empty()) {
        tell(&format!("values of {value_len} bytes"));
        let scene = Scene::build(options, value_len, &server, &secrets)?;
        for round in 0..options.rounds {
            tell(&format!("  round {} of {}", round + 1, options.rounds));
            for &case in &cases {
                let row = client.enter(|| scene.measure(case, options))??;
                report.add(value_len, case, row);
            }
        }
    }
    // Trials have hosts of their own, by the same names.
    drop(hosts);
    let ground = Ground {
        program: &options.program,
        length: Duration::from_secs_f64(options.seconds),
        secrets: &secrets,
    };
    for trial in trials {
        tell(trial.title());
        report.tried(trial.run(&ground));
    }
    Ok(report)
}

/// What a crowd does there.
fn asked_at(address: SocketAddr) -> String {
    format!("ask {address} by many connections")
}

/// Keys that are found.
fn keys_of_case(count: usize) -> Vec<Vec<u8>> {
    let key = |number: usize| format!("key-of-the-bench:{number:012}").into_bytes();
    (0..count).map(key).collect()
}

/// Everything that serves, for one length of values.
struct Scene<'a> {
    server: Host,
    value_len: usize,
    keys: Vec<Vec<u8>>,
    memcached: PeerProcess,
    one: Stand,
    three: Stand,
    secrets: &'a Secrets,
}

/// A cell, and engines beside it, of which only one is used at a time.
struct Stand {
    cell: Server,
    spinning: EngineGuard,
    adaptive: EngineGuard,
    encrypted: EngineGuard,
    encrypted_adaptive: EngineGuard,
}

impl<'a> Scene<'a> {
    fn build(
        options: &NetworkOptions,
        value_len: usize,
        host: &Host,
        secrets: &'a Secrets,
    ) -> Result<Self, NetworkBenchError> {
        let keys = keys_of_case(KEYS_COUNT);
        let value = vec![b'v'; value_len];
        let peer = PeerOptions {
            core: Some(SERVER_CORE),
            listen: host.address,
            ..PeerOptions::new(PeerKind::Memcached, 256)
        };
        let memcached = host.enter(|| PeerProcess::start(peer))??;
        host.enter(|| -> Result<(), TargetError> {
            let mut filler = Memcached::connect(memcached.endpoint(), Waiting::Blocking)?;
            keys.iter()
                .try_for_each(|key| filler.set(key, &value, None).map(drop))
        })??;
        let stand = |mode| -> Result<Stand, NetworkBenchError> {
            let cell = Server::start(&ServerOptions {
                processes: true,
                core: Some(SERVER_CORE),
                ..ServerOptions::new(&options.program, mode, 128 << 20)
            })?;
            let mut filler = Cell::connect(&cell.address)
                .map_err(cell_error)?
                .client(Options::default());
            for key in &keys {
                filler
                    .set(key, &value, SetOptions::default())
                    .map_err(cell_error)?;
            }
            let engine = |spin: Option<&'static str>, certs: Option<&Path>| {
                let setup = EngineSetup {
                    program: &options.program,
                    cell: &cell.address,
                    host: host.address,
                    engines: 1,
                    core: Some(SERVER_CORE),
                    spin,
                    certs,
                    token: &secrets.token,
                };
                host.enter(|| EngineGuard::start(&setup))
            };
            let (spinning, adaptive) = (engine(Some(ALWAYS), None)??, engine(None, None)??);
            let certs = secrets.certs.join("server");
            let encrypted = engine(Some(ALWAYS), Some(&certs))??;
            let encrypted_adaptive = engine(None, Some(&certs))??;
            Ok(Stand {
                cell,
                spinning,
                adaptive,
                encrypted,
                encrypted_adaptive,
            })
        };
        Ok(Scene {
            one: stand("R=1")?,
            three: stand("R=3.2")?,
            server: host.clone(),
            value_len,
            keys,
            memcached,
            secrets,
        })
    }

    /// On this thread, which is in the client's namespace.
    fn measure(&self, case: Case, options: &NetworkOptions) -> Result<Row, NetworkBenchError> {
        pin_current_thread(CLIENT_CORE).map_err(io_error("pin a thread"))?;
        let length = Duration::from_secs_f64(options.seconds);
        let client_of = |stand: &Stand, engine: SocketAddr, tls: Option<Tls>| {
            let engine_datagrams = matches!(case, Case::ScarUdp | Case::CrowdUdp);
            let cell = connect_to(&stand.cell.address, tls)?;
            let mut client = cell.client(Options {
                engine: Some(engine),
                engine_datagrams,
                ..Options::default()
            });
            await_engine(&mut client)?;
            Ok::<_, NetworkBenchError>(Trefoil::new(client))
        };
        let client_tls = || {
            let files = CertFiles::in_directory(&self.secrets.certs.join("client"));
            Tls::read(&files, CertUse::Client).map_err(cell_error)
        };
        let memcached = |waiting| Memcached::connect(self.memcached.endpoint(), waiting);
        let peer = self.memcached.pid();
        let one = &self.one;
        match case {
            Case::Echo | Case::EchoUdp => self.echo(case, length),
            Case::Scar => {
                let mut target = client_of(one, one.spinning.address, None)?;
                self.gets_by_engine(&mut target, None, length)
            }
            Case::ScarSleeping => {
                let mut target = client_of(one, one.adaptive.address, None)?;
                self.gets_by_engine(&mut target, Some(one.adaptive.pid), length)
            }
            Case::ScarTls | Case::ScarUdp => {
                let mut target = client_of(one, one.encrypted.address, Some(client_tls()?))?;
                self.gets_by_engine(&mut target, None, length)
            }
            Case::ScarQuorum => {
                let stand = &self.three;
                let mut target = client_of(stand, stand.spinning.address, None)?;
                self.gets_by_engine(&mut target, None, length)
            }
            Case::Memcached => self.gets(&mut memcached(Waiting::Spinning)?, Some(peer), length),
            Case::MemcachedBlocking => {
                self.gets(&mut memcached(Waiting::Blocking)?, Some(peer), length)
            }
            Case::ScarMany => {
                let mut target = client_of(one, one.adaptive.address, None)?;
                let row = self.batches(&mut target, one.adaptive.pid, length)?;
                Ok(row.by_engine(goes_by_engine(target.client())))
            }
            Case::Crowd | Case::CrowdDeep => {
                let cell = Cell::connect(&one.cell.address).map_err(cell_error)?;
                let life = cell.config().life;
                let token = self.secrets.read_token()?;
                let keys = EngineKeys {
                    life,
                    token: &token,
                };
                let (address, pid) = (one.adaptive.address, one.adaptive.pid);
                self.crowd(case, address, Whom::Engine(keys), || cpu(Some(pid)), length)
            }
            Case::CrowdMemcached | Case::CrowdDeepMemcached => match self.memcached.endpoint() {
                Endpoint::Tcp(address) => {
                    self.crowd(case, *address, Whom::Memcached, || cpu(Some(peer)), length)
                }
                Endpoint::Unix(_) => unreachable!("it was started on TCP"),
            },
            Case::CrowdUdp => {
                let engine = &one.encrypted_adaptive;
                let client = |_| {
                    let target = client_of(one, engine.address, Some(client_tls()?))?;
                    Ok(target.into_client())
                };
                let clients: Result<Vec<Client>, NetworkBenchError> =
                    (0..CONNECTIONS_COUNT).map(client).collect();
                self.clients(clients?, engine.pid, length)
            }
            Case::CrowdEcho => {
                let lens = EchoLens {
                    ask: ASK_LEN,
                    answer: ANSWER_LEN + self.value_len.next_multiple_of(8),
                };
                let floor = self.floor(lens, CONNECTIONS_COUNT)?;
                let cpu = || floor.cpu().map(Some).map_err(io_error("read its CPU"));
                self.crowd(case, floor.address, Whom::Echo(lens), cpu, length)
            }
            Case::EchoMany => {
                let answer = ANSWER_OF_BATCH_LEN + self.value_len.next_multiple_of(8);
                let lens = EchoLens {
                    ask: BATCH_COUNT * ASK_OF_BATCH_LEN,
                    answer: BATCH_COUNT * answer,
                };
                let floor = self.floor(lens, 1)?;
                let mut client = EchoClient::connect(floor.address, lens, EchoBy::Tcp)
                    .map_err(io_error("echo"))?;
                let before = floor.cpu().map_err(io_error("read its CPU"))?;
                let round = |_| client.round().map_err(io_error("echo"));
                let timed = timed(length, BATCH_COUNT as u64, round)?;
                let after = floor.cpu().map_err(io_error("read its CPU"))?;
                Ok(Row::of(&timed, Some(after.saturating_sub(before))))
            }
            Case::MemcachedMany => self.batches(&mut memcached(Waiting::Spinning)?, peer, length),
        }
    }

    fn floor(&self, lens: EchoLens, connections: usize) -> Result<Floor, NetworkBenchError> {
        let floor = Floor::start(&self.server, SERVER_CORE, lens, connections);
        floor.map_err(io_error("start a bare echo"))
    }

    fn crowd(
        &self,
        case: Case,
        address: SocketAddr,
        whom: Whom<'_>,
        cpu: impl Fn() -> Result<Option<Duration>, NetworkBenchError>,
        length: Duration,
    ) -> Result<Row, NetworkBenchError> {
        let options = CrowdOptions {
            address,
            whom,
            depth: match case {
                Case::CrowdDeep | Case::CrowdDeepMemcached => DEPTH,
                _ => 1,
            },
            value_len: self.value_len,
        };
        let asking = || io_error(asked_at(address));
        // Whoever listens has CPU to spend on connections first.
        let mut connections = connect(&options).map_err(asking())?;
        let before = cpu()?;
        let asked = ask_all(&mut connections, &options, &self.keys, length);
        let (operations, elapsed) = asked.map_err(asking())?;
        let timed = Timed {
            latency: Latency::default(),
            operations,
            elapsed,
        };
        let row = Row::of(&timed, cpu_between(before, cpu()?));
        Ok(match whom {
            // Nothing else was asked.
            Whom::Engine(_) => row.by_engine(true),
            Whom::Memcached | Whom::Echo(_) => row,
        })
    }

    /// Many clients, one GET at a time each, and whether an engine is in use to the end.
    fn clients(
        &self,
        mut clients: Vec<Client>,
        server: u32,
        length: Duration,
    ) -> Result<Row, NetworkBenchError> {
        let before = cpu(Some(server))?;
        let asked = crowd_of_clients(&mut clients, &self.keys, self.value_len, length);
        let (operations, elapsed) = asked?;
        let timed = Timed {
            latency: Latency::default(),
            operations,
            elapsed,
        };
        let row = Row::of(&timed, cpu_between(before, cpu(Some(server))?));
        Ok(row.by_engine(clients.iter_mut().all(goes_by_engine)))
    }

    fn echo(&self, case: Case, length: Duration) -> Result<Row, NetworkBenchError> {
        let (by, ask, answer) = match case {
            Case::EchoUdp => {
                let len_max = DATAGRAM_LEN_USUAL;
                (EchoBy::Udp { len_max }, UDP_ASK_LEN, UDP_ANSWER_LEN)
            }
            _ => (EchoBy::Tcp, ASK_LEN, ANSWER_LEN),
        };
        let lens = EchoLens {
            ask,
            answer: answer + self.value_len,
        };
        let echo = Echo::start(&self.server, SERVER_CORE, lens, by).map_err(io_error("echo"))?;
        let mut client = EchoClient::connect(echo.address, lens, by).map_err(io_error("echo"))?;
        let timed = timed(length, 1, |_| client.round().map_err(io_error("echo")))?;
        Ok(Row::of(&timed, None))
    }

    /// One at a time, and whether all backends are still reached by way of the engine then.
    fn gets_by_engine(
        &self,
        target: &mut Trefoil,
        server: Option<u32>,
        length: Duration,
    ) -> Result<Row, NetworkBenchError> {
        let row = self.gets(target, server, length)?;
        Ok(row.by_engine(goes_by_engine(target.client())))
    }

    /// One at a time.
    fn gets(
        &self,
        target: &mut dyn Target,
        server: Option<u32>,
        length: Duration,
    ) -> Result<Row, NetworkBenchError> {
        let mut get = |number: usize| {
            let key = &self.keys[number % self.keys.len()];
            match target.get(key)? {
                GetOutcome::Hit(value) if value.len() == self.value_len => Ok(()),
                _ => Err(NetworkBenchError::Miss(
                    String::from_utf8_lossy(key).into_owned(),
                )),
            }
        };
        (0..1000).try_for_each(&mut get)?;
        let before = cpu(server)?;
        let timed = timed(length, 1, get)?;
        Ok(Row::of(&timed, cpu_between(before, cpu(server)?)))
    }

    fn batches(
        &self,
        target: &mut dyn Target,
        server: u32,
        length: Duration,
    ) -> Result<Row, NetworkBenchError> {
        let groups: Vec<Vec<&[u8]>> = self
            .keys
            .chunks(BATCH_COUNT)
            .map(|chunk| chunk.iter().map(Vec::as_slice).collect())
            .collect();
        let mut get = |number: usize| {
            let keys = &groups[number % groups.len()];
            let mut hits = 0;
            target.get_many(keys, &mut |_, outcome| {
                hits += usize::from(matches!(outcome, GetOutcome::Hit(_)));
            })?;
            match hits == keys.len() {
                true => Ok(()),
                false => Err(NetworkBenchError::Miss(format!("{hits} of {}", keys.len()))),
            }
        };
        (0..20).try_for_each(&mut get)?;
        let before = cpu(Some(server))?;
        let timed = timed(length, BATCH_COUNT as u64, get)?;
        Ok(Row::of(&timed, cpu_between(before, cpu(Some(server))?)))
    }
}

/// What was timed.
struct Timed {
    latency: Latency,
    operations: u64,
    elapsed: Duration,
}

fn timed(
    length: Duration,
    operations_each: u64,
    mut work: impl FnMut(usize) -> Result<(), NetworkBenchError>,
) -> Result<Timed, NetworkBenchError> {
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"));
    let begin = Instant::now();
    let mut number = 0;
    let mut last = begin;
    while last - begin < length {
        // Not in the order of memory.
        work(number * 7919)?;
        let now = Instant::now();
        latencies.saturating_record((now - last).as_nanos() as u64);
        (last, number) = (now, number + 1);
    }
    Ok(Timed {
        latency: Latency::of(&latencies),
        operations: number as u64 * operations_each,
        elapsed: last - begin,
    })
}

fn cpu(server: Option<u32>) -> Result<Option<Duration>, NetworkBenchError> {
    Ok(server.map(procfs::cpu_time).transpose()?)
}

fn cpu_between(before: Option<Duration>, after: Option<Duration>) -> Option<Duration> {
    Some(after?.saturating_sub(before?))
}

/// Whether all backends are reached by way of the engine.
fn goes_by_engine(client: &mut Client) -> bool {
    let links = client.carriers();
    links
        .iter()
        .all(|link| link.carrier == CarrierInUse::Engine)
}

/// Connects to a cell that has said that it serves. A machine that is busy with other things
/// may let a first call wait for longer than a client does.
fn connect_to(address: &str, tls: Option<Tls>) -> Result<Cell, NetworkBenchError> {
    let begin = Instant::now();
    loop {
        match Cell::connect_with(address, tls.clone()) {
            Ok(cell) => return Ok(cell),
            Err(error) if begin.elapsed() > CONNECTED_WITHIN => return Err(cell_error(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Until all backends are reached by way of the engine.
fn await_engine(client: &mut Client) -> Result<(), NetworkBenchError> {
    let begin = Instant::now();
    while !goes_by_engine(client) {
        for number in 0..20 {
            let _ = client.get(format!("nobody's {number}").as_bytes());
        }
        if begin.elapsed() > CONNECTED_WITHIN {
            let links = client.carriers();
            return Err(cell_error(format!("the engine is not used: {links:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What lets the client in.
struct Secrets {
    token: PathBuf,
    certs: PathBuf,
    _dir: tempfile::TempDir,
}

impl Secrets {
    fn draw(program: &Path, host: &str) -> Result<Self, NetworkBenchError> {
        let dir = tempfile::Builder::new().prefix("trefoil-bench-").tempdir();
        let dir = dir.map_err(io_error("make a directory"))?;
        let (token, certs) = (dir.path().join("token"), dir.path().join("certs"));
        write_token(&token).map_err(io_error(format!("write {}", token.display())))?;
        trefoil_client::use_token_file(&token);
        issue(program, &certs, &[("server", host)])?;
        Ok(Secrets {
            token,
            certs,
            _dir: dir,
        })
    }

    fn read_token(&self) -> Result<Vec<u8>, NetworkBenchError> {
        let path = &self.token;
        std::fs::read(path).map_err(io_error(format!("read {}", path.display())))
    }
}

fn write_token(path: &Path) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let digits = format!("{:032x}", std::process::id());
    file.write_all(digits.repeat(2).as_bytes())
}

/// Certificates of an authority of our own: of servers, with the host of each, and `client`.
fn issue(program: &Path, dir: &Path, servers: &[(&str, &str)]) -> Result<(), NetworkBenchError> {
    run_certs(program, dir, &["init"])?;
    for (name, host) in servers {
        let role = ["--role", "backend", "--host", host];
        run_certs(
            program,
            dir,
            &[&["issue", "--name", name], &role[..]].concat(),
        )?;
    }
    issue_client(program, dir, "client")
}

fn issue_client(program: &Path, dir: &Path, name: &str) -> Result<(), NetworkBenchError> {
    run_certs(program, dir, &["issue", "--name", name, "--role", "client"])
}

fn run_certs(program: &Path, dir: &Path, arguments: &[&str]) -> Result<(), NetworkBenchError> {
    let mut command = std::process::Command::new(program);
    command.args(["cell", "certs"]).args(arguments);
    command.arg("--dir").arg(dir);
    let output = command
        .output()
        .map_err(io_error(format!("run {}", program.display())))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(cell_error(String::from_utf8_lossy(&output.stderr))),
    }
}
