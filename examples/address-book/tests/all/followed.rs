//! The stateful form over a database that others change, too.

use crate::support::{Running, address_book, busy, connect, trefoil, whole};
use address_book::books::CORPUS;
use address_book::database::Database as Books;
use address_book_contract::client;
use address_book_contract::v1::{
    AddressBook, BusyRequest, ChangeRequest, Event, Interval, LookupAnswer, LookupRequest,
    StatsRequest,
};
use prost::Message as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};
use trefoil_coordination::{AssignerServer, NodeOptions, StoreAddress, Watcher};
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{Connection, Database};
use trefoil_router::{CallOptions, Router};

/// Longer than anything here takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// The bound is told in milliseconds, and by two clocks' readings.
const CLOCK_SLACK: Duration = Duration::from_millis(10);

/// Everything but the servers.
struct Stage {
    postgres: Throwaway,
    client: Connection,
    assigner: AssignerServer,
}

impl Stage {
    async fn start() -> Self {
        let postgres = Throwaway::start().expect("a database");
        let url = postgres.address("postgres");
        let books = Books::connect(&url).await.unwrap();
        books.publish("books").await.unwrap();
        let database: Database = url.parse().unwrap();
        let client = database.connect().await.unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let options = NodeOptions::default();
        let assigner = AssignerServer::start(listen, &StoreAddress::Memory, options).await;
        Stage {
            postgres,
            client,
            assigner: assigner.unwrap(),
        }
    }

    fn server(&self, more: &[&str]) -> Running {
        let assigner = self.assigner.address().to_string();
        let url = self.postgres.address("postgres");
        let own = ["serve", "--postgres", &url, "--metrics", "127.0.0.1:0"];
        let mode = ["--mode", "linked", "--assigner", &assigner];
        address_book(&[&own[..], &mode, more].concat())
    }

    fn relay(&self, listen: &str) -> Running {
        let url = self.postgres.address("postgres");
        trefoil(&[
            "relay",
            "--postgres",
            &url,
            "--publication",
            "books",
            "--slot",
            "books",
            "--map",
            "books={owner}",
            "--refresh",
            "books=version",
            "--heartbeat",
            "20ms",
            "--listen",
            listen,
        ])
    }

    /// Once each server has keys.
    async fn router(&self, servers: &[Running]) -> Router {
        let at = self.assigner.address().to_string();
        let watcher = Watcher::open(&at, CORPUS).await.unwrap();
        let mut view = watcher.view();
        let all = view.wait_for(|view| {
            servers.iter().all(|server| {
                view.assignment.slices().iter().any(|slice| {
                    let owner = slice.servers.first().and_then(|id| view.servers.get(id));
                    owner.is_some_and(|owner| owner.address == server.address)
                })
            })
        });
        let all = tokio::time::timeout(PATIENCE, all).await;
        drop(all.expect("all have keys").unwrap());
        Router::new(watcher)
    }

    async fn stored(&self, owner: &str) -> AddressBook {
        let query = "select book from books where owner = $1";
        let row = self.client.client.query_one(query, &[&owner]).await;
        AddressBook::decode(row.unwrap().get::<_, &[u8]>(0)).unwrap()
    }

    /// Changes a row as somebody does who knows nothing of the service; its version.
    async fn behind_its_back(&self, owner: &str, at_min: i64) -> u64 {
        let mut book = self.stored(owner).await;
        book.version += 1;
        book.events.push(Event {
            time: Some(Interval {
                begin_min: at_min,
                end_min: at_min + 1,
            }),
            title: "from elsewhere".into(),
        });
        let update = "update books set version = $2, book = $3 where owner = $1";
        let (version, bytes) = (book.version as i64, book.encode_to_vec());
        let written = self
            .client
            .client
            .execute(update, &[&owner, &version, &bytes])
            .await;
        assert_eq!(written.unwrap(), 1);
        book.version
    }
}

async fn lookup(router: &Router, owner: &str) -> LookupAnswer {
    let options = CallOptions::repeatable(PATIENCE);
    let found = router.call_with(owner.as_bytes(), options, async |channel, metadata| {
        let mut request = Request::new(LookupRequest {
            owner: owner.to_owned(),
            first: 0,
            count: 1,
        });
        *request.metadata_mut() = metadata;
        Ok::<_, Status>(client(channel).lookup(request).await?.into_inner())
    });
    found.await.unwrap()
}

async fn change(router: &Router, change: &ChangeRequest) -> u64 {
    let options = CallOptions::repeatable(PATIENCE);
    let owner = change.owner.as_bytes();
    let version = router.call_with(owner, options, async |channel, metadata| {
        let mut request = Request::new(change.clone());
        *request.metadata_mut() = metadata;
        Ok::<_, Status>(client(channel).change(request).await?.into_inner().version)
    });
    version.await.unwrap()
}

