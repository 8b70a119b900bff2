//! A Postgres server of one's own in a temporary folder: for tests,
//! measurements and demonstrations. Reached by a Unix socket, and by TCP only if
//! its settings say so; stopped and removed when the value is dropped.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The user that owns the server where we are root, whom Postgres refuses.
const USER: &str = "postgres";

/// Where Debian has Postgres's programs that are not in the path.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// A running server. The user `postgres` may log in without a password.
#[derive(Debug)]
pub struct Throwaway {
    folder: TempDir,
    programs: PathBuf,
    root: bool,
    /// Part of its socket's name, if it is not the usual one.
    port: Option<String>,
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ThrowawayError {
    /// Postgres is not installed.
    #[error("there is no pg_ctl in the path or below {PROGRAMS}: install postgresql")]
    Missing,
    /// The system refused.
    #[error("a temporary Postgres server: {0}")]
    System(#[from] io::Error),
    /// One of Postgres's programs failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Which one.
        program: String,
        /// What it printed.
        output: String,
    },
}

impl Throwaway {
    /// Starts a server with logical replication.
    ///
    /// # Errors
    /// Postgres is not installed, or does not start.
    pub fn start() -> Result<Self, ThrowawayError> {
        Self::with_settings(&[("wal_level", "logical")])
    }

    /// Starts a server with these settings, written like in its configuration
    /// file.
    ///
    /// # Errors
    /// Postgres is not installed, or does not start.
    pub fn with_settings(settings: &[(&str, &str)]) -> Result<Self, ThrowawayError> {
        let server = Self::prepare(settings)?;
        server.launch()?;
        Ok(server)
    }

    /// The same, but for the start: [`put`](Self::put) what it needs, then
    /// [`launch`](Self::launch) it.
    ///
    /// # Errors
    /// Postgres is not installed.
    pub fn prepare(settings: &[(&str, &str)]) -> Result<Self, ThrowawayError> {
        let programs = programs().ok_or(ThrowawayError::Missing)?;
        // A short path: names of sockets have a limit.
        let folder = tempfile::Builder::new().prefix("tf-pg-").tempdir()?;
        let root = is_root();
        let port = settings.iter().rev().find(|(name, _)| *name == "port");
        let server = Throwaway {
            folder,
            programs,
            root,
            port: port.map(|&(_, port)| port.to_owned()),
        };
        server.give_away()?;
        let data = server.data();
        let options = ["--no-sync", "--auth=trust", "--username=postgres"];
        let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        arguments.extend([OsStr::new("--encoding=UTF8"), OsStr::new("-D")]);
        arguments.push(data.as_os_str());
        server.program("initdb", &arguments)?;
        server.configure(settings)?;
        Ok(server)
    }

    /// Puts a file into its data, for nobody else to read: `pg_hba.conf`,
    /// `server.crt`, `server.key`, `root.crt`. Counts from the next start, or
    /// after [`reload`](Self::reload).
    ///
    /// # Errors
    /// The system refuses.
    pub fn put(&self, name: &str, text: &str) -> Result<(), ThrowawayError> {
        let path = self.data().join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        if let Some(owner) = self.owner()? {
            chown(path, Some(owner), None)?;
        }
        Ok(())
    }

    /// Has it read its files again.
    ///
    /// # Errors
    /// It does not run.
    pub fn reload(&self) -> Result<(), ThrowawayError> {
        self.control(&[OsStr::new("reload")])
    }

    /// Adds settings; they count from the next start.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn configure(&self, settings: &[(&str, &str)]) -> Result<(), ThrowawayError> {
        use std::io::Write as _;
        let file = self.data().join("postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(file)?;
        let socket = self.folder.path().display().to_string();
        let fixed = [
            ("listen_addresses", ""),
            ("unix_socket_directories", socket.as_str()),
            ("fsync", "off"),
            ("shared_buffers", "16MB"),
            ("max_wal_senders", "12"),
            ("max_replication_slots", "12"),
        ];
        for (name, value) in fixed.iter().chain(settings) {
            writeln!(file, "{name} = '{value}'")?;
        }
        Ok(())
    }

