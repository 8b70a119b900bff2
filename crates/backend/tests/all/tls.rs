//! Backends that reach each other over TCP with certificates, as on several hosts.

use crate::support::{CONFIG_ID, LIFE, request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use trefoil_backend::{ListenOptions, Listeners, Server, ServerOptions};
use trefoil_cell::{BackendConfig, CellConfig, ConfigStore as _, DirectoryStore, Mode, rpc_client};
use trefoil_layout::Version;
use trefoil_layout::op::{Action, Outcome};
use trefoil_tls::{CertFiles, CertUse, Role, Tls};

const ITEMS: usize = 300;

/// Certificates of one authority, each in a directory of its own.
struct Authority<'a> {
    home: &'a Path,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(home: &'a Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = home.display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        Authority {
            home,
            issuer: issuer.unwrap(),
        }
    }

    fn issue(&self, name: &str, role: Role) -> PathBuf {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let urn = role.urn().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(urn));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let dir = self.home.join(name);
        std::fs::create_dir(&dir).unwrap();
        for (file, text) in [
            ("ca.pem", self.issuer.pem()),
            ("cert.pem", certificate.pem()),
            ("key.pem", key.serialize_pem()),
        ] {
            let path = dir.join(file);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        dir
    }
}

fn tls(dir: &Path, usage: CertUse) -> Tls {
    Tls::read(&CertFiles::in_directory(dir), usage).unwrap()
}

fn bind(address: SocketAddr, tls: &Tls) -> Listeners {
    let listen = ListenOptions {
        tcp: Some(address),
        tls: Some(tls.clone()),
        ..ListenOptions::default()
    };
    Listeners::bind(&listen).unwrap()
}

#[test]
fn a_backend_recovers_from_the_others_over_tcp_by_its_certificate() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new(home.path());
    let certificates = ["0", "1", "2"].map(|name| {
        let dir = authority.issue(name, Role::Backend);
        tls(&dir, CertUse::Server)
    });
    let client = tls(&authority.issue("client", Role::Client), CertUse::Client);
    let mut listeners: Vec<_> = certificates
        .iter()
        .map(|tls| Some(bind("127.0.0.1:0".parse().unwrap(), tls)))
        .collect();
    let store = DirectoryStore::create(&home.path().join("cell")).unwrap();
    let backends = listeners.iter().flatten().zip(0..);
    let backends = backends.map(|(listeners, number)| BackendConfig {
        number,
        addresses: listeners.rpc_addresses(),
        fabric_socket: None,
        place: None,
    });
    let config = CellConfig {
        life: LIFE,
        config_id: CONFIG_ID,
        cell: "test".to_owned(),
        mode: Mode::R32,
        backends: backends.collect(),
        hash: Default::default(),
        value_len_max: 1 << 20,
        flush_floor: Version::ZERO,
        corpus: None,
        eviction: "lru".to_owned(),
    };
    store.compare_and_swap(None, &config).unwrap();
    let live = |number: usize, listeners| {
        let options = ServerOptions {
            locks: vec![store.lock_backend(number as u32).unwrap()],
            ..ServerOptions::new(Arc::new(store.clone()), vec![number as u32])
        };
        Server::start(options, listeners).unwrap()
    };
    let mut servers: Vec<_> = (0..3)
        .map(|number| Some(live(number, listeners[number].take().unwrap())))
        .collect();

    let runtime = Runtime::new().unwrap();
    let entered = runtime.enter();
    for number in 0..3_u32 {
        let address = &config.backends[number as usize].addresses[0];
        let client = rpc_client(address, Some(&client), Duration::from_secs(5));
        let mut client = client.unwrap();
        for item in 0..ITEMS {
            // All three at one version, as a client's SET would be.
            let key = format!("key {item}");
            let mut request = request(number, Action::Set, key.as_bytes(), b"value");
            request.version = Some(trefoil_rpc::encode_version(Version::new(
                1000,
                7,
                item as u32,
            )));
            let answer = runtime.block_on(client.mutate(request)).unwrap();
            let ack = trefoil_rpc::decode_ack(answer.get_ref()).unwrap();
            assert_eq!(ack.outcome, Outcome::Applied);
        }
    }
    drop(entered);

    let address = servers[1].take().unwrap().tcp_address().unwrap();
    let restarted = live(1, bind(address, &certificates[1]));
    let begin = Instant::now();
    let recovery = loop {
        let recovery = restarted.statistics().members[0].recovery.clone().unwrap();
        if recovery.shards_left == 0 {
            break recovery;
        }
        let waited = begin.elapsed();
        assert!(waited < Duration::from_secs(20), "{recovery:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(recovery.items as usize, ITEMS, "{recovery:?}");
    assert_eq!(recovery.shards_lost, 0);
    // Both others were asked over TLS: by the one that recovers, beside our client.
    for server in servers.iter().flatten() {
        let process = server.statistics().process.unwrap();
        let certificate = process.certificate.unwrap();
        assert!(certificate.handshakes >= 2, "{certificate:?}");
        assert_eq!(certificate.handshakes_failed, 0);
    }
}
