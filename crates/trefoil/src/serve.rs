//! `serve`: a whole cell in this process.

use crate::args::{DoorArgs, Plaintext, Restart, ServeArgs};
use crate::door::{self, Front};
use crate::engine::{Metrics, Service, Setup, engine_options};
use crate::failure::{Failure, Outcome, print_line};
use crate::fixed::Fixed;
use crate::settings::{self, MemoryLimit, StoreSettings};
use crate::signals::Signals;
use crate::supervised;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::Notify;
use trefoil_backend::{
    Ending, Gather, ListenOptions, Listeners, Server, ServerOptions, StartError,
};
use trefoil_cell::{
    BackendConfig, BackendLock, CellAddress, CellConfig, ConfigStore as _, ConfigStoreError,
    EmbeddedStore, Mode, runtime_dir,
};
use trefoil_client::Cell;
use trefoil_gateway::keyspace::{CellOptions, Gates, LocalKeyspace, cell_keyspace};
use trefoil_gateway::server::{Doors, GatewayOptions, Protocol};
use trefoil_layout::{KeyHasher, Version};
use trefoil_tls::{CertFiles, CertUse, Right, Tls};

pub(crate) const MODE_DEFAULT: &str = "R=1";
pub(crate) const NAME_DEFAULT: &str = "serve";
pub(crate) const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7411);
pub(crate) const ENGINE_DEFAULT: &str = "off";
pub(crate) const METRICS_DEFAULT: &str = "127.0.0.1:9411";
pub(crate) const RESTART_DEFAULT: Restart = Restart::Never;

