//! Servers as real processes: one is killed, all are restarted one after the
//! other, and no session is lost.

use sessions::Caller;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tonic::Code;
use trefoil_coordination::{AssignerServer, NodeOptions};

/// Longer than anything here takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);
const SESSIONS: usize = 120;
const CALLERS: usize = 4;

struct Fleet {
    assigner: AssignerServer,
    servers: Vec<Child>,
}

impl Fleet {
    async fn of(count: usize, options: &[&str]) -> Self {
        let node = NodeOptions {
            // The dead are known to be dead after this.
            lease: Duration::from_secs(5),
            ..NodeOptions::default()
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let assigner = AssignerServer::start(listen, &"embedded".parse().unwrap(), node)
            .await
            .unwrap();
        let mut fleet = Fleet {
            assigner,
            servers: Vec::new(),
        };
        for _ in 0..count {
            fleet.start(options).await;
        }
        fleet
    }

    async fn start(&mut self, options: &[&str]) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sessions"))
            .args(["--assigner", &self.assigner.address().to_string()])
            .args(options)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert!(line.unwrap().starts_with("ready "));
        self.servers.push(child);
    }

    async fn caller(&self) -> Caller {
        let address = self.assigner.address().to_string();
        Caller::connect(&address, PATIENCE).await.unwrap()
    }
}

fn name(n: usize) -> String {
    format!("session {n}")
}

fn user_of(id: &str) -> String {
    format!("user of {id}")
}

/// Begins sessions and goes on changing them, until it is told to stop; the last
/// value of each that was acknowledged.
async fn use_sessions(
    caller: Caller,
    mine: Vec<String>,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
) -> BTreeMap<String, u64> {
    let mut acknowledged = BTreeMap::new();
    for id in &mine {
        caller.begin(id, &user_of(id)).await.expect(id);
    }
    let mut value = 0;
    while !stop.load(Ordering::Relaxed) {
        value += 1;
        for id in &mine {
            let before = caller.get(id).await.expect(id);
            assert_eq!(before.user, user_of(id));
            let seen = before.values.get("n").map(|n| n.parse().unwrap());
            assert_eq!(seen, acknowledged.get(id).copied(), "{id}");
            caller.put(id, "n", &value.to_string()).await.expect(id);
            acknowledged.insert(id.clone(), value);
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_is_lost_by_a_kill_and_a_rolling_restart() {
    let mut fleet = Fleet::of(3, &[]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for n in 0..CALLERS {
        let mine = (n..SESSIONS).step_by(CALLERS).map(name).collect();
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        callers.push(tokio::spawn(use_sessions(
            fleet.caller().await,
            mine,
            stop,
            rounds,
        )));
    }
    // All are used after each thing that happens.
    let used = async || {
        let (before, since) = (rounds.load(Ordering::Relaxed), Instant::now());
        while rounds.load(Ordering::Relaxed) < before + 2 * CALLERS as u64 {
            assert!(since.elapsed() < PATIENCE, "the sessions are not served");
            assert!(!callers.iter().any(|caller| caller.is_finished()));
            sleep(Duration::from_millis(20)).await;
        }
    };
    used().await;
    let mut killed = fleet.servers.remove(0);
    killed.kill().await.unwrap();
    used().await;
    fleet.start(&[]).await;
    used().await;
    for _ in 0..3 {
        let mut old = fleet.servers.remove(0);
        let id = i32::try_from(old.id().unwrap()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let end = timeout(PATIENCE, old.wait()).await;
        assert!(end.expect("it gives everything away").unwrap().success());
        fleet.start(&[]).await;
        used().await;
    }
    stop.store(true, Ordering::Relaxed);
    let caller = fleet.caller().await;
    let mut count = 0;
    for task in callers {
        for (id, value) in task.await.unwrap() {
            let session = caller.get(&id).await.expect(&id);
            assert_eq!(session.values["n"], value.to_string(), "{id}");
            caller.end(&id).await.unwrap();
            let gone = caller.get(&id).await;
            assert_eq!(gone.unwrap_err().code(), Code::NotFound);
            count += 1;
        }
    }
    assert_eq!(count, SESSIONS);
}

/// A single server could only keep a session in one place, and refuses that: a mode
/// in which copies follow later would tell the caller that it is there.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_in_one_place() {
    let mut fleet = Fleet::of(1, &[]).await;
    let caller = fleet.caller().await;
    // The server owns all keys from here on.
    assert_eq!(caller.get("a").await.unwrap_err().code(), Code::NotFound);
    let address = fleet.assigner.address().to_string();
    let hasty = Caller::connect(&address, Duration::from_secs(1)).await;
    let refused = hasty.unwrap().begin("a", "somebody").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let why = "1 servers have the key, and a strong commit needs 2";
    assert!(refused.message().contains(why), "{refused}");
    assert_eq!(caller.get("a").await.unwrap_err().code(), Code::NotFound);
    fleet.start(&[]).await;
    caller.begin("a", "somebody").await.unwrap();
    assert_eq!(caller.get("a").await.unwrap().user, "somebody");
    // What was acknowledged is in the other one, too.
    let mut killed = fleet.servers.remove(0);
    killed.kill().await.unwrap();
    assert_eq!(caller.get("a").await.unwrap().user, "somebody");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end() {
    let fleet = Fleet::of(2, &["--lifetime", "10", "--idle", "5"]).await;
    let caller = fleet.caller().await;
    let begun = Instant::now();
    for id in ["used", "idle"] {
        caller.begin(id, "somebody").await.unwrap();
    }
    let end = loop {
        match caller.get("used").await {
            Ok(_) => {}
            Err(status) => break status,
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(end.code(), Code::NotFound, "{end}");
    assert!(
        begun.elapsed() > Duration::from_secs(9),
        "in use until its end"
    );
    assert!(begun.elapsed() < Duration::from_secs(60));
    let idle = caller.get("idle").await.unwrap_err();
    assert_eq!(idle.code(), Code::NotFound);
}