    /// Starts the server again after [`stop`](Self::stop) or
    /// [`crash`](Self::crash).
    ///
    /// # Errors
    /// It does not start; the error has its log.
    pub fn launch(&self) -> Result<(), ThrowawayError> {
        let log = self.folder.path().join("log");
        let started = self.control(&[
            OsStr::new("-w"),
            OsStr::new("-t"),
            OsStr::new("30"),
            OsStr::new("-l"),
            log.as_os_str(),
            OsStr::new("start"),
        ]);
        started.map_err(|error| match (error, std::fs::read_to_string(&log)) {
            (ThrowawayError::Program { program, .. }, Ok(output)) => {
                ThrowawayError::Program { program, output }
            }
            (error, _) => error,
        })
    }

    /// Stops the server in an orderly way.
    ///
    /// # Errors
    /// It did not run.
    pub fn stop(&self) -> Result<(), ThrowawayError> {
        self.control(&["-w", "-m", "fast", "stop"].map(OsStr::new))
    }

    /// Stops the server without letting it finish anything: the next start
    /// recovers from the log.
    ///
    /// # Errors
    /// It did not run.
    pub fn crash(&self) -> Result<(), ThrowawayError> {
        self.control(&["-w", "-m", "immediate", "stop"].map(OsStr::new))
    }

    /// Address of one of its databases; `postgres` is there from the start.
    pub fn address(&self, database: &str) -> String {
        let folder = self.folder.path().display();
        let port = self.port.as_deref().unwrap_or("5432");
        format!("host={folder} port={port} user=postgres dbname={database}")
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        let log = self.folder.path().join("log");
        std::fs::read_to_string(log).unwrap_or_default()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn control(&self, command: &[&OsStr]) -> Result<(), ThrowawayError> {
        let data = self.data();
        let mut arguments = vec![OsStr::new("-D"), data.as_os_str()];
        arguments.extend(command);
        self.program("pg_ctl", &arguments)
    }

    /// The server's user, if it is not this one.
    fn owner(&self) -> Result<Option<u32>, ThrowawayError> {
        if !self.root {
            return Ok(None);
        }
        let id = Command::new("id").args(["-u", USER]).output()?;
        let id = String::from_utf8_lossy(&id.stdout).trim().parse();
        let id: u32 = id.map_err(|_| ThrowawayError::Program {
            program: "id".into(),
            output: format!("there is no user {USER}"),
        })?;
        Ok(Some(id))
    }

    /// Lets the server's user own the folder.
    fn give_away(&self) -> Result<(), ThrowawayError> {
        let Some(owner) = self.owner()? else {
            return Ok(());
        };
        let folder = self.folder.path();
        chown(folder, Some(owner), None)?;
        // Clients of other users reach the socket.
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    fn program(&self, name: &str, arguments: &[&OsStr]) -> Result<(), ThrowawayError> {
        let program = self.programs.join(name);
        let mut command = match self.root {
            false => Command::new(&program),
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", USER, "--"]).arg(&program);
                command
            }
        };
        // A file instead of a pipe: the server inherits it, and would hold a
        // pipe open for as long as it lives.
        let printed = tempfile::tempfile()?;
        let status = command
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed.try_clone()?)
            .status()?;
        if status.success() {
            return Ok(());
        }
        Err(ThrowawayError::Program {
            program: program.display().to_string(),
            output: String::from_utf8_lossy(&read_all(printed)?).into_owned(),
        })
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        // It may have been stopped already.
        let _ = self.crash();
    }
}

fn read_all(mut file: std::fs::File) -> io::Result<Vec<u8>> {
    use std::io::{Read as _, Seek as _};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// The folder of `pg_ctl`: the newest below Debian's, else one of the path's.
fn programs() -> Option<PathBuf> {
    let has = |folder: &PathBuf| folder.join("pg_ctl").exists();
    let versions = std::fs::read_dir(PROGRAMS).into_iter().flatten().flatten();
    let version = |path: &Path| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    let newest = versions
        .map(|entry| entry.path())
        .filter_map(|path| Some((version(&path)?, path.join("bin"))))
        .filter(|(_, bin)| has(bin))
        .max();
    newest.map(|(_, bin)| bin).or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(has)
    })
}
