//! `serve`: a whole cell in this process.

use crate::args::ServeArgs;
use crate::failure::{Failure, Outcome, print_line};
use crate::settings::{self, StoreSettings};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use trefoil_backend::{ListenOptions, Listeners, Server, ServerOptions};
use trefoil_cell::{BackendConfig, CellAddress, CellConfig, ConfigStore as _, EmbeddedStore, Mode};
use trefoil_layout::KeyHasher;

const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7411);
const METRICS_DEFAULT: &str = "127.0.0.1:9411";

pub(crate) fn run(args: ServeArgs) -> Outcome {
    let args = settings::with_file(args)?;
    let mode_text = args.mode.as_deref().unwrap_or("R=1");
    let mode: Mode = mode_text
        .parse()
        .map_err(|e| Failure::Usage(format!("--mode {mode_text}: {e}")))?;
    if mode == Mode::R2 {
        return Err(Failure::Usage(
            "an immutable cell (R=2) is started by `trefoil cell up --mode R=2 --load FILE`".into(),
        ));
    }
    crate::logging::start();
    let listen = ListenOptions {
        tcp: Some(args.listen.unwrap_or(LISTEN_DEFAULT)),
        metrics: metrics_address(args.metrics.as_deref().unwrap_or(METRICS_DEFAULT))?,
        insecure: args.insecure,
        ..ListenOptions::default()
    };
    let socket = match &args.socket {
        Some(path) => path.clone(),
        None => default_socket(args.listen.unwrap_or(LISTEN_DEFAULT))?,
    };
    let listen = ListenOptions {
        fabric: Some(fabric_socket(&socket)),
        unix: Some(socket),
        ..listen
    };
    let listeners = Listeners::bind(&listen).map_err(Failure::of)?;
    let config = config(mode, &args, &listeners);
    let address = match listeners.tcp_address() {
        Some(address) => format!("trefoil://{address}"),
        None => CellAddress::Servers(listeners.rpc_addresses()).to_string(),
    };
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
        ..ServerOptions::new(Arc::new(store), members)
    };
    let ready = serde_json::json!({ "cell": address, "pids": [std::process::id()] });
    serve(options, listeners, &format!("ready {ready}"))
}

/// Runs a server until SIGTERM or SIGINT; prints `ready` once it serves.
pub(crate) fn serve(options: ServerOptions, listeners: Listeners, ready: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?;
    // Before the server starts, so that no signal is lost.
    let (mut terminate, mut interrupt) = runtime.block_on(async {
        let terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
        Ok::<_, Failure>((
            terminate,
            signal(SignalKind::interrupt()).map_err(Failure::of)?,
        ))
    })?;
    let server = Server::start(options, listeners).map_err(Failure::of)?;
    print_line(ready)?;
    runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    });
    server.shutdown();
    Ok(ExitCode::SUCCESS)
}

fn config(mode: Mode, args: &ServeArgs, listeners: &Listeners) -> CellConfig {
    let settings = StoreSettings::from(&args.store);
    let backend = |number| BackendConfig {
        number,
        addresses: listeners.rpc_addresses(),
        fabric_socket: listeners.fabric_socket().map(Path::to_owned),
    };
    CellConfig {
        config_id: 1,
        cell: "serve".into(),
        mode,
        backends: (0..mode.copy_count() as u32).map(backend).collect(),
        hash: KeyHasher {
            kind: settings.hash,
            seed: settings::random_seed(),
        },
        value_len_max: settings.value_len_max,
        eviction: settings.eviction.name().into(),
    }
}

fn metrics_address(text: &str) -> Result<Option<SocketAddr>, Failure> {
    if text == "off" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| Failure::Usage(format!("--metrics {text}: give host:port or off")))
}

/// Shared memory is handed over beside the RPC socket.
fn fabric_socket(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".fabric");
    name.into()
}

/// A socket of this user's alone, named after the port.
fn default_socket(listen: SocketAddr) -> Result<PathBuf, Failure> {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if Path::new(&folder).is_dir() => PathBuf::from(folder).join("trefoil"),
        _ => std::env::temp_dir().join(format!("trefoil-{}", rustix::process::getuid().as_raw())),
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|e| {
            Failure::doing(
                format!("cannot make {} for the sockets", folder.display()),
                e,
            )
        })?;
    let name = match listen.port() {
        0 => format!("serve-pid{}.sock", std::process::id()),
        port => format!("serve-{port}.sock"),
    };
    Ok(folder.join(name))
}
