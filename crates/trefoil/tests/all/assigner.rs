//! `trefoil assigner` as a person or a script uses it.

use crate::strangers::{Common, NOBODY};
use crate::support::free_port;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

const TREFOIL: &str = env!("CARGO_BIN_EXE_trefoil");

/// Ends with SIGTERM, and has to end well.
struct Assigner(Child);

impl Assigner {
    fn start(arguments: &[&str]) -> (Self, serde_json::Value) {
        let mut command = Command::new(TREFOIL);
        command.args(["assigner", "--listen", "127.0.0.1:0"]);
        Assigner::start_by(command.args(arguments))
    }

    fn start_by(command: &mut Command) -> (Self, serde_json::Value) {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let ready = line.strip_prefix("ready ").expect("it is ready");
        let ready = serde_json::from_str(ready).expect("a JSON object");
        (Assigner(process), ready)
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.0.wait().expect("it ran").success());
    }
}

impl Drop for Assigner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn trefoil(arguments: &[&str]) -> Output {
    Command::new(TREFOIL)
        .args(arguments)
        .output()
        .expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn it_serves_shows_itself_and_can_be_frozen() {
    let (assigner, ready) = Assigner::start(&["--corpus", "mail:1..2", "--corpus", "chat"]);
    let address = ready["address"].as_str().expect("an address");
    let at = ["--assigner", address];
    let frozen = trefoil(&[&["assigner", "freeze", "--corpus", "chat"][..], &at].concat());
    assert!(frozen.status.success(), "{}", text(&frozen.stderr));
    assert_eq!(
        text(&frozen.stdout),
        "chat: frozen, but for slices of dead servers\n"
    );
    let status = trefoil(&[&["assigner", "status", "--json"][..], &at].concat());
    let documents: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let corpora = documents[0]["corpora"].as_array().expect("a list");
    let shown: Vec<_> = corpora
        .iter()
        .map(|corpus| (corpus["corpus"].as_str(), corpus["freeze"].as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (Some("chat"), Some("only-dead")),
            (Some("mail"), Some("off"))
        ]
    );
    let status = text(&trefoil(&[&["assigner", "status"][..], &at].concat()).stdout);
    assert!(
        status.contains(&format!("corpus mail · led by {address} · generation none")),
        "{status}"
    );
    let thawed = trefoil(&[&["assigner", "thaw"][..], &at].concat());
    assert_eq!(text(&thawed.stdout), "chat: thawed\nmail: thawed\n");
    let unknown = trefoil(&[&["assigner", "thaw", "--corpus", "male"][..], &at].concat());
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        text(&unknown.stderr)
            .contains("there is no corpus of this name here; there are: chat, mail"),
        "{}",
        text(&unknown.stderr)
    );
    assigner.stop();
    let nobody = trefoil(&[&["assigner", "status"][..], &at].concat());
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    for (arguments, code, reason) in [
        (&["--listen", "0.0.0.0:0"][..], 1, "--insecure"),
        (&["--listen", "0.0.0.0:0", "--insecure"], 2, "--advertise"),
        (&["--store", "zookeeper://h:1/x"], 2, "write embedded"),
        (&["--store", "etcd://h:1"], 2, "a prefix is missing"),
        (&["--store", "embedded:/nowhere/at/all"], 1, "cannot create"),
        (&["--corpus", "a/b"], 2, "is no name of a corpus"),
        (&["--corpus", "mail:0..2"], 2, "replicas_min"),
        (&["--lease", "1ms"], 2, "lease"),
        // Metrics have a word of their own.
        (
            &["--insecure", "--metrics", "0.0.0.0:0"],
            1,
            "--plaintext metrics",
        ),
        (&["--allow-user", "no such user"], 2, "no such user"),
        (
            &["--insecure", "--allow-user", "0"],
            2,
            "cannot be used with",
        ),
    ] {
        let refused = trefoil(&[&["assigner"][..], arguments].concat());
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(reason), "{arguments:?}: {told}");
    }
}

/// What it says at its start with such a store and lease.
fn said_at_start(store: &str, lease: &[&str]) -> String {
    let mut process = Command::new(TREFOIL)
        .args(["assigner", "--listen", "127.0.0.1:0", "--store", store])
        .args(lease)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stdout = process.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert!(line.starts_with("ready "), "{line}");
    process.kill().expect("it runs");
    let output = process.wait_with_output().expect("it ran");
    text(&output.stderr)
}

/// Nobody needs to be at that address.
#[test]
fn a_lease_that_a_takeover_outlasts_is_warned_of() {
    const ETCD: &str = "etcd://127.0.0.1:1/trefoil";
    const WARNING: &str = "--lease 15s outlasts it";
    for (store, lease, warnings) in [
        (ETCD, &[][..], 1),
        (ETCD, &["--lease", "11s"], 1),
        (ETCD, &["--lease", "12s"], 0),
        ("embedded", &[], 0),
    ] {
        let said = said_at_start(store, lease);
        assert_eq!(said.matches(WARNING).count(), warnings, "{lease:?}: {said}");
    }
}

/// The linked store's commands; joining and frames are in the linklet's tests.
#[test]
fn another_user_sees_and_steers_no_assigner() {
    let Some(common) = Common::new() else {
        return;
    };
    let listen = format!("127.0.0.1:{}", free_port());
    let metrics = format!("127.0.0.1:{}", free_port());
    let serve = ["assigner", "--listen", &listen, "--metrics", &metrics];
    let serve = [&serve[..], &["--corpus", "mail"]].concat();
    let commands: [&[&str]; 6] = [
        &["assigner", "status"],
        &["assigner", "status", "--json"],
        &["assigner", "freeze"],
        &["linked", "status"],
        &["linked", "top", "--once"],
        &["assigner", "begin-incarnation", "--corpus", "mail"],
    ];
    let at = ["--assigner", &listen];
    {
        let _assigner = Assigner::start_by(Command::new(&common.program).args(&serve));
        for command in commands {
            let args = [command, &at].concat();
            let output = common.run(&common.program, &args, None);
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success(), "{args:?}: {said}");
            assert!(said.contains("--allow-user 65534"), "{args:?}: {said}");
        }
        let drain = ["linked", "drain", "--at", &metrics];
        let output = common.run(&common.program, &drain, None);
        let said = text(&output.stderr);
        assert!(said.contains("user 65534 may not drain"), "{said}");
        let own = Command::new(&common.program)
            .args(["assigner", "status"])
            .args(at)
            .output()
            .unwrap();
        assert!(own.status.success(), "{}", text(&own.stderr));
    }
    let named = [&serve[..], &["--allow-user", "nobody"]].concat();
    {
        let _assigner = Assigner::start_by(Command::new(&common.program).args(&named));
        let args = [&["assigner", "freeze"][..], &at].concat();
        let output = common.run(&common.program, &args, None);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    // Nor does anybody else tell another user's assigner anything, unless that one is named.
    let _assigner = Assigner::start_by(&mut Common::command_of(NOBODY, &common.program, &serve));
    let status = |more: &[&str]| {
        let mut command = Command::new(&common.program);
        command.args(["assigner", "status"]).args(at).args(more);
        command.output().unwrap()
    };
    let refused = status(&[]);
    let said = text(&refused.stdout) + &text(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("is user 65534's"), "{said}");
    let told = status(&["--allow-user", "nobody"]);
    assert!(told.status.success(), "{}", text(&told.stderr));
}
