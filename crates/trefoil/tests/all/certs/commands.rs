//! `trefoil cell certs`.

use super::maker::{Authority, mode};
use crate::support::{parse, run, text};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn an_authority_issues_renews_and_lists() {
    let authority = Authority::new();
    let dir = authority.dir();
    assert_eq!(mode_of(&dir), 0o700);
    let said = authority.certs(&[
        "issue",
        "--name",
        "db1",
        "--role",
        "backend",
        "--host",
        "db1,10.0.0.5",
    ]);
    let said = text(&said.stdout);
    for words in [
        "issued",
        "trefoil serve --listen db1:7411 --certs",
        "renew --dir",
    ] {
        assert!(said.contains(words), "{said}");
    }
    authority.issue("app", "client");
    authority.issue("ops", "admin");
    for folder in ["db1", "app", "ops"] {
        assert_eq!(mode_of(&dir.join(folder)), 0o700);
        for file in ["ca.pem", "cert.pem", "key.pem"] {
            assert_eq!(
                mode_of(&dir.join(folder).join(file)),
                0o600,
                "{folder}/{file}"
            );
        }
    }
    assert_eq!(mode_of(&dir.join("ca-key.pem")), 0o600);

    let listed = parse(&authority.certs(&["list", "--json"]));
    let issued = listed["issued"].as_array().unwrap();
    let names: Vec<_> = issued
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["app", "db1", "ops"]);
    let db1 = &issued[1];
    assert_eq!(db1["roles"], serde_json::json!(["backend"]));
    assert_eq!(db1["hosts"], serde_json::json!(["db1", "10.0.0.5"]));
    let days = db1["left_s"].as_i64().unwrap() as f64 / 86_400.0;
    assert!((89.9..=90.0).contains(&days), "{days}");
    let serials: BTreeSet<_> = issued.iter().map(|one| one["serial"].to_string()).collect();
    assert_eq!(serials.len(), 3);

    let key = || std::fs::read(dir.join("db1/key.pem")).unwrap();
    let before = key();
    let renewed = authority.renew("db1");
    assert_ne!(key(), before, "a new key");
    assert_ne!(renewed["serial"], db1["serial"]);
    for same in ["name", "roles", "hosts"] {
        assert_eq!(renewed[same], db1[same]);
    }
    let all = parse(&authority.certs(&["renew", "--all", "--days", "7", "--json"]));
    assert_eq!(all.as_array().unwrap().len(), 3);
    assert!(all[0]["left_s"].as_i64().unwrap() <= 7 * 86_400);
    // Nothing is left of what was on its way.
    let left = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    assert_eq!(left.count(), 5);
}

#[test]
fn nothing_is_overwritten_without_a_word() {
    let authority = Authority::new();
    let read = |file: &str| std::fs::read(authority.dir().join(file)).unwrap();
    let key = read("ca-key.pem");
    let again = authority.certs(&["init"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("is there already"),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(read("ca-key.pem"), key);
    authority.issue("app", "client");
    let before = read("app/cert.pem");
    let again = authority.certs(&["issue", "--name", "app", "--role", "admin"]);
    assert_eq!(again.status.code(), Some(1));
    let said = text(&again.stderr);
    assert!(
        said.contains("is there already (client") && said.contains("renew"),
        "{said}"
    );
    assert_eq!(read("app/cert.pem"), before);
}

#[test]
fn what_cannot_be_done_is_said() {
    let authority = Authority::new();
    let dir = authority.dir();
    for (args, code, words) in [
        (
            &["issue", "--name", "db1", "--role", "backend"][..],
            2,
            "--host",
        ),
        (
            &["issue", "--name", "db1", "--role", "king"],
            2,
            "client, backend or admin",
        ),
        (
            &["issue", "--name", "../x", "--role", "client"],
            2,
            "cannot be used",
        ),
        (
            &["issue", "--name", "ca.pem", "--role", "client"],
            2,
            "cannot be used",
        ),
        (
            &["issue", "--name", "x", "--role", "client", "--days", "0"],
            2,
            "--days 0",
        ),
        (
            &[
                "issue", "--name", "x", "--role", "backend", "--host", "db1:7411",
            ],
            2,
            "without a port",
        ),
        (
            &[
                "issue", "--name", "x", "--role", "backend", "--host", "*.db",
            ],
            2,
            "--host *.db",
        ),
        (&["renew", "nobody"], 1, "is not there"),
        (&["renew"], 2, "<NAME>"),
    ] {
        let output = authority.certs(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let nowhere = dir.join("nowhere").display().to_string();
    let output = run(&["cell", "certs", "list", "--dir", &nowhere]);
    assert!(
        text(&output.stderr).contains("cell certs init"),
        "{}",
        text(&output.stderr)
    );

    // Keys that others may read are none.
    mode(&dir.join("ca-key.pem"), 0o604);
    let output = authority.certs(&["issue", "--name", "x", "--role", "client"]);
    assert!(
        text(&output.stderr).contains("chmod 0600"),
        "{}",
        text(&output.stderr)
    );
    mode(&dir.join("ca-key.pem"), 0o600);
    // Another authority's key.
    let other = Authority::new();
    std::fs::copy(other.dir().join("ca-key.pem"), dir.join("ca-key.pem")).unwrap();
    let output = authority.certs(&["issue", "--name", "x", "--role", "client"]);
    assert!(
        text(&output.stderr).contains("ca-key.pem fit"),
        "{}",
        text(&output.stderr)
    );
    assert!(!dir.join("x").exists());
    mode(&dir, 0o755);
    let output = authority.certs(&["list"]);
    assert!(
        text(&output.stderr).contains("chmod 0700"),
        "{}",
        text(&output.stderr)
    );
    mode(&dir, 0o700);
}
