//! Servers as real processes, an assigner for them, and a caller that talks to
//! them in lines.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, HashMap};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use trefoil_coordination::{AssignerServer, NodeOptions, Watcher};
use trefoil_layout::hash::KeyHasher;
use trefoil_sharder::{AssignmentVersion, BalanceConfig, KeyPoint, Slice};

pub(crate) const CORPUS: &str = "numbers";
/// Longer than a process takes to begin, or to stop, that does at all.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Ports by server id, as the processes say them; their other lines.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) ports: BTreeMap<u64, u16>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) drained: usize,
}

/// A line about lost values.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) ranges: Vec<Slice>,
    pub(crate) keys: Vec<String>,
    pub(crate) reason: String,
}

impl Loss {
    pub(crate) fn covers(&self, key: &str) -> bool {
        let point = point(key);
        self.keys.iter().any(|named| named == key)
            || self.ranges.iter().any(|range| range.contains(point))
    }
}

pub(crate) fn point(key: &str) -> KeyPoint {
    KeyPoint::of(&KeyHasher::default(), key.as_bytes())
}

pub(crate) struct Fleet {
    pub(crate) assigner: AssignerServer,
    pub(crate) watcher: Watcher,
    pub(crate) said: Arc<Mutex<Said>>,
    pub(crate) nodes: Vec<Node>,
    replication: &'static str,
}

pub(crate) struct Node {
    child: Child,
    /// Under which it joined first.
    pub(crate) id: u64,
}

impl Node {
    /// Stops it, and returns when none of its threads runs any more: a signal
    /// that was sent has not arrived everywhere yet.
    pub(crate) async fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id().expect("it runs"));
        let stopped = || {
            std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                // The state follows the name, which is in parentheses.
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        };
        let since = Instant::now();
        while !stopped() {
            assert!(since.elapsed() < START_PATIENCE, "it does not stop");
            sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        let pid = pid
            .and_then(rustix::process::Pid::from_raw)
            .expect("it runs");
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }
}

impl Fleet {
    pub(crate) async fn of(count: usize, replication: &'static str, lease: Duration) -> Self {
        let copies = if replication == "none" { 1 } else { 2 };
        let options = NodeOptions {
            lease,
            balance: BalanceConfig {
                replicas_min: copies,
                replicas_max: copies,
                ..BalanceConfig::default()
            },
            ..NodeOptions::default()
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let store = "embedded".parse().unwrap();
        let assigner = AssignerServer::start(listen, &store, options)
            .await
            .unwrap();
        let address = assigner.address().to_string();
        let watcher = Watcher::open(&address, CORPUS).await.unwrap();
        let mut fleet = Fleet {
            assigner,
            watcher,
            said: Arc::default(),
            nodes: Vec::new(),
            replication,
        };
        for _ in 0..count {
            fleet.start().await;
        }
        fleet
    }

    /// Starts another server.
    pub(crate) async fn start(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_linklet-node"))
            .args([
                &self.assigner.address().to_string(),
                CORPUS,
                self.replication,
            ])
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = timeout(START_PATIENCE, lines.next_line());
        let first = first
            .await
            .unwrap()
            .unwrap()
            .expect("it says that it is ready");
        let (id, port) = ready(&first).expect(&first);
        let said = Arc::clone(&self.said);
        said.lock().unwrap().ports.insert(id, port);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hear(&mut said.lock().unwrap(), &line);
            }
        });
        self.nodes.push(Node { child, id });
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller {
            watcher: self.watcher.clone(),
            said: Arc::clone(&self.said),
            connections: HashMap::new(),
        }
    }

    /// Who has a key, by the newest map.
    pub(crate) fn owner(&self, key: &str) -> Option<u64> {
        owner(&self.watcher, key)
    }
}

fn owner(watcher: &Watcher, key: &str) -> Option<u64> {
    let view = Arc::clone(&watcher.view().borrow());
    let servers = &view.assignment.slice_of(point(key)).servers;
    servers.first().map(|server| server.0)
}

fn ready(line: &str) -> Option<(u64, u16)> {
    let (id, port) = line.strip_prefix("ready ")?.split_once(' ')?;
    Some((id.parse().ok()?, port.parse().ok()?))
}

