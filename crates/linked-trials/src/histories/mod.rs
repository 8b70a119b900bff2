//! What clients of strong replicas are told while everything goes wrong, held against
//! linearizability.
//!
//! ```text
//!  clients ──► router ──► servers (processes) ◄─ faults: kill, stop, drain, deploy …
//!     │ notes                   ▲ relays ◄────── faults: cut, hole, rift
//!     ▼                         └ assigner ◄──── faults: kill, lonely
//!  operations ─► check (each key) ─► damage: would it have noticed? ─► verdict
//! ```

mod check;
mod clients;
mod damage;
mod faults;
mod operation;

use crate::Failure;
use crate::fleet::{self, End, Fleet, Links, Options, assigner_flags};
use crate::pauses::Pauses;
use crate::server::handler_max;
use crate::verdict::Verdict;
use check::{Rule, Violation, check};
pub(crate) use clients::ask;
use clients::{Client, Keys, Notes, Shared};
use damage::{Damage, damage};
use faults::{Away, Counts, Fault};
use operation::Operation;
pub(crate) use operation::{Answer, Asked};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// What a server may wait for a key, for others, and for replicas.
const PATIENCE: Duration = Duration::from_millis(700);
/// Each client is done with an operation after this: two servers may be asked.
const DEADLINE: Duration = Duration::from_secs(6);
const _: () = assert!(DEADLINE.as_millis() > PATIENCE.as_millis() * 6 + 500);
/// After so long other keys take the places of those that are in use.
const ROUND: Duration = Duration::from_secs(15);
/// Histories that are broken on purpose.
const DAMAGES: usize = 330;
/// A search goes from epoch to epoch by recursion.
const CHECK_STACK_BYTES: usize = 512 << 20;
/// Runs as long as this have to have shown each fault.
const SHOWS_ALL_FROM_S: u64 = 105;

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    /// How long clients work
    #[arg(long, default_value_t = 60, value_name = "S")]
    seconds: u64,
    /// What is drawn: faults, and what clients do; not how the machine interleaves it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Servers
    #[arg(long, default_value_t = 5)]
    servers: usize,
    /// Clients
    #[arg(long, default_value_t = 16)]
    clients: u32,
    /// Hot keys at a time
    #[arg(long, default_value_t = 4)]
    keys: u32,
    /// Other keys at a time, to which one request in ten goes
    #[arg(long, default_value_t = 60)]
    cold_keys: u32,
    /// Requests a second of all clients together
    #[arg(long, default_value_t = 600)]
    rate: u64,
    /// Weaker replicas are to be found out: a run with kills and this has to fail
    #[arg(long, default_value = "strong", value_parser = ["strong", "eventual", "none"])]
    replication: String,
    /// After which a dead server counts as dead
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    lease_ms: u64,
    /// Memory of each server, in which a list takes some 4,300 bytes: what exceeds it is on
    /// disk [default: all is in memory]
    #[arg(long, value_name = "BYTES")]
    memory: Option<u64>,
    /// What goes wrong: kill, stop-short, stop-long, drain, deploy, lonely, rift, cut, hole, assigner-kill, lonely-short [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME[,…]")]
    faults: Vec<Fault>,
    /// Where the operations of a broken history are written, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// Tells of each fault
    #[arg(long)]
    verbose: bool,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// Whether everything holds.
