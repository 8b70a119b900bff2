//! Everything that can be wrong with certificates, and what is said of it.

use super::maker::{Authority, Odd, hide, mode, port, put, reveal};
use crate::support::{Cell, free_port, run, text};
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, Stream};
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A command's end: it fails soon, with exit code 1, and says each of these.
fn fails(args: &[&str], words: &[&str]) {
    let output = run(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: no \"{word}\" in: {said}");
    }
    // Nobody waits for what will not come.
    assert!(!said.contains("waiting for it"), "{args:?}: {said}");
}

fn copy(from: &str, to: &Path) -> PathBuf {
    std::fs::create_dir_all(to).unwrap();
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        std::fs::copy(Path::new(from).join(file), to.join(file)).unwrap();
    }
    to.to_owned()
}

/// Directories that nobody can use, by what is said of them, whoever wants to.
fn unusable(authority: &Authority) -> Vec<(String, Vec<&'static str>)> {
    let mut all = Vec::new();
    let urn = "urn:trefoil:role:backend";
    let odd = |name: &str, odd: Odd<'_>| {
        authority.make(
            name,
            &Odd {
                uris: &[urn],
                ..odd
            },
        )
    };
    let ended = odd(
        "ended",
        Odd {
            from_s: -7200,
            until_s: -60,
            ..Odd::default()
        },
    );
    all.push((
        ended,
        vec![
            "cert.pem has expired",
            "valid until",
            "certs renew",
            "clock",
        ],
    ));
    let early = odd(
        "early",
        Odd {
            from_s: 3600,
            until_s: 7200,
            ..Odd::default()
        },
    );
    all.push((
        early,
        vec!["cert.pem is not valid yet", "valid from", "clock"],
    ));
    let no_client = odd(
        "no-client",
        Odd {
            usages: &[ServerAuth],
            ..Odd::default()
        },
    );
    all.push((no_client, vec!["cert.pem", "cannot be used"]));
    let no_role = authority.make(
        "no-role",
        &Odd {
            uris: &[],
            ..Odd::default()
        },
    );
    all.push((
        no_role,
        vec![
            "names no role",
            "certs issue --role",
            "URI:urn:trefoil:role:client",
        ],
    ));

    let good = authority.issue("good", "backend");
    let home = authority.home.path();
    let mut broken = |name: &str, words: &[&'static str], spoil: &dyn Fn(&Path)| {
        let dir = copy(&good, &home.join(name));
        spoil(&dir);
        all.push((dir.display().to_string(), words.to_vec()));
    };
    let other = Authority::new();
    let theirs = other.issue("theirs", "backend");
    let theirs = Path::new(&theirs);
    broken(
        "other-authority",
        &["of another authority than those in", "ca.pem"],
        &|dir| {
            std::fs::copy(theirs.join("ca.pem"), dir.join("ca.pem")).unwrap();
        },
    );
    broken(
        "other-key",
        &["key.pem does not fit the certificate in", "cert.pem"],
        &|dir| {
            std::fs::copy(theirs.join("key.pem"), dir.join("key.pem")).unwrap();
        },
    );
    broken(
        "open-key",
        &["key.pem has mode 0644", "chmod 0600"],
        &|dir| {
            mode(&dir.join("key.pem"), 0o644);
        },
    );
    broken(
        "open-authority",
        &["ca.pem has mode 0666", "chmod go-w"],
        &|dir| {
            mode(&dir.join("ca.pem"), 0o666);
        },
    );
    broken("no-key", &["cannot read", "key.pem"], &|dir| {
        std::fs::remove_file(dir.join("key.pem")).unwrap();
    });
    broken("no-pem", &["cert.pem holds no certificate"], &|dir| {
        put(&dir.join("cert.pem"), "nothing of the kind");
    });
    broken("half-pem", &["cert.pem is not in PEM"], &|dir| {
        let whole = std::fs::read_to_string(dir.join("cert.pem")).unwrap();
        put(&dir.join("cert.pem"), &whole[..whole.len() / 2]);
    });
    broken(
        "no-certificate",
        &["cert.pem holds a certificate or a key that cannot be used"],
        &|dir| {
            let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
            put(&dir.join("cert.pem"), pem);
        },
    );
    broken(
        "locked-key",
        &["key.pem holds no private key", "passphrase"],
        &|dir| {
            let pem = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
            put(&dir.join("key.pem"), pem);
        },
    );
    all.push((
        home.join("nowhere").display().to_string(),
        vec!["cannot read", "No such file"],
    ));
    all
}

