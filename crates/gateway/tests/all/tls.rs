//! Doors with TLS, with certificates made for the test.

use crate::support;
use crate::support::{Client, options, port, start};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trefoil_gateway::server::{DoorAddress, Doors, Gateway, GatewayError, LoopObserver, TlsFiles};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::world::{Done, Observer};

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Authority { issuer }
    }

    fn issue(&self, name: &str) -> Identity {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }
}

fn write_files(dir: &Path, identity: &Identity, clients: Option<&Authority>) -> TlsFiles {
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    TlsFiles {
        certificate: file("cert.pem", &identity.certificate_pem),
        key: file("key.pem", &identity.key_pem),
        client_authorities: clients.map(|clients| file("ca.pem", &clients.issuer.pem())),
    }
}

fn connect(
    gateway: &Gateway,
    authority: &Authority,
    identity: Option<&Identity>,
) -> Client<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authority.roots());
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .unwrap(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(port(gateway)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    Client::new(StreamOwned::new(tls, stream))
}

#[test]
fn what_is_said_under_tls_is_the_same() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.item_len_max = support::VALUE_LEN_MAX;
    options.doors[0].tls = Some(write_files(dir.path(), &authority.issue("localhost"), None));
    // With TLS an address may be reachable.
    options.doors[0].address = "0.0.0.0:0".parse().unwrap();
    drop(Doors::open(&options).unwrap());
    options.doors[0].address = "127.0.0.1:0".parse().unwrap();
    let gateway = start(options);
    let mut client = connect(&gateway, &authority, None);
    for len in [0, 10, 16_384, 16_385, 1 << 20, support::VALUE_LEN_MAX] {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
        assert_eq!(client.set("k", &value), "ok");
        assert!(client.get("k").unwrap() == value, "{len}");
    }
    client.send("get nothing\n".repeat(5000));
    for _ in 0..5000 {
        assert_eq!(client.line(), "none");
    }
    // An answer larger than all buffers, to a reader that takes its time.
    client.send("fill 6000000\n");
    std::thread::sleep(Duration::from_millis(100));
    assert!(client.bytes(6_000_000).iter().all(|byte| *byte == b'x'));
    assert_eq!(client.ask("nonsense"), "error");
    assert_eq!(client.line(), "");
}

#[test]
fn clients_without_tls_or_a_trusted_certificate_stay_outside() {
    let authority = Authority::new();
    let others = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    let server = authority.issue("localhost");
    options.doors[0].tls = Some(write_files(dir.path(), &server, Some(&authority)));
    let gateway = start(options);

    let mut plain = support::connect(&gateway);
    plain.send("get k\n");
    let mut answer = Vec::new();
    let _ = plain.stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"none"), "{answer:?}");

    let stranger = others.issue("stranger");
    for identity in [None, Some(&stranger)] {
        let mut client = connect(&gateway, &authority, identity);
        let sent = client.stream.get_mut().write_all(b"get k\n");
        let mut answer = Vec::new();
        let read = client.stream.read_to_end(&mut answer);
        assert!(sent.is_err() || read.is_err(), "{answer:?}");
        assert!(answer.is_empty(), "{answer:?}");
    }
    let friend = authority.issue("friend");
    let mut client = connect(&gateway, &authority, Some(&friend));
    assert_eq!(client.ask("get k"), "none");
}

#[test]
fn mistakes_in_files_are_named() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let good = write_files(dir.path(), &authority.issue("localhost"), Some(&authority));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing\n").unwrap();
    let missing = dir.path().join("missing.pem");
    let other = dir.path().join("other.pem");
    std::fs::write(&other, authority.issue("other").key_pem).unwrap();
    let broken = [
        (
            TlsFiles {
                certificate: empty.clone(),
                ..good.clone()
            },
            &empty,
        ),
        (
            TlsFiles {
                certificate: missing.clone(),
                ..good.clone()
            },
            &missing,
        ),
        (
            TlsFiles {
                key: empty.clone(),
                ..good.clone()
            },
            &empty,
        ),
        (
            TlsFiles {
                client_authorities: Some(empty.clone()),
                ..good.clone()
            },
            &empty,
        ),
        // The key of another certificate.
        (
            TlsFiles {
                key: other,
                ..good.clone()
            },
            &good.certificate,
        ),
    ];
    for (files, named) in broken {
        let mut options = options();
        options.doors[0].tls = Some(files);
        let error = Doors::open(&options).unwrap_err();
        assert!(matches!(error, GatewayError::Tls(_)), "{error}");
        let name = named.display().to_string();
        assert!(error.to_string().contains(&name), "{error}");
    }
}

