//! The blocks of README's "Try it", run as they stand, at their own ports: in
//! namespaces of their own, so that nobody else's are touched. Needs root for
//! that; says so where it cannot.

use crate::support::{PROGRAM, text};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// The shell blocks of a section.
fn blocks(section: &str) -> Vec<String> {
    let text = std::fs::read_to_string(README).unwrap();
    let begin = text.find(&format!("## {section}\n")).unwrap();
    let text = &text[begin + 3..];
    let text = &text[..text.find("\n## ").unwrap_or(text.len())];
    let block = |part: &str| Some(part.split_once("```")?.0.to_owned());
    text.split("```sh\n").skip(1).filter_map(block).collect()
}

fn can_run() -> bool {
    let unshared = Command::new("unshare")
        .args(["-n", "-m", "ip", "link", "set", "lo", "up"])
        .output();
    let can = unshared.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: needs root, unshare and ip for a network of its own");
    }
    can
}

/// What a block prints, errors included. It is fed to a shell line by line, as
/// somebody pastes it: a line that fails does not keep the next from running.
fn paste(block: &str) -> String {
    let program = Path::new(PROGRAM).parent().unwrap().display();
    // Compiling is what this test was built by.
    let block = block.replace("cargo build", ": cargo build");
    let prelude = format!(
        "mount -t tmpfs none /tmp\nip link set lo up\ncd /tmp\nexport HOME=/tmp\n\
         unset XDG_RUNTIME_DIR TREFOIL_CELL\nexport PATH=\"{program}:$PATH\"\nset -m\n"
    );
    let script = format!("{prelude}{block}\necho the shell lives\n");
    let mut child = Command::new("timeout");
    child
        .args([
            "-k", "5", "180", "unshare", "-n", "-m", "bash", "-c", &script,
        ])
        .stdin(Stdio::null());
    let output = child.output().unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn a_pasted_block_does_what_it_says() {
    if !can_run() {
        return;
    }
    let blocks = blocks("Try it");
    assert!(blocks.len() >= 3, "{blocks:?}");
    let said = paste(&blocks[0]);
    for expected in ["hello", "\"outcome\":\"hit\"", "R=1", "the shell lives"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let said = paste(&blocks[1]);
    for expected in [
        "ready {",
        "recovered",
        "R=3.2",
        "\nv",
        "all clean",
        "the shell lives",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let said = paste(&blocks[2]);
    for expected in ["STORED", "hello", "the shell lives"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The second block's mistake once: the pid of a backend that does not answer was
/// 0, which to `kill` is the caller's own process group.
#[test]
fn no_pid_is_printed_where_nobody_answers() {
    let dir = tempfile::tempdir().unwrap();
    let cell = crate::support::Cell::up(dir.path(), &["--memory", "64MiB"]);
    cell.kill(1);
    std::thread::sleep(Duration::from_millis(50));
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["backends"][1]["state"], "down");
    assert!(status["backends"][1]["pid"].is_null(), "{status:#}");
    assert!(status["backends"][0]["pid"].as_u64().unwrap() > 1);
}
