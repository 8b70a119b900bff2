//! A real etcd on loopback, in a folder of its own.
#![allow(dead_code)] // Not every test needs everything.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes that is to happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One etcd process; killed when it is dropped.
pub(crate) struct Etcd {
    folder: PathBuf,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Etcd {
    pub(crate) fn start(folder: &Path) -> Self {
        let mut etcd = Etcd {
            folder: folder.to_owned(),
            client: free_port(),
            peer: free_port(),
            process: None,
        };
        etcd.run();
        etcd
    }

    /// As the assigner's `--store` names it.
    pub(crate) fn address(&self) -> String {
        format!("etcd://127.0.0.1:{}/trefoil", self.client)
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it ran");
        }
    }

    /// With what it has on the disk.
    pub(crate) fn run(&mut self) {
        let (client, peer) = (
            format!("http://127.0.0.1:{}", self.client),
            format!("http://127.0.0.1:{}", self.peer),
        );
        let process = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .args(["--unsafe-no-fsync", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed: scripts/setup.sh does it");
        self.process = Some(process);
        let since = Instant::now();
        while !self.is_well() {
            assert!(since.elapsed() < PATIENCE, "etcd did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it takes connections: it does so once it has a leader.
    fn is_well(&self) -> bool {
        self.ctl(&["endpoint", "health"]).is_ok()
    }

    /// A copy of its data, as an operator's backup makes it.
    pub(crate) fn save(&self, file: &Path) {
        self.ctl(&["snapshot", "save", &file.to_string_lossy()])
            .expect("a snapshot");
    }

    /// Replaces its data by a copy; it has to be dead.
    pub(crate) fn restore(&self, file: &Path) {
        let data = self.folder.join("data");
        std::fs::remove_dir_all(&data).unwrap();
        let peer = format!("http://127.0.0.1:{}", self.peer);
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
        .expect("the copy can be restored");
    }

    /// Forgets all history.
    pub(crate) fn compact(&self) {
        let status = self.ctl(&["get", "x", "-w", "json"]).expect("it answers");
        let revision: String = status
            .split("\"revision\":")
            .nth(1)
            .expect("a revision")
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        self.ctl(&["compact", &revision]).expect("it compacts");
    }

    /// Writes a key, as nobody should.
    pub(crate) fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", key, value]).expect("it writes");
    }

    /// Removes a key.
    pub(crate) fn delete(&self, key: &str) {
        self.ctl(&["del", key]).expect("it deletes");
    }

    /// Whether there is such a key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.ctl(&["get", key]).is_ok_and(|found| !found.is_empty())
    }

    fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.host(), "--dial-timeout", "2s"])
            .args(["--command-timeout", "2s"])
            .args(arguments)
            .output()
            .expect("etcdctl is installed: scripts/setup.sh does it");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Free a moment ago.
fn free_port() -> u16 {
    trefoil_ports::free_port(Ipv4Addr::LOCALHOST).expect("a free port")
}