/// A server's page of metrics.
fn page(server: &Running) -> String {
    let mut stream = TcpStream::connect(server.metrics.as_ref().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

fn metric(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// How old what any of them keeps may be; none while one does not know.
fn staleness(servers: &[Running]) -> Option<Duration> {
    let ages = servers
        .iter()
        .map(|server| metric(&page(server), "trefoil_linklet_staleness_seconds"));
    let ages: Option<Vec<f64>> = ages.collect();
    let oldest = ages?.into_iter().fold(0.0, f64::max);
    Some(Duration::from_secs_f64(oldest))
}

/// Waits until everything from before has been told to all of them.
async fn told(servers: &[Running]) {
    let begin = Instant::now();
    loop {
        let age = begin.elapsed();
        if staleness(servers).is_some_and(|stale| stale + CLOCK_SLACK < age) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "it is not told");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a change is read; nothing older may be, once the servers say that
/// what they keep is younger than it.
async fn seen_within_the_bound(
    router: &Router,
    servers: &[Running],
    owner: &str,
    version: u64,
    acknowledged: Instant,
) {
    loop {
        let age = acknowledged.elapsed();
        let bound = staleness(servers);
        if lookup(router, owner).await.version >= version {
            return;
        }
        let is_promised = bound.is_some_and(|bound| bound + CLOCK_SLACK < age);
        assert!(
            !is_promised,
            "{owner}: replaced {age:?} before, with a bound of {bound:?}"
        );
        assert!(acknowledged.elapsed() < PATIENCE, "{owner} is never seen");
    }
}

/// What the samplers have found so often.
fn comparisons(page: &str, found: &str) -> Option<f64> {
    let name = "trefoil_sampler_comparisons_total";
    metric(
        page,
        &format!("{name}{{name=\"{CORPUS}\",found=\"{found}\"}}"),
    )
}

/// Waits until each server's sampler has found this.
async fn sampled(servers: &[Running], found: &str) {
    let begin = Instant::now();
    for server in servers {
        while comparisons(&page(server), found).is_none_or(|count| count < 1.0) {
            assert!(begin.elapsed() < PATIENCE, "{}", page(server));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let age = metric(&page(server), "trefoil_sampler_staleness_seconds");
        assert!(age.is_some(), "{}", page(server));
    }
}

async fn misses(servers: &[Running]) -> u64 {
    let mut misses = 0;
    for server in servers {
        let stats = connect(server).await.stats(StatsRequest {}).await;
        misses += stats.unwrap().into_inner().misses;
    }
    misses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_behind_its_back_are_seen_within_the_bound() {
    let stage = Stage::start().await;
    let mut relay = stage.relay("127.0.0.1:0");
    let follow = ["--relay", &relay.address, "--sample-every", "20ms"];
    let servers = [(); 3].map(|()| stage.server(&follow));
    let router = stage.router(&servers).await;
    told(&servers).await;
    let owners: Vec<String> = (0..24).map(|number| format!("user-{number}")).collect();
    for owner in &owners {
        change(&router, &whole(owner, 1)).await;
    }
    told(&servers).await;
    for owner in &owners {
        lookup(&router, owner).await;
    }

    // What the servers write comes back to them, and is not loaded for it.
    let before = misses(&servers).await;
    let rounds = 4;
    for round in 0..rounds {
        for owner in &owners {
            change(&router, &busy(owner, round, round + 1)).await;
        }
        told(&servers).await;
    }
    let loaded = misses(&servers).await - before;
    // One that is told before it is in memory is loaded.
    let changes = rounds as u64 * owners.len() as u64;
    assert!(2 * loaded < changes, "{loaded} loads of {changes} changes");

    let before = misses(&servers).await;
    for (number, owner) in owners.iter().enumerate() {
        let version = stage.behind_its_back(owner, 1_000 + number as i64).await;
        seen_within_the_bound(&router, &servers, owner, version, Instant::now()).await;
    }
    // It was in memory before, and was not looked for again and again.
    let loaded = misses(&servers).await - before;
    assert!(loaded >= owners.len() as u64, "{loaded} loads");

    // So says who compares.
    sampled(&servers, "same").await;
    for server in &servers {
        let stale = comparisons(&page(server), "stale");
        assert_eq!(stale, Some(0.0), "{}", page(server));
    }

    // While nobody tells, what is kept grows old, and says so.
    let _ = relay.child.kill();
    let _ = relay.child.wait();
    let version = stage.behind_its_back(&owners[0], 2_000).await;
    let acknowledged = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(staleness(&servers).is_some_and(|stale| stale + CLOCK_SLACK >= acknowledged.elapsed()));
    let _relay = stage.relay(&relay.address);
    seen_within_the_bound(&router, &servers, &owners[0], version, acknowledged).await;
}

/// Whoever changes rows and not their versions is found out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_change_without_their_versions_are_found() {
    let stage = Stage::start().await;
    let relay = stage.relay("127.0.0.1:0");
    let follow = ["--relay", &relay.address, "--sample-every", "20ms"];
    let servers = [stage.server(&follow)];
    let router = stage.router(&servers).await;
    told(&servers).await;
    change(&router, &whole("ada", 1)).await;
    told(&servers).await;
    lookup(&router, "ada").await;
    sampled(&servers, "same").await;
    let mut other = stage.stored("ada").await;
    other.contacts.clear();
    let (update, bytes) = ("update books set book = $1", other.encode_to_vec());
    let written = stage.client.client.execute(update, &[&bytes]).await;
    assert_eq!(written.unwrap(), 1);
    sampled(&servers, "stale").await;
}

/// Of changes at the same time each is made once: what was made of an older book
/// is refused, and what is in the database is not made again.
async fn each_is_made_once(stage: &Stage, server: &Running, owner: &str) {
    let mut books = connect(server).await;
    books.change(whole(owner, 1)).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..20_i64 {
        let mut books = books.clone();
        let event = busy(owner, number * 10, number * 10 + 5);
        tasks.spawn(async move {
            loop {
                match books.change(event.clone()).await {
                    Ok(_) => return,
                    Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let stored = stage.stored(owner).await;
    let mut begins: Vec<i64> = stored
        .events
        .iter()
        .map(|event| event.time.unwrap().begin_min)
        .collect();
    begins.sort_unstable();
    let expected: Vec<i64> = (0..20).map(|number| number * 10).collect();
    assert_eq!(begins, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_at_the_same_time_are_made_once() {
    let stage = Stage::start().await;
    let url = stage.postgres.address("postgres");
    let store = address_book(&["serve", "--mode", "store", "--postgres", &url]);
    each_is_made_once(&stage, &store, "ada").await;
    let relay = stage.relay("127.0.0.1:0");
    let linked = stage.server(&["--relay", &relay.address]);
    let servers = [linked];
    stage.router(&servers).await;
    each_is_made_once(&stage, &servers[0], "grace").await;
}

/// Also without a relay, where what is in memory stays old until it is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_behind_undoes_nothing() {
    let stage = Stage::start().await;
    let servers = [stage.server(&[])];
    stage.router(&servers).await;
    let mut books = connect(&servers[0]).await;
    books.change(busy("ada", 0, 1)).await.unwrap();
    stage.behind_its_back("ada", 10).await;
    books.change(busy("ada", 20, 21)).await.unwrap();
    let begins = |book: &AddressBook| -> Vec<i64> {
        let times = book.events.iter().map(|event| event.time.unwrap());
        times.map(|time| time.begin_min).collect()
    };
    assert_eq!(begins(&stage.stored("ada").await), [0, 10, 20]);
    // Nor does it bring back what was deleted.
    let delete = "delete from books where owner = 'ada'";
    stage.client.client.batch_execute(delete).await.unwrap();
    books.change(busy("ada", 30, 31)).await.unwrap();
    assert_eq!(begins(&stage.stored("ada").await), [30]);
}

/// Nobody's answer is there before all have been asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_asked_at_the_same_time() {
    let stage = Stage::start().await;
    let servers = [(); 3].map(|()| stage.server(&[]));
    stage.router(&servers).await;
    // Somebody whom each of them has.
    let mut owners = Vec::new();
    for server in &servers {
        let mut books = connect(server).await;
        let mut number = 0;
        loop {
            let owner = format!("user-{number}");
            let request = LookupRequest {
                owner: owner.clone(),
                ..LookupRequest::default()
            };
            if books.lookup(request).await.is_ok() {
                owners.push(owner);
                break;
            }
            number += 1;
        }
    }
    let database: Database = stage.postgres.address("postgres").parse().unwrap();
    let lock = database.connect().await.unwrap();
    let locked = "begin; lock table books in access exclusive mode";
    lock.client.batch_execute(locked).await.unwrap();
    let mut books = connect(&servers[0]).await;
    let asked = tokio::spawn(async move {
        let within = Some(Interval {
            begin_min: 0,
            end_min: 100,
        });
        books.find_busy(BusyRequest { owners, within }).await
    });
    let waiting = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and query like 'select book from books%'";
    let begin = Instant::now();
    loop {
        let row = stage.client.client.query_one(waiting, &[]).await.unwrap();
        if row.get::<_, i64>(0) == 3 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "they are not asked all at once");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    lock.client.batch_execute("commit").await.unwrap();
    let answer = asked.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.busy, []);
}
