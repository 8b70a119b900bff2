//! A database that changes at random, while objects are read through linklets that load
//! from it and hear of its changes from a relay, which is killed; and the database is
//! replaced by a copy that knows less, on another timeline and at a lower position.
//!
//! ```text
//!  writers ──► Postgres ──► relay (process, kill -9) ──► linklets ◄── readers
//!                 │ fails over: what was committed last is gone
//!                 └──────────────── loads ───────────────►
//! ```
//!
//! A linklet says how old what it keeps may be ([`Linklet::staleness`]). A read that finds
//! something that was replaced longer ago is stale. Beside it a sampler of each linklet
//! compares what is kept with the database, by the same bound.

mod broken;
mod reads;
mod rows;

use self::broken::{Breaking, Broken};
use self::reads::{Followed, Reads, SOON};
use self::rows::{BRANCH, HOT_ROWS, ROWS, Truth};
use crate::fleet::{PATIENCE, Process, line};
use crate::verdict::Verdict;
use crate::{CORPUS, Failure};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use trefoil_coordination::LocalCoordinator;
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{
    Connection, Database, DatabaseError, HubOptions, KeyMap, RelayOptions, RelayServer, Sampled,
    Sampler, SamplerOptions, Slot, SubscribeOptions, Subscription, TableMap,
};
use trefoil_linklet::{Linklet, LoaderError, PlainMarshal};

/// Samples that show something.
const SAMPLES_MIN: u64 = 10;

const SERVERS: usize = 3;
const WRITERS: usize = 2;
const READERS: u64 = 2;
/// How often servers ask how old what they keep may be.
const PING: Duration = Duration::from_millis(20);

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    /// Changes of rows
    #[arg(long, default_value_t = 100_000)]
    changes: u64,
    /// How often the relay is killed before the database fails over, and afterwards
    #[arg(long, default_value_t = 3)]
    kills: u64,
    /// How old what is kept may be at most, half of the time while the relay is heard: what
    /// docs/linked.md promises. A machine that others keep busy needs more
    #[arg(long, default_value_t = 500, value_name = "MS")]
    bound_ms: u64,
    /// Machine-readable
    #[arg(long)]
    json: bool,
    /// Something that is wrong on purpose: it has to be noticed
    #[arg(long = "break", value_name = "WHAT", hide = true)]
    broken: Option<Broken>,
}

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct RelayArgs {
    database: String,
    listen: String,
}

/// The process of the relay: what `trefoil relay` runs.
pub(crate) async fn relay(args: RelayArgs) -> Result<(), Failure> {
    let map = KeyMap::new().table("item", TableMap::template("item/{id}")?);
    let slot = Slot::Persistent("trial".to_owned());
    let options = RelayOptions::new(args.database.parse()?, "changes", slot, map);
    let listener = TcpListener::bind(args.listen)?;
    let mut server = RelayServer::start(options, HubOptions::default(), listener).await?;
    println!("ready {}", server.address());
    Ok(server.ended().await?)
}

/// Numbers that look random.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as usize) % end
    }
}

fn key(row: usize) -> String {
    format!("item/{row}")
}

fn row_of(key: &[u8]) -> Option<usize> {
    std::str::from_utf8(key)
        .ok()?
        .strip_prefix("item/")?
        .parse()
        .ok()
}

/// A connection that is opened anew when the database has gone.
struct Reconnecting {
    database: Database,
    connection: tokio::sync::Mutex<Option<Connection>>,
}

impl Reconnecting {
    fn new(database: &Database) -> Self {
        Reconnecting {
            database: database.clone(),
            connection: tokio::sync::Mutex::new(None),
        }
    }

    async fn load(&self, row: usize) -> Result<u64, String> {
        let mut connection = self.connection.lock().await;
        if connection.is_none() {
            let opened = self.database.connect().await;
            *connection = Some(opened.map_err(|error: DatabaseError| error.to_string())?);
        }
        let query = "SELECT body::bigint FROM item WHERE id = $1";
        let Some(open) = connection.as_ref() else {
            return Err("no connection".to_owned());
        };
        match open.client.query_one(query, &[&(row as i64)]).await {
            Ok(found) => Ok(found.get::<_, i64>(0) as u64),
            Err(error) => {
                *connection = None;
                Err(error.to_string())
            }
        }
    }
}

