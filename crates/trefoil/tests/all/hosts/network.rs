//! Hosts of one machine: for each a network namespace, a mount namespace and a name, so that
//! they have no socket, no directory and no boot in common; joined by a bridge in another
//! namespace, in which etcd runs. Nothing of it is seen from outside, and all of it goes with
//! its owner.

use crate::support::{Cell, Log, PROGRAM, run, text};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A lease takes 10 s to end, and a loaded machine its time.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Of the namespace with the bridge.
const SWITCH: &str = "10.78.0.1";
/// The cell in etcd.
pub(super) const CELL: &str = "etcd://10.78.0.1:2379/cells/mail";

/// Whether this machine can have such hosts.
pub(super) fn can_run() -> bool {
    let tried = Command::new("unshare")
        .args([
            "--net", "--mount", "--uts", "ip", "link", "add", "b0", "type", "bridge",
        ])
        .output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: needs root, unshare, nsenter and ip for networks of its own");
    }
    can
}

pub(super) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that keeps namespaces.
struct Namespaces {
    holder: Child,
}

impl Namespaces {
    fn new() -> Self {
        let holder = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--uts",
                "--propagation",
                "private",
                "cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let namespaces = Namespaces { holder };
        let of = |who: &str, kind: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
        let pid = namespaces.pid();
        eventually("namespaces are made", || {
            let is_own = |kind| of(&pid, kind).is_some_and(|ns| Some(ns) != of("self", kind));
            (is_own("net") && is_own("mnt") && is_own("uts")).then_some(())
        });
        namespaces
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        for kind in ["net", "mnt", "uts"] {
            let option = if kind == "mnt" { "mount" } else { kind };
            command.arg(format!("--{option}=/proc/{}/ns/{kind}", self.pid()));
        }
        command.arg("--").arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a script.
    fn sh(&self, script: &str) {
        let output = self.command("sh").args(["-ec", script]).output().unwrap();
        assert!(
            output.status.success(),
            "{script}: {}",
            text(&output.stderr)
        );
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Hosts 0, 1, …, an etcd, and authorities for their certificates.
pub(super) struct Network {
    switch: Namespaces,
    hosts: Vec<Namespaces>,
    etcd: Option<Child>,
    home: tempfile::TempDir,
}

impl Network {
    pub(super) fn new(hosts: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("local")).unwrap();
        let switch = Namespaces::new();
        switch.sh(&format!(
            "ip link set lo up; ip link add b0 type bridge; ip addr add {SWITCH}/24 dev b0; ip link set b0 up"
        ));
        let mut network = Network {
            switch,
            hosts: Vec::new(),
            etcd: None,
            home,
        };
        for _ in 0..hosts {
            network.add_host();
        }
        network.start_etcd();
        network
    }

    fn add_host(&mut self) {
        let (number, host) = (self.hosts.len(), Namespaces::new());
        let pid = host.pid();
        self.switch.sh(&format!(
            "ip link add v{number} type veth peer name eth0 netns {pid}; ip link set v{number} master b0 up"
        ));
        let (local, address) = (self.local().display().to_string(), address(number));
        // Directories and a boot of its own, as another machine has.
        host.sh(&format!(
            "ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up; \
             mount -t tmpfs none {local}; mkdir {local}/run; chmod 700 {local}/run; \
             hostname host{number}"
        ));
        self.hosts.push(host);
        self.boot(number);
    }

    /// Gives a host another boot.
    pub(super) fn boot(&self, number: usize) {
        let local = self.local().display().to_string();
        self.hosts[number].sh(&format!(
            "umount /proc/sys/kernel/random/boot_id 2>/dev/null || true; \
             cat /proc/sys/kernel/random/uuid > {local}/boot; \
             mount --bind {local}/boot /proc/sys/kernel/random/boot_id"
        ));
    }

    fn start_etcd(&mut self) {
        let client = format!("http://{SWITCH}:2379");
        let peer = "http://127.0.0.1:2380";
        let etcd = self
            .switch
            .command("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.home.path().join("etcd"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args([
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
            ])
            .args(["--initial-cluster", &format!("one={peer}")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(["--unsafe-no-fsync", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.etcd = Some(etcd);
        eventually("etcd serves", || self.held("nothing"));
    }

    pub(super) fn end_etcd(&mut self) {
        if let Some(mut etcd) = self.etcd.take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }

    /// What etcd holds under a key of the cell; nothing if it does not answer.
    pub(super) fn held(&self, key: &str) -> Option<String> {
        let output = self
            .switch
            .command("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &format!("{SWITCH}:2379"),
                "--command-timeout",
                "2s",
            ])
            .args(["get", "--print-value-only", &format!("cells/mail/{key}")])
            .output()
            .unwrap();
        output.status.success().then(|| text(&output.stdout))
    }

    /// Writes a key of the cell, as whoever brings a backup back.
    pub(super) fn put(&self, key: &str, value: &str) {
        let output = self
            .switch
            .command("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &format!("{SWITCH}:2379")])
            .args(["put", &format!("cells/mail/{key}"), value])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// A directory that each host has for itself.
    pub(super) fn local(&self) -> PathBuf {
        self.home.path().join("local")
    }

    /// A command on a host.
    pub(super) fn on(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.hosts[host].command(program);
        command
            .env("TREFOIL_ETCD_PLAINTEXT", "yes")
            .env("XDG_RUNTIME_DIR", self.local().join("run"))
            .env_remove("TREFOIL_CELL")
            .env_remove("TREFOIL_CERTS");
        command
    }

    /// `trefoil ARGS` on a host.
    pub(super) fn run(&self, host: usize, args: &[&str]) -> Output {
        self.on(host, PROGRAM).args(args).output().unwrap()
    }

    /// The same, which has to fail: what it says.
    pub(super) fn refused(&self, host: usize, args: &[&str]) -> String {
        let output = self.run(host, args);
        assert!(
            !output.status.success(),
            "{args:?}: {}",
            text(&output.stdout)
        );
        text(&output.stderr)
    }

    /// Cuts a host off, or joins it again.
    pub(super) fn link(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        self.switch.sh(&format!("ip link set v{host} {state}"));
    }

    /// Runs `work` on a thread of a host's network.
    pub(super) fn spawn_within(
        &self,
        host: usize,
        work: impl FnOnce() + Send + 'static,
    ) -> JoinHandle<()> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.hosts[host].pid())).unwrap();
        std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            work();
        })
    }

    /// An authority, and certificates for hosts, for `client` and for `admin`.
    pub(super) fn authority(&self, name: &str) -> Authority {
        let dir = self.home.path().join(name);
        let authority = Authority { dir };
        authority.certs(&["init"]);
        for number in 0..self.hosts.len() {
            authority.issue(&format!("host{number}"), "backend", &address(number));
        }
        authority.issue("client", "client", "");
        authority.issue("admin", "admin", "");
        authority
    }

    /// Starts `trefoil cell up` for backend `number` on a host.
    pub(super) fn up(&self, host: usize, number: usize, certs: &str, more: &[&str]) -> Cell {
        let args = self.up_args(host, number, certs);
        Cell::start_by(self.on(host, PROGRAM).args(&args).args(more))
    }

    pub(super) fn up_args(&self, host: usize, number: usize, certs: &str) -> Vec<String> {
        let dir = self.local().join("cell").display().to_string();
        let (listen, here) = (format!("{}:7411", address(host)), number.to_string());
        let args = [
            "cell", "up", "--dir", &dir, "--store", CELL, "--memory", "64MiB",
        ];
        let here = ["--here", &here, "--listen", &listen, "--certs", certs];
        let args = args.iter().chain(&here);
        args.map(|&arg| arg.to_owned()).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.end_etcd();
    }
}

/// The address of a host.
pub(super) fn address(host: usize) -> String {
    format!("10.78.0.{}", 11 + host)
}

pub(super) struct Authority {
    dir: PathBuf,
}

impl Authority {
    fn certs(&self, args: &[&str]) {
        let dir = self.dir.display().to_string();
        let made = run(&[&["cell", "certs"], args, &["--dir", &dir]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    }

    fn issue(&self, name: &str, role: &str, host: &str) {
        let mut args = vec!["issue", "--name", name, "--role", role];
        if !host.is_empty() {
            args.extend(["--host", host]);
        }
        self.certs(&args);
    }

    /// The directory of one of them.
    pub(super) fn of(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.of(name)).to_owned()
    }
}

/// A process on a host, ended with the test.
pub(super) struct Process {
    pub(super) child: Child,
    pub(super) log: Log,
    is_ready: Arc<AtomicBool>,
}

impl Process {
    pub(super) fn start(command: &mut Command, who: &'static str) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Log::default();
        log.follow(child.stderr.take().unwrap(), who);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = Arc::<AtomicBool>::default();
        let noted = Arc::clone(&is_ready);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.starts_with("ready") {
                    noted.store(true, Ordering::SeqCst);
                }
            }
        });
        Process {
            child,
            log,
            is_ready,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    /// Its exit code, once it has ended by itself.
    pub(super) fn ends(&mut self) -> i32 {
        eventually("it ends", || self.child.try_wait().unwrap())
            .code()
            .unwrap_or(-1)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
