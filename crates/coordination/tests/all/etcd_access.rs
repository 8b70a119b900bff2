//! How assigners, and who looks for them, come into an etcd that asks for
//! certificates and passwords.

use crate::support::{PATIENCE, assigned_to, fast, server, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;
use trefoil_coordination::{
    AssignerClient, AssignerServer, EtcdAccess, NodeOptions, Security, Session, StoreAddress,
    TlsFiles,
};
use trefoil_ports::{EtcdProcess, EtcdTls};
use trefoil_sharder::Freeze;

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn put(path: PathBuf, text: &str) -> PathBuf {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The authority's certificate, one for 127.0.0.1, and the key of that.
    fn files(&self, home: &Path, name: &str) -> EtcdTls {
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let write = |kind: &str, text: &str| put(home.join(format!("{name}-{kind}.pem")), text);
        EtcdTls {
            authority: write("ca", &self.0.pem()),
            certificate: write("cert", &certificate.pem()),
            key: write("key", &key.serialize_pem()),
        }
    }
}

fn with_tls(files: &EtcdTls, has_identity: bool) -> EtcdAccess {
    let identity = (files.certificate.clone(), files.key.clone());
    EtcdAccess {
        tls: Some(TlsFiles {
            authority: files.authority.clone(),
            identity: has_identity.then_some(identity),
        }),
        ..EtcdAccess::default()
    }
}

async fn assigner(store: &StoreAddress, access: &EtcdAccess) -> AssignerServer {
    let options = NodeOptions {
        etcd: access.clone(),
        ..fast()
    };
    AssignerServer::start(any(), store, options).await.unwrap()
}

async fn find(store: &StoreAddress, access: &EtcdAccess) -> Result<AssignerClient, String> {
    let found = AssignerClient::of_store(store, access, Security::Loopback).await;
    found.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_shown_and_looked_at() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ours = authority.files(home.path(), "server");
    let client = authority.files(home.path(), "client");
    let etcd = EtcdProcess::start(home.path(), Some(ours)).unwrap();
    let store: StoreAddress = format!("etcd://{}/p", etcd.host()).parse().unwrap();
    let access = with_tls(&client, true);
    let leading = assigner(&store, &access).await;
    let one = Session::join(&leading.address().to_string(), "mail", server(1))
        .await
        .unwrap();
    assigned_to(one.view(), &[one.server_id()]).await;
    let found = find(&store, &access).await.unwrap().status().await;
    assert_eq!(found[0].0, leading.address().to_string());

    let stranger = Authority::new().files(home.path(), "stranger");
    let mut other_identity = with_tls(&client, true);
    let tls = other_identity.tls.as_mut().unwrap();
    tls.identity = Some((stranger.certificate.clone(), stranger.key.clone()));
    for (access, hint) in [
        (
            EtcdAccess::default(),
            "name its authority in TREFOIL_ETCD_CA",
        ),
        (with_tls(&client, false), "name one in TREFOIL_ETCD_CERT"),
        (with_tls(&stranger, true), "invalid peer certificate"),
        (
            other_identity,
            "does it take the certificate of TREFOIL_ETCD_CERT",
        ),
    ] {
        let error = find(&store, &access).await.expect_err(hint);
        assert!(error.contains(hint), "{hint}: {error}");
    }
}

/// An assigner whose certificate etcd does not take leads nothing; it does once a
/// renewed one stands there, without being started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_taken() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ours = authority.files(home.path(), "server");
    let etcd = EtcdProcess::start(home.path(), Some(ours)).unwrap();
    let store: StoreAddress = format!("etcd://{}/p", etcd.host()).parse().unwrap();
    let stranger = Authority::new().files(home.path(), "client");
    put(stranger.authority.clone(), &authority.0.pem());
    let access = with_tls(&stranger, true);
    let waiting = assigner(&store, &access).await;
    let error = find(&store, &access).await.unwrap_err();
    assert!(error.contains("TREFOIL_ETCD_CERT"), "{error}");
    let address = waiting.address().to_string();
    assert!(Session::join(&address, "mail", server(1)).await.is_err());

    authority.files(home.path(), "client");
    let since = Instant::now();
    let one = loop {
        match Session::join(&address, "mail", server(1)).await {
            Ok(one) => break one,
            Err(error) => assert!(since.elapsed() < PATIENCE, "in vain: {error}"),
        }
    };
    assigned_to(one.view(), &[one.server_id()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_are_let_in_by_their_passwords() {
    let home = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(home.path(), None).unwrap();
    for line in [
        "user add root:master",
        "user add assigners:open-sesame",
        "role add root",
        "user grant-role root root",
        "role add assigners",
        "role grant-permission assigners --prefix=true readwrite p/",
        "user grant-role assigners assigners",
        "auth enable",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        etcd.ctl(&words).unwrap();
    }
    etcd.be("root:master");
    let store: StoreAddress = format!("etcd://{}/p", etcd.host()).parse().unwrap();
    let access = |password: &str| {
        let file = put(home.path().join(password), password);
        EtcdAccess {
            user: Some(("assigners".to_owned(), file)),
            ..EtcdAccess::default()
        }
    };
    let right = access("open-sesame");
    let leading = assigner(&store, &right).await;
    let address = leading.address().to_string();
    let one = Session::join(&address, "mail", server(1)).await.unwrap();
    assigned_to(one.view(), &[one.server_id()]).await;
    // etcd forgets its tokens when it is started again. It is read and written all the same.
    etcd.kill();
    etcd.run().unwrap();
    let two = Session::join(&address, "mail", server(2)).await.unwrap();
    until(one.view(), "they hear of the second", |view| {
        view.servers.contains_key(&two.server_id())
    })
    .await;
    let steered = find(&store, &right).await.unwrap();
    let frozen = steered.set_freeze("mail", Freeze::OnlyDead).await;
    assert_eq!(frozen.unwrap(), ["mail"]);

    let wrong = find(&store, &access("open-barley")).await.unwrap_err();
    assert!(wrong.contains("authentication failed"), "{wrong}");
    assert!(!wrong.contains("open-barley"), "{wrong}");
    assert!(find(&store, &EtcdAccess::default()).await.is_err());
    assert!(find(&store, &right).await.is_ok());
}

/// Nothing is sent in the clear to another host unless that is said of etcd: what
/// is said of the assigner's own port does not count.
#[tokio::test]
async fn an_etcd_elsewhere_needs_tls_or_a_word() {
    let store: StoreAddress = "etcd://192.0.2.1:2379/p".parse().unwrap();
    let options = NodeOptions {
        security: Security::Plaintext,
        ..fast()
    };
    let error = AssignerServer::start(any(), &store, options).await;
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("TREFOIL_ETCD_PLAINTEXT"), "{error}");
    let error = find(&store, &EtcdAccess::default()).await.unwrap_err();
    assert!(error.contains("TREFOIL_ETCD_PLAINTEXT"), "{error}");
}
