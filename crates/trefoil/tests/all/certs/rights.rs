//! What single identities may do by the list of rights, whatever their role is.

use super::maker::{Authority, hide, port, put};
use super::roles::{Raw, with};
use crate::support::{Cell, PROGRAM, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tonic::Code;
use trefoil_client::{CertFiles, CertUse, Lookup, Mutated, Options, SetOptions, Tls};
use trefoil_tls::LIST_LOOK_PERIOD;

const GET: &[&str] = &["get", "k"];
const SET: &[&str] = &["set", "k", "v"];
const ERASE: &[&str] = &["erase", "k"];
const LIMIT: &[&str] = &["cell", "memory", "--limit", "70MiB"];
const FLUSH: &[&str] = &["cell", "flush"];

/// Replaces a list; who looks after that finds it.
fn list(path: &Path, says: &str) {
    put(path, says);
    std::thread::sleep(LIST_LOOK_PERIOD);
}

fn is_refused(output: &Output, call: &str, needed: &str, name: &str, has: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let words = format!("{call} needs the right {needed}, and \"{name}\" has the right {has}");
    assert!(said.contains(&words), "{said}");
    assert!(said.contains("list of rights"), "{said}");
}

fn is_done(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn who_is_listed_does_what_the_list_says_whatever_the_role() {
    let authority = Authority::new();
    let server = authority.issue("server", "backend");
    let rights = Path::new(&server).join("rights");
    list(
        &rights,
        "dash read\nweb write # the shop\nsteward admin\nboss read\n",
    );
    let cell = authority.serve(&server, None);
    let of = |name, role| authority.issue(name, role);
    let (dash, web, boss) = (
        of("dash", "client"),
        of("web", "client"),
        of("boss", "admin"),
    );
    let (steward, free) = (of("steward", "client"), of("free", "client"));
    let other = of("other", "backend");
    is_done(&with(&cell, &web, SET));
    // It reads by whatever call, and does nothing else.
    let got = with(&cell, &dash, GET);
    assert_eq!(text(&got.stdout), "v", "{}", text(&got.stderr));
    is_done(&with(&cell, &dash, &["cell", "status"]));
    let version = "0".repeat(32);
    for args in [SET, ERASE, &["cas", "k", "w", "--version", &version]] {
        let refused = with(&cell, &dash, args);
        is_refused(&refused, "Mutate", "write", "dash", "read");
    }
    for (certs, name, has) in [(&dash, "dash", "read"), (&web, "web", "write")] {
        for (args, call) in [(LIMIT, "SetMemoryLimit"), (FLUSH, "Flush")] {
            is_refused(&with(&cell, certs, args), call, "admin", name, has);
        }
    }
    // An admin's certificate is no admin's here; a client's is.
    is_refused(&with(&cell, &boss, SET), "Mutate", "write", "boss", "read");
    is_refused(&with(&cell, &boss, FLUSH), "Flush", "admin", "boss", "read");
    is_done(&with(&cell, &steward, LIMIT));
    assert_eq!(text(&with(&cell, &dash, GET).stdout), "v");
    // Who is not listed has its role.
    is_done(&with(&cell, &free, SET));
    let said = text(&with(&cell, &free, FLUSH).stderr);
    assert!(said.contains("Flush needs the role admin"), "{said}");
    // Unless there is a line for all others, which is about no server.
    list(&rights, "dash read\n* none\nother none\n");
    let refused = with(&cell, &free, GET);
    is_refused(&refused, "Config", "read", "free", "none");
    is_refused(&with(&cell, &web, GET), "Config", "read", "web", "none");
    is_done(&with(&cell, &other, SET));
    is_done(&with(&cell, &dash, GET));
    // Without a list it is as it was before there was one.
    std::fs::remove_file(&rights).unwrap();
    std::thread::sleep(LIST_LOOK_PERIOD);
    is_done(&with(&cell, &dash, SET));
    is_done(&with(&cell, &boss, FLUSH));
}

#[test]
fn each_call_needs_the_right_that_the_table_names() {
    let authority = Authority::new();
    let server = authority.issue("server", "backend");
    let rights = Path::new(&server).join("rights");
    let cell = authority.serve(&server, None);
    let raw = Raw::new(&cell, &authority.issue("app", "client"));
    for (right, may) in [("none", 0), ("read", 9), ("write", 10), ("admin", 15)] {
        list(&rights, &format!("app {right}\n"));
        // By one connection: each call is judged by what the list says then.
        let ends = raw.all();
        let is_denied = |end: &Result<(), tonic::Status>| {
            let status = end.as_ref().err();
            status.is_some_and(|status| status.code() == Code::PermissionDenied)
        };
        let allowed = ends.iter().filter(|(_, end)| !is_denied(end));
        let allowed: Vec<&str> = allowed.map(|(call, _)| *call).collect();
        assert_eq!(allowed.len(), may, "{right}: {allowed:?}");
        assert_eq!(allowed.contains(&"Mutate"), may >= 10, "{right}");
        assert_eq!(allowed.contains(&"Lookup"), may >= 9, "{right}");
    }
}

#[test]
fn a_list_that_changes_holds_from_the_next_call() {
    let authority = Authority::new();
    let server = authority.issue("server", "backend");
    let rights = Path::new(&server).join("rights");
    let cell = authority.serve(&server, None);
    let files = CertFiles::in_directory(Path::new(&authority.issue("app", "client")));
    let tls = Tls::read(&files, CertUse::Client).unwrap();
    let known = trefoil_client::Cell::connect_with(&cell.address, Some(tls)).unwrap();
    let mut client = known.client(Options::default());
    let mut set = |value: &str| {
        let stored = client.set(b"k", value.as_bytes(), SetOptions::default());
        let found = match client.get(b"k") {
            Ok(Lookup::Hit(hit)) => Ok(text(hit.value)),
            Ok(Lookup::Miss(miss)) => panic!("{miss:?}"),
            Err(error) => Err(error.to_string()),
        };
        (stored, found)
    };
    let is_stored = |stored| matches!(stored, Ok(Mutated::Stored { .. }));
    let (stored, _) = set("first");
    assert!(is_stored(stored));
    list(&rights, "app read\n");
    let (stored, found) = set("second");
    let error = stored.unwrap_err().to_string();
    assert!(error.contains("Mutate needs the right write"), "{error}");
    // It has changed nothing.
    assert_eq!(found.as_deref(), Ok("first"));
    list(&rights, "app none\n");
    let (stored, found) = set("third");
    assert!(!is_stored(stored));
    let error = found.unwrap_err();
    assert!(error.contains("Lookup needs the right read"), "{error}");
    // What cannot be understood changes nothing, and is said.
    list(&rights, "app everything\n");
    let (stored, _) = set("fourth");
    assert!(!is_stored(stored));
    assert!(cell.log().count(&["rights:1: expected"]) > 0);
    list(&rights, "app write\n");
    let (stored, found) = set("fifth");
    assert!(is_stored(stored));
    assert_eq!(found.as_deref(), Ok("fifth"));
}

#[test]
fn no_server_begins_with_a_list_that_says_nothing_definite() {
    let authority = Authority::new();
    let server = authority.issue("server", "backend");
    put(&Path::new(&server).join("rights"), "# who\napp raed\n");
    let token = authority.home.path().join("token");
    put(&token, &"t".repeat(64));
    put(
        &authority.home.path().join("token.rights"),
        "# who\napp read\n",
    );
    let socket = authority.home.path().join("s.sock").display().to_string();
    let token = token.display().to_string();
    for (with, name) in [
        (["--certs", &server], "rights"),
        (["--token-file", &token], "token.rights"),
    ] {
        let serve = ["serve", "--socket", &socket, "--listen", "127.0.0.1:0"];
        let off = [
            "--metrics",
            "off",
            "--memcached",
            "off",
            "--memory",
            "64MiB",
        ];
        let ended = crate::support::run(&[&serve[..], &off, &with].concat());
        let said = text(&ended.stderr);
        assert!(!ended.status.success(), "{said}");
        assert!(said.contains(&format!("{name}:2: expected")), "{said}");
    }
}

/// Tokens of one server, each in a file.
struct Tokens(PathBuf);

impl Tokens {
    /// What `sha256sum` shows of a token's file, and so what a list of rights names.
    fn digest(&self, name: &str) -> String {
        let summed = Command::new("sha256sum").arg(self.0.join(name)).output();
        let summed = text(&summed.unwrap().stdout);
        summed.split_whitespace().next().unwrap().to_owned()
    }

    fn run(&self, cell: &Cell, name: &str, args: &[&str]) -> Output {
        let address = format!("127.0.0.1:{}", port(cell));
        Command::new(PROGRAM)
            .args(args)
            .args(["--cell", &address])
            .env("TREFOIL_TOKEN_FILE", self.0.join(name))
            .env_remove("TREFOIL_CELL")
            .output()
            .unwrap()
    }
}

#[test]
fn tokens_of_their_own_have_the_rights_that_are_listed() {
    let home = tempfile::tempdir().unwrap();
    let tokens = Tokens(home.path().to_owned());
    for name in ["own", "dash", "web", "stranger"] {
        let digits = match name {
            "own" => "0",
            "dash" => "d",
            "web" => "e",
            _ => "f",
        };
        put(&home.path().join(name), &format!("{}\n", digits.repeat(64)));
    }
    let own = home.path().join("own").display().to_string();
    let rights = home.path().join("own.rights");
    let says = |dash: &str| {
        let (of_dash, of_web) = (tokens.digest("dash"), tokens.digest("web"));
        format!("the dashboard {dash} sha256:{of_dash}\nweb admin sha256:{of_web}\n")
    };
    let cell = Cell::serve(home.path(), &["--memory", "64MiB", "--token-file", &own]);
    // As from another host.
    hide(home.path());
    let refused = tokens.run(&cell, "dash", GET);
    let said = text(&refused.stderr);
    assert!(said.contains("the token is another server's"), "{said}");
    list(&rights, &says("read"));
    is_done(&tokens.run(&cell, "own", SET));
    let got = tokens.run(&cell, "dash", GET);
    assert_eq!(text(&got.stdout), "v", "{}", text(&got.stderr));
    let refused = tokens.run(&cell, "dash", SET);
    is_refused(&refused, "Mutate", "write", "the dashboard", "read");
    let refused = tokens.run(&cell, "dash", LIMIT);
    is_refused(&refused, "SetMemoryLimit", "admin", "the dashboard", "read");
    is_done(&tokens.run(&cell, "web", LIMIT));
    is_done(&tokens.run(&cell, "own", LIMIT));
    let said = text(&tokens.run(&cell, "stranger", GET).stderr);
    assert!(said.contains("the token is another server's"), "{said}");
    list(&rights, &says("write"));
    is_done(&tokens.run(&cell, "dash", SET));
    is_refused(
        &tokens.run(&cell, "dash", FLUSH),
        "Flush",
        "admin",
        "the dashboard",
        "write",
    );
    list(&rights, "");
    let said = text(&tokens.run(&cell, "dash", GET).stderr);
    assert!(said.contains("the token is another server's"), "{said}");
    is_done(&tokens.run(&cell, "own", GET));
}
