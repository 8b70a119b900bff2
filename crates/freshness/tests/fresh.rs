//! The promise, end to end: a database that changes at random, a cache behind a
//! relay in another process, and readers who check how old is what they get.

use support::Fixture;
#[path = "all/support.rs"]
#[allow(dead_code)]
mod support;

use bytes::Bytes;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use trefoil_freshness::{
    CacheOptions, Connection, FreshCache, Sampled, Sampler, SamplerOptions, SubscribeOptions,
    Subscription, position_now,
};

/// A relay in a process of its own; killed with the value.
struct Process(Child);

impl Process {
    fn start(fixture: &Fixture, listen: &str) -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_freshness-relay"))
            .arg(fixture.server.address(&fixture.name))
            .args(["changes", &fixture.name, listen, "item=item/{id}"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = child.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("ready ").expect("an address");
        (Process(child), address.into())
    }

    /// kill -9, and a new one at the same address.
    fn replace(&mut self, fixture: &Fixture, address: &str) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ended");
        *self = Process::start(fixture, address).0;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When each version of each row was acknowledged.
struct Truth {
    begun: Instant,
    /// For each row: its versions' acknowledgements, in nanoseconds.
    rows: Vec<Mutex<Vec<u64>>>,
}

impl Truth {
    fn new(rows: usize) -> Self {
        Truth {
            begun: Instant::now(),
            rows: (0..rows).map(|_| Mutex::new(vec![0])).collect(),
        }
    }

    fn acknowledged(&self, row: usize) {
        let now = self.begun.elapsed().as_nanos() as u64;
        self.rows[row].lock().expect("nobody panics here").push(now);
    }

    /// How out of date a version of a row was at a moment.
    fn age(&self, row: usize, version: u64, at: Instant) -> Duration {
        let at = at.duration_since(self.begun).as_nanos() as u64;
        let versions = self.rows[row].lock().expect("nobody panics here");
        let next = versions.get(version as usize + 1).copied();
        Duration::from_nanos(at.saturating_sub(next.unwrap_or(u64::MAX)))
    }
}

/// Numbers that look random.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x14057B7EF767814F);
        ((self.0 >> 33) as usize) % end
    }
}

const ROWS: usize = 2000;
const STALE_MAX: Duration = Duration::from_millis(500);

fn key(row: usize) -> Bytes {
    format!("item/{row}").into()
}

async fn load(client: &Client, row: usize) -> Result<u64, tokio_postgres::Error> {
    let query = "SELECT body::bigint FROM item WHERE id = $1";
    let row = client.query_one(query, &[&(row as i64)]).await?;
    Ok(row.get::<_, i64>(0) as u64)
}

/// How far the writers are, and the kills.
#[derive(Default)]
struct Course {
    changes: AtomicU64,
    kills: AtomicU64,
    done: AtomicBool,
}

/// Kills of the relay, spread over the changes.
const KILLS: u64 = 3;