pub(crate) fn run(args: ServeArgs) -> Outcome {
    let given = args.clone();
    let args = settings::with_file(args)?;
    let mode_text = args.mode.as_deref().unwrap_or(MODE_DEFAULT);
    let mode: Mode = mode_text
        .parse()
        .map_err(|e| Failure::Usage(format!("--mode {mode_text}: {e}")))?;
    if mode == Mode::R2 {
        return Err(Failure::Usage(
            "an immutable cell (R=2) is started by `trefoil cell up --mode R=2 --load FILE`".into(),
        ));
    }
    StoreSettings::from(&args.store).check()?;
    match (args.restart.unwrap_or(RESTART_DEFAULT), args.supervised_by) {
        (_, Some(parent)) => supervised::end_with(parent)?,
        (Restart::Always, None) => return supervised::run(),
        (Restart::Never, None) => {}
    }
    let tcp = listen_address(args.listen.as_deref())?;
    let users = crate::users::policy(&args.allow_user)?;
    crate::logging::start();
    let socket = socket(&args)?;
    let tls = server_tls(args.certs.as_deref())?;
    let engine = engine_address(args.engine.as_deref())?;
    let engine_options = engine_options(args.engine_size)?;
    let listen = ListenOptions {
        tcp,
        fabric: Some(fabric_socket(&socket)),
        unix: Some(socket),
        tls: tls.clone(),
        metrics: metrics_address(args.metrics.as_deref().unwrap_or(METRICS_DEFAULT))?,
        plaintext_rpc: args.plaintext.contains(&Plaintext::Rpc),
        plaintext_metrics: args.plaintext.contains(&Plaintext::Metrics),
        users,
        token_file: args.token_file.clone(),
    };
    let stop = Arc::new(Notify::new());
    let memory = StoreSettings::from(&args.store).memory;
    let front = door::options(&args.doors, &args.plaintext, Some(memory), &stop)?;
    let listeners = Listeners::bind(&listen);
    let doors = match front.doors.is_empty() {
        true => Ok(None),
        false => Doors::open(&front).map(|doors| Some((front.clone(), doors))),
    };
    let (listeners, doors) = match (listeners, doors) {
        (Ok(listeners), Ok(doors)) => (listeners, doors),
        (Err(one), Err(other)) => return Err(Failure::of(format!("{one}\n  {other}"))),
        (Err(error), Ok(_)) => return Err(Failure::of(error)),
        (Ok(_), Err(error)) => return Err(Failure::of(error)),
    };
    let config = config(mode, &args, &listeners);
    let address = match listeners.tcp_address() {
        Some(address) => format!("trefoil://{address}"),
        None => CellAddress::Servers(listeners.rpc_addresses()).to_string(),
    };
    // By the socket of this user alone: over TCP this process would need its own
    // token, and TCP may be open to other machines.
    let own = listeners.rpc_addresses().into_iter().take(1).collect();
    let own = CellAddress::Servers(own).to_string();
    let members = config
        .backends
        .iter()
        .map(|backend| backend.number)
        .collect();
    let store = EmbeddedStore::new();
    store.compare_and_swap(None, &config).map_err(Failure::of)?;
    let settings = StoreSettings::from(&args.store);
    let options = ServerOptions {
        memory_limit: settings.memory,
        partition_count: settings.partition_count,
        huge_pages: settings.huge_pages,
        repair: settings.repair,
        recovery_rate: settings.recovery_rate,
        ..ServerOptions::new(Arc::new(store), members)
    };
    let runs = start(options, listeners)?;
    let front = match doors {
        None => None,
        Some((options, doors)) => {
            let front = open_doors(&args.doors, options, doors, &own, &runs.server)?;
            runs.server.report(Arc::clone(&front.observatory) as _);
            Some(front)
        }
    };
    let engine = match engine {
        None => None,
        Some(listen) => {
            let setup = Setup {
                listen,
                tls: tls.clone(),
                token_file: args.token_file.clone(),
                // The server's own.
                token_right: Right::Admin,
                is_plain: args.plaintext.contains(&Plaintext::Rpc),
                options: engine_options,
            };
            let places = crate::engine::places_of(&config);
            let service = Arc::new(Service::start(setup, move |_| places.clone())?);
            runs.server.add_metrics(Arc::new(Metrics::of(&service)));
            Some(service)
        }
    };
    let engine_text = engine.as_ref().map(|of| of.engine().address().to_string());
    let ready = serde_json::json!({
        "cell": address,
        "engine": engine_text,
        "memcached": door::shown(front.as_ref(), Protocol::Memcached),
        "redis": door::shown(front.as_ref(), Protocol::Redis),
        "listening": door::all_shown(front.as_ref()),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    let mut memory = MemoryLimit::new(&own, memory);
    let fixed = Fixed::of_serve(&args);
    runs.signals.wait(&stop, || {
        let args = settings::with_file(given.clone())?;
        fixed.tell_changed(&Fixed::of_serve(&args));
        read_again(tls.as_ref())?;
        let settings = StoreSettings::from(&args.store);
        settings.check()?;
        let Some(front) = &front else {
            return memory.change(settings.memory);
        };
        let options = door::options(&args.doors, &args.plaintext, Some(settings.memory), &stop)?;
        let before = memory.chosen();
        memory.change(settings.memory)?;
        // All of it or nothing.
        front.reload(&options).inspect_err(|_| {
            if let Err(error) = memory.change(before) {
                tracing::error!("SIGHUP: the memory limit stays changed: {error}");
            }
        })
    });
    // Clients first, while there is still somebody to answer them.
    drop(front);
    drop(engine);
    runs.server.shutdown();
    Ok(ExitCode::SUCCESS)
}

/// Runs a server until SIGTERM or SIGINT; prints `ready` once it serves.
pub(crate) fn serve(options: ServerOptions, listeners: Listeners, ready: &str) -> Outcome {
    start(options, listeners)?.serve_to_the_end(ready)
}

/// The same in the place of a process that serves.
pub(crate) fn take_over(
    options: ServerOptions,
    listen: &ListenOptions,
    lock: impl Fn() -> Result<BackendLock, ConfigStoreError>,
    ready: &str,
) -> Outcome {
    let ending = options.ending.clone();
    serve_once_made(&ending, ready, || Server::take_over(options, listen, lock))
}

/// The same as a backend of a cell that is to have another size.
pub(crate) fn gather(
    options: ServerOptions,
    listen: &ListenOptions,
    gather: Gather,
    place: (
        impl Fn() -> Result<BackendLock, ConfigStoreError>,
        impl Fn() -> Result<u32, ConfigStoreError>,
    ),
    ready: &str,
) -> Outcome {
    let ending = options.ending.clone();
    let make = || Server::gather(options, listen, gather, place);
    serve_once_made(&ending, ready, make)
}

/// Makes a server, which may have to wait for others, and runs it, unless the process is told
/// to end before.
fn serve_once_made(
    ending: &Ending,
    ready: &str,
    make: impl FnOnce() -> Result<Server, StartError>,
) -> Outcome {
    let mut signals = Signals::new()?;
    // One that was made, or half made, ends here.
    match signals.heard_while(ending, make) {
        None => Ok(ExitCode::SUCCESS),
        Some(made) => {
            let server = made.map_err(start_failure)?;
            Runs { server, signals }.serve_to_the_end(ready)
        }
    }
}

/// A server's certificates, if it has any.
pub(crate) fn server_tls(directory: Option<&Path>) -> Result<Option<Tls>, Failure> {
    let read = |directory| Tls::read(&CertFiles::in_directory(directory), CertUse::Server);
    directory.map(read).transpose().map_err(Failure::of)
}

/// Takes certificates anew, if there are any.
pub(crate) fn read_again(tls: Option<&Tls>) -> Result<(), Failure> {
    tls.map_or(Ok(()), Tls::read_again).map_err(Failure::of)
}

struct Runs {
    server: Server,
    signals: Signals,
}

impl Runs {
    /// Says that it serves, and waits for the end: a signal, or another process that has
    /// taken it over. What can be changed is changed by whoever started this backend.
    fn serve_to_the_end(self, ready: &str) -> Outcome {
        let taken = until_over(self.server, self.signals, ready)?;
        taken.map_or(Ok(ExitCode::SUCCESS), |why| Err(Failure::of(why)))
    }
}

/// Runs a server until a signal, or until its number is another process's: why, if that was
/// given the place of this one.
pub(crate) fn until_over(
    server: Server,
    signals: Signals,
    ready: &str,
) -> Result<Option<String>, Failure> {
    print_line(ready)?;
    signals.wait(&server.retirement(), || Ok(()));
    let taken = server.place_taken().map(str::to_owned);
    server.shutdown();
    Ok(taken)
}

fn start(options: ServerOptions, listeners: Listeners) -> Result<Runs, Failure> {
    let signals = Signals::new()?;
    let server = Server::start(options, listeners).map_err(start_failure)?;
    Ok(Runs { server, signals })
}

pub(crate) fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Memory(error) => Failure::Usage(format!("--memory: {error}")),
        error => Failure::of(error),
    }
}

