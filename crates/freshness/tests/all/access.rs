//! Who may subscribe to a relay with certificates.

use crate::support::{Fixture, Notes, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_channel::{Role, Security};
use trefoil_freshness::{HubOptions, RelayAccess, RelayServer, SubscribeOptions, Subscription};

/// Whose certificate is valid for a moment.
const ENDING: &str = "ending";
const VALID_FOR: Duration = Duration::from_secs(3);

fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A certificate of this authority.
fn issue(
    home: &Path,
    issuer: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    role: Role,
    corpus: &str,
) -> PathBuf {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    if name == ENDING {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now.unwrap() + VALID_FOR;
    }
    for urn in [role.urn(), trefoil_tls::corpus_urn(corpus)] {
        let urn = urn.try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(urn));
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let dir = home.join(name);
    std::fs::create_dir(&dir).unwrap();
    put(&dir.join("ca.pem"), &issuer.pem());
    put(&dir.join("cert.pem"), &certificate.pem());
    put(&dir.join("key.pem"), &key.serialize_pem());
    dir
}

#[tokio::test]
async fn only_who_is_of_the_corpus_is_told() {
    let home = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name, role, corpus| issue(home.path(), &issuer, name, role, corpus);
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let access = RelayAccess {
        security: Security::of_server(&issue("relay", Role::Backend, "*")).unwrap(),
        corpus: "mail".to_owned(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = HubOptions::default();
    let server = RelayServer::start_with(fixture.options(), hub, listener, access)
        .await
        .unwrap();
    let address = server.address().to_string();
    let subscribe = |security| {
        let options = SubscribeOptions {
            security,
            corpus: Some("mail".to_owned()),
            ..SubscribeOptions::new(&address)
        };
        let notes = Notes::default();
        (Subscription::start(options, notes.clone(), None), notes)
    };
    let caller = |name, role, corpus| Security::of_caller(&issue(name, role, corpus)).unwrap();
    let ended = caller(ENDING, Role::Client, "mail");
    tokio::time::sleep(VALID_FOR + Duration::from_secs(1)).await;
    for (security, why) in [
        (caller("news", Role::Backend, "news"), "is not for corpus"),
        (Security::Loopback, ""),
        (ended, "expired"),
    ] {
        let (subscription, notes) = subscribe(security);
        let trouble = || subscription.status().trouble.unwrap_or_default();
        until("it is refused", || !trouble().is_empty()).await;
        assert!(trouble().contains(why), "{}", trouble());
        assert_eq!(notes.told(), Vec::<String>::new());
    }
    let (_subscription, notes) = subscribe(caller("app", Role::Client, "mail"));
    until("it begins", || !notes.told().is_empty()).await;
    fixture.run("INSERT INTO item VALUES (1, 'a')").await;
    until("it is told", || {
        notes.told().contains(&"-item/1".to_owned())
    })
    .await;
    server.stop().await.unwrap();
}
