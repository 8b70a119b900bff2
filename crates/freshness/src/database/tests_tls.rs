//! TLS with a real server, for statements and for replication.

use super::{Connection, Database, DatabaseError};
use crate::throwaway::Throwaway;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PASSWORD: &str = "geheim";

/// Everybody by TCP has to show the password, and be encrypted.
const ACCESS: &str = "local all all trust\n\
                      local replication all trust\n\
                      hostssl all all 127.0.0.1/32 scram-sha-256\n";

/// Everybody by TCP has to show a certificate for their name.
const BY_CERTIFICATE: &str = "local all all trust\nhostssl all all 127.0.0.1/32 cert\n";

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn issue(&self, name: &str, hosts: &[&str]) -> Issued {
        self.issue_with(name, hosts, |_| {})
    }

    fn issue_with(
        &self,
        name: &str,
        hosts: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = parameters(name, hosts);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Issued {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

fn parameters(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A server, and files for its clients.
struct Scene {
    server: Throwaway,
    port: u16,
    home: TempDir,
}

impl Scene {
    fn new(tls: Option<(&Issued, &Authority)>, access: &str) -> Self {
        let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST).unwrap();
        let text = port.to_string();
        let mut settings = vec![
            ("wal_level", "logical"),
            ("listen_addresses", "127.0.0.1"),
            ("port", &text),
        ];
        if tls.is_some() {
            settings.extend([("ssl", "on"), ("ssl_ca_file", "root.crt")]);
        }
        let server = Throwaway::prepare(&settings).expect("a server");
        server.put("pg_hba.conf", access).unwrap();
        if let Some((issued, clients)) = tls {
            serve(&server, issued);
            server.put("root.crt", &clients.0.pem()).unwrap();
        }
        server.launch().expect("it starts");
        let home = tempfile::tempdir().unwrap();
        Scene { server, port, home }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// By TCP, with the password.
    fn database(&self, words: &str) -> Database {
        let port = self.port;
        let text = format!(
            "host=127.0.0.1 port={port} user=postgres password={PASSWORD} dbname=postgres {words}"
        );
        text.parse().expect(words)
    }

    async fn operate(&self, sql: &str) {
        let own: Database = self.server.address("postgres").parse().unwrap();
        let own = own.connect().await.expect("by its socket");
        own.client.batch_execute(sql).await.expect(sql);
    }

    async fn give_password(&self) {
        let sql = format!("ALTER ROLE postgres PASSWORD '{PASSWORD}'");
        self.operate(&sql).await;
    }
}

fn serve(server: &Throwaway, issued: &Issued) {
    server.put("server.crt", &issued.certificate).unwrap();
    server.put("server.key", &issued.key).unwrap();
}

async fn is_encrypted(connection: &Connection) -> bool {
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = connection.client.query_one(query, &[]).await.unwrap();
    row.get(0)
}

/// For statements and for replication; whether both are encrypted.
async fn both(database: &Database) -> Result<bool, DatabaseError> {
    let statements = database.connect().await;
    let replicated = replicate(database).await;
    match (statements, replicated) {
        (Ok(statements), Ok(replicated)) => {
            assert_eq!(is_encrypted(&statements).await, replicated, "{database}");
            Ok(replicated)
        }
        (Err(error), Err(other)) => {
            let kinds = [&error, &other].map(std::mem::discriminant);
            assert_eq!(kinds[0], kinds[1], "{error}; {other}");
            for error in [&error, &other] {
                assert!(!error.to_string().contains(PASSWORD), "{error}");
            }
            Err(other)
        }
        (statements, replicated) => {
            let statements = statements.map(drop);
            panic!("statements {statements:?}, replication {replicated:?}")
        }
    }
}

async fn replicate(database: &Database) -> Result<bool, DatabaseError> {
    let config = database.replication("none", "none");
    let mut stream = database.replicate(config).await?;
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let rows = stream.simple_query(query).await;
    let rows = rows.map_err(|error| database.replication_error("none", &error))?;
    Ok(rows[0][0].as_deref() == Some(b"t"))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[tokio::test]
async fn each_mode_asks_for_what_it_says() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.issue("server", &["127.0.0.1", "db.example"]);
    let scene = Scene::new(Some((&good, &authority)), ACCESS);
    scene.give_password().await;
    let own = shown(&scene.file("own.pem", &authority.0.pem()));
    let others = shown(&scene.file("others.pem", &other.0.pem()));
    let both_files = format!("{}{}", other.0.pem(), authority.0.pem());
    let bundle = shown(&scene.file("bundle.pem", &both_files));
    let try_with = async |words: String| both(&scene.database(&words)).await;

    for words in [
        String::new(),
        "sslmode=prefer".into(),
        "sslmode=require".into(),
        format!("sslmode=require sslrootcert={own}"),
        format!("sslmode=verify-ca sslrootcert={own}"),
        format!("sslmode=verify-full sslrootcert={own}"),
        format!("sslmode=verify-full sslrootcert={bundle}"),
    ] {
        assert!(try_with(words.clone()).await.expect(&words), "{words}");
    }
    // The name counts, whatever address is dialled.
    let port = scene.port;
    let by_name = format!(
        "host=db.example hostaddr=127.0.0.1 port={port} user=postgres password={PASSWORD} \
         sslmode=verify-full sslrootcert={own}"
    );
    assert!(both(&by_name.parse().unwrap()).await.unwrap());
    for words in [
        format!("sslmode=require sslrootcert={others}"),
        format!("sslmode=verify-ca sslrootcert={others}"),
        format!("sslmode=verify-full sslrootcert={others}"),
    ] {
        let error = try_with(words.clone()).await.expect_err(&words);
        assert!(
            matches!(error, DatabaseError::TlsAuthority { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(&others), "{error}");
    }

    // In the clear only if it is said, and this server does not let that in.
    let error = try_with("sslmode=disable".into()).await.unwrap_err();
    assert!(error.to_string().contains("no encryption"), "{error}");

    // The server shows one for another name.
    serve(&scene.server, &authority.issue("server", &["db.example"]));
    scene.server.reload().unwrap();
    let strict = format!("sslmode=verify-full sslrootcert={own}");
    until_renewed(&scene, &strict, |error| {
        matches!(error, DatabaseError::TlsName { .. })
    })
    .await;
    let error = try_with(strict.clone()).await.unwrap_err();
    assert!(error.to_string().contains("db.example"), "{error}");
    let lax = format!("sslmode=verify-ca sslrootcert={own}");
    assert!(try_with(lax.clone()).await.unwrap());

    // One that has ended.
    let ended = authority.issue_with("server", &["127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    serve(&scene.server, &ended);
    scene.server.reload().unwrap();
    until_renewed(&scene, &lax, |error| {
        matches!(error, DatabaseError::TlsTime { .. })
    })
    .await;
    assert!(try_with("sslmode=require".into()).await.unwrap());

    // One that nobody but itself has signed, and that is named.
    let key = KeyPair::generate().unwrap();
    let made = parameters("server", &["127.0.0.1"])
        .self_signed(&key)
        .unwrap();
    let alone = Issued {
        certificate: made.pem(),
        key: key.serialize_pem(),
    };
    serve(&scene.server, &alone);
    scene.server.reload().unwrap();
    let unknown = |error: &DatabaseError| matches!(error, DatabaseError::TlsAuthority { .. });
    until_renewed(&scene, &lax, unknown).await;
    let alone = shown(&scene.file("alone.pem", &alone.certificate));
    let words = format!("sslmode=verify-full sslrootcert={alone}");
    assert!(try_with(words).await.unwrap());
}

/// Until the server shows what it was told to read, as an error tells.
async fn until_renewed(scene: &Scene, words: &str, renewed: impl Fn(&DatabaseError) -> bool) {
    let database = scene.database(words);
    for _ in 0..300 {
        match database.connect().await {
            Err(error) if renewed(&error) => return,
            _ => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    }
    panic!("the server goes on with its former certificate");
}

#[tokio::test]
async fn the_password_is_bound_to_the_connection() {
    let authority = Authority::new();
    let good = authority.issue("server", &["127.0.0.1"]);
    let scene = Scene::new(Some((&good, &authority)), ACCESS);
    scene.give_password().await;
    let bound = scene.database("sslmode=require channel_binding=require");
    assert!(is_encrypted(&bound.connect().await.unwrap()).await);
    // For replication that is not to be had, and nothing less is taken.
    let error = replicate(&bound).await.unwrap_err();
    assert!(error.to_string().contains("channel_binding"), "{error}");
    let plain = scene.database("sslmode=disable channel_binding=require");
    assert!(plain.connect().await.is_err());
}

#[tokio::test]
async fn a_server_without_tls_is_refused_unless_it_may_be() {
    let scene = Scene::new(
        None,
        "local all all trust\nhost all all 127.0.0.1/32 trust\n",
    );
    let authority = shown(&scene.file("own.pem", &Authority::new().0.pem()));
    for words in ["", "sslmode=prefer", "sslmode=disable"] {
        assert!(!both(&scene.database(words)).await.expect(words), "{words}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let words = format!("sslmode={mode} sslrootcert={authority}");
        let error = both(&scene.database(&words)).await.expect_err(mode);
        assert!(matches!(error, DatabaseError::TlsMissing { .. }), "{error}");
        assert!(error.to_string().contains("ssl = on"), "{error}");
    }
    let error = both(&scene.database("sslmode=require")).await.unwrap_err();
    assert!(error.to_string().contains("sslmode=require"), "{error}");
}

#[tokio::test]
async fn certificates_of_clients_and_files_that_change() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.issue("server", &["127.0.0.1"]);
    let scene = Scene::new(Some((&good, &authority)), BY_CERTIFICATE);
    let own = shown(&scene.file("own.pem", &authority.0.pem()));
    let (certificate, key) = ("client.crt", "client.key");
    let place = |issued: &Issued| {
        scene.file(certificate, &issued.certificate);
        scene.file(key, &issued.key)
    };
    let named = scene.home.path();
    let words = format!(
        "sslmode=verify-full sslrootcert={own} sslcert={} sslkey={}",
        shown(&named.join(certificate)),
        shown(&named.join(key))
    );
    let database = scene.database(&words);

    // None yet; then one of another authority, for somebody else, and the one.
    let error = both(&database).await.unwrap_err();
    assert!(
        matches!(
            error,
            DatabaseError::TlsFile {
                option: "sslcert",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(certificate), "{error}");
    place(&other.issue("postgres", &[]));
    let error = database.connect().await.map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::TlsRefused { .. }), "{error}");
    place(&authority.issue("somebody", &[]));
    let error = both(&database).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Login { .. }), "{error}");
    let path = place(&authority.issue("postgres", &[]));
    assert!(both(&database).await.unwrap());
    let error = both(&scene.database("sslmode=require")).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Login { .. }), "{error}");

    // A key that others may read, one of another certificate, and none at all.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = async |hint: &str| {
        let error = both(&database).await.unwrap_err();
        assert!(
            matches!(
                error,
                DatabaseError::TlsFile {
                    option: "sslkey",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.passes(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(hint) && text.contains(&shown(&path)),
            "{text}"
        );
    };
    refused("chmod 0600").await;
    scene.file(key, &authority.issue("postgres", &[]).key);
    refused("does not fit").await;
    scene.file(key, "nonsense");
    refused("").await;
    std::fs::remove_file(&path).unwrap();
    refused("cannot read").await;
    place(&authority.issue("postgres", &[]));
    assert!(both(&database).await.unwrap());
}
