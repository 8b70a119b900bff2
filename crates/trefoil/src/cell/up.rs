//! `cell up`: a process for each backend, watched but never restarted.

use crate::args::UpArgs;
use crate::failure::{Failure, Outcome, print_line};
use crate::fixed::Fixed;
use crate::settings::{MemoryLimit, StoreSettings};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use trefoil_cell::{
    BackendConfig, CellAddress, CellConfig, ConfigStore as _, DirectoryStore, Mode,
};
use trefoil_layout::{KeyHasher, Version};

pub(crate) const MODE_DEFAULT: &str = "R=3.2";
pub(crate) const NAME_DEFAULT: &str = "cell";
pub(crate) const METRICS_DEFAULT: &str = "off";
/// Most backends of one cell on one machine.
const BACKEND_COUNT_MAX: u32 = 256;
/// How long a backend may take to end after it was asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: UpArgs) -> Outcome {
    let given = args.clone();
    let args = crate::settings::up_with_file(args)?;
    let mode_text = args.mode.as_deref().unwrap_or(MODE_DEFAULT);
    let mode: Mode = mode_text
        .parse()
        .map_err(|e| Failure::Usage(format!("--mode {mode_text}: {e}")))?;
    let Some(dir) = &args.dir else {
        return Err(Failure::Usage(
            "no directory for the cell: give --dir, or dir in the configuration file".into(),
        ));
    };
    let copies = mode.copy_count() as u32;
    let count = args.backends.unwrap_or(copies);
    if count < copies {
        return Err(Failure::Usage(format!(
            "--backends {count}: {mode} needs at least {copies}"
        )));
    }
    if count > BACKEND_COUNT_MAX {
        return Err(Failure::Usage(format!(
            "--backends {count}: each is a process of this machine; choose {copies} to {BACKEND_COUNT_MAX}"
        )));
    }
    match (mode, &args.load) {
        (Mode::R2, None) => {
            return Err(Failure::Usage(
                "an immutable cell (R=2) needs --load FILE".into(),
            ));
        }
        (Mode::R1 | Mode::R32, Some(_)) => {
            return Err(Failure::Usage(format!(
                "--load is for immutable cells: use --mode R=2, not {mode}"
            )));
        }
        _ => {}
    }
    if let Some(file) = &args.load {
        std::fs::File::open(file)
            .map_err(|e| Failure::doing(format!("cannot read {}", file.display()), e))?;
    }
    StoreSettings::from(&args.store).check()?;
    crate::users::policy(&args.allow_user)?;
    let metrics = args.metrics.as_deref().unwrap_or(METRICS_DEFAULT);
    let metrics = crate::serve::metrics_address(metrics)?;
    crate::logging::start();
    let dir = configure(&args, dir, mode, count)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?;
    runtime.block_on(supervise(&given, &args, metrics, &dir, count))
}

/// Writes the cell's configuration and returns its directory, absolute.
fn configure(args: &UpArgs, dir: &Path, mode: Mode, count: u32) -> Result<PathBuf, Failure> {
    let store = DirectoryStore::create(dir).map_err(Failure::of)?;
    // Whoever runs in this directory keeps its configuration.
    let known = store.load().map_err(Failure::of)?;
    let ever = known
        .as_ref()
        .map_or(0, |config| config.backends.len() as u32);
    for number in 0..count.max(ever) {
        drop(store.lock_backend(number).map_err(Failure::of)?);
    }
    let settings = StoreSettings::from(&args.store);
    let backend = |number| {
        Ok(BackendConfig {
            number,
            addresses: vec![store.rpc_socket(number).map_err(Failure::of)?],
            fabric_socket: Some(store.fabric_socket(number).map_err(Failure::of)?),
        })
    };
    let expected = known.as_ref().map(CellConfig::topology_id);
    // Ids in one directory grow through all lives.
    let last_id = known.as_ref().map_or(0, |config| config.config_id);
    let config = CellConfig {
        life: crate::settings::random_life(),
        config_id: last_id + 1,
        cell: args.name.clone().unwrap_or_else(|| NAME_DEFAULT.into()),
        mode,
        backends: (0..count).map(backend).collect::<Result<_, Failure>>()?,
        hash: KeyHasher {
            kind: settings.hash,
            seed: crate::settings::random_seed(),
        },
        value_len_max: settings.value_len_max,
        eviction: settings.eviction.name().into(),
        flush_floor: Version::ZERO,
    };
    store
        .compare_and_swap(expected, &config)
        .map_err(Failure::of)?;
    store
        .let_others_look(!args.allow_user.is_empty())
        .map_err(Failure::of)?;
    Ok(store.directory().to_owned())
}