#[test]
fn files_that_cannot_be_used_are_refused_on_either_side() {
    let authority = Authority::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let socket = authority.home.path().join("s.sock").display().to_string();
    let serve = [
        "serve",
        "--listen",
        &listen,
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memcached",
        "off",
    ];
    for (certs, words) in unusable(&authority) {
        fails(&[&serve[..], &["--certs", &certs]].concat(), &words);
        fails(&["get", "k", "--cell", &listen, "--certs", &certs], &words);
    }
    // A server needs a backend's.
    for role in ["client", "admin"] {
        let certs = authority.issue(role, role);
        let words = [
            &format!("has the role {role}, and backend is needed"),
            "--role backend",
        ];
        fails(&[&serve[..], &["--certs", &certs]].concat(), &words);
    }
    // On Unix sockets nobody looks at them.
    let nowhere = authority.home.path().join("nowhere").display().to_string();
    let cell = Cell::serve(authority.home.path(), &["--memory", "64MiB"]);
    let socket = authority
        .home
        .path()
        .join("serve.sock")
        .display()
        .to_string();
    let output = run(&["set", "k", "v", "--cell", &socket, "--certs", &nowhere]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    drop(cell);
}

#[test]
fn off_loopback_nothing_is_open_without_certificates() {
    let authority = Authority::new();
    let certs = authority.issue("server", "backend");
    let dir = authority.home.path();
    let listen = format!("0.0.0.0:{}", free_port());
    let socket = dir.join("serve.sock").display().to_string();
    let serve = [
        "serve",
        "--listen",
        &listen,
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memcached",
        "off",
    ];
    fails(
        &serve,
        &[
            "reachable from other machines",
            "--certs DIR",
            "--plaintext rpc",
        ],
    );
    // What has no TLS stays shut, certificates or not.
    let any = format!("0.0.0.0:{}", free_port());
    let metrics = [
        &serve[..5],
        &["--metrics", &any, "--memcached", "off", "--certs", &certs],
    ]
    .concat();
    fails(
        &metrics,
        &["reachable from other machines", "--plaintext metrics"],
    );
    let cell = Cell::start(&[&serve[..], &["--certs", &certs, "--memory", "64MiB"]].concat());
    hide(dir);
    let address = format!("127.0.0.1:{}", port(&cell));
    let client = authority.issue("app", "client");
    let output = run(&["set", "k", "v", "--cell", &address, "--certs", &client]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    drop(cell);
    reveal(dir);
    let open = [&serve[..], &["--plaintext", "rpc", "--memory", "64MiB"]].concat();
    drop(Cell::start(&open));
}

#[test]
fn each_side_says_what_is_wrong_with_the_other() {
    let authority = Authority::new();
    let other = Authority::new();
    let server = authority.issue("server", "backend");
    let client = authority.issue("app", "client");
    let get = |cell: &Cell, host: &str, certs: Option<&str>, words: &[&str]| {
        let address = format!("{host}:{}", port(cell));
        let mut args = vec!["get", "k", "--cell", &address];
        if let Some(certs) = certs {
            args.extend(["--certs", certs]);
        }
        fails(&args, words);
    };
    let cell = authority.serve(&server, None);
    get(
        &cell,
        "127.0.0.1",
        None,
        &["speaks TLS only", "--certs", "TREFOIL_CERTS"],
    );
    let theirs = other.issue("app", "client");
    let words = ["the certificate of 127.0.0.1 is of another authority than those in"];
    get(&cell, "127.0.0.1", Some(&theirs), &words);
    // A client that believes both authorities, in the eyes of a server that does not.
    let both = copy(&theirs, &authority.home.path().join("both"));
    let read = |dir: &str| std::fs::read_to_string(Path::new(dir).join("ca.pem")).unwrap();
    put(&both.join("ca.pem"), &(read(&theirs) + &read(&client)));
    let words = [
        "does not accept the certificate in",
        "an authority that the server does not believe",
    ];
    get(&cell, "127.0.0.1", both.to_str(), &words);
    drop(cell);
    reveal(authority.home.path());

    let plain = Cell::serve(authority.home.path(), &["--memory", "64MiB"]);
    let words = ["does not speak TLS", "leave --certs out"];
    get(&plain, "127.0.0.1", Some(&client), &words);
    drop(plain);

    let elsewhere = authority.make(
        "elsewhere",
        &Odd {
            uris: &["urn:trefoil:role:backend"],
            hosts: &["db1.example", "10.0.0.5"],
            ..Odd::default()
        },
    );
    let cell = authority.serve(&elsewhere, None);
    let words = [
        "not for that name or address",
        "db1.example",
        "--host 127.0.0.1",
    ];
    get(&cell, "127.0.0.1", Some(&client), &words);
}

/// What any TLS library may show a server, whatever a client of ours would refuse to.
#[test]
fn a_server_believes_nobody_whose_certificate_is_bad() {
    let authority = Authority::new();
    let cell = authority.serve(&authority.issue("server", "backend"), None);
    let other = Authority::new();
    let usual = Odd::default;
    let cases = [
        ("none", None, "CertificateRequired"),
        (
            "ended",
            Some(authority.make(
                "ended",
                &Odd {
                    from_s: -7200,
                    until_s: -5,
                    ..usual()
                },
            )),
            "CertificateExpired",
        ),
        (
            "early",
            Some(authority.make(
                "early",
                &Odd {
                    from_s: 600,
                    until_s: 7200,
                    ..usual()
                },
            )),
            "CertificateExpired",
        ),
        (
            "for servers",
            Some(authority.make(
                "for-servers",
                &Odd {
                    usages: &[ServerAuth],
                    ..usual()
                },
            )),
            "UnsupportedCertificate",
        ),
        (
            "of another authority",
            Some(other.issue("app", "client")),
            "UnknownCA",
        ),
    ];
    for (name, certs, alert) in cases {
        let said = shake_hands(&cell, &authority, certs.as_deref());
        let error = said.expect_err(name);
        assert!(error.contains(alert), "{name}: {error}");
    }
    // This way a good one comes in: HTTP/2 begins.
    let good = authority.issue("good", "client");
    let first = shake_hands(&cell, &authority, Some(&good)).unwrap();
    assert_eq!(first[3], 4, "a SETTINGS frame: {first:?}");
}

/// The first bytes that a server says inside.
fn shake_hands(cell: &Cell, authority: &Authority, certs: Option<&str>) -> Result<[u8; 9], String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trefoil_tls::read_roots(&authority.dir().join("ca.pem")).unwrap());
    let mut config = match certs {
        None => builder.with_no_client_auth(),
        Some(dir) => {
            let (chain, key) = chain_and_key(dir);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(("127.0.0.1", port(cell))).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut first = [0; 9];
    let read = Stream::new(&mut tls, &mut socket).read_exact(&mut first);
    read.map(|()| first).map_err(|error| error.to_string())
}

fn chain_and_key(
    dir: &str,
) -> (
    Vec<CertificateDer<'static>>,
    rustls::pki_types::PrivateKeyDer<'static>,
) {
    let dir = Path::new(dir);
    let chain = trefoil_tls::read_certificates(&dir.join("cert.pem")).unwrap();
    (chain, trefoil_tls::read_key(&dir.join("key.pem")).unwrap())
}

/// Somebody who has a client's certificate, or an old one of a backend's, listens where
/// a server did.
#[test]
fn a_client_believes_no_server_that_is_no_backend() {
    let authority = Authority::new();
    let client = authority.issue("app", "client");
    let backend = &["urn:trefoil:role:backend"];
    let cases = [
        // Made for it on purpose: `cell certs` gives clients no such usage.
        (
            authority.make("impostor", &Odd::default()),
            vec!["is not a backend's", "--role backend"],
        ),
        (
            authority.make(
                "for-clients",
                &Odd {
                    uris: backend,
                    usages: &[ClientAuth],
                    ..Odd::default()
                },
            ),
            vec!["the server's certificate cannot be used"],
        ),
        (
            authority.make(
                "ended",
                &Odd {
                    uris: backend,
                    from_s: -7200,
                    until_s: -5,
                    ..Odd::default()
                },
            ),
            vec![
                "the certificate of 127.0.0.1 has expired: it was valid until",
                "renew it there",
            ],
        ),
        (
            authority.make(
                "early",
                &Odd {
                    uris: backend,
                    from_s: 600,
                    until_s: 7200,
                    ..Odd::default()
                },
            ),
            vec![
                "the certificate of 127.0.0.1 is not valid yet",
                "valid from",
            ],
        ),
    ];
    for (certs, words) in cases {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let (chain, key) = chain_and_key(&certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let config = Arc::new(config);
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = server.accept().unwrap();
            let mut tls = ServerConnection::new(config).unwrap();
            let _ = Stream::new(&mut tls, &mut socket).read(&mut [0; 64]);
        });
        fails(
            &["get", "k", "--cell", &address, "--certs", &client],
            &words,
        );
        thread.join().unwrap();
    }
}
