//! Eventual replicas whose streams break under load: how long copies take to catch up,
//! and how much memory waits meanwhile.
//!
//! ```text
//!  updates ──► linklet (owner) ── stream ──► relay ──► linklet (copy) ◄── read_copy
//!                                              │ cut for a second, ten times
//! ```
//!
//! The linklets are in this process, so that no caller's network is in the rate; their
//! streams are connections over the loopback.

use crate::fleet::{End, Link, Links, PATIENCE, Relay};
use crate::server::gauge;
use crate::verdict::Verdict;
use crate::{CORPUS, Failure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::time::{sleep, sleep_until};
use tonic::transport::Server;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{Config, Linklet, PlainMarshal, Replication, Security};
use trefoil_sharder::Freeze;

const SERVERS: usize = 3;
const UPDATERS: u64 = 4;
/// Updates that are due together.
const BATCH: u64 = 20;
/// This process, seen from every relay.
const HERE: End = End::Server(usize::MAX);
/// Bytes of an object; the first eight count its updates.
const OBJECT_LEN: usize = 200;
/// Copies have caught up within this.
const CAUGHT_UP_WITHIN: f64 = 2.0;
/// What may be resident beyond what was before the first break: windows of two streams for
/// each linklet, at both ends, and what the allocator keeps.
const GROWTH_MIB_MAX: f64 = 96.0;
/// Of the rate that is asked for, what has to come about.
const RATE_SHARE: f64 = 0.95;

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    /// Updates a second
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// Objects
    #[arg(long, default_value_t = 20_000)]
    objects: u64,
    /// How often the streams to a server break
    #[arg(long, default_value_t = 10)]
    breaks: u64,
    /// For how long each time
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    broken_ms: u64,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

struct Servers {
    linklets: Vec<Linklet<Vec<u8>>>,
    relays: Vec<Relay>,
    coordinator: LocalCoordinator,
}

/// One object: who has it, and how often it was changed.
struct Object {
    key: Vec<u8>,
    owner: usize,
    copy: usize,
    changed: AtomicU64,
}

fn key(number: u64) -> Vec<u8> {
    format!("object {number}").into_bytes()
}

fn count(value: &[u8]) -> u64 {
    value
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Servers {
    async fn start(links: &Links) -> Result<Self, Failure> {
        let coordinator = LocalCoordinator::new();
        let mut servers = Servers {
            linklets: Vec::new(),
            relays: Vec::new(),
            coordinator,
        };
        for at in 0..SERVERS {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let relay = links.relay(End::Server(at)).await?;
            relay.lead_to(Some(listener.local_addr()?));
            let linklet = Linklet::builder(CORPUS, PlainMarshal)
                .replication(Replication::Eventual)
                .join(servers.coordinator.clone(), relay.address.to_string())
                .await?;
            let server = Server::builder()
                .add_service(linklet.service().into_server())
                .serve_with_incoming(Security::Loopback.incoming(listener));
            tokio::spawn(server);
            servers.linklets.push(linklet);
            servers.relays.push(relay);
        }
        Ok(servers)
    }

    /// Puts all objects in, and waits until each has its copy and nothing moves any more.
    async fn fill(&self, count: u64) -> Result<Vec<Object>, Failure> {
        let since = Instant::now();
        loop {
            // Every server has a part, and each slice a copy.
            let view = self.linklets[0].view().ok_or("no member")?;
            let is_dealt = {
                let view = view.borrow();
                let slices = view.assignment.slices();
                let owners = self.linklets.iter().filter_map(Linklet::server_id);
                view.is_assigned()
                    && slices.iter().all(|slice| slice.servers.len() == 2)
                    && owners.into_iter().all(|id| {
                        slices
                            .iter()
                            .any(|slice| slice.servers.first() == Some(&id))
                    })
            };
            if is_dealt {
                break;
            }
            if since.elapsed() > PATIENCE {
                return Err("the slices are not dealt out to all".into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.coordinator.set_freeze(CORPUS, Freeze::All).await?;
        for linklet in &self.linklets {
            linklet.settled().await;
        }
        sleep(Duration::from_secs(1)).await;
        let view = self.linklets[0].view().ok_or("no member")?;
        let assignment = view.borrow().assignment.clone();
        let place = |id| {
            let mut ids = self.linklets.iter().map(Linklet::server_id);
            ids.position(|own| own == Some(id))
        };
        let mut objects = Vec::new();
        for number in 0..count {
            let key = key(number);
            let point = self.linklets[0].point(&key);
            let servers = &assignment.slice_of(point).servers;
            let [owner, copy] = servers[..] else {
                return Err("a slice has not two servers".into());
            };
            let (owner, copy) = (
                place(owner).ok_or("an owner that is not here")?,
                place(copy).ok_or("a copy that is not here")?,
            );
            self.linklets[owner]
                .insert(&key, vec![0; OBJECT_LEN])
                .await?;
            objects.push(Object {
                key,
                owner,
                copy,
                changed: AtomicU64::new(0),
            });
        }
        Ok(objects)
    }

    /// Waits until the copies at a server are as new as their originals are now; how long
    /// it took.
    async fn caught_up(&self, objects: &[Object], at: usize) -> Result<Duration, Failure> {
        let since = Instant::now();
        let mut behind = wanted_at(objects, at);
        while !behind.is_empty() {
            behind = self.behind(behind, at).await;
            if since.elapsed() > PATIENCE {
                return Err(
                    format!("{} copies are behind after {PATIENCE:?}", behind.len()).into(),
                );
            }
            if !behind.is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(since.elapsed())
    }

    /// Those of which the copy at a server is older.
    async fn behind<'a>(
        &self,
        wanted: Vec<(&'a Object, u64)>,
        at: usize,
    ) -> Vec<(&'a Object, u64)> {
        let mut behind = Vec::new();
        for (object, wanted) in wanted {
            let found = self.linklets[at]
                .read_copy(&object.key, |value| count(value))
                .await;
            if !matches!(found, Ok(Some(found)) if found >= wanted) {
                behind.push((object, wanted));
            }
        }
        behind
    }
}

/// What a server has copies of, and how new they are to be by now.
fn wanted_at(objects: &[Object], at: usize) -> Vec<(&Object, u64)> {
    let own = objects.iter().filter(|object| object.copy == at);
    own.map(|object| (object, object.changed.load(Ordering::Acquire)))
        .collect()
}

/// The most that was seen.
#[derive(Default)]
struct Most {
    /// Of its bound, by any linklet.
    bytes_share: f64,
    unconfirmed: f64,
    resident: u64,
}

impl Most {
    fn look(&mut self, linklets: &[Linklet<Vec<u8>>]) {
        for linklet in linklets {
            let stats = linklet.stats();
            let share = stats.bytes as f64 / stats.bytes_max.max(1) as f64;
            self.bytes_share = self.bytes_share.max(share);
            let unconfirmed = gauge(&*linklet.process(), "trefoil_linklet_unconfirmed_bytes");
            self.unconfirmed = self.unconfirmed.max(unconfirmed.unwrap_or(0.0));
        }
        self.resident = self.resident.max(resident());
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Changes objects at a steady rate until it is told to stop.
async fn update(
    linklets: Vec<Linklet<Vec<u8>>>,
    objects: Arc<Vec<Object>>,
    updater: u64,
    rate: u64,
    is_over: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
) -> u64 {
    let pause = Duration::from_secs_f64(BATCH as f64 * UPDATERS as f64 / rate as f64);
    let mut due = Instant::now();
    let mut random = updater + 1;
    let mut done = 0;
    while !is_over.load(Ordering::Relaxed) {
        sleep_until(due.into()).await;
        for _ in 0..BATCH {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Each object is one updater's.
            let number = random % (objects.len() as u64 / UPDATERS) * UPDATERS + updater;
            let object = &objects[number as usize];
            let next = object.changed.load(Ordering::Relaxed) + 1;
            let change = |value: &mut Vec<u8>| value[..8].copy_from_slice(&next.to_le_bytes());
            match linklets[object.owner].update(&object.key, change).await {
                Ok(Some(())) => {
                    object.changed.store(next, Ordering::Release);
                    done += 1;
                }
                _ => {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        due += pause;
    }
    done
}

/// Whether everything holds.
pub(crate) async fn run(args: Args) -> Result<bool, Failure> {
    if args.rate < BATCH || args.objects < UPDATERS || args.breaks == 0 {
        return Err("give a rate of at least 20, at least 4 objects, and a break".into());
    }
    crate::server::log();
    let links = Links::default();
    links.process(std::process::id(), Some(HERE));
    let servers = Servers::start(&links).await?;
    let objects = Arc::new(servers.fill(args.objects).await?);
    for at in 0..SERVERS {
        servers.caught_up(&objects, at).await?;
    }
    let (is_over, failed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let began = Instant::now();
    let mut updating = Vec::new();
    for updater in 0..UPDATERS {
        updating.push(tokio::spawn(update(
            servers.linklets.clone(),
            Arc::clone(&objects),
            updater,
            args.rate,
            Arc::clone(&is_over),
            Arc::clone(&failed),
        )));
    }
    sleep(Duration::from_secs(2)).await;
    let mut most = Most::default();
    most.look(&servers.linklets);
    let resident_before = most.resident;
    let mut took = Vec::new();
    // Breaks that were felt: connections were reset, and copies fell behind.
    let mut felt = 0;
    for number in 0..args.breaks {
        let at = number as usize % SERVERS;
        let resets = links.resets();
        links.set(HERE, End::Server(at), Link::Cut);
        let until = Instant::now() + Duration::from_millis(args.broken_ms);
        // Copies may come by a way round, and not be behind any more at its end.
        let mut behind = 0;
        while Instant::now() < until {
            most.look(&servers.linklets);
            let now = servers.behind(wanted_at(&objects, at), at).await.len();
            behind = behind.max(now);
            sleep(Duration::from_millis(20)).await;
        }
        felt += u64::from(links.resets() > resets && behind > 0);
        links.set(HERE, End::Server(at), Link::Open);
        let caught_up = servers.caught_up(&objects, at).await?;
        eprintln!(
            "streams to server {at} were broken, {behind} copies were behind: caught up in \
             {caught_up:.2?}"
        );
        took.push(caught_up.as_secs_f64());
        most.look(&servers.linklets);
        sleep(Duration::from_millis(300)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut updates = 0;
    for updater in updating {
        updates += updater.await?;
    }
    let rate = updates as f64 / began.elapsed().as_secs_f64();
    for at in 0..SERVERS {
        servers.caught_up(&objects, at).await?;
    }
    let slowest = took.iter().copied().fold(0.0, f64::max);
    let mut verdict = Verdict::default();
    verdict.exactly(
        "times that streams broke and copies fell behind",
        felt,
        args.breaks,
    );
    verdict.at_most("slowest to catch up", slowest, CAUGHT_UP_WITHIN, " s");
    verdict.add(
        "updates a second",
        format!("{rate:.0}"),
        format!("at least {:.0}", args.rate as f64 * RATE_SHARE),
        rate >= args.rate as f64 * RATE_SHARE,
    );
    verdict.exactly("updates that failed", failed.load(Ordering::Relaxed), 0);
    verdict.at_most(
        "bytes of objects, of their bound",
        most.bytes_share * 100.0,
        100.0,
        " %",
    );
    // A window to each of the others, and what a frame may be above it.
    let config = Config::default();
    let window = (config.window_bytes + config.chunk_bytes) * (SERVERS - 1);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (unconfirmed, bound) = (mib(most.unconfirmed), mib(window as f64));
    verdict.at_most(
        "sent and not confirmed, by one server",
        unconfirmed,
        bound,
        " MiB",
    );
    let growth = mib(most.resident.saturating_sub(resident_before) as f64);
    verdict.at_most(
        "resident beyond what was before",
        growth,
        GROWTH_MIB_MAX,
        " MiB",
    );
    if args.json {
        let document = serde_json::json!({
            "rate": rate,
            "caught_up_s": took,
            "unconfirmed_mib": unconfirmed,
            "resident_growth_mib": growth,
            "findings": verdict,
            "holds": verdict.holds(),
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(verdict.holds());
    }
    println!(
        "{SERVERS} servers, eventual, {} objects of {OBJECT_LEN} B, streams to one server broken \
         for {} ms each time",
        args.objects, args.broken_ms
    );
    verdict.tell();
    Ok(verdict.holds())
}
