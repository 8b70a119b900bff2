//! Certificates between assigner, servers and callers; and who is kept out.

use crate::cluster::{CORPUS, log};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Status};
use trefoil_coordination::{
    AssignerClient, AssignerServer, CoordinationError, JoinOptions, NodeOptions, ServerInfo,
    Session, StoreAddress, Watcher,
};
use trefoil_linklet::{
    Drained, Linklet, Listener, PlainMarshal, Security, StartError, Wire, WireError,
};
use trefoil_sharder::{Capacity, Freeze, ServerId};
use trefoil_tls::{Certificate, Role, corpus_urn};

const SECOND: Duration = Duration::from_secs(1);

/// One authority, and what it has issued.
struct Authority {
    home: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = home.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { home, issuer }
    }

    fn issue(&self, name: &str, role: Role, corpora: &[&str]) -> PathBuf {
        self.issue_until(name, role, corpora, None)
    }

    /// One that is valid until so long after 1970.
    fn issue_until(
        &self,
        name: &str,
        role: Role,
        corpora: &[&str],
        until: Option<Duration>,
    ) -> PathBuf {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(until) = until {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until;
        }
        let corpora = corpora.iter().map(|corpus| corpus_urn(corpus));
        for urn in corpora.chain([role.urn()]) {
            let urn = urn.try_into().unwrap();
            params.subject_alt_names.push(SanType::URI(urn));
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let dir = self.home.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        put(&dir.join("ca.pem"), &self.issuer.pem());
        put(&dir.join("cert.pem"), &certificate.pem());
        put(&dir.join("key.pem"), &key.serialize_pem());
        dir
    }

    fn server(&self, name: &str, corpora: &[&str]) -> Security {
        Security::of_server(&self.issue(name, Role::Backend, corpora)).unwrap()
    }

    fn caller(&self, name: &str, role: Role, corpora: &[&str]) -> Security {
        Security::of_caller(&self.issue(name, role, corpora)).unwrap()
    }
}

fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) async fn assigner(security: Security) -> (AssignerServer, String) {
    log();
    let options = NodeOptions {
        lease: SECOND,
        step_every: Duration::from_millis(50),
        gather: Duration::from_millis(200),
        security,
        ..NodeOptions::default()
    };
    let server = AssignerServer::start(any(), &StoreAddress::Memory, options);
    let server = server.await.unwrap();
    let address = server.address().to_string();
    (server, address)
}

pub(crate) async fn linklet(
    assigner: &str,
    security: Security,
) -> Result<Linklet<String>, StartError> {
    let builder = Linklet::builder(CORPUS, PlainMarshal).security(security);
    builder.listen(assigner, any()).await
}

/// Whether somebody who shows this may become a server; why not.
pub(crate) async fn joins(
    assigner: &str,
    security: Security,
) -> Result<Session, CoordinationError> {
    let info = ServerInfo::new("127.0.0.1:9", Capacity { cpu: 1.0, bytes: 1 });
    let options = JoinOptions {
        timeout: SECOND,
        security,
    };
    Session::join_with(assigner, CORPUS, info, options).await
}

