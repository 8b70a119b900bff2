//! `cell up`: a process for each backend, watched, and started again when it dies.

use crate::args::{Restart, UpArgs};
use crate::cell::revival::{Backend, Revival};
use crate::failure::{Failure, Outcome, print_line};
use crate::fixed::Fixed;
use crate::settings::{MemoryLimit, StoreSettings};
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use trefoil_cell::{
    BackendConfig, CellAddress, CellConfig, ConfigStore as _, DirectoryStore, Mode,
};
use trefoil_layout::{KeyHasher, Version};

pub(crate) const MODE_DEFAULT: &str = "R=3.2";
pub(crate) const NAME_DEFAULT: &str = "cell";
pub(crate) const METRICS_DEFAULT: &str = "off";
pub(crate) const RESTART_DEFAULT: Restart = Restart::Always;
/// Most backends of one cell on one machine.
const BACKEND_COUNT_MAX: u32 = 256;
/// How often backends are looked at, even if nothing is heard of their end.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
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
    let mut child_ended = signal(SignalKind::child()).map_err(Failure::of)?;
    let program = Program::this()?;
    let start = |number, memory| spawn(&program, args, memory, metrics, dir, number);
    let first_memory = StoreSettings::from(&args.store).memory;
    // All at once: each waits out its predecessor's lease.
    let mut backends = Vec::new();
    for number in 0..count {
        backends.push(Backend::new(number, start(number, first_memory)?));
    }
    for backend in &mut backends {
        backend.await_ready().await?;
    }
    let address = CellAddress::Path(dir.to_owned()).to_string();
    let pids: Vec<u32> = backends.iter().map(Backend::pid).collect();
    print_line(&format!(
        "ready {}",
        serde_json::json!({ "cell": address, "pids": pids })
    ))?;
    let mut memory = MemoryLimit::new(&address, first_memory);
    let revival = Revival::new(args, dir)?;
    loop {
        // Those who have ended, and those whose pause before the next start is over.
        let now = Instant::now();
        for backend in &mut backends {
            backend.look(now, &revival);
            backend.start_if_due(now, &revival, &|number| start(number, memory.chosen()));
        }
        if backends.iter().all(Backend::is_over) {
            return Err(Failure::Failed("the last backend has died".into()));
        }
        let due = backends.iter().filter_map(Backend::due).min();
        let pause = due.map_or(LOOK_PERIOD, |due| due.saturating_duration_since(now));
        tokio::select! {
            // Whoever ends us may have ended the backends, too.
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => crate::signals::tell(reload(given, args, &mut memory)),
            _ = child_ended.recv() => {}
            () = tokio::time::sleep(pause.min(LOOK_PERIOD)) => {}
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

/// The program that runs, whatever stands at its path by now: all backends of a cell are
/// of one release.
struct Program(std::fs::File);

impl Program {
    fn this() -> Result<Self, Failure> {
        let file = std::fs::File::open("/proc/self/exe");
        let file = file.map_err(|e| Failure::doing("cannot find this program", e))?;
        Ok(Program(file))
    }

    fn command(&self) -> Command {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let mut command = Command::new(path);
        command.arg0("trefoil");
        command
    }
}

fn spawn(
    program: &Program,
    args: &UpArgs,
    memory: u64,
    metrics: Option<SocketAddr>,
    dir: &Path,
    number: u32,
) -> Result<Child, Failure> {
    let settings = StoreSettings::from(&args.store);
    let mut command = program.command();
    command
        .args(["cell", "backend", "--dir"])
        .arg(dir)
        .args(["--number", &number.to_string()])
        .args(["--memory", &memory.to_string()])
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
    command
        .spawn()
        .map_err(|e| Failure::doing(format!("cannot start backend {number}"), e))
}

async fn stop(backends: Vec<Backend>) -> Outcome {
    let mut children: Vec<(u32, Child)> = backends
        .into_iter()
        .filter_map(Backend::into_child)
        .collect();
    for (_, child) in &children {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let mut code = ExitCode::SUCCESS;
    for (number, child) in &mut children {
        match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
            // One that was killed before is no failure of the stop.
            Ok(_) => {}
            Err(_) => {
                tracing::error!(backend = number, "does not stop; killing it");
                let _ = child.kill().await;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