/// Lets memcached's and Redis's clients in: with one copy straight to the
/// store, else through the client library, as from outside.
fn open_doors(
    args: &DoorArgs,
    options: GatewayOptions,
    doors: Doors,
    address: &str,
    server: &Server,
) -> Result<Front, Failure> {
    if let Some(local) = server.local() {
        let gates = Gates::default();
        let keyspace = || LocalKeyspace::beside(local.clone(), &gates);
        return door::open(args, options, doors, keyspace, true);
    }
    let cell = Cell::connect_with(address, None).map_err(Failure::of)?;
    let cell_options = CellOptions {
        spin: options.spin,
        ..CellOptions::default()
    };
    let keyspace = || cell_keyspace(cell.clone(), cell_options.clone());
    door::open(args, options, doors, keyspace, false)
}

fn config(mode: Mode, args: &ServeArgs, listeners: &Listeners) -> CellConfig {
    let settings = StoreSettings::from(&args.store);
    let backend = |number| BackendConfig {
        number,
        addresses: listeners.rpc_addresses(),
        fabric_socket: listeners.fabric_socket().map(Path::to_owned),
        place: None,
    };
    CellConfig {
        life: settings::random_life(),
        config_id: 1,
        cell: args.name.clone().unwrap_or_else(|| NAME_DEFAULT.into()),
        mode,
        backends: (0..mode.copy_count() as u32).map(backend).collect(),
        hash: KeyHasher {
            kind: settings.hash,
            seed: settings::random_seed(),
        },
        value_len_max: settings.value_len_max,
        eviction: settings.eviction.name().into(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

fn listen_address(text: Option<&str>) -> Result<Option<SocketAddr>, Failure> {
    match text {
        None => Ok(Some(LISTEN_DEFAULT)),
        Some("off") => Ok(None),
        Some(text) => tcp_address("--listen", text).map(Some),
    }
}

/// Where an engine listens, if there is to be one.
pub(crate) fn engine_address(text: Option<&str>) -> Result<Option<SocketAddr>, Failure> {
    match text.unwrap_or(ENGINE_DEFAULT) {
        "off" => Ok(None),
        text => tcp_address("--engine", text).map(Some),
    }
}

pub(crate) fn metrics_address(text: &str) -> Result<Option<SocketAddr>, Failure> {
    if text == "off" {
        return Ok(None);
    }
    tcp_address("--metrics", text).map(Some)
}

/// Where to listen: an address or a name of this host, and a port. Of a name's
/// addresses one of IPv4, if it has any.
pub(crate) fn tcp_address(option: &str, text: &str) -> Result<SocketAddr, Failure> {
    let fail = |reason: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "{option} {text}: {reason}; give HOST:PORT, for example 127.0.0.1:{}, or off",
            LISTEN_DEFAULT.port()
        ))
    };
    let found = text.to_socket_addrs().map_err(|error| fail(&error))?;
    let found: Vec<SocketAddr> = found.collect();
    let is_v4 = found.iter().find(|address| address.is_ipv4());
    is_v4
        .or(found.first())
        .copied()
        .ok_or_else(|| fail(&"the name has no address"))
}

/// Shared memory is handed over beside the RPC socket.
fn fabric_socket(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".fabric");
    name.into()
}

/// The socket of the RPC service.
pub(crate) fn socket(args: &ServeArgs) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.socket {
        return Ok(path.clone());
    }
    let tcp = listen_address(args.listen.as_deref())?;
    default_socket(tcp.unwrap_or(LISTEN_DEFAULT))
}

/// A socket of this user's alone, named after the port.
fn default_socket(listen: SocketAddr) -> Result<PathBuf, Failure> {
    let folder = runtime_dir().map_err(Failure::of)?;
    let name = match listen.port() {
        0 => format!("serve-pid{}.sock", std::process::id()),
        port => format!("serve-{port}.sock"),
    };
    Ok(folder.join(name))
}
