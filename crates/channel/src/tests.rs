//! Connections with certificates: those that stand when a certificate ends or is
//! revoked, and those that do not get on with their handshake.

use crate::security::Security;
use crate::standing::{Believed, Shown};
use crate::{Right, Who, permit};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::transport::server::Connected as _;
use trefoil_tls::{Role, Tls, corpus_urn};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { home, issuer }
    }

    fn issue(&self, serial: u8) -> PathBuf {
        let name = format!("{serial:02x}");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        params.serial_number = Some(vec![serial].into());
        for urn in [corpus_urn("mail"), Role::Backend.urn()] {
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
}

fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn tls(security: &Security) -> Tls {
    match security {
        Security::Certificates(tls) => tls.clone(),
        other => panic!("{other:?}"),
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// What a read comes to that nobody answers.
async fn ends(mut stream: impl AsyncRead + Unpin) -> ErrorKind {
    let read = timeout(PATIENCE, stream.read_u8()).await;
    read.expect("it does not stand for ever")
        .unwrap_err()
        .kind()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_when_what_was_shown_on_it_is_revoked() {
    let authority = Authority::new();
    let (server_dir, client_dir) = (authority.issue(0x0a), authority.issue(0x0b));
    let server = Security::of_server(&server_dir).unwrap();
    let client = Security::of_server(&client_dir).unwrap();
    let (listener, address) = listener().await;
    let mut incoming = server.incoming(listener);
    let dial = || async {
        let stream = TcpStream::connect(address).await.unwrap();
        trefoil_tls::connect(&tls(&client), "127.0.0.1", stream).await
    };
    let accept = async {
        let mut stream = incoming.next().await.unwrap().unwrap();
        stream.write_all(b"!").await.unwrap();
        stream
    };
    let (dialled, accepted) = tokio::join!(dial(), accept);
    let _dialled = dialled.unwrap();
    let Who::Known(caller) = accepted.connect_info() else {
        panic!("nobody has shown anything");
    };
    let mut extensions = tonic::Extensions::new();
    extensions.insert(Who::Known(caller));
    let right = Right::Serve("mail");
    permit(&server, &extensions, right).unwrap();

    std::fs::write(server_dir.join("revoked"), "0b\n").unwrap();
    assert_eq!(ends(accepted).await, ErrorKind::PermissionDenied);
    let refused = permit(&server, &extensions, right).unwrap_err();
    assert!(refused.message().contains("revoked"), "{refused}");
    // Nor is there another one.
    assert!(timeout(PATIENCE, dial()).await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dials_hangs_up_on_a_server_that_is_revoked() {
    let authority = Authority::new();
    let (server_dir, client_dir) = (authority.issue(0x0a), authority.issue(0x0b));
    let server = Security::of_server(&server_dir).unwrap();
    let client = Security::of_server(&client_dir).unwrap();
    let (listener, address) = listener().await;
    let mut incoming = server.incoming(listener);
    tokio::spawn(async move {
        let mut standing = Vec::new();
        while let Some(Ok(mut stream)) = incoming.next().await {
            stream.write_all(b"!").await.unwrap();
            standing.push(stream);
        }
    });
    let address = address.to_string();
    let dial = || client.dial(&address, Some("mail"));
    let mut dialled = dial().await.unwrap();
    assert_eq!(dialled.read_u8().await.unwrap(), b'!');
    std::fs::write(client_dir.join("revoked"), "0A\n").unwrap();
    assert_eq!(ends(dialled).await, ErrorKind::PermissionDenied);
    let error = dial().await.unwrap_err().to_string();
    assert!(error.contains("revoked"), "{error}");
}

#[tokio::test]
async fn a_connection_ends_with_what_was_shown_on_it() {
    let authority = Authority::new();
    let dir = authority.issue(0x0a);
    let tls = tls(&Security::of_server(&dir).unwrap());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ends_in = |seconds: i64| Shown {
        name: "somebody".to_owned(),
        serial: "0b".to_owned(),
        ends_s: now_s.as_secs() as i64 + seconds,
    };
    let (stream, _other) = tokio::io::duplex(64);
    let believed = Believed::new(stream, tls.clone(), ends_in(2));
    assert_eq!(ends(believed).await, ErrorKind::PermissionDenied);
    // One that is valid for longer stands, and says what it is told.
    let (stream, mut other) = tokio::io::duplex(64);
    let mut believed = Believed::new(stream, tls, ends_in(1_000));
    let said = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        other.write_u8(7).await.unwrap();
    };
    let (read, ()) = tokio::join!(believed.read_u8(), said);
    assert_eq!(read.unwrap(), 7);
    believed.write_u8(8).await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), 8);
}

/// Those who say nothing have their five seconds each, and however many they are they
/// keep nobody waiting.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_close_no_port() {
    let authority = Authority::new();
    let server = Security::of_server(&authority.issue(0x0a)).unwrap();
    let client = Security::of_server(&authority.issue(0x0b)).unwrap();
    let (listener, address) = listener().await;
    let mut incoming = server.incoming(listener);
    let mut silent = Vec::new();
    // Some more than wait in the system's queue and have a place together.
    for _ in 0..400 {
        let connect = timeout(Duration::from_secs(10), TcpStream::connect(address));
        silent.push(connect.await.expect("the port is open").unwrap());
    }
    let dial = async {
        let stream = TcpStream::connect(address).await.unwrap();
        trefoil_tls::connect(&tls(&client), "127.0.0.1", stream).await
    };
    let accept = async {
        let mut stream = incoming.next().await.unwrap().unwrap();
        stream.write_all(b"!").await.unwrap();
        stream
    };
    let both = async { tokio::join!(dial, accept) };
    // One after another in groups of 128 they would have 20 seconds.
    let (dialled, _accepted) = timeout(Duration::from_secs(10), both).await.unwrap();
    dialled.unwrap();
}
