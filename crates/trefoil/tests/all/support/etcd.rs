//! An etcd that asks for certificates and passwords.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use trefoil_ports::{EtcdProcess, EtcdTls};

/// Whoever shows certificates, and names `user` with its password, may touch what begins
/// with `prefix`, and nothing else.
pub fn guarded_etcd(home: &Path, user: &str, prefix: &str) -> (EtcdProcess, Access) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let files = |name: &str| {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        EtcdTls {
            authority: write_private(&home.join("ca.pem"), &issuer.pem()),
            certificate: write_private(&home.join(format!("{name}.pem")), &certificate.pem()),
            key: write_private(&home.join(format!("{name}-key.pem")), &key.serialize_pem()),
        }
    };
    let (server, ours) = (files("server"), files("ours"));
    let mut etcd = EtcdProcess::start(home, Some(server)).unwrap();
    for line in [
        "user add root:master",
        "role add root",
        "user grant-role root root",
        &format!("user add {user}:open-sesame"),
        "role add ours",
        &format!("role grant-permission ours --prefix=true readwrite {prefix}"),
        &format!("user grant-role {user} ours"),
        "auth enable",
    ] {
        etcd.ctl(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    etcd.be("root:master");
    let password = write_private(&home.join("password"), "open-sesame\n");
    let access = Access([
        ("TREFOIL_ETCD_CA", ours.authority),
        ("TREFOIL_ETCD_CERT", ours.certificate),
        ("TREFOIL_ETCD_KEY", ours.key),
        ("TREFOIL_ETCD_USER", user.into()),
        ("TREFOIL_ETCD_PASSWORD_FILE", password),
    ]);
    (etcd, access)
}

/// What a process has to have in its environment.
pub struct Access([(&'static str, PathBuf); 5]);

impl Access {
    /// All but one of it; all, if there is no such.
    pub fn without(&self, name: &str) -> impl Iterator<Item = (&'static str, &Path)> {
        let given = self.0.iter().filter(move |(given, _)| *given != name);
        given.map(|(name, value)| (*name, value.as_path()))
    }

    /// All of it.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.without("")
    }
}

/// A file that only its owner reads.
pub fn write_private(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}
