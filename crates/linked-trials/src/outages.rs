//! Assigners and etcd go away, come back, and are replaced, under load: no read of a key
//! that a server has may fail, nothing that was acknowledged may be gone, no server may
//! begin anew, and commits go on by themselves.
//!
//! ```text
//!  readers, writers ──► servers (processes, strong) ──► two assigners ──► etcd
//! ```
//!
//! A server with strong replicas serves by its lease. Where an outage is shorter than
//! that, nobody may notice it: not one attempt may be refused. Where it is longer, reads
//! are refused by the word `no-lease` and nothing else, until the lease is renewed; the
//! caller repeats them, and they have to succeed.

use crate::fleet::{self, Assigner, Fleet, Links, Options, assigner_flags};
use crate::histories::{Answer, Asked, ask};
use crate::server::OUTCOME;
use crate::v1::Way;
use crate::verdict::Verdict;
use crate::{CORPUS, Failure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use trefoil_coordination::AssignerClient;
use trefoil_ports::EtcdProcess;
use trefoil_router::{CallError, Router};

/// What a server may wait for a key, and for its replicas.
const PATIENCE: Duration = Duration::from_millis(700);
/// A caller repeats a read for so long.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// Between two attempts, and two requests.
const PAUSE: Duration = Duration::from_millis(15);
const READERS: u64 = 6;
const WRITERS: u64 = 3;
/// Lists that are longer are not appended to.
const LIST_LEN_MAX: u64 = 30;

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    /// Lists
    #[arg(long, default_value_t = 600)]
    lists: u64,
    /// Servers
    #[arg(long, default_value_t = 5)]
    servers: usize,
    /// Lease of the servers. A leader's in etcd is 3 s, and of its own lease a server takes
    /// two fifths at most until it has found the next one
    #[arg(long, default_value_t = 15_000, value_name = "MS")]
    lease_ms: u64,
    /// How often everything goes away
    #[arg(long, default_value_t = 1, value_name = "N")]
    rounds: u64,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// What one phase has shown.
#[derive(Clone, Debug, Default, Serialize)]
struct Phase {
    name: String,
    /// Whether leases end in it.
    is_long: bool,
    seconds: f64,
    reads: u64,
    /// Reads that had no list, whatever was repeated.
    failed: u64,
    /// Reads that found less than was acknowledged.
    wrong: u64,
    /// Attempts of reads that were refused, by the store's word.
    refused: BTreeMap<String, u64>,
    commits: u64,
    commits_refused: u64,
    commits_unknown: u64,
    longest_read_ms: u64,
    /// From when what had gone was back until every writer had a commit acknowledged.
    resumed_ms: u64,
}

struct Load {
    began: Mutex<Instant>,
    lists: u64,
    /// How long each list is known to be.
    acknowledged: Vec<AtomicU64>,
    phases: Mutex<Vec<Phase>>,
    /// For each writer: commits acknowledged.
    commits: Vec<AtomicU64>,
    is_over: AtomicBool,
}

impl Load {
    fn phases(&self) -> MutexGuard<'_, Vec<Phase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something of the phase in which it began.
    fn note(&self, phase: usize, what: impl FnOnce(&mut Phase)) {
        if let Some(phase) = self.phases().get_mut(phase) {
            what(phase);
        }
    }

    fn now(&self) -> usize {
        self.phases().len() - 1
    }

    /// Reads a list, as often as it takes; `None` if it is not served.
    async fn read(&self, router: &Router, key: u64) -> Option<Vec<u64>> {
        let (phase, since) = (self.now(), Instant::now());
        let acknowledged = self.acknowledged[key as usize].load(Ordering::Acquire);
        let found = loop {
            match ask(router, key as u32, Asked::Read, Way::Upsert).await {
                Ok(Answer::List(ids)) => break Some(ids),
                Ok(_) => break Some(Vec::new()),
                Err(error) => {
                    let word = word(&error);
                    self.note(phase, |phase| *phase.refused.entry(word).or_default() += 1);
                }
            }
            if since.elapsed() > READ_WITHIN {
                break None;
            }
            sleep(PAUSE).await;
        };
        let is_right = found.as_ref().is_none_or(|ids| {
            let mut numbered = ids.iter().zip(1..);
            ids.len() as u64 >= acknowledged && numbered.all(|(id, number)| *id == number)
        });
        let took_ms = since.elapsed().as_millis() as u64;
        self.note(phase, |phase| {
            phase.reads += 1;
            phase.failed += u64::from(found.is_none());
            phase.wrong += u64::from(!is_right);
            phase.longest_read_ms = phase.longest_read_ms.max(took_ms);
        });
        found
    }

    /// Appends to a list that nobody else appends to; whether it may be appended to again.
    async fn append(&self, router: &Router, writer: u64, key: u64) -> bool {
        let phase = self.now();
        let list = &self.acknowledged[key as usize];
        let next = list.load(Ordering::Relaxed) + 1;
        match ask(router, key as u32, Asked::Append(next), Way::Upsert).await {
            Ok(_) => {
                list.store(next, Ordering::Release);
                self.commits[writer as usize].fetch_add(1, Ordering::Relaxed);
                self.note(phase, |phase| phase.commits += 1);
                true
            }
            Err(error) => {
                let is_refused = is_refused(&error);
                self.note(phase, |phase| match is_refused {
                    true => phase.commits_refused += 1,
                    false => phase.commits_unknown += 1,
                });
                // One that may still be carried out would be out of its turn.
                is_refused
            }
        }
    }
}

fn word(error: &CallError) -> String {
    match error {
        CallError::Route(_) => "nobody-serves".to_owned(),
        CallError::RedirectedTwice { .. } => "redirected-twice".to_owned(),
        CallError::Status { status, .. } => {
            let name = status.metadata().get(OUTCOME);
            let name = name.and_then(|name| name.to_str().ok());
            name.map_or_else(|| format!("connection: {:?}", status.code()), str::to_owned)
        }
    }
}

/// Whether nothing was done for certain.
fn is_refused(error: &CallError) -> bool {
    let word = word(error);
    !word.starts_with('?') && !word.starts_with("connection")
}

async fn read_all_the_time(load: Arc<Load>, router: Router, reader: u64) {
    let mut at = reader;
    while !load.is_over.load(Ordering::Relaxed) {
        at = at
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        load.read(&router, (at >> 33) % load.lists).await;
        sleep(PAUSE).await;
    }
}

async fn write_all_the_time(load: Arc<Load>, router: Router, writer: u64) {
    let own = (0..load.lists).filter(|key| key % WRITERS == writer);
    let mut own: std::collections::VecDeque<u64> = own.collect();
    while !load.is_over.load(Ordering::Relaxed) {
        if let Some(key) = own.pop_front() {
            let is_long = load.acknowledged[key as usize].load(Ordering::Relaxed) >= LIST_LEN_MAX;
            if !is_long && load.append(&router, writer, key).await {
                own.push_back(key);
            }
        }
        sleep(PAUSE).await;
    }
}

struct Trial {
    etcd: EtcdProcess,
    assigners: [Assigner; 2],
    servers: Fleet,
    load: Arc<Load>,
    lease: Duration,
}

impl Trial {
    fn begin(&self, name: &str, is_long: bool) {
        eprintln!("{name}");
        let mut phases = self.load.phases();
        let mut began = self
            .load
            .began
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = phases.last_mut() {
            last.seconds = began.elapsed().as_secs_f64();
        }
        *began = Instant::now();
        phases.push(Phase {
            name: name.to_owned(),
            is_long,
            ..Phase::default()
        });
    }

    async fn leader(&self) -> Option<usize> {
        for (at, assigner) in self.assigners.iter().enumerate() {
            if leads(&assigner.address().to_string()).await {
                return Some(at);
            }
        }
        None
    }

    /// Waits until somebody leads again and every writer's commits are acknowledged.
    async fn resumed(&self) -> Result<(), Failure> {
        let since = Instant::now();
        let counts = || {
            let counts = self.load.commits.iter();
            counts
                .map(|count| count.load(Ordering::Relaxed))
                .collect::<Vec<_>>()
        };
        let before = counts();
        let mut resumed = None;
        loop {
            let all = counts()
                .iter()
                .zip(&before)
                .all(|(now, before)| now > before);
            if all && resumed.is_none() {
                resumed = Some(since.elapsed());
            }
            if resumed.is_some() && self.leader().await.is_some() {
                break;
            }
            if since.elapsed() > READ_WITHIN {
                return Err(format!("commits have not gone on after {READ_WITHIN:?}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let phase = self.load.now();
        let resumed_ms = resumed.unwrap_or_default().as_millis() as u64;
        self.load.note(phase, |phase| phase.resumed_ms = resumed_ms);
        // Whoever was to be taken for dead would be soon; and the next outage begins with
        // leases that are as long as they are in quiet times.
        loop {
            let mut renewed = 0;
            for at in 0..self.servers.len() {
                let state = self.servers.state(at).await;
                let left = state.map_or(0, |state| state.lease_ms);
                renewed += usize::from(u128::from(left) * 4 > self.lease.as_millis() * 3);
            }
            if renewed == self.servers.len() {
                break;
            }
            if since.elapsed() > READ_WITHIN {
                return Err(format!("leases are not renewed after {READ_WITHIN:?}").into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    async fn all(&mut self) -> Result<(), Failure> {
        let lease = self.lease;
        let same = assigner_flags(lease);
        let mut other = assigner_flags(lease.mul_f64(1.2));
        other.extend(["--replicas-min".to_owned(), "3".to_owned()]);

        self.begin("undisturbed", false);
        sleep(Duration::from_secs(3)).await;

        self.begin("the assigner is killed, another one takes over", false);
        let at = self.leader().await.ok_or("nobody leads")?;
        self.assigners[at].kill().await?;
        self.resumed().await?;
        self.assigners[at].start(&same).await?;

        self.begin("the assigner is replaced by one with other flags", false);
        let at = self.leader().await.ok_or("nobody leads")?;
        self.assigners[1 - at].kill().await?;
        self.assigners[1 - at].start(&other).await?;
        self.assigners[at].kill().await?;
        self.resumed().await?;
        self.assigners[at].start(&other).await?;

        self.begin(
            "both assigners are killed and started again, first without the corpus",
            false,
        );
        let without = [&same[..], &["--only".to_owned(), "another".to_owned()]].concat();
        for assigner in &mut self.assigners {
            assigner.kill().await?;
        }
        self.assigners[0].start(&without).await?;
        sleep(Duration::from_millis(500)).await;
        self.assigners[0].kill().await?;
        for assigner in &mut self.assigners {
            assigner.start(&same).await?;
        }
        self.resumed().await?;

        self.begin("etcd is dead for less than a lease", false);
        self.etcd.kill();
        sleep(lease.mul_f64(0.2)).await;
        self.etcd.run()?;
        self.resumed().await?;

        self.begin("etcd is dead for longer than a lease", true);
        self.etcd.kill();
        sleep(lease.mul_f64(1.3)).await;
        self.etcd.run()?;
        self.resumed().await?;

        self.begin("etcd is lost, and restored from a copy", false);
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("copy");
        self.etcd.save(&copy)?;
        self.etcd.kill();
        sleep(Duration::from_millis(500)).await;
        self.etcd.restore(&copy)?;
        self.etcd.run()?;
        self.resumed().await
    }
}

/// Whether the assigner here leads the corpus.
async fn leads(address: &str) -> bool {
    let Ok(address) = address.parse() else {
        return false;
    };
    let Some((_, Ok(document))) = AssignerClient::new(address).status().await.pop() else {
        return false;
    };
    let document: serde_json::Value = serde_json::from_str(&document).unwrap_or_default();
    let corpora = document["corpora"].as_array().into_iter().flatten();
    corpora
        .into_iter()
        .any(|found| found["corpus"] == CORPUS && found["leads"] == true)
}

/// Whether everything holds.
pub(crate) async fn run(args: Args) -> Result<bool, Failure> {
    if args.servers < 3 || args.lists < WRITERS || args.lease_ms < 12_000 {
        let what =
            "give at least 3 servers, 3 lists, and a lease of 12000 ms: a successor needs some 5 s";
        return Err(what.into());
    }
    let folder = tempfile::tempdir()?;
    let etcd = EtcdProcess::start(folder.path(), None)
        .map_err(|error| format!("etcd: {error} (scripts/setup.sh etcd installs it)"))?;
    let lease = Duration::from_millis(args.lease_ms);
    let store = format!("etcd://{}/trials", etcd.host());
    let links = Links::default();
    let mut assigners = [
        fleet::assigner(store.clone(), links.clone())?,
        fleet::assigner(store, links.clone())?,
    ];
    for assigner in &mut assigners {
        assigner.start(&assigner_flags(lease)).await?;
    }
    let addresses = assigners
        .each_ref()
        .map(|assigner| assigner.address().to_string());
    let address = format!("trefoil-assigner://{}", addresses.join(","));
    let options = Options {
        replication: "strong".to_owned(),
        patience: PATIENCE,
        memory: None,
    };
    let servers = Fleet::start(options, address.clone(), links, args.servers).await?;
    servers.is_whole(fleet::PATIENCE).await?;
    let load = Arc::new(Load {
        began: Mutex::new(Instant::now()),
        lists: args.lists,
        acknowledged: (0..args.lists).map(|_| AtomicU64::new(0)).collect(),
        phases: Mutex::new(vec![Phase::default()]),
        commits: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
        is_over: AtomicBool::new(false),
    });
    let router = fleet::router(&address).await?;
    for key in 0..args.lists {
        let since = Instant::now();
        while !load.append(&router, 0, key).await {
            if since.elapsed() > READ_WITHIN {
                return Err("the lists could not be put in".into());
            }
            sleep(PAUSE).await;
        }
    }
    // What filling has shown is not told.
    load.phases().clear();
    let mut trial = Trial {
        etcd,
        assigners,
        servers,
        load: Arc::clone(&load),
        lease,
    };
    trial.begin("warm", false);
    let mut working = Vec::new();
    for reader in 0..READERS {
        let router = fleet::router(&address).await?;
        working.push(tokio::spawn(read_all_the_time(
            Arc::clone(&load),
            router,
            reader,
        )));
    }
    for writer in 0..WRITERS {
        let router = fleet::router(&address).await?;
        working.push(tokio::spawn(write_all_the_time(
            Arc::clone(&load),
            router,
            writer,
        )));
    }
    sleep(Duration::from_secs(2)).await;
    let mut done = Ok(());
    for _ in 0..args.rounds.max(1) {
        done = trial.all().await;
        if done.is_err() {
            break;
        }
    }
    load.is_over.store(true, Ordering::Relaxed);
    for worker in working {
        worker.await?;
    }
    done?;
    trial.begin("in the end", false);
    let mut lost = 0;
    for key in 0..args.lists {
        let acknowledged = load.acknowledged[key as usize].load(Ordering::Relaxed);
        let found = load.read(&router, key).await;
        lost += u64::from(found.is_none_or(|ids| (ids.len() as u64) < acknowledged));
    }
    let mut begun_anew = trial.servers.said().rejoined;
    begun_anew += trial.servers.ended().len() as u64;
    let losses = trial.servers.said().losses.clone();
    let phases: Vec<Phase> = load.phases().split_off(1);
    tell(&args, &phases, lost, begun_anew, &losses)
}

fn tell(
    args: &Args,
    phases: &[Phase],
    lost: u64,
    begun_anew: u64,
    losses: &[String],
) -> Result<bool, Failure> {
    let sum = |of: fn(&Phase) -> u64| phases.iter().map(of).sum::<u64>();
    let refused = |is_long: bool, of: fn(&str) -> bool| {
        let phases = phases.iter().filter(|phase| phase.is_long == is_long);
        let refused = phases.flat_map(|phase| &phase.refused);
        refused
            .filter(|(word, _)| of(word))
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    let mut verdict = Verdict::default();
    verdict.exactly("reads that failed", sum(|phase| phase.failed), 0);
    verdict.exactly(
        "reads of less than was acknowledged",
        sum(|phase| phase.wrong),
        0,
    );
    verdict.exactly(
        "attempts of reads refused, outages shorter than a lease",
        refused(false, |_| true),
        0,
    );
    verdict.exactly(
        "attempts refused by another word than no-lease, longer ones",
        refused(true, |word| word != "no-lease"),
        0,
    );
    verdict.exactly("lists lost or with an old state in the end", lost, 0);
    verdict.exactly("servers that began anew", begun_anew, 0);
    verdict.exactly("losses reported", losses.len() as u64, 0);
    let phases_committed = phases.iter().filter(|phase| phase.name != "in the end");
    let without = phases_committed.filter(|phase| phase.commits == 0).count();
    verdict.exactly("phases whose commits did not go on", without as u64, 0);
    verdict.at_least("reads", sum(|phase| phase.reads), args.lists * 2);
    if args.json {
        let document = serde_json::json!({
            "phases": phases,
            "losses": losses,
            "findings": verdict,
            "holds": verdict.holds(),
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(verdict.holds());
    }
    println!(
        "{} servers, strong, {} lists, a lease of {} ms, two assigners, etcd",
        args.servers, args.lists, args.lease_ms
    );
    println!(
        "{:70} {:>6} {:>6} {:>6} {:>6} {:>9} {:>7} {:>8} {:>8} {:>10}",
        "",
        "s",
        "reads",
        "failed",
        "wrong",
        "longest",
        "commits",
        "refused",
        "unknown",
        "resumed in"
    );
    for phase in phases {
        println!(
            "{:70} {:>6.1} {:>6} {:>6} {:>6} {:>6} ms {:>7} {:>8} {:>8} {:>7} ms",
            phase.name,
            phase.seconds,
            phase.reads,
            phase.failed,
            phase.wrong,
            phase.longest_read_ms,
            phase.commits,
            phase.commits_refused,
            phase.commits_unknown,
            phase.resumed_ms
        );
        for (word, count) in &phase.refused {
            println!("{:70} {count} attempts of reads refused: {word}", "");
        }
    }
    for loss in losses {
        println!("LOST {loss}");
    }
    verdict.tell();
    Ok(verdict.holds())
}