/// Waits until somebody serves the key.
async fn owner<'a>(linklets: &'a [Linklet<String>; 2], key: &[u8]) -> &'a Linklet<String> {
    loop {
        for linklet in linklets {
            let point = linklet.point(key);
            if linklet.owned().iter().any(|slice| slice.contains(point)) {
                return linklet;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_move_between_servers_that_show_certificates() {
    let authority = Authority::new();
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    let linklets = [
        linklet(&address, authority.server("one", &[CORPUS]))
            .await
            .unwrap(),
        linklet(&address, authority.server("two", &[CORPUS]))
            .await
            .unwrap(),
    ];
    let key = b"user 17";
    let first = owner(&linklets, key).await;
    first.insert(key, "here".to_owned()).await.unwrap();
    let leaves = first.server_id();
    let drained = tokio::time::timeout(30 * SECOND, first.drain()).await;
    assert_eq!(drained.unwrap(), Drained::Empty);
    let second = owner(&linklets, key).await;
    assert_ne!(second.server_id(), leaves);
    let read = second.read(key, String::clone).await.unwrap();
    assert_eq!(read.as_deref(), Some("here"));
    // Callers see the map with a certificate for the corpus.
    let caller = authority.caller("caller", Role::Client, &[CORPUS]);
    let watcher = Watcher::open_with(&address, CORPUS, caller).await.unwrap();
    let mut view = watcher.view();
    view.wait_for(|view| view.is_assigned()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_join_nothing_and_read_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    for (security, why) in [
        (Security::Loopback, ""),
        (authority.server("news", &["news"]), "is not for corpus"),
        (authority.server("none", &[]), "is not for corpus"),
        (
            authority.caller("client", Role::Client, &[CORPUS]),
            "this needs backend",
        ),
        (other.server("elsewhere", &["*"]), "another authority"),
    ] {
        let shown = format!("{security:?}");
        let error = joins(&address, security.clone()).await.unwrap_err();
        assert!(error.to_string().contains(why), "{shown}: {error}");
        let may_follow = why == "this needs backend";
        let followed = Watcher::open_with(&address, CORPUS, security);
        let followed = tokio::time::timeout(2 * SECOND, followed).await;
        assert_eq!(matches!(followed, Ok(Ok(_))), may_follow, "{shown}");
    }
    let session = joins(&address, authority.server("right", &[CORPUS])).await;
    session.unwrap();
    // Only who may steer it steers it.
    let client = |security| AssignerClient::with(address.parse().unwrap(), security);
    let server = client(authority.server("server", &["*"]));
    let error = server.set_freeze(CORPUS, Freeze::All).await.unwrap_err();
    assert!(error.to_string().contains("this needs admin"), "{error}");
    let admin = client(authority.caller("admin", Role::Admin, &[]));
    admin.set_freeze(CORPUS, Freeze::All).await.unwrap();
}

/// An assigner that is not one for the corpus is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_corpus_is_not_dialled() {
    let authority = Authority::new();
    let (_assigner, address) = assigner(authority.server("assigner", &["news"])).await;
    let error = joins(&address, authority.server("one", &[CORPUS])).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is not for corpus"), "{error}");
}

#[derive(Clone, PartialEq, prost::Message)]
struct Hello {
    #[prost(string, tag = "1")]
    corpus: String,
    #[prost(fixed64, tag = "2")]
    from: u64,
    #[prost(fixed64, tag = "3")]
    to: u64,
    #[prost(uint32, tag = "4")]
    wire_major: u32,
    #[prost(uint32, tag = "5")]
    wire_minor: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Parcel {
    #[prost(message, optional, tag = "1")]
    hello: Option<Hello>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    frames: Vec<Vec<u8>>,
}

fn parcel(from: u64, to: u64, frames: Vec<Vec<u8>>) -> Parcel {
    Parcel {
        hello: Some(Hello {
            corpus: CORPUS.to_owned(),
            from,
            to,
            // As servers did that did not say what they speak.
            wire_major: 0,
            wire_minor: 0,
        }),
        frames,
    }
}

/// Sends a frame to a linklet as another server would.
pub(crate) async fn send(
    address: &str,
    from: u64,
    to: u64,
    security: &Security,
) -> Result<(), Status> {
    let parcel = parcel(from, to, vec![b"no frame".to_vec()]);
    deliver(address, security, tokio_stream::iter([parcel])).await
}

async fn deliver(
    address: &str,
    security: &Security,
    parcels: impl Stream<Item = Parcel> + Send + 'static,
) -> Result<(), Status> {
    let channel = security.connect(address, Some(CORPUS), |endpoint| endpoint);
    let channel = channel.await.map_err(Status::unauthenticated)?;
    let mut client = tonic::client::Grpc::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Status::unauthenticated(error.to_string()))?;
    let path = "/trefoil.linklet.v1.Peer/Deliver".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Parcel, ()>::default();
    let parcels = tonic::Request::new(parcels);
    client
        .client_streaming(parcels, path, codec)
        .await
        .map(|_| ())
}

/// The linklet's id, and where it listens to other servers.
pub(crate) async fn peer_of(linklet: &Linklet<String>) -> (u64, String) {
    let id = linklet.server_id().unwrap();
    let mut view = linklet.view().unwrap();
    let view = view.wait_for(|view| view.servers.contains_key(&id)).await;
    (id.0, view.unwrap().servers[&id].address.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_are_taken_from_servers_of_the_corpus_only() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    let linklet = linklet(&address, authority.server("one", &[CORPUS]))
        .await
        .unwrap();
    let (id, peer) = peer_of(&linklet).await;
    let two = joins(&address, authority.server("other", &[CORPUS]));
    let two = two.await.unwrap().server_id().0;
    for (security, code) in [
        // It is heard, and says no frame.
        (authority.server("two", &[CORPUS]), Code::InvalidArgument),
        (authority.server("news", &["news"]), Code::PermissionDenied),
        (
            authority.caller("client", Role::Client, &[CORPUS]),
            Code::PermissionDenied,
        ),
        (
            authority.caller("admin", Role::Admin, &["*"]),
            Code::PermissionDenied,
        ),
        (other.server("elsewhere", &["*"]), Code::Unauthenticated),
    ] {
        let error = send(&peer, two, id, &security).await.unwrap_err();
        assert_eq!(error.code(), code, "{security:?}: {error}");
    }
    // In the clear there is no connection: TLS is spoken there, and nothing else.
    let plain = send(&peer, two, id, &Security::Loopback).await.unwrap_err();
    assert_ne!(plain.code(), Code::InvalidArgument, "{plain}");
}

/// What it sends would be in memory before anybody has asked who it is.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_serve_nothing_here_is_refused_before_it_has_said_anything() {
    let authority = Authority::new();
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    let linklet = linklet(&address, authority.server("one", &[CORPUS]))
        .await
        .unwrap();
    let (_, peer) = peer_of(&linklet).await;
    for security in [
        authority.server("news", &["news"]),
        authority.caller("client", Role::Client, &[CORPUS]),
    ] {
        let silent = deliver(&peer, &security, tokio_stream::pending());
        // Half of what somebody may take who may serve.
        let refused = tokio::time::timeout(5 * SECOND, silent).await.unwrap();
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    let silent = authority.server("two", &[CORPUS]);
    let silent = deliver(&peer, &silent, tokio_stream::pending());
    let error = tokio::time::timeout(30 * SECOND, silent).await.unwrap();
    assert_eq!(error.unwrap_err().code(), Code::DeadlineExceeded);
}

/// Calls something that nobody serves, as a router calls an application at its server's
/// port: who is heard is told that there is no such thing.
async fn call(address: &str, security: &Security) -> Status {
    let channel = match security
        .connect(address, Some(CORPUS), |endpoint| endpoint)
        .await
    {
        Ok(channel) => channel,
        Err(error) => return Status::unauthenticated(error),
    };
    let mut client = tonic::client::Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return Status::unauthenticated(error.to_string());
    }
    let path = "/application.v1.Application/Call".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let answer = client.unary(tonic::Request::new(()), path, codec).await;
    answer.unwrap_err()
}

/// Every door, for those who have no certificate, and those whose certificate has ended.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_that_is_valid_no_door_opens() {
    let authority = Authority::new();
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    let linklet = linklet(&address, authority.server("one", &[CORPUS]))
        .await
        .unwrap();
    let (id, peer) = peer_of(&linklet).await;
    let status = async |security: Security| {
        let client = AssignerClient::with(address.parse().unwrap(), security);
        client.status().await.pop().unwrap().1
    };
    let freeze = async |security: Security| {
        let client = AssignerClient::with(address.parse().unwrap(), security);
        client.set_freeze(CORPUS, Freeze::All).await
    };
    let begin = async |security: Security| {
        let client = AssignerClient::with(address.parse().unwrap(), security);
        client.begin_incarnation(CORPUS).await
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let until = Some(now.unwrap() + 4 * SECOND);
    let issue = |name, role| authority.issue_until(name, role, &["*"], until);
    let server = Security::of_server(&issue("server", Role::Backend)).unwrap();
    let client = Security::of_caller(&issue("client", Role::Client)).unwrap();
    let admin = Security::of_caller(&issue("admin", Role::Admin)).unwrap();
    // While they are valid they open what they are for.
    let two = joins(&address, server.clone()).await.unwrap();
    let two = two.server_id().0;
    let heard = send(&peer, two, id, &server).await.unwrap_err();
    assert_eq!(heard.code(), Code::InvalidArgument, "{heard}");
    let heard = call(&peer, &client).await;
    assert_eq!(heard.code(), Code::Unimplemented, "{heard}");
    status(admin.clone()).await.unwrap();
    freeze(admin.clone()).await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    for security in [Security::Loopback, server, client, admin] {
        let shown = format!("{security:?}");
        assert!(joins(&address, security.clone()).await.is_err(), "{shown}");
        let followed = Watcher::open_with(&address, CORPUS, security.clone());
        let followed = tokio::time::timeout(2 * SECOND, followed).await;
        assert!(!matches!(followed, Ok(Ok(_))), "{shown}");
        let sent = send(&peer, two, id, &security).await.unwrap_err();
        assert_ne!(sent.code(), Code::InvalidArgument, "{shown}: {sent}");
        let called = call(&peer, &security).await;
        assert_ne!(called.code(), Code::Unimplemented, "{shown}: {called}");
        assert!(status(security.clone()).await.is_err(), "{shown}");
        assert!(freeze(security.clone()).await.is_err(), "{shown}");
        assert!(begin(security).await.is_err(), "{shown}");
    }
    // Those of another corpus steer nothing.
    let news = authority.server("news", &["news"]);
    assert!(freeze(news.clone()).await.is_err());
    assert!(begin(news).await.is_err());
}

/// Servers say what they speak with the first parcel. Of a release that cannot be
/// understood nothing is taken, and both sides are told why; a newer one of the same first
/// number, and one that says nothing, are heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_release_is_told_so() {
    let (_assigner, address) = assigner(Security::Loopback).await;
    let heard = Arc::new(NotUnderstood::default());
    let listener = Arc::clone(&heard) as Arc<dyn Listener>;
    let builder = Linklet::builder(CORPUS, PlainMarshal).listener(listener);
    let linklet: Linklet<String> = builder.listen(address.as_str(), any()).await.unwrap();
    let (id, peer) = peer_of(&linklet).await;
    let session = joins(&address, Security::Loopback).await.unwrap();
    let other = session.server_id();
    for (wire, code) in [
        ((0, 0), Code::InvalidArgument),
        ((2, 0), Code::InvalidArgument),
        ((2, 99), Code::InvalidArgument),
        ((1, 0), Code::FailedPrecondition),
        ((3, 4), Code::FailedPrecondition),
        ((u32::MAX, 0), Code::FailedPrecondition),
    ] {
        let mut parcel = parcel(other.0, id, vec![b"no frame".to_vec()]);
        let hello = parcel.hello.as_mut().unwrap();
        (hello.wire_major, hello.wire_minor) = wire;
        let sent = deliver(&peer, &Security::Loopback, tokio_stream::iter([parcel]));
        let error = sent.await.unwrap_err();
        assert_eq!(error.code(), code, "{wire:?}: {error}");
        if code == Code::FailedPrecondition {
            assert!(
                error.message().contains("this release speaks 2.2"),
                "{error}"
            );
        }
    }
    // Its listeners hear of it once.
    let told = || heard.0.lock().unwrap().clone();
    for _ in 0..100 {
        if !told().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let unknown = Wire { major: 1, minor: 0 };
    assert_eq!(told(), [(other, WireError(unknown))]);
}

/// Whoever opens a stream says who it is: a member, and not the server that it is for. One
/// that has just joined is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn frames_are_taken_from_members_only() {
    let (_assigner, address) = assigner(Security::Loopback).await;
    let linklet = linklet(&address, Security::Loopback).await.unwrap();
    let (id, peer) = peer_of(&linklet).await;
    let session = joins(&address, Security::Loopback).await.unwrap();
    let member = session.server_id().0;
    for (from, code, why) in [
        (member, Code::InvalidArgument, "no frame"),
        (id, Code::InvalidArgument, "is this server itself"),
        (1_000_000, Code::PermissionDenied, "is no member"),
    ] {
        let sent = send(&peer, from, id, &Security::Loopback).await;
        let error = sent.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
    assert_eq!(linklet.stats().streams_refused, 2);
    // It is a member no more.
    session.leave().await.unwrap();
    let mut view = linklet.view().unwrap();
    let left = view.wait_for(|view| !view.servers.contains_key(&ServerId(member)));
    drop(left.await.unwrap());
    let sent = send(&peer, member, id, &Security::Loopback).await;
    assert_eq!(sent.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(linklet.stats().streams_refused, 3);
}

#[derive(Default)]
struct NotUnderstood(Mutex<Vec<(ServerId, WireError)>>);

impl Listener for NotUnderstood {
    fn not_understood(&self, peer: ServerId, error: WireError) {
        self.0.lock().unwrap().push((peer, error));
    }
}

/// A stream that stands is judged by what its certificate is worth by now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_revoked_sends_nothing_more() {
    let authority = Authority::new();
    let (_assigner, address) = assigner(authority.server("assigner", &["*"])).await;
    let one = authority.issue("one", Role::Backend, &[CORPUS]);
    let linklet = linklet(&address, Security::of_server(&one).unwrap());
    let linklet = linklet.await.unwrap();
    let two = authority.issue("two", Role::Backend, &[CORPUS]);
    let shown = trefoil_tls::read_certificates(&two.join("cert.pem")).unwrap();
    let serial = Certificate::parse(&shown[0]).unwrap().serial;
    let two = Security::of_server(&two).unwrap();
    let (id, peer) = peer_of(&linklet).await;
    let session = joins(&address, two.clone()).await.unwrap();
    let other = session.server_id().0;
    for revokes in [false, true] {
        let (one, serial) = (one.clone(), serial.clone());
        let begins = tokio_stream::iter([parcel(other, id, Vec::new())]);
        let goes_on = tokio_stream::iter([id]).then(move |id| {
            let (one, serial) = (one.clone(), serial.clone());
            async move {
                tokio::time::sleep(SECOND / 2).await;
                if revokes {
                    std::fs::write(one.join("revoked"), serial).unwrap();
                    tokio::time::sleep(SECOND / 10).await;
                }
                parcel(other, id, vec![b"no frame".to_vec()])
            }
        });
        let error = deliver(&peer, &two, begins.chain(goes_on)).await;
        let code = error.unwrap_err().code();
        // What is heard is found to be no frame.
        assert_eq!(code == Code::InvalidArgument, !revokes, "{code}");
    }
}

#[tokio::test]
async fn off_the_host_nothing_is_plain_unless_it_was_said() {
    let elsewhere = "192.0.2.1:7421";
    let error = joins(elsewhere, Security::Loopback).await.unwrap_err();
    assert!(error.to_string().contains("in the clear"), "{error}");
    let error = Watcher::open(elsewhere, CORPUS).await.unwrap_err();
    assert!(error.to_string().contains("in the clear"), "{error}");
    let builder = Linklet::builder(CORPUS, PlainMarshal);
    let listened: Result<Linklet<String>, _> = builder
        .listen("127.0.0.1:1", "0.0.0.0:0".parse().unwrap())
        .await;
    assert!(matches!(listened, Err(StartError::Exposed(_))));
    // Nor are others told to dial what they may not.
    let builder = Linklet::builder(CORPUS, PlainMarshal);
    let joined: Result<Linklet<String>, _> = builder.join("127.0.0.1:1", "10.0.0.7:7400").await;
    let error = joined.unwrap_err().to_string();
    assert!(error.contains("10.0.0.7:7400 is not a loopback"), "{error}");
    // Nor of an address that is everybody's own, whatever was said.
    let (_assigner, near) = assigner(Security::Loopback).await;
    let build = || Linklet::<String>::builder(CORPUS, PlainMarshal).insecure(true);
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let listened = build().listen(near.as_str(), everywhere).await;
    assert!(matches!(listened, Err(StartError::Unspecified { .. })));
    let joined = build().join(near.as_str(), "[::]:7400").await;
    assert!(matches!(joined, Err(StartError::Unspecified { .. })));
    let listened = build().advertise("127.0.0.1:0");
    let listened = listened.listen(near.as_str(), everywhere).await.unwrap();
    let (_, advertised) = peer_of(&listened).await;
    let advertised: SocketAddr = advertised.parse().unwrap();
    assert!(advertised.ip().is_loopback() && advertised.port() > 0);
    let options = NodeOptions::default();
    let listened =
        AssignerServer::start("0.0.0.0:0".parse().unwrap(), &StoreAddress::Memory, options);
    let error = listened.await.unwrap_err().to_string();
    assert!(error.contains("in the clear"), "{error}");
}

/// The word for the assigner's link is none for the links to the other servers.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_assigner_is_spoken_to_with_is_not_for_other_servers() {
    for (own, is_dialled) in [(Security::Plaintext, true), (Security::Loopback, false)] {
        let (_assigner, address) = assigner(Security::Plaintext).await;
        let port = tokio::net::TcpListener::bind(any()).await.unwrap();
        // It is reached there, and is no loopback address.
        let elsewhere = format!("0.0.0.0:{}", port.local_addr().unwrap().port());
        let info = ServerInfo::new(elsewhere, Capacity { cpu: 1.0, bytes: 1 });
        let options = JoinOptions {
            security: Security::Plaintext,
            ..JoinOptions::default()
        };
        let other = Session::join_with(&address, CORPUS, info, options).await;
        let _other = other.unwrap();
        let linklet = Linklet::builder(CORPUS, PlainMarshal)
            .replication(trefoil_linklet::Replication::Eventual)
            .security(own)
            .assigner_security(Security::Plaintext)
            .listen(address, any());
        let linklet: Linklet<String> = linklet.await.unwrap();
        let mut view = linklet.view().unwrap();
        view.wait_for(|view| view.servers.len() == 2 && view.is_assigned())
            .await
            .unwrap();
        let writes = async {
            for key in 0..u64::MAX {
                let key = key.to_be_bytes();
                let _ = linklet.insert(&key, "value".to_owned()).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let dialled = tokio::select! {
            _ = port.accept() => true,
            () = writes => false,
            () = tokio::time::sleep(2 * SECOND) => false,
        };
        assert_eq!(dialled, is_dialled);
    }
}