struct Backend {
    number: u32,
    pid: u32,
    child: Child,
}

async fn supervise(
    given: &UpArgs,
    args: &UpArgs,
    metrics: Option<SocketAddr>,
    dir: &Path,
    count: u32,
) -> Outcome {
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::of)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
    // All at once: each waits out its predecessor's lease.
    let mut starting = Vec::new();
    for number in 0..count {
        starting.push(spawn(args, metrics, dir, number)?);
    }
    let mut backends = Vec::new();
    for mut backend in starting {
        await_ready(&mut backend).await?;
        backends.push(backend);
    }
    let address = CellAddress::Path(dir.to_owned()).to_string();
    let pids: Vec<u32> = backends.iter().map(|backend| backend.pid).collect();
    print_line(&format!(
        "ready {}",
        serde_json::json!({ "cell": address, "pids": pids })
    ))?;
    let mut memory = MemoryLimit::new(&address, StoreSettings::from(&args.store).memory);
    loop {
        tokio::select! {
            _ = hangup.recv() => crate::signals::tell(reload(given, args, &mut memory)),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            index = any_ended(&mut backends) => {
                let backend = backends.remove(index);
                tracing::error!(
                    backend = backend.number,
                    pid = backend.pid,
                    "a backend has died; it is not restarted: restart the whole cell to replace it"
                );
                if backends.is_empty() {
                    return Err(Failure::Failed("the last backend has died".into()));
                }
            }
        }
    }
    stop(backends).await
}

/// Takes what the configuration file says now.
fn reload(given: &UpArgs, begun: &UpArgs, memory: &mut MemoryLimit) -> Result<(), Failure> {
    let args = crate::settings::up_with_file(given.clone())?;
    Fixed::of_up(begun).tell_changed(&Fixed::of_up(&args));
    let settings = StoreSettings::from(&args.store);
    settings.check()?;
    memory.change(settings.memory)
}

fn spawn(
    args: &UpArgs,
    metrics: Option<SocketAddr>,
    dir: &Path,
    number: u32,
) -> Result<Backend, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::doing("cannot find this program", e))?;
    let settings = StoreSettings::from(&args.store);
    let mut command = Command::new(program);
    command
        .args(["cell", "backend", "--dir"])
        .arg(dir)
        .args(["--number", &number.to_string()])
        .args(["--memory", &settings.memory.to_string()])
        .args([
            "--huge-pages",
            if settings.huge_pages { "true" } else { "false" },
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(count) = settings.partition_count {
        command.args(["--partitions", &count.to_string()]);
    }
    if let Some(file) = &args.load {
        command.arg("--load").arg(file);
    }
    if !args.allow_user.is_empty() {
        command.args(["--allow-user", &args.allow_user.join(",")]);
    }
    if let Some(mut address) = metrics {
        let port = u32::from(address.port()).saturating_add(number);
        let port = u16::try_from(port).map_err(|_| {
            Failure::Usage(format!(
                "--metrics {address}: no port is left for backend {number}"
            ))
        })?;
        address.set_port(port);
        command.args(["--metrics", &address.to_string()]);
    }
    let child = command
        .spawn()
        .map_err(|e| Failure::doing(format!("cannot start backend {number}"), e))?;
    let pid = child.id().unwrap_or(0);
    Ok(Backend { number, pid, child })
}

/// Waits for a backend's word that it serves. Its reasons for not doing so
/// have gone to our stderr, which it shares.
async fn await_ready(backend: &mut Backend) -> Result<(), Failure> {
    let number = backend.number;
    let ended = || {
        Failure::Failed(format!(
            "backend {number} did not start; its message stands above"
        ))
    };
    let out = backend.child.stdout.take().ok_or_else(ended)?;
    match BufReader::new(out).lines().next_line().await {
        Ok(Some(line)) if line == "ready" => Ok(()),
        _ => Err(ended()),
    }
}

async fn any_ended(backends: &mut [Backend]) -> usize {
    loop {
        for (index, backend) in backends.iter_mut().enumerate() {
            if !matches!(backend.child.try_wait(), Ok(None)) {
                return index;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn stop(backends: Vec<Backend>) -> Outcome {
    use rustix::process::{Pid, Signal, kill_process};
    for backend in &backends {
        if let Some(pid) = Pid::from_raw(backend.pid as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let mut code = ExitCode::SUCCESS;
    for mut backend in backends {
        match tokio::time::timeout(STOP_PATIENCE, backend.child.wait()).await {
            // One that was killed before is no failure of the stop.
            Ok(_) => {}
            Err(_) => {
                tracing::error!(backend = backend.number, "does not stop; killing it");
                let _ = backend.child.kill().await;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
