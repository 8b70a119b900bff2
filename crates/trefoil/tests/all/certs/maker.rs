//! An authority in a directory of the test's, and a server with its certificate.

use crate::support::{Cell, free_port, parse, run, text};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use trefoil_tls::Certificate;

pub(super) struct Authority {
    pub home: TempDir,
}

/// What a certificate says that `cell certs` would not issue.
pub(super) struct Odd<'a> {
    /// Alternative names that are URIs.
    pub uris: &'a [&'a str],
    pub hosts: &'a [&'a str],
    pub usages: &'a [ExtendedKeyUsagePurpose],
    /// Seconds from now.
    pub from_s: i64,
    pub until_s: i64,
}

impl Default for Odd<'_> {
    fn default() -> Self {
        Odd {
            uris: &["urn:trefoil:role:client"],
            hosts: &["127.0.0.1"],
            usages: &[
                ExtendedKeyUsagePurpose::ClientAuth,
                ExtendedKeyUsagePurpose::ServerAuth,
            ],
            from_s: -3600,
            until_s: 3600,
        }
    }
}

impl Authority {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let authority = Authority { home };
        let made = authority.certs(&["init"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        authority
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.home.path().join("authority")
    }

    /// `trefoil cell certs ARGS --dir DIR`
    pub(super) fn certs(&self, args: &[&str]) -> Output {
        let dir = self.dir().display().to_string();
        run(&[&["cell", "certs"], args, &["--dir", &dir]].concat())
    }

    /// Issues one by the command, and says where it is.
    pub(super) fn issue(&self, name: &str, role: &str) -> String {
        let mut args = vec!["issue", "--name", name, "--role", role, "--json"];
        if role == "backend" {
            args.extend(["--host", "127.0.0.1", "--host", "localhost"]);
        }
        let made = parse(&self.certs(&args));
        made["directory"].as_str().unwrap().to_owned()
    }

    pub(super) fn renew(&self, name: &str) -> Value {
        parse(&self.certs(&["renew", name, "--json"]))[0].clone()
    }

    /// Makes one by hand in a directory of its own, or over the files of that.
    pub(super) fn make(&self, name: &str, odd: &Odd<'_>) -> String {
        let read = |file: &str| std::fs::read_to_string(self.dir().join(file)).unwrap();
        let own = trefoil_tls::read_certificates(&self.dir().join("ca.pem")).unwrap();
        let own = Certificate::parse(&own[0]).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, own.name);
        let key = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
        let issuer = Issuer::new(params, key);

        let hosts: Vec<String> = odd.hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        for &uri in odd.uris {
            let uri = SanType::URI(uri.try_into().unwrap());
            params.subject_alt_names.push(uri);
        }
        params.extended_key_usages = odd.usages.to_vec();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let moment = |s: i64| {
            let unix_s = now.as_secs() as i64 + s;
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_s as u64)
        };
        params.not_before = moment(odd.from_s);
        params.not_after = moment(odd.until_s);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();

        let dir = self.home.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        put(&dir.join("ca.pem"), &read("ca.pem"));
        put(&dir.join("key.pem"), &key.serialize_pem());
        put(&dir.join("cert.pem"), &certificate.pem());
        dir.display().to_string()
    }

    /// A server that is reached as from another host, without its Unix sockets. Its
    /// metrics are at `metrics`.
    pub(super) fn serve(&self, certs: &str, metrics: Option<u16>) -> Cell {
        let dir = self.home.path();
        let socket = dir.join("serve.sock").display().to_string();
        let metrics = metrics.map_or("off".to_owned(), |port| format!("127.0.0.1:{port}"));
        let listen = format!("127.0.0.1:{}", free_port());
        let cell = Cell::start(&[
            "serve",
            "--listen",
            &listen,
            "--socket",
            &socket,
            "--metrics",
            &metrics,
            "--memcached",
            "off",
            "--memory",
            "64MiB",
            "--certs",
            certs,
        ]);
        hide(dir);
        cell
    }
}

/// Makes this host's clients strangers to a server: what stands where its Unix sockets
/// did leads nowhere, as on another host. (If nothing stood there, a client would take
/// the server for one that has ended.)
pub(super) fn hide(dir: &Path) {
    for socket in ["serve.sock", "serve.sock.fabric"] {
        let socket = dir.join(socket);
        std::fs::remove_file(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &socket).unwrap();
    }
}

/// Takes away what [`hide`] has put there.
pub(super) fn reveal(dir: &Path) {
    for socket in ["serve.sock", "serve.sock.fabric"] {
        std::fs::remove_file(dir.join(socket)).unwrap();
    }
}

/// A private file, whole from its first moment.
pub(super) fn put(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    mode(&next, 0o600);
    std::fs::rename(&next, path).unwrap();
}

pub(super) fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The port of `trefoil://127.0.0.1:PORT`.
pub(super) fn port(cell: &Cell) -> u16 {
    cell.address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Everything that a metrics endpoint says.
pub(super) fn scrape(port: u16) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The value of a metric's first sample.
pub(super) fn sample(port: u16, name: &str) -> f64 {
    let text = scrape(port);
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")));
    let line = line.unwrap_or_else(|| panic!("no {name}: {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}