pub(crate) async fn run(args: Args) -> Result<bool, Failure> {
    if args.servers < 3
        || args.keys == 0
        || args.clients == 0
        || args.rate == 0
        || args.seconds == 0
    {
        return Err(
            "give at least 3 servers, a client, a key, a request a second, and a second".into(),
        );
    }
    let wished = match args.faults.is_empty() {
        true => Fault::all(),
        false => args.faults.clone(),
    };
    let folder = tempfile::tempdir()?;
    let lease = Duration::from_millis(args.lease_ms);
    let links = Links::default();
    let store = format!("embedded:{}", folder.path().join("assigner").display());
    let mut assigner = fleet::assigner(store, links.clone())?;
    assigner.start(&assigner_flags(lease)).await?;
    let relay = links.relay(End::Assigner).await?;
    relay.lead_to(Some(assigner.address()));
    let options = Options {
        replication: args.replication.clone(),
        patience: PATIENCE,
        memory: args.memory,
    };
    let joined = relay.address.to_string();
    let servers = Fleet::start(options, joined, links.clone(), args.servers).await?;
    servers.is_whole(fleet::PATIENCE).await?;
    let shared = Arc::new(Shared {
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        round: AtomicU32::new(0),
        keys: Keys {
            hot: args.keys,
            cold: args.cold_keys,
        },
        deadline: DEADLINE,
        pause: Duration::from_secs(1) * args.clients / u32::try_from(args.rate)?,
        stops: Mutex::default(),
        pauses: Pauses::watch(),
    });
    let mut working = Vec::new();
    // Each router is a process's.
    let mut routers = Vec::new();
    for _ in 0..args.clients.div_ceil(4) {
        routers.push(fleet::router(&assigner.address().to_string()).await?);
    }
    for number in 0..args.clients {
        let router = routers[number as usize / 4].clone();
        let client = Client::new(number + 1, router, Arc::clone(&shared));
        working.push(tokio::spawn(client.work(args.seed)));
    }
    let seers = routers.iter().enumerate().map(|(number, router)| {
        let number = args.clients + 1 + number as u32;
        Client::new(number, router.clone(), Arc::clone(&shared))
    });
    let away = Away {
        fleet: servers,
        clients: seers.collect(),
        shared: Arc::clone(&shared),
        lease,
        is_verbose: args.verbose,
    };
    let (own, seed) = (wished.clone(), args.seed);
    let away = tokio::spawn(async move { away.run(&own, seed).await });
    let beside = tokio::spawn(faults::beside(
        links,
        assigner,
        Arc::clone(&shared),
        lease,
        args.servers,
        wished.clone(),
        args.seed ^ 0xbe51_de00,
    ));
    let until = shared.began + Duration::from_secs(args.seconds);
    let mut round_until = shared.began + ROUND;
    while Instant::now() < until && !away.is_finished() && !beside.is_finished() {
        sleep(Duration::from_millis(50)).await;
        if Instant::now() > round_until {
            round_until += ROUND;
            shared.round.fetch_add(1, Ordering::Relaxed);
        }
    }
    shared.is_over.store(true, Ordering::Relaxed);
    let mut notes = Notes::default();
    for worker in working {
        notes.add(worker.await?);
    }
    let (assigner, mut counts) = beside.await??;
    let done = away.await??;
    counts.extend(done.counts);
    // Every list of the last round, once more, when nothing goes wrong any more.
    notes.add(done.notes);
    for key in shared.keys.of_round(shared.round.load(Ordering::Relaxed)) {
        notes
            .operations
            .push(last_read(&routers[0], key, &shared).await?);
    }
    let said = std::mem::take(&mut *done.fleet.said());
    let read_back = done.fleet.read_back().await;
    drop((done.fleet, assigner));

    let operations = std::mem::take(&mut notes.operations);
    let checked = std::thread::Builder::new()
        .stack_size(CHECK_STACK_BYTES)
        .spawn(move || {
            let violations = check(&operations);
            let damage = match violations.is_empty() {
                true => damage(&operations, DAMAGES, seed),
                false => Damage::default(),
            };
            (operations, violations, damage)
        })?;
    let (operations, violations, damage) = checked
        .join()
        .map_err(|_| "the check broke down: report it with the seed")?;
    if let (Some(out), false) = (&args.out, violations.is_empty()) {
        std::fs::write(out, serde_json::to_vec(&operations)?)?;
    }
    let report = Report {
        args: &args,
        wished: &wished,
        counts: &counts,
        notes: &notes,
        operations: &operations,
        violations: &violations,
        damage: &damage,
        said: &said,
        refused_by_form: done.refused_by_form,
        read_back,
        pauses: &shared.pauses,
    };
    report.tell()
}

