//! A real etcd of one member, in a folder of its own, that can be killed, stopped,
//! compacted and put back to what it once held.

use crate::free_port;
use std::io::{Error, ErrorKind, Result};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// Another process may take a port between our look and etcd's.
const ATTEMPT_COUNT: usize = 3;

/// PEM files with which etcd serves, and asks its clients for certificates.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authority of both sides.
    pub authority: PathBuf,
    /// etcd's certificate; its client's, too, for `etcdctl`.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
}

/// An etcd on the loopback; killed with its owner.
#[derive(Debug)]
pub struct EtcdProcess {
    folder: PathBuf,
    client: u16,
    peer: u16,
    tls: Option<EtcdTls>,
    user: Option<String>,
    room: Option<u64>,
    process: Option<Child>,
}

impl EtcdProcess {
    /// Starts an empty one in `folder` and waits until it serves.
    ///
    /// # Errors
    ///
    /// If there is no such program, or it does not serve within a minute.
    pub fn start(folder: &Path, tls: Option<EtcdTls>) -> Result<Self> {
        let mut failure = None;
        for _ in 0..ATTEMPT_COUNT {
            let mut etcd = EtcdProcess {
                folder: folder.to_owned(),
                client: free_port(Ipv4Addr::LOCALHOST)?,
                peer: free_port(Ipv4Addr::LOCALHOST)?,
                tls: tls.clone(),
                user: None,
                room: None,
                process: None,
            };
            match etcd.run() {
                Ok(()) => return Ok(etcd),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
                Err(error) => failure = Some(error),
            }
            drop(etcd);
            let _ = std::fs::remove_dir_all(folder.join("data"));
        }
        Err(failure.unwrap_or_else(|| ErrorKind::TimedOut.into()))
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    /// Its process number, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// From now on `ctl` asks as this `user:password`.
    pub fn be(&mut self, user: &str) {
        self.user = Some(user.to_owned());
    }

    /// When it runs the next time it takes nothing more than so many bytes; nothing: as much
    /// as is usual.
    pub fn limit_room(&mut self, bytes: Option<u64>) {
        self.room = bytes;
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Runs it with what it has on the disk, and waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`EtcdProcess::start`].
    pub fn run(&mut self) -> Result<()> {
        let scheme = self.tls.as_ref().map_or("http", |_| "https");
        let client = format!("{scheme}://{}", self.host());
        let peer = self.peer_url();
        let mut command = Command::new("etcd");
        command
            .args(["--name", "one", "--data-dir"])
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            // It is alone: nobody else has to have had the time to answer.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(["--unsafe-no-fsync", "--log-level", "error"]);
        if let Some(bytes) = self.room {
            command.args(["--quota-backend-bytes", &bytes.to_string()]);
        }
        if let Some(tls) = &self.tls {
            command.arg("--client-cert-auth");
            command.arg("--trusted-ca-file").arg(&tls.authority);
            command.arg("--cert-file").arg(&tls.certificate);
            command.arg("--key-file").arg(&tls.key);
        }
        let process = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::new(error.kind(), format!("etcd: {error}")))?;
        self.process = Some(process);
        let begin = Instant::now();
        loop {
            // Where users are asked for, any answer at all will do.
            match self.ctl(&["get", "is-it-there"]) {
                Ok(_) => return Ok(()),
                Err(reason) if reason.contains("user name is empty") => return Ok(()),
                Err(reason) if begin.elapsed() >= READY_WITHIN => {
                    let text = format!("etcd does not serve: {reason}");
                    return Err(Error::new(ErrorKind::TimedOut, text));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                return Err(Error::other(format!("etcd has ended: {status}")));
            }
        }
    }

    /// A copy of its data in `file`, as an operator's backup makes it.
    ///
    /// # Errors
    ///
    /// What `etcdctl` says.
    pub fn save(&self, file: &Path) -> std::result::Result<(), String> {
        self.ctl(&["snapshot", "save", &file.to_string_lossy()])
            .map(drop)
    }

    /// Replaces its data by a copy; it has to be dead.
    ///
    /// # Errors
    ///
    /// What `etcdctl` says.
    pub fn restore(&self, file: &Path) -> std::result::Result<(), String> {
        let data = self.folder.join("data");
        std::fs::remove_dir_all(&data).map_err(|error| error.to_string())?;
        let peer = self.peer_url();
        self.ctl(&[
            "snapshot",
            "restore",
            &file.to_string_lossy(),
            "--name",
            "one",
            "--initial-cluster",
            &format!("one={peer}"),
            "--initial-advertise-peer-urls",
            &peer,
            "--data-dir",
            &data.to_string_lossy(),
        ])
        .map(drop)
    }

    /// Has it forget everything; it has to be dead.
    ///
    /// # Errors
    ///
    /// The system's reason.
    pub fn lose_data(&self) -> Result<()> {
        std::fs::remove_dir_all(self.folder.join("data"))
    }

    /// Has it forget all history.
    ///
    /// # Errors
    ///
    /// What `etcdctl` says.
    pub fn compact(&self) -> std::result::Result<(), String> {
        let status = self.ctl(&["get", "x", "-w", "json"])?;
        let revision: String = status
            .split("\"revision\":")
            .nth(1)
            .unwrap_or_default()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        self.ctl(&["compact", "--physical", &revision]).map(drop)
    }

    /// `etcdctl ARGUMENTS`; what it prints.
    ///
    /// # Errors
    ///
    /// What it says.
    pub fn ctl(&self, arguments: &[&str]) -> std::result::Result<String, String> {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout", "2s", "--command-timeout", "5s"]);
        match &self.tls {
            None => {
                command.args(["--endpoints", &self.host()]);
            }
            Some(tls) => {
                command.args(["--endpoints", &format!("https://{}", self.host())]);
                command.arg("--cacert").arg(&tls.authority);
                command.arg("--cert").arg(&tls.certificate);
                command.arg("--key").arg(&tls.key);
            }
        }
        if let Some(user) = &self.user {
            command.args(["--user", user]);
        }
        let output = command
            .args(arguments)
            .output()
            .map_err(|error| format!("etcdctl: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