#[test]
fn certificates_are_replaced_while_connections_go_on() {
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.doors[0].tls = Some(write_files(dir.path(), &first.issue("localhost"), None));
    let gateway = start(options.clone());
    let mut old = connect(&gateway, &first, None);
    assert_eq!(old.set("k", b"value"), "ok");
    // A file that is half written changes nothing.
    std::fs::write(dir.path().join("cert.pem"), "-----BEGIN").unwrap();
    assert!(matches!(
        gateway.reload(&options),
        Err(GatewayError::Tls(_))
    ));
    assert_eq!(connect(&gateway, &first, None).ask("get none"), "none");
    write_files(dir.path(), &second.issue("localhost"), None);
    gateway.reload(&options).unwrap();
    let mut new = connect(&gateway, &second, None);
    assert_eq!(new.get("k").unwrap(), b"value");
    assert_eq!(old.get("k").unwrap(), b"value", "who is in stays in");
    // Whoever trusts the first authority alone does not believe it any more.
    let mut stranger = connect(&gateway, &first, None);
    assert!(stranger.stream.get_mut().write_all(b"get k\n").is_err());
}

/// Requests that are ready in one round, with and without TLS, and one of a client that
/// reads nothing: their answers are held, and leave by one call or one by one.
#[test]
fn answers_that_leave_together_reach_their_own_clients() {
    for io_uring in [true, false] {
        leave_together(io_uring);
    }
}

/// Counts answers that have left together.
struct Together(Arc<AtomicUsize>);

impl Observer for Together {
    fn done(&mut self, _done: &Done<'_>) {}
}

impl LoopObserver for Together {
    fn left_together(&mut self, answers: usize) {
        self.0.fetch_add(answers, Ordering::Relaxed);
    }
}

fn leave_together(io_uring: bool) {
    const ROUNDS: usize = 60;
    const IDLE_LEN: usize = 30_000;
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.io_uring = io_uring;
    options.doors.push(options.doors[0].clone());
    options.doors[0].tls = Some(write_files(dir.path(), &authority.issue("localhost"), None));
    let together = Arc::new(AtomicUsize::new(0));
    let doors = Doors::open(&options).unwrap();
    let gateway = Gateway::start_with(
        options,
        doors,
        |_| MemoryKeyspace::new(0),
        |_| Together(Arc::clone(&together)),
        support::LineSession::open,
    )
    .unwrap();
    let plain = || {
        let DoorAddress::Tcp(address) = gateway.addresses()[1].1 else {
            panic!("a TCP door was expected");
        };
        let stream = TcpStream::connect(address).unwrap();
        let patience = Duration::from_secs(20);
        stream.set_read_timeout(Some(patience)).unwrap();
        Client::new(stream)
    };
    let mut occupies = plain();
    let mut reads_nothing = plain();
    assert_eq!(reads_nothing.set("long", &[b'l'; IDLE_LEN]), "ok");
    let mut plains: Vec<_> = (0..20).map(|_| plain()).collect();
    let mut sealed: Vec<_> = (0..5)
        .map(|_| connect(&gateway, &authority, None))
        .collect();
    for (n, client) in plains.iter_mut().enumerate() {
        assert_eq!(
            client.set(&format!("plain{n}"), &vec![n as u8; 10 + n]),
            "ok"
        );
    }
    for (n, client) in sealed.iter_mut().enumerate() {
        assert_eq!(
            client.set(&format!("sealed{n}"), &vec![n as u8; 99 + n]),
            "ok"
        );
    }
    for round in 0..ROUNDS {
        // The others' requests come while this is made, so that all are ready at once.
        occupies.send("fill 2000000\n");
        reads_nothing.send("get long\n");
        for (n, client) in plains.iter_mut().enumerate() {
            client.send(format!("get plain{n}\n"));
            // Those of TLS clients come between them.
            if let Some(client) = sealed.get_mut(n / 4).filter(|_| n % 4 == 0) {
                client.send(format!("get sealed{}\n", n / 4));
            }
        }
        if round == ROUNDS / 2 {
            // What is sent to this one is an error by now.
            plains.pop();
        }
        occupies.bytes(2_000_000);
        for (n, client) in plains.iter_mut().enumerate() {
            assert_eq!(client.line(), (10 + n).to_string());
            assert_eq!(client.bytes(10 + n), vec![n as u8; 10 + n]);
        }
        for (n, client) in sealed.iter_mut().enumerate() {
            assert_eq!(client.line(), (99 + n).to_string());
            assert_eq!(client.bytes(99 + n), vec![n as u8; 99 + n]);
        }
    }
    let count = together.load(Ordering::Relaxed);
    match io_uring && trefoil_sockets::Batch::new().is_ok() {
        true => assert!(count > 10 * ROUNDS, "{count} answers have left together"),
        false => assert_eq!(count, 0, "one by one"),
    }
    for _ in 0..ROUNDS {
        assert_eq!(reads_nothing.line(), IDLE_LEN.to_string());
        assert_eq!(reads_nothing.bytes(IDLE_LEN), [b'l'; IDLE_LEN]);
    }
}
