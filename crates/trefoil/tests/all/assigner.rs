//! `trefoil assigner` as a person or a script uses it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

const TREFOIL: &str = env!("CARGO_BIN_EXE_trefoil");

/// Ends with SIGTERM, and has to end well.
struct Assigner(Child);

impl Assigner {
    fn start(arguments: &[&str]) -> (Self, serde_json::Value) {
        let mut process = Command::new(TREFOIL)
            .args(["assigner", "--listen", "127.0.0.1:0"])
            .args(arguments)
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
    ] {
        let refused = trefoil(&[&["assigner"][..], arguments].concat());
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(reason), "{arguments:?}: {told}");
    }
}
