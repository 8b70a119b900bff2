//! All connections of a relay, and of the follower of notifications, inside TLS.

use crate::support::{Notes, template, until};
use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::Ipv4Addr;
use std::time::Duration;
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{
    Connection, Database, DatabaseError, KeyMap, NotifyOptions, NotifyRelay, Relay, RelayOptions,
    Sampled, Sampler, SamplerOptions, Slot, notify_sql,
};

/// By TCP only inside TLS, and with the password.
const ACCESS: &str = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";

/// Of whoever came by TCP: how many, how many of them in the clear, and how many
/// stream the log.
const WHO: &str = "SELECT count(*), count(*) FILTER (WHERE NOT ssl), \
                   count(*) FILTER (WHERE backend_type = 'walsender') \
                   FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) \
                   WHERE client_addr IS NOT NULL";

/// Keeps nothing, so that every sample says what the database has.
struct Sample {
    database: Database,
    connection: Option<Connection>,
}

impl Sampled for Sample {
    type Error = DatabaseError;

    async fn pick(&mut self, _: u64) -> Option<Bytes> {
        Some(Bytes::from_static(b"item/1"))
    }

    fn kept(&mut self, _: &Bytes) -> Option<u64> {
        None
    }

    async fn stored(&mut self, _: &Bytes) -> Result<Option<u64>, DatabaseError> {
        let connection = match self.connection.take() {
            Some(connection) if !connection.client.is_closed() => connection,
            _ => self.database.connect().await?,
        };
        let row = connection
            .client
            .query_one("SELECT count(*) FROM item", &[]);
        let row = row.await.map_err(|error| self.database.error(&error))?;
        self.connection = Some(connection);
        Ok(Some(row.get::<_, i64>(0).unsigned_abs()))
    }

    fn staleness(&mut self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

#[tokio::test]
async fn a_relay_says_nothing_in_the_clear() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = server.signed_by(&key, &authority).unwrap();
    let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST).unwrap();
    let text = port.to_string();
    let server = Throwaway::prepare(&[
        ("wal_level", "logical"),
        ("listen_addresses", "127.0.0.1"),
        ("port", &text),
        ("ssl", "on"),
    ])
    .unwrap();
    server.put("pg_hba.conf", ACCESS).unwrap();
    server.put("server.crt", &certificate.pem()).unwrap();
    server.put("server.key", &key.serialize_pem()).unwrap();
    server.launch().unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let own: Database = server.address("postgres").parse().unwrap();
    let own = own.connect().await.unwrap();
    let map = KeyMap::new().table("item", template("item/{id}"));
    own.client
        .batch_execute(
            "ALTER ROLE postgres PASSWORD 'geheim';
             CREATE TABLE item (id bigint PRIMARY KEY, body text);
             CREATE PUBLICATION changes FOR TABLE item",
        )
        .await
        .unwrap();
    let triggers = notify_sql(&map, "trefoil").unwrap();
    own.client.batch_execute(&triggers).await.unwrap();

    let address = format!(
        "postgres://postgres:geheim@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={}",
        file.display()
    );
    let database: Database = address.parse().unwrap();
    let slot = Slot::Persistent("secret".into());
    let mut options = RelayOptions::new(database.clone(), "changes", slot, map.clone());
    options.heartbeat = Duration::from_millis(20);
    options.retry_max = Duration::from_millis(200);
    let (streamed, notified) = (Notes::default(), Notes::default());
    let relay = Relay::start(options, streamed.clone()).await.unwrap();
    let sample = Sample {
        database: database.clone(),
        connection: None,
    };
    let every = SamplerOptions {
        interval: Duration::from_millis(5),
        ..SamplerOptions::default()
    };
    let sampler = Sampler::start(every, sample);
    let listening = NotifyOptions::new(database, map);
    let listener = NotifyRelay::start(listening, notified.clone())
        .await
        .unwrap();

    let change = async |id: i64| {
        let sql = format!("INSERT INTO item VALUES ({id}, 'a')");
        own.client.batch_execute(&sql).await.unwrap();
        let key = format!("-item/{id}");
        for notes in [&streamed, &notified] {
            until("it is told", || notes.told().contains(&key)).await;
        }
    };
    let all_encrypted = async || {
        let row = own.client.query_one(WHO, &[]).await.unwrap();
        let counts: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
        // Of the relay: the stream, snapshots, heartbeats. Of the listener: two. The sampler's.
        assert_eq!(counts, [6, 0, 1]);
    };
    change(1).await;
    until("it is sampled", || sampler.samples().gone > 0).await;
    all_encrypted().await;

    // And when all of them were broken off.
    own.client
        .batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_addr IS NOT NULL",
        )
        .await
        .unwrap();
    until("both are back", || {
        relay.status().begun >= 2 && listener.status().begun >= 2
    })
    .await;
    change(2).await;
    let before = sampler.samples().gone;
    until("it is sampled", || sampler.samples().gone > before).await;
    all_encrypted().await;
    relay.stop().await.unwrap();
}
