//! Files that change while a process runs.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_tls::{CertError, CertFiles, CertUse, FileError, LOOK_PERIOD, Role, Tls};

struct Part {
    home: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Part {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = home.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        let part = Part {
            home,
            issuer: issuer.unwrap(),
        };
        part.put("ca.pem", &part.issuer.pem());
        part
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.home.path().join(file);
        std::fs::write(&path, text).unwrap();
        mode(&path, 0o600);
    }

    /// A certificate of this name and its key.
    fn make(&self, name: &str, role: Role) -> [String; 2] {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let urn = role.urn().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(urn));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        [certificate.pem(), key.serialize_pem()]
    }

    fn issue(&self, name: &str, role: Role) {
        let [certificate, key] = self.make(name, role);
        self.put("key.pem", &key);
        self.put("cert.pem", &certificate);
    }

    fn files(&self) -> CertFiles {
        CertFiles::in_directory(self.home.path())
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn name(tls: &Tls) -> String {
    tls.identity().certificate.name.clone()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LOOK_PERIOD * 8, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_changes_is_taken_if_it_can_be_used() {
    let part = Part::new();
    part.issue("first", Role::Backend);
    let tls = Tls::read(&part.files(), CertUse::Server).unwrap();
    assert_eq!(name(&tls), "first");
    part.issue("second", Role::Backend);
    // At most once in a period, unless somebody asks for it.
    assert_eq!(name(&tls), "first");
    until("the second", || name(&tls) == "second");
    part.issue("third", Role::Backend);
    tls.read_again().unwrap();
    assert_eq!(name(&tls), "third");

    // A key is there before its certificate: nobody complains at once.
    let [certificate, key] = part.make("fourth", Role::Backend);
    part.put("key.pem", &key);
    std::thread::sleep(LOOK_PERIOD);
    tls.look();
    assert!(!tls.status().is_refused);
    part.put("cert.pem", &certificate);
    until("the fourth", || name(&tls) == "fourth");
    assert!(!tls.status().is_refused);

    // What stays wrong is complained of, and what was good stays in use.
    part.issue("fifth", Role::Client);
    until("a wrong role is refused", || tls.status().is_refused);
    assert_eq!(name(&tls), "fourth");
    let error = tls.read_again().unwrap_err();
    assert!(matches!(error, CertError::WrongRole { .. }), "{error}");
    part.issue("sixth", Role::Backend);
    mode(&part.files().key, 0o644);
    let error = tls.read_again().unwrap_err();
    assert!(
        matches!(error, CertError::File(FileError::Open { mode: 0o644, .. })),
        "{error}"
    );
    assert!(tls.status().is_refused);
    // The mode alone is no change of the contents.
    mode(&part.files().key, 0o600);
    until("the sixth", || name(&tls) == "sixth");
    assert!(!tls.status().is_refused);
    std::fs::remove_file(part.files().certificate).unwrap();
    until("a missing file is refused", || tls.status().is_refused);
    assert_eq!(name(&tls), "sixth");
}

#[test]
fn one_who_begins_waits_for_files_that_are_being_replaced() {
    let part = Part::new();
    part.issue("first", Role::Client);
    let [certificate, key] = part.make("second", Role::Client);
    part.put("key.pem", &key);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            part.put("cert.pem", &certificate);
        });
        let tls = Tls::read(&part.files(), CertUse::Client).unwrap();
        assert_eq!(name(&tls), "second");
    });
    let [_, other] = part.make("third", Role::Client);
    part.put("key.pem", &other);
    let begin = Instant::now();
    let error = Tls::read(&part.files(), CertUse::Client).unwrap_err();
    assert!(matches!(error, CertError::KeyMismatch { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}
