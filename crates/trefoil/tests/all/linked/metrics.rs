//! What is served, what the documentation lists, and what the dashboard and the
//! alerts ask for, are the same.

use super::fleet::{PATIENCE, Running, assigner, http, sessions, until};
use crate::dashboards::{
    Series, alert_expressions, complain, dashboard_expressions, names, scrape_at, series_of,
};
use crate::support::{PROGRAM, repository};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use trefoil_coordination::Watcher;
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{
    Database, KeyMap, Sampled, Sampler, SamplerOptions, SubscribeOptions, Subscription, TableMap,
    notify_sql,
};
use trefoil_linklet::endpoint::{Endpoint, MetricInfo, Reach};
use trefoil_linklet::{Linklet, PlainMarshal};
use trefoil_router::Router;

/// Names in the first column of tables.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("docs/linked-watching.md")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `trefoil_"));
    let names = rows.map(|row| {
        let (name, _) = row.split_once('`').expect("the name ends");
        format!("trefoil_{name}")
    });
    names.collect()
}

fn declared() -> BTreeSet<String> {
    let lists: [&[MetricInfo]; 5] = [
        &trefoil_coordination::METRICS,
        &trefoil_freshness::METRICS,
        &trefoil_freshness::SAMPLER_METRICS,
        &trefoil_linklet::METRICS,
        &trefoil_router::METRICS,
    ];
    let all = lists.iter().flat_map(|list| list.iter());
    all.map(MetricInfo::sample_name).collect()
}

struct Origin {
    server: Throwaway,
}

impl Origin {
    async fn start() -> Self {
        let server = Throwaway::start().expect("a database");
        let database: Database = server.address("postgres").parse().unwrap();
        let connection = database.connect().await.unwrap();
        let sql = "CREATE TABLE item (id bigint PRIMARY KEY, body text);
                   CREATE PUBLICATION changes FOR TABLE item";
        connection.client.batch_execute(sql).await.unwrap();
        Origin { server }
    }

    async fn run(&self, sql: &str) {
        let database: Database = self.server.address("postgres").parse().unwrap();
        let connection = database.connect().await.unwrap();
        connection.client.batch_execute(sql).await.unwrap();
    }
}

/// A relay of the same database by its triggers.
async fn notified(database: &Origin) -> Running {
    let template = TableMap::template("item/{id}").unwrap();
    let map = KeyMap::new().table("item", template);
    database.run(&notify_sql(&map, "items").unwrap()).await;
    let address = database.server.address("postgres");
    let mut relay = vec!["relay", "--postgres", &address, "--listen", "127.0.0.1:0"];
    relay.extend(["--notify", "items", "--map", "item=item/{id}"]);
    relay.extend(["--metrics", "127.0.0.1:0"]);
    Running::start(PROGRAM, &relay)
}

/// Samples how old what a linklet keeps may be, and compares nothing.
struct Ages(Linklet<String>);

impl Sampled for Ages {
    type Error = Infallible;

    async fn pick(&mut self, _: u64) -> Option<Bytes> {
        None
    }

    fn kept(&mut self, _: &Bytes) -> Option<u64> {
        None
    }

    async fn stored(&mut self, _: &Bytes) -> Result<Option<u64>, Infallible> {
        Ok(None)
    }

    fn staleness(&mut self) -> Option<Duration> {
        self.0.staleness()
    }
}