fn hear(said: &mut Said, line: &str) {
    if let Some((id, port)) = ready(line) {
        said.ports.insert(id, port);
    } else if line.starts_with("drained") {
        said.drained += 1;
    } else if let Some(loss) = loss(line) {
        said.losses.push(loss);
    }
}

/// `loss [first-last,…] [key,…] reason`
fn loss(line: &str) -> Option<Loss> {
    let (ranges, rest) = line.strip_prefix("loss [")?.split_once("] [")?;
    let (keys, reason) = rest.split_once("] ")?;
    let hex = |text: &str| Some(KeyPoint(u64::from_str_radix(text, 16).ok()?));
    let range = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some(Slice::spanning(hex(first)?, hex(last)?))
    };
    let some = |text: &&str| !text.is_empty();
    Some(Loss {
        ranges: ranges.split(',').filter(some).filter_map(range).collect(),
        keys: keys.split(',').filter(some).map(str::to_owned).collect(),
        reason: reason.to_owned(),
    })
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(u64),
    Absent,
    Done,
    Redirect(u64, String),
    /// It may have been carried out, or may yet be.
    Uncertain,
    /// Nothing was done.
    Error(String),
}

impl Answer {
    pub(crate) fn of(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["value", n] => n
                .parse()
                .map_or(Answer::Error(line.to_owned()), Answer::Value),
            ["absent"] => Answer::Absent,
            ["done"] => Answer::Done,
            ["uncertain"] => Answer::Uncertain,
            ["redirect", to, version] => {
                Answer::Redirect(to.parse().unwrap_or(0), version.to_owned())
            }
            _ => Answer::Error(line.to_owned()),
        }
    }
}

/// One after the other; several callers for more at once.
pub(crate) struct Caller {
    watcher: Watcher,
    said: Arc<Mutex<Said>>,
    connections: HashMap<u64, BufReader<TcpStream>>,
}

/// An answer that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_millis(1_500);

impl Caller {
    /// A connection of one's own to a server.
    pub(crate) async fn connect(said: &Mutex<Said>, server: u64) -> Option<BufReader<TcpStream>> {
        let port = *said.lock().unwrap().ports.get(&server)?;
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(BufReader::new(stream))
    }

    /// Asks a server; whatever goes wrong after the request was sent is
    /// uncertain.
    async fn ask(&mut self, server: u64, line: &str) -> Answer {
        if !self.connections.contains_key(&server) {
            let Some(connection) = Caller::connect(&self.said, server).await else {
                return Answer::Error("cannot be reached".to_owned());
            };
            self.connections.insert(server, connection);
        }
        let connection = self.connections.get_mut(&server).unwrap();
        let mut answer = String::new();
        let exchange = async {
            connection
                .get_mut()
                .write_all(format!("{line}\n").as_bytes())
                .await?;
            connection.read_line(&mut answer).await
        };
        match timeout(PATIENCE, exchange).await {
            Ok(Ok(length)) if length > 0 => Answer::of(answer.trim_end()),
            _ => {
                self.connections.remove(&server);
                Answer::Uncertain
            }
        }
    }

    /// Asks who has the key, by the newest map; is redirected at most once.
    pub(crate) async fn once(&mut self, key: &str, command: &str) -> Answer {
        let version = self.watcher.view().borrow().version();
        let (Some(server), Some(version)) = (owner(&self.watcher, key), version) else {
            return Answer::Error("nobody has it".to_owned());
        };
        let known = show(version);
        match self.ask(server, &format!("known {known} {command}")).await {
            Answer::Redirect(to, newer) if to != 0 => {
                let newer = if newer.is_empty() { known } else { newer };
                self.ask(to, &format!("again {newer} {command}")).await
            }
            answer => answer,
        }
    }

    /// Until it is known what came of it, or for 15 s: for requests that may be
    /// carried out twice.
    pub(crate) async fn until_answered(&mut self, key: &str, command: &str) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match self.once(key, command).await {
                answer @ (Answer::Value(_) | Answer::Absent | Answer::Done) => return answer,
                answer if Instant::now() > deadline => return answer,
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

fn show(version: AssignmentVersion) -> String {
    format!("{}.{}", version.incarnation, version.generation)
}
