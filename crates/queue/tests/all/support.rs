//! Servers in processes of their own: this test program, started again.

use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_fabric::shm::UserPolicy;
use trefoil_journal::Flush;
use trefoil_ordered::Options;
use trefoil_queue::{DbOptions, ServeOptions, ServiceKind, serve};

const CHILD: &str = "TREFOIL_TEST_QUEUE_SERVE";
const READY: &str = "ready";
/// Bytes of the shortest journal: its ring is gone round often.
const JOURNAL_LEN: u64 = 1;

/// What a test asks of its server.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) service: ServiceKind,
    pub(crate) is_durable: bool,
    pub(crate) clients: usize,
    /// Users who may be clients besides the server's own.
    pub(crate) users: UserPolicy,
    pub(crate) folder: PathBuf,
}

impl Wanted {
    pub(crate) fn new(service: ServiceKind, is_durable: bool, folder: &Path) -> Self {
        Wanted {
            service,
            is_durable,
            clients: 8,
            users: UserPolicy::SameUser,
            folder: folder.to_owned(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub(crate) fn options(&self) -> ServeOptions {
        let needs_folder = self.is_durable || self.service == ServiceKind::Rocksdb;
        ServeOptions {
            socket: self.socket(),
            users: self.users.clone(),
            service: self.service,
            folder: needs_folder.then(|| self.folder.join("files")),
            is_durable: self.is_durable,
            journal_len: JOURNAL_LEN,
            flush: Flush::Direct,
            memory: 64 << 20,
            library: None,
            // RocksDB's least: it writes files amid the journal's laps, by itself.
            rocksdb: DbOptions {
                write_buffer_len: 64 << 10,
                ..DbOptions::default()
            },
            queue: Options {
                slot_count: 16,
                client_count_max: self.clients,
                ..Options::default()
            },
        }
    }
}

/// A server's process, which is killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Server {
    /// Starts one, and does not wait.
    pub(crate) fn start(wanted: &Wanted) -> Self {
        let program = std::env::current_exe().expect("a path");
        Server::start_by(&mut Command::new(program), wanted)
    }

    /// Likewise, by this command, to which arguments are added.
    pub(crate) fn start_by(command: &mut Command, wanted: &Wanted) -> Self {
        let guest = match &wanted.users {
            UserPolicy::SameUser => None,
            UserPolicy::Listed(users) => users.first(),
        };
        let spelled = format!(
            "{} {} {} {} {}",
            wanted.service.name(),
            wanted.is_durable,
            wanted.clients,
            guest.map_or("nobody".into(), u32::to_string),
            wanted.folder.display()
        );
        let mut child = command
            .args(["--exact", "support::server_child", "--nocapture"])
            .env(CHILD, spelled)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let stderr = child.stderr.take().map(BufReader::new);
        Server { child, stderr }
    }

    /// Starts one that clients can come to.
    pub(crate) fn ready(wanted: &Wanted) -> Self {
        let mut server = Server::start(wanted);
        server.await_ready();
        server
    }

    /// Waits until clients can come.
    pub(crate) fn await_ready(&mut self) {
        let stderr = self.stderr.as_mut().expect("a pipe");
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a pipe");
        assert_eq!(line.trim(), READY, "{}", self.said());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("a child");
    }

    /// Stops every thread of it; the signal alone stops one, and the others some time
    /// after it.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.child.id());
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
            let Ok(stat) = stat else {
                // It has ended meanwhile.
                return true;
            };
            // Behind the name, which may have any character in it.
            let (_, state) = stat.rsplit_once(") ").expect("a state");
            state.starts_with('T')
        };
        let begin = std::time::Instant::now();
        while !std::fs::read_dir(&threads)
            .expect("a child")
            .all(is_stopped)
        {
            assert!(
                begin.elapsed() < std::time::Duration::from_secs(60),
                "it goes on"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// What it says until its end.
    fn said(&mut self) -> String {
        let mut said = String::new();
        if let Some(stderr) = &mut self.stderr {
            let _ = stderr.read_to_string(&mut said);
        }
        said
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child");
        let status = self.child.wait().expect("a child");
        assert_eq!(
            status.code(),
            None,
            "it did not end by itself: {}",
            self.said()
        );
    }

    /// An orderly end.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{}", self.said());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Started as a process of its own; it ends when its standard input does.
#[test]
fn server_child() {
    let Ok(spelled) = std::env::var(CHILD) else {
        return;
    };
    let mut words = spelled.splitn(5, ' ');
    let mut word = || words.next().expect("five words");
    let name = word();
    let service = ServiceKind::ALL.into_iter().find(|of| of.name() == name);
    let wanted = Wanted {
        service: service.expect("a service"),
        is_durable: word() == "true",
        clients: word().parse().expect("a number"),
        users: match word() {
            "nobody" => UserPolicy::SameUser,
            guest => UserPolicy::Listed(vec![guest.parse().expect("a number")]),
        },
        folder: word().into(),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        });
        let served = serve(&wanted.options(), &stop, || eprintln!("{READY}"));
        if let Err(error) = served {
            // Not by a panic: the other thread may wait for ever.
            eprintln!("{error}");
            std::process::exit(3);
        }
    });
}

/// Asks until `found` says what is wanted.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}