/// Everything that runs, scraped.
async fn everything() -> Series {
    let begin = Instant::now();
    let database = Origin::start().await;
    let own = [
        "--publication",
        "changes",
        "--temporary",
        "--map",
        "item=item/{id}",
    ];
    let address = database.server.address("postgres");
    let mut relay = vec!["relay", "--postgres", &address, "--listen", "127.0.0.1:0"];
    relay.extend(["--metrics", "127.0.0.1:0"]);
    relay.extend(own);
    let relay = Running::start(PROGRAM, &relay);
    let listener = notified(&database).await;
    let assigner = assigner(&["--corpus", "sessions:1..2", "--corpus", "items"]);
    let at = assigner.at("address").to_string();
    let (_first, first) = sessions(&at, &[]);
    let (_second, _) = sessions(&at, &[]);
    // Not served: somebody asks in vain.
    assert!(Watcher::open(&at, "nothing").await.is_err());

    // A linklet that follows the database, and a caller's router beside it.
    let items: Linklet<String> = Linklet::builder("items", PlainMarshal)
        .loader(|_: Vec<u8>| async { Ok(Some(String::new().into())) })
        .listen(at.as_str(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let url = format!("http://{}", relay.at("listen"));
    let _fresh = Subscription::start(SubscribeOptions::new(&url), items.sink(), None);
    items.settled().await;
    let sampler = Sampler::start(SamplerOptions::default(), Ages(items.clone()));
    let parts = vec![items.process(), sampler.process("items")];
    let watched = Endpoint::listen("127.0.0.1:0".parse().unwrap(), Reach::Loopback, parts).unwrap();
    let router = Router::new(Watcher::open(&at, "items").await.unwrap());
    // Until it has heard whose the slice is.
    while let Err(error) = router.call(b"a", async |_, _| Ok(())).await {
        assert!(begin.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    database.run("INSERT INTO item VALUES (1, 'a')").await;

    let page = |at| move || http(at, "GET /metrics").1;
    let has = |text: &'static str| move |page: &String| page.contains(text);
    let (relay, assigner) = (relay.at("metrics"), assigner.at("metrics"));
    let listener_at = listener.at("metrics");
    let told = tokio::task::spawn_blocking(move || {
        // What comes with the first heartbeat, the first report, the first round.
        until(page(relay), has("trefoil_relay_delay_seconds"));
        until(
            page(relay),
            has("trefoil_relay_rows_total{mapped=\"yes\"} 1"),
        );
        until(
            page(listener_at),
            has("trefoil_relay_notifications_total{} 1"),
        );
        until(
            page(watched.address()),
            has("trefoil_linklet_staleness_seconds"),
        );
        until(
            page(watched.address()),
            has("trefoil_sampler_staleness_seconds"),
        );
        let loads =
            |page: &String| page.matches("trefoil_assigner_server_load_ratio{").count() == 3;
        until(page(assigner), loads);
        let used = |page: &String| page.matches("trefoil_assigner_server_cpu_cores{").count() == 3;
        until(page(assigner), used);
        [relay, listener_at, assigner, first, watched.address()].map(scrape_at)
    });
    let mut all = series_of(&router.metrics());
    for series in told.await.unwrap() {
        for (name, labels) in series {
            let known = all.entry(name).or_default();
            for (label, values) in labels {
                known.entry(label).or_default().extend(values);
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn served_documented_and_shown() {
    let series = everything().await;
    let served: BTreeSet<String> = series.keys().cloned().collect();
    let (documented, declared) = (documented(), declared());
    let missing = |a: &BTreeSet<String>, b: &BTreeSet<String>| -> Vec<String> {
        a.difference(b).cloned().collect()
    };
    assert_eq!(
        missing(&served, &documented),
        [""; 0],
        "not in docs/linked-watching.md"
    );
    assert_eq!(
        missing(&documented, &served),
        [""; 0],
        "documented, and not served"
    );
    assert_eq!(
        missing(&declared, &served),
        [""; 0],
        "declared, and not served"
    );
    assert_eq!(
        missing(&served, &declared),
        [""; 0],
        "served, and not declared"
    );

    let dashboard = dashboard_expressions("linked.json");
    let alerts = alert_expressions("linked-alerts.yml");
    assert!(dashboard.len() > 30 && alerts.len() >= 10);
    let both = dashboard.iter().chain(&alerts);
    let complaints: Vec<String> = both.flat_map(|e| complain(e, &series)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let shown: BTreeSet<String> = dashboard.iter().flat_map(|e| names(e)).collect();
    assert_eq!(missing(&served, &shown), [""; 0], "no panel shows them");
}

#[test]
fn off_loopback_metrics_are_allowed_by_name() {
    let refused = |more: &[&str]| {
        let own = ["assigner", "--listen", "127.0.0.1:0", "--metrics"];
        super::fleet::trefoil(&[&own[..], more].concat())
    };
    let output = refused(&["0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("--plaintext metrics"), "{error}");
    assert_eq!(refused(&["nonsense"]).status.code(), Some(2));
    let own = [
        "assigner",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "0.0.0.0:0",
    ];
    let allowed = Running::start(PROGRAM, &[&own[..], &["--plaintext", "metrics"]].concat());
    let at = allowed.at("metrics");
    let here = std::net::SocketAddr::from(([127, 0, 0, 1], at.port()));
    assert_eq!(http(here, "GET /readyz").0, 200);
}