/// Changes rows at random, a few in each transaction, until there are enough
/// changes and kills. Rows of one writer are its own, so versions count up.
async fn write(client: &Client, truth: &Truth, own: (usize, usize), course: &Course, max: u64) {
    let mut chance = Chance(own.0 as u64 + 1);
    let update = "UPDATE item SET body = (body::bigint + 1)::text WHERE id = ANY ($1)";
    let update = client.prepare(update).await.expect("a statement");
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    while count(&course.changes) < max || count(&course.kills) < KILLS {
        if count(&course.changes) >= max {
            // Only kills are left: no hurry.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut rows: Vec<usize> = (0..1 + chance.below(8))
            .map(|_| chance.below(ROWS / own.1) * own.1 + own.0)
            .collect();
        rows.sort_unstable();
        rows.dedup();
        let ids: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        client.execute(&update, &[&ids]).await.expect("an update");
        for &row in &rows {
            truth.acknowledged(row);
        }
        course
            .changes
            .fetch_add(rows.len() as u64, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

#[derive(Default)]
struct Reads {
    reads: u64,
    oldest: Duration,
    stale: u64,
    /// The same row, older than it was before: two loads at a time may end in
    /// either order. Not promised, told.
    backwards: u64,
}

async fn read(
    cache: &FreshCache<u64>,
    client: &Client,
    truth: &Truth,
    seed: u64,
    course: &Course,
) -> Reads {
    let mut chance = Chance(seed);
    let mut reads = Reads::default();
    let mut seen = vec![0; ROWS];
    while !course.done.load(Ordering::Relaxed) {
        // A quarter of the reads goes to a few rows.
        let rows = if chance.below(4) == 0 { 20 } else { ROWS };
        let row = chance.below(rows);
        let at = Instant::now();
        let wanted = key(row);
        let version = cache.get_or_load(&wanted, async || load(client, row).await);
        let version = *version.await.expect("a row");
        let age = truth.age(row, version, at);
        reads.reads += 1;
        reads.oldest = reads.oldest.max(age);
        reads.stale += u64::from(age > STALE_MAX);
        reads.backwards += u64::from(version < seen[row]);
        seen[row] = version;
        if reads.reads % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    reads
}

/// Compares what the cache keeps with the database.
struct Compared {
    cache: FreshCache<u64>,
    connection: Connection,
}

impl Sampled for Compared {
    type Error = tokio_postgres::Error;

    async fn pick(&mut self, number: u64) -> Option<Bytes> {
        self.cache.any_key(number as usize)
    }

    fn kept(&mut self, key: &Bytes) -> Option<u64> {
        self.cache.get(key).map(|value| *value)
    }

    async fn stored(&mut self, key: &Bytes) -> Result<Option<u64>, tokio_postgres::Error> {
        let row = std::str::from_utf8(&key[5..]).expect("a number");
        let row = row.parse().expect("a number");
        load(&self.connection.client, row).await.map(Some)
    }

    fn staleness(&mut self) -> Option<Duration> {
        self.cache.staleness()
    }
}

/// 20,000 changes here; for more: `FRESHNESS_CHANGES=100000 cargo test --release
/// -p trefoil-freshness --test fresh -- --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_while_reading_and_the_relay_is_killed() {
    let changes_max = std::env::var("FRESHNESS_CHANGES");
    let changes_max: u64 = changes_max.map_or(20_000, |text| text.parse().expect("a number"));
    let fixture = Fixture::shared().await;
    fixture.items().await;
    fixture
        .run(&format!(
            "INSERT INTO item SELECT i, '0' FROM generate_series(0, {ROWS} - 1) i"
        ))
        .await;
    let (mut process, address) = Process::start(&fixture, "127.0.0.1:0");
    let cache = FreshCache::new(CacheOptions {
        capacity: ROWS / 2,
        stale_max: Some(STALE_MAX),
        ..CacheOptions::default()
    });
    let mut options = SubscribeOptions::new(&format!("http://{address}"));
    options.ping = Duration::from_millis(20);
    options.retry_max = Duration::from_millis(100);
    let subscription = Subscription::start(options, cache.sink(|_, _| None), None);
    support::until("the cache is followed", || cache.staleness().is_some()).await;

    let sampling = SamplerOptions {
        interval: Duration::from_millis(5),
        ..SamplerOptions::default()
    };
    let (kept, connection) = (cache.clone(), fixture.connect().await);
    let compared = Compared {
        cache: kept,
        connection,
    };
    let sampler = Sampler::start(sampling, compared);

    let truth = Arc::new(Truth::new(ROWS));
    let course = Arc::new(Course::default());
    let mut writers = Vec::new();
    for writer in 0..2 {
        let (truth, course) = (Arc::clone(&truth), Arc::clone(&course));
        let connection = fixture.connect().await;
        writers.push(tokio::spawn(async move {
            write(
                &connection.client,
                &truth,
                (writer, 2),
                &course,
                changes_max,
            )
            .await;
        }));
    }
    let mut readers = Vec::new();
    for seed in 0..2 {
        let (cache, truth, course) = (cache.clone(), Arc::clone(&truth), Arc::clone(&course));
        let connection: Connection = fixture.connect().await;
        readers.push(tokio::spawn(async move {
            read(&cache, &connection.client, &truth, 77 + seed, &course).await
        }));
    }
    // Whatever is going on: a relay that is killed three times.
    for kill in 0..KILLS {
        let due = changes_max * (kill + 1) / (KILLS + 1);
        while course.changes.load(Ordering::Relaxed) < due {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        process.replace(&fixture, &address);
        // Followed again, so that the next one is killed at work.
        let place = cache.position();
        support::until("there is progress", || cache.position() > place).await;
        course.kills.fetch_add(1, Ordering::Relaxed);
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    let connection = fixture.connect().await;
    let position = position_now(&connection.client).await.expect("a position");
    let reached = tokio::time::timeout(support::PATIENCE, cache.reached(position));
    reached.await.expect("the stream catches up");
    support::until("something was compared", || sampler.samples().same > 0).await;
    course.done.store(true, Ordering::Relaxed);
    let mut total = Reads::default();
    for reader in readers {
        let reads = reader.await.expect("a reader");
        total.reads += reads.reads;
        total.stale += reads.stale;
        total.backwards += reads.backwards;
        total.oldest = total.oldest.max(reads.oldest);
    }
    let mut wrong = 0;
    for row in 0..ROWS {
        let kept = cache.get(&key(row));
        let stored = load(&connection.client, row).await.expect("a row");
        wrong += u64::from(kept.is_some_and(|kept| *kept != stored));
    }
    let delays = subscription.delays();
    let samples = sampler.samples();
    println!(
        "{} changes, {} reads, {KILLS} kills: {} stale beyond {STALE_MAX:?}, {} backwards, \
         {wrong} wrong at the end; oldest read {:?}; delivery p50 {} us, p99 {} us; sampler: {} same, {} gone, {} changing, \
         {} late, {} stale, bound {:?}; {:?}",
        course.changes.load(Ordering::Relaxed),
        total.reads,
        total.stale,
        total.backwards,
        total.oldest,
        delays.value_at_quantile(0.5),
        delays.value_at_quantile(0.99),
        samples.same,
        samples.gone,
        samples.changing,
        samples.late,
        samples.stale,
        samples.stale_bound(),
        cache.counts(),
    );
    assert!(samples.stale == 0 && samples.same > 0, "{samples:?}");
    assert_eq!((total.stale, wrong), (0, 0));
    let counts = cache.counts();
    assert!(counts.hits > 0 && counts.invalidated > 0, "{counts:?}");
    // It went on where it was, whatever was killed.
    assert!(subscription.status().begun > 1);
    assert_eq!(counts.sweeps, 1, "nothing was lost: {counts:?}");
}