/// Until somebody answers.
async fn last_read(
    router: &trefoil_router::Router,
    key: u32,
    shared: &Shared,
) -> Result<Operation, Failure> {
    let since = Instant::now();
    loop {
        let begin_ns = shared.now_ns();
        let read = clients::ask(router, key, Asked::Read, crate::v1::Way::Upsert).await;
        let end_ns = shared.now_ns();
        match read {
            Ok(answer) => {
                return Ok(Operation {
                    client: 0,
                    key,
                    asked: Asked::Read,
                    answer,
                    begin_ns,
                    end_ns,
                });
            }
            Err(error) if since.elapsed() > fleet::PATIENCE => {
                return Err(
                    format!("{} is not served in the end: {error}", clients::name(key)).into(),
                );
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

struct Report<'a> {
    args: &'a Args,
    wished: &'a [Fault],
    counts: &'a Counts,
    notes: &'a Notes,
    operations: &'a [Operation],
    violations: &'a [Violation],
    damage: &'a Damage,
    said: &'a fleet::Said,
    refused_by_form: u64,
    /// From disk, by the servers of the end.
    read_back: u64,
    pauses: &'a Pauses,
}

impl Report<'_> {
    fn count(&self, of: impl Fn(&Operation) -> bool) -> u64 {
        self.operations
            .iter()
            .filter(|operation| of(operation))
            .count() as u64
    }

    fn again(&self) -> String {
        let args = self.args;
        let faults: Vec<String> = self.wished.iter().map(Fault::to_string).collect();
        format!(
            "linked-trials histories --seed {} --seconds {} --servers {} --clients {} --keys {} \
             --cold-keys {} --rate {} --lease-ms {} --replication {}{} --faults {} --verbose",
            args.seed,
            args.seconds,
            args.servers,
            args.clients,
            args.keys,
            args.cold_keys,
            args.rate,
            args.lease_ms,
            args.replication,
            args.memory
                .map_or_else(String::new, |bytes| format!(" --memory {bytes}")),
            faults.join(",")
        )
    }

    fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let keys: std::collections::BTreeSet<u32> = self
            .operations
            .iter()
            .map(|operation| operation.key)
            .collect();
        let broken = self.violations.len();
        verdict.exactly(
            "keys whose history is linearizable",
            (keys.len() - broken) as u64,
            keys.len() as u64,
        );
        let of = |rules: &[Rule]| {
            let found = self.violations.iter();
            found
                .filter(|violation| rules.contains(&violation.rule))
                .count() as u64
        };
        verdict.exactly("lost updates", of(&[Rule::Fork]), 0);
        verdict.exactly(
            "updates that were refused, or done twice",
            of(&[Rule::Refused, Rule::Once]),
            0,
        );
        verdict.exactly(
            "refusals without a type",
            self.notes.untyped.len() as u64,
            0,
        );
        let long = self.notes.long.len() + self.said.slow.len();
        verdict.exactly("operations longer than their deadline", long as u64, 0);
        verdict.exactly("losses reported", self.said.losses.len() as u64, 0);
        let (done, noticed) = (self.damage.done() as u64, self.damage.noticed() as u64);
        verdict.add(
            "damages to good histories, noticed",
            format!("{noticed} of {done}"),
            format!("{DAMAGES} of {DAMAGES}"),
            noticed == done && done == DAMAGES as u64,
        );
        let appends = self.count(|operation| {
            matches!(
                (operation.asked, &operation.answer),
                (Asked::Append(_), Answer::List(_))
            )
        });
        verdict.at_least("appends acknowledged", appends, self.args.seconds * 5);
        verdict.at_least(
            "requests given up by their clients",
            self.notes.cancelled,
            10,
        );
        if self.args.memory.is_some() {
            verdict.at_least("values read back from disk", self.read_back, 1);
        }
        if self.args.seconds >= SHOWS_ALL_FROM_S {
            for fault in self.wished {
                let count = self.counts.get(fault).copied().unwrap_or(0);
                verdict.at_least(&format!("faults: {fault}"), count, 1);
            }
            if self.wished.contains(&Fault::Deploy) {
                verdict.at_least("values refused for their form", self.refused_by_form, 1);
            }
        }
        verdict
    }

    fn tell(&self) -> Result<bool, Failure> {
        let verdict = self.verdict();
        let (stood, longest_pause) = self.pauses.all();
        if self.args.json {
            let document = json!({
                "seed": self.args.seed,
                "seconds": self.args.seconds,
                "operations": self.operations.len(),
                "faults": self.counts.iter().map(|(fault, count)| (fault.to_string(), count)).collect::<std::collections::BTreeMap<_, _>>(),
                "refused": self.notes.refused,
                "unknown": self.notes.unknown,
                "cancelled": self.notes.cancelled,
                "longest_ms": self.notes.longest.as_millis() as u64,
                "stood_ms": stood.as_millis() as u64,
                "refused_by_form": self.refused_by_form,
                "read_back": self.read_back,
                "damage": self.damage,
                "violations": self.violations,
                "untyped": self.notes.untyped,
                "long": self.notes.long,
                "slow": self.said.slow,
                "losses": self.said.losses,
                "findings": verdict,
                "again": self.again(),
                "holds": verdict.holds(),
            });
            println!("{}", serde_json::to_string_pretty(&document)?);
            return Ok(verdict.holds());
        }
        let args = self.args;
        println!(
            "{} servers, {} clients, {} hot keys and {} others at a time, {}, a lease of {} ms, {} s, \
             seed {}",
            args.servers,
            args.clients,
            args.keys,
            args.cold_keys,
            args.replication,
            args.lease_ms,
            args.seconds,
            args.seed
        );
        let list = |counts: Vec<String>| match counts.is_empty() {
            true => "none".to_owned(),
            false => counts.join(", "),
        };
        let faults = self
            .counts
            .iter()
            .map(|(fault, count)| format!("{count} {fault}"));
        println!("faults: {}", list(faults.collect()));
        let asked = |of: fn(&Asked) -> bool| self.count(|operation| of(&operation.asked));
        println!(
            "operations: {} ({} appends, {} reads, {} removals), {} given up by their clients",
            self.operations.len(),
            asked(|asked| matches!(asked, Asked::Append(_))),
            asked(|asked| matches!(asked, Asked::Read)),
            asked(|asked| matches!(asked, Asked::Remove)),
            self.notes.cancelled
        );
        for (what, counts) in [
            ("refused", &self.notes.refused),
            ("unknown", &self.notes.unknown),
        ] {
            let counts = counts.iter().map(|(name, count)| format!("{count} {name}"));
            println!("{what}: {}", list(counts.collect()));
        }
        println!(
            "values refused for their form: {}; servers drained: {}, taken for dead and joined anew: {}",
            self.refused_by_form, self.said.drained, self.said.rejoined
        );
        println!(
            "longest operation: {:.2?} (deadline {DEADLINE:?}; a handler: {:?}); this process stood \
             still for {stood:.2?}, {longest_pause:.2?} at most",
            self.notes.longest,
            handler_max(PATIENCE)
        );
        let damages = self.damage.kinds.iter();
        let damages = damages.map(|(kind, (done, noticed))| format!("{kind:?} {noticed}/{done}"));
        println!("damages: {}", list(damages.collect()));
        for violation in self.violations {
            println!(
                "BROKEN {:?}, {}: {}",
                violation.rule,
                clients::name(violation.key),
                violation.what
            );
            for seen in &violation.seen {
                println!("       {seen:?}");
            }
        }
        let lines = [
            ("UNTYPED", &self.notes.untyped),
            ("LONG", &self.notes.long),
            ("SLOW", &self.said.slow),
            ("LOST", &self.said.losses),
        ];
        for (word, lines) in lines {
            for line in lines.iter().take(10) {
                println!("{word} {line}");
            }
        }
        verdict.tell();
        if !verdict.holds() {
            println!("again: {}", self.again());
        }
        Ok(verdict.holds())
    }
}