/// Compares what a linklet keeps with the database.
struct Compared {
    linklet: Linklet<String>,
    database: Reconnecting,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct CannotRead(String);

impl Sampled for Compared {
    type Error = CannotRead;

    async fn pick(&mut self, number: u64) -> Option<bytes::Bytes> {
        let row = Chance(number).below(ROWS);
        let point = self.linklet.point(key(row).as_bytes());
        let is_own = self
            .linklet
            .owned()
            .iter()
            .any(|slice| slice.contains(point));
        is_own.then(|| key(row).into())
    }

    fn kept(&mut self, key: &bytes::Bytes) -> Option<u64> {
        // What is in memory is answered at once, or it is moving.
        let mut read = std::pin::pin!(self.linklet.read(key, |value| value.parse::<u64>().ok()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match read.as_mut().poll(&mut context) {
            std::task::Poll::Ready(Ok(found)) => found.flatten(),
            _ => None,
        }
    }

    async fn stored(&mut self, key: &bytes::Bytes) -> Result<Option<u64>, CannotRead> {
        let row = row_of(key).ok_or_else(|| CannotRead("no key of a row".to_owned()))?;
        self.database.load(row).await.map(Some).map_err(CannotRead)
    }

    fn staleness(&mut self) -> Option<Duration> {
        self.linklet.staleness()
    }
}

/// Changes rows at random, a few in each transaction, until there are enough changes.
/// Rows of one writer are its own, so values count up.
async fn write(
    database: Database,
    truth: Arc<Truth>,
    writer: usize,
    changes: Arc<AtomicU64>,
    max: u64,
    seed: u64,
) -> Result<(), String> {
    let connection = database
        .connect()
        .await
        .map_err(|error| error.to_string())?;
    let mut chance = Chance(seed + writer as u64);
    // Behind the failover they begin anew, above all that were before.
    let update = if truth.has_failed_over.load(Ordering::Acquire) {
        format!(
            "UPDATE item SET body = (CASE WHEN body::bigint >= {BRANCH} THEN body::bigint + 1 \
             ELSE {BRANCH} END)::text WHERE id = ANY ($1)"
        )
    } else {
        "UPDATE item SET body = (body::bigint + 1)::text WHERE id = ANY ($1)".to_owned()
    };
    let update = connection
        .client
        .prepare(&update)
        .await
        .map_err(|error| error.to_string())?;
    while changes.load(Ordering::Relaxed) < max {
        let mut rows: Vec<usize> = (0..1 + chance.below(8))
            .map(|_| chance.below(ROWS / WRITERS) * WRITERS + writer)
            .collect();
        // Now and then one that is read a lot: what was kept is old then, and soon asked for.
        if chance.below(8) == 0 {
            rows.push(chance.below(HOT_ROWS / WRITERS) * WRITERS + writer);
        }
        rows.sort_unstable();
        rows.dedup();
        let ids: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let done = connection.client.execute(&update, &[&ids]).await;
        done.map_err(|error| error.to_string())?;
        let now = Instant::now();
        for &row in &rows {
            truth.row(row).acknowledged.push(now);
        }
        changes.fetch_add(rows.len() as u64, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
    Ok(())
}

struct Trial {
    postgres: Throwaway,
    database: Database,
    address: String,
    relay: Option<Process>,
    relay_listen: String,
    linklets: Vec<Linklet<String>>,
    truth: Arc<Truth>,
    changes: Arc<AtomicU64>,
    kills: u64,
}

impl Trial {
    async fn start_relay(&mut self) -> Result<(), Failure> {
        let arguments = ["relay", &self.address, &self.relay_listen].map(str::to_owned);
        let (process, mut output) = Process::start(&arguments)?;
        let address = line(&mut output, "ready ").await?;
        // What it prints after that is nothing; the pipe is read lest it fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = output.next_line().await {} });
        self.relay_listen = address;
        self.relay = Some(process);
        Ok(())
    }

    /// Writers until `max` changes, and the relay is killed meanwhile.
    async fn change(&mut self, max: u64, kills: u64, seed: u64) -> Result<(), Failure> {
        let from = self.changes.load(Ordering::Relaxed);
        let mut writing = Vec::new();
        for writer in 0..WRITERS {
            writing.push(tokio::spawn(write(
                self.database.clone(),
                Arc::clone(&self.truth),
                writer,
                Arc::clone(&self.changes),
                max,
                seed,
            )));
        }
        for kill in 0..kills {
            let due = from + (max - from) * (kill + 1) / (kills + 1);
            while self.changes.load(Ordering::Relaxed) < due
                && !writing.iter().all(tokio::task::JoinHandle::is_finished)
            {
                sleep(Duration::from_millis(5)).await;
            }
            if let Some(relay) = self.relay.take() {
                relay.kill().await?;
            }
            self.start_relay().await?;
            self.kills += 1;
        }
        for writer in writing {
            writer.await??;
        }
        Ok(())
    }

    /// Waits until every linklet is told of everything from before now.
    async fn caught_up(&self) -> Result<(), Failure> {
        let since = Instant::now();
        let told = |linklet: &Linklet<String>| {
            let bound = linklet.staleness();
            bound.is_some_and(|bound| bound < since.elapsed())
        };
        while !self.linklets.iter().all(told) {
            if since.elapsed() > PATIENCE {
                return Err("the stream of changes does not catch up".into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Of what is kept: how much the database does not have so, and how much there is.
    async fn wrong(&self) -> Result<(u64, u64), Failure> {
        let (mut wrong, mut kept) = (0, 0);
        for (row, stored) in all(&self.database).await?.iter().enumerate() {
            for linklet in &self.linklets {
                let look = |value: &String| value.parse::<u64>();
                let found = linklet.read(key(row).as_bytes(), look).await;
                if let Ok(Some(found)) = found {
                    kept += 1;
                    wrong += u64::from(found.ok() != Some(*stored));
                }
            }
        }
        Ok((wrong, kept))
    }

    fn folder(&self) -> Result<PathBuf, Failure> {
        let folder = self
            .address
            .split(' ')
            .find_map(|part| part.strip_prefix("host="));
        Ok(folder.ok_or("the database has no folder")?.into())
    }

    /// A copy of the database as it is now: the one that takes over later.
    async fn copy(&self) -> Result<(), Failure> {
        let folder = self.folder()?;
        self.postgres.stop()?;
        let copy = std::process::Command::new("cp")
            .arg("-a")
            .args([folder.join("data"), folder.join("standby")])
            .status()?;
        if !copy.success() {
            return Err(format!("the database's folder cannot be copied: {copy}").into());
        }
        self.postgres.launch()?;
        Ok(())
    }

    /// The copy takes over; what was committed since it was made is gone.
    async fn fail_over(&self) -> Result<(u64, u64), Failure> {
        let before = position(&self.database).await?;
        let folder = self.folder()?;
        self.truth.is_failing_over.store(true, Ordering::Release);
        self.postgres.crash()?;
        std::fs::rename(folder.join("data"), folder.join("former"))?;
        std::fs::rename(folder.join("standby"), folder.join("data"))?;
        // It begins as a standby, and is promoted: another timeline.
        std::fs::write(folder.join("data/standby.signal"), "")?;
        self.postgres.launch()?;
        let connection = self.database.connect().await?;
        connection
            .client
            .batch_execute("SELECT pg_promote()")
            .await?;
        let values = all(&self.database).await?;
        self.truth.fail_over(&values, Instant::now());
        let after = position(&self.database).await?;
        Ok((before, after))
    }
}

async fn position(database: &Database) -> Result<u64, Failure> {
    let connection = database.connect().await?;
    Ok(trefoil_freshness::position_now(&connection.client).await?)
}

/// All values, by row.
async fn all(database: &Database) -> Result<Vec<u64>, Failure> {
    let connection = database.connect().await?;
    let rows = connection
        .client
        .query("SELECT body::bigint FROM item ORDER BY id", &[])
        .await?;
    Ok(rows.iter().map(|row| row.get::<_, i64>(0) as u64).collect())
}

/// Whether everything holds.
pub(crate) async fn run(args: Args) -> Result<bool, Failure> {
    if args.changes < 1_000 {
        return Err("give at least 1000 changes".into());
    }
    crate::server::log();
    let postgres = Throwaway::start()?;
    let address = postgres.address("postgres");
    let database: Database = address.parse()?;
    let connection = database.connect().await?;
    connection
        .client
        .batch_execute(&format!(
            "CREATE TABLE item (id bigint PRIMARY KEY, body text);
             CREATE PUBLICATION changes FOR TABLE item;
             INSERT INTO item SELECT i, '0' FROM generate_series(0, {ROWS} - 1) i"
        ))
        .await?;
    let coordinator = LocalCoordinator::new();
    let mut linklets = Vec::new();
    let loads: Arc<AtomicU64> = Arc::default();
    for _ in 0..SERVERS {
        let source = Arc::new(Reconnecting::new(&database));
        let loads = Arc::clone(&loads);
        let load = move |key: Vec<u8>| {
            let source = Arc::clone(&source);
            loads.fetch_add(1, Ordering::Relaxed);
            async move {
                let Some(row) = row_of(&key) else {
                    return Ok(None);
                };
                let value = source.load(row).await.map_err(LoaderError::new)?;
                Ok(Some(value.to_string().into()))
            }
        };
        let linklet = Linklet::builder(CORPUS, PlainMarshal)
            .loader(load)
            .listen(coordinator.clone(), "127.0.0.1:0".parse()?)
            .await?;
        linklets.push(linklet);
    }
    let mut trial = Trial {
        postgres,
        database: database.clone(),
        address,
        relay: None,
        relay_listen: "127.0.0.1:0".to_owned(),
        linklets: linklets.clone(),
        truth: Arc::new(Truth::new()),
        changes: Arc::default(),
        kills: 0,
    };
    trial.start_relay().await?;
    let mut subscriptions = Vec::new();
    let mut samplers = Vec::new();
    for linklet in &linklets {
        let mut options = SubscribeOptions::new(&trial.relay_listen);
        options.ping = PING;
        options.retry_max = Duration::from_millis(100);
        let sink = Breaking::new(linklet.sink(), args.broken);
        subscriptions.push(Subscription::start(options, sink, None));
        let sampling = SamplerOptions {
            interval: Duration::from_millis(10),
            ..SamplerOptions::default()
        };
        let compared = Compared {
            linklet: linklet.clone(),
            database: Reconnecting::new(&database),
        };
        samplers.push(Sampler::start(sampling, compared));
    }
    trial.caught_up().await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let servers: Vec<Followed> = linklets
        .iter()
        .zip(&subscriptions)
        .map(|(linklet, subscription)| Followed {
            linklet: linklet.clone(),
            stream: subscription.watch(),
        })
        .collect();
    let mut reading = Vec::new();
    for seed in 0..READERS {
        let view = linklets[0].view().ok_or("no member")?;
        reading.push(tokio::spawn(reads::read(
            servers.clone(),
            view,
            Arc::clone(&trial.truth),
            Arc::clone(&is_over),
            77 + seed,
        )));
    }
    trial.change(args.changes / 2, args.kills, 1).await?;
    eprintln!("half of the changes; the copy is made");
    trial.copy().await?;
    trial.change(args.changes * 3 / 4, 0, 2).await?;
    // What is dropped with the failover would not show in the end.
    trial.caught_up().await?;
    let (wrong_before, _) = trial.wrong().await?;
    eprintln!("the database fails over to the copy");
    let (before, after) = trial.fail_over().await?;
    trial.change(args.changes, args.kills, 3).await?;
    trial.caught_up().await?;
    // On a busy machine samplers come late. What is broken keeps them from finding any.
    let since = Instant::now();
    let same = || {
        samplers
            .iter()
            .map(|sampler| sampler.samples().same)
            .sum::<u64>()
    };
    let waits = args.broken.is_none();
    while waits && same() < SAMPLES_MIN && since.elapsed() < PATIENCE {
        sleep(Duration::from_millis(50)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut total = Reads::new();
    for reader in reading {
        total.merge(reader.await?);
    }
    trial.caught_up().await?;
    let (wrong, kept) = trial.wrong().await?;
    let samples: Vec<_> = samplers.iter().map(Sampler::samples).collect();
    let sum = |of: fn(&trefoil_freshness::Samples) -> u64| samples.iter().map(of).sum::<u64>();
    let changes = trial.changes.load(Ordering::Relaxed);
    let loads = loads.load(Ordering::Relaxed);
    let mut verdict = Verdict::default();
    verdict.at_least("changes", changes, args.changes);
    verdict.at_least(
        "times that the relay was killed",
        trial.kills,
        args.kills * 2,
    );
    verdict.add(
        "the log's position behind the failover",
        after,
        format!("below {before}"),
        after < before,
    );
    verdict.exactly(
        "reads that were stale beyond the linklet's bound",
        total.stale,
        0,
    );
    verdict.exactly(
        "samples that were stale beyond it",
        sum(|samples| samples.stale),
        0,
    );
    verdict.exactly("wrong before the failover", wrong_before, 0);
    verdict.exactly("wrong in the end", wrong, 0);
    verdict.at_least("kept in the end", kept, 2 * HOT_ROWS as u64);
    verdict.at_least("reads", total.reads, args.changes / 20);
    let well = total.well();
    verdict.at_least("reads while all was well", well, args.changes / 40);
    let kept_share = 100.0 * total.kept as f64 / well.max(1) as f64;
    verdict.add(
        "of these answered with what was kept",
        format!("{kept_share:.0} %"),
        "at least 50 %",
        kept_share >= 50.0,
    );
    verdict.at_least(
        "of these soon after a change of the row",
        total.kept_soon,
        args.changes / 500,
    );
    let bound = |quantile| total.bounds.value_at_quantile(quantile) as f64 / 1e3;
    verdict.at_most(
        "how old what is kept may be, median",
        bound(0.5),
        args.bound_ms as f64,
        " ms",
    );
    verdict.at_least(
        "samples that were as the database",
        sum(|samples| samples.same),
        SAMPLES_MIN,
    );
    for subscription in &subscriptions {
        verdict.at_least(
            "times that a stream began",
            subscription.status().begun,
            args.kills * 2,
        );
    }
    if args.json {
        let document = serde_json::json!({
            "changes": changes,
            "reads": total.reads,
            "reads_without_bound": total.unbound,
            "reads_while_failing_over": total.between,
            "loads_failed": total.failed,
            "reads_while_well": well,
            "kept_while_well": total.kept,
            "soon_after_a_change": total.soon,
            "kept_soon_after_a_change": total.kept_soon,
            "loads": loads,
            "bound_ms_p50_while_well": bound(0.5),
            "bound_ms_max_while_well": bound(1.0),
            "stale": total.stale,
            "oldest_ms": total.oldest.as_millis() as u64,
            "bound_ms_max": total.widest.as_millis() as u64,
            "wrong": wrong,
            "findings": verdict,
            "holds": verdict.holds(),
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(verdict.holds());
    }
    println!(
        "{changes} changes, {} reads ({} while nothing was promised, {} while the database failed \
         over, {} without an answer while it was away); the oldest was replaced {:.2?} before, the widest bound was {:.2?}",
        total.reads, total.unbound, total.between, total.failed, total.oldest, total.widest
    );
    println!(
        "while all was well: {well} reads, {} of them soon ({SOON:?}) after a change of the row; \
         {} answered with what was kept, {} soon after a change; what was kept might be {:.1} ms old \
         (median), {:.1} ms at most; the loader ran {loads} times in all",
        total.soon,
        total.kept,
        total.kept_soon,
        bound(0.5),
        bound(1.0)
    );
    println!(
        "samples: {} same, {} gone, {} changing, {} late, {} failed",
        sum(|samples| samples.same),
        sum(|samples| samples.gone),
        sum(|samples| samples.changing),
        sum(|samples| samples.late),
        sum(|samples| samples.failed)
    );
    if let Some(stale) = total.first_stale {
        println!("STALE {stale}");
    }
    verdict.tell();
    Ok(verdict.holds())
}
