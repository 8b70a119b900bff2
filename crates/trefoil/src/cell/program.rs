//! The program that backends run, and how one is started.

use crate::args::UpArgs;
use crate::cell::home::Home;
use crate::failure::Failure;
use crate::settings::StoreSettings;
use clap::ValueEnum as _;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use trefoil_cell::TOKEN_FILE_VARIABLE;

/// How long a program may take to say which release it is.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// A program, opened once: whatever stands at its path by now, its backends are of one
/// release.
#[derive(Debug)]
pub(super) struct Program {
    file: File,
    /// Device, number, length and time of its last change.
    identity: (u64, u64, u64, i64),
    /// What it says of itself.
    release: String,
}

impl Program {
    /// The one that runs here.
    pub(super) fn this() -> Result<Arc<Self>, Failure> {
        let fail = |e| Failure::doing("cannot find this program", e);
        let file = File::open("/proc/self/exe").map_err(fail)?;
        let release = format!("trefoil {}", env!("CARGO_PKG_VERSION"));
        Ok(Arc::new(Self::of(file, release).map_err(fail)?))
    }

    /// The one at `path`, if it is Trefoil.
    pub(super) async fn open(path: &Path) -> Result<Arc<Self>, String> {
        let fail = |why: String| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let mut program = Self::of(file, String::new()).map_err(|e| fail(e.to_string()))?;
        let mut command = program.command();
        command.arg("--version").stdin(Stdio::null());
        command.stderr(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(VERSION_PATIENCE, command.output()).await;
        let output = output
            .map_err(|_| fail("it does not say which release it is".into()))?
            .map_err(|e| fail(format!("it cannot be run: {e}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let release = text.lines().next().unwrap_or_default();
        if !output.status.success() || !release.starts_with("trefoil ") {
            return Err(fail("it is not Trefoil".into()));
        }
        release.clone_into(&mut program.release);
        Ok(Arc::new(program))
    }

    fn of(file: File, release: String) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let (device, number) = (metadata.dev(), metadata.ino());
        Ok(Program {
            file,
            identity: (device, number, metadata.len(), metadata.mtime()),
            release,
        })
    }

    /// Whether both are the same file.
    pub(super) fn is_same(&self, other: &Program) -> bool {
        self.identity == other.identity
    }

    /// Its release, for people.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    pub(super) fn command(&self) -> Command {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut command = Command::new(path);
        command.arg0("trefoil");
        command
    }
}

/// What every backend of the cell is started with.
pub(super) struct Starter {
    pub(super) args: UpArgs,
    pub(super) home: Home,
    pub(super) metrics: Option<SocketAddr>,
}

/// How a backend's process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// Empty, or from its file.
    Alone(u32),
    /// In the place of one that serves.
    TakesOver(u32),
    /// Until it is told what to be.
    Spare,
    /// A backend of the cell as it is to be after a resize.
    Joins(u32),
}

impl Starter {
    /// Where a backend's metrics are served.
    pub(super) fn metrics_of(&self, number: u32) -> Result<Option<SocketAddr>, Failure> {
        let Some(mut address) = self.metrics else {
            return Ok(None);
        };
        let port = u32::from(address.port()).saturating_add(number);
        let port = u16::try_from(port).map_err(|_| {
            Failure::Usage(format!(
                "--metrics {address}: no port is left for backend {number}"
            ))
        })?;
        address.set_port(port);
        Ok(Some(address))
    }

    /// What of a cell on several hosts is here.
    fn add_host(&self, command: &mut Command) {
        let (args, host) = (&self.args, &self.args.host);
        if args.here.is_empty() {
            return;
        }
        let numbers: Vec<String> = args.here.iter().map(u32::to_string).collect();
        command.args(["--here", &numbers.join(",")]);
        for (option, text) in [("--listen", &host.listen), ("--advertise", &host.advertise)] {
            if let Some(text) = text {
                command.args([option, text]);
            }
        }
        if let Some(certs) = &host.certs {
            command.arg("--certs").arg(certs);
        }
        for what in &host.plaintext {
            if let Some(value) = what.to_possible_value() {
                command.args(["--plaintext", value.get_name()]);
            }
        }
        if let Some(file) = &host.token_file {
            command.arg("--token-file").arg(file);
            // It is shown to the other hosts, too.
            command.env(TOKEN_FILE_VARIABLE, file);
        }
    }

    /// Starts a process.
    pub(super) fn start(
        &self,
        program: &Program,
        begins: Begins,
        memory: u64,
    ) -> Result<Child, Failure> {
        let settings = StoreSettings::from(&self.args.store);
        let mut command = program.command();
        command
            .args(["cell", "backend", "--dir"])
            .arg(self.home.directory().directory())
            .args(["--memory", &memory.to_string()])
            .args(["--huge-pages", &settings.huge_pages.to_string()])
            .arg("--repair-interval")
            .arg(humantime::format_duration(settings.repair.interval).to_string())
            .args(["--repair-rate", &settings.repair.rate.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let number = match begins {
            Begins::Alone(number) => Some(number),
            Begins::TakesOver(number) => {
                command.arg("--take-over");
                Some(number)
            }
            Begins::Spare => {
                command.arg("--spare").stdin(Stdio::piped());
                None
            }
            Begins::Joins(number) => {
                command.arg("--join").stdin(Stdio::piped());
                Some(number)
            }
        };
        if let Some(number) = number {
            command.args(["--number", &number.to_string()]);
            if let Some(address) = self.metrics_of(number)? {
                command.args(["--metrics", &address.to_string()]);
            }
        }
        if let Some(store) = &self.args.config_store {
            command.args(["--store", store]);
        }
        // Only if it was chosen: a program of the release before does not know it.
        if let Some(rate) = settings.recovery_rate {
            command.args(["--recovery-rate", &rate.to_string()]);
        }
        if let Some(count) = settings.partition_count {
            command.args(["--partitions", &count.to_string()]);
        }
        if let Some(file) = &self.args.load {
            command.arg("--load").arg(file);
        }
        if self.args.queue {
            command.arg("--queue");
        }
        self.add_host(&mut command);
        if !self.args.allow_user.is_empty() {
            command.args(["--allow-user", &self.args.allow_user.join(",")]);
        }
        let what = match begins {
            Begins::Spare => "a spare".to_owned(),
            Begins::Alone(number) | Begins::TakesOver(number) | Begins::Joins(number) => {
                format!("backend {number}")
            }
        };
        command
            .spawn()
            .map_err(|e| Failure::doing(format!("cannot start {what}"), e))
    }
}
