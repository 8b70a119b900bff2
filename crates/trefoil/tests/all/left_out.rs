//! Commands that this build was made without.

use crate::support::{run, text};

#[test]
fn a_command_that_was_left_out_says_which_feature_brings_it() {
    let commands: [(&[&str], &str); 8] = [
        (&["bench", "get", "--keys", "5"], "bench"),
        (&["bench", "--help"], "bench"),
        (&["demo"], "bench"),
        (&["assigner", "status"], "linked"),
        (&["relay", "--publication", "p"], "linked"),
        (&["queue", "serve", "--durable"], "queue"),
        (&["sim", "--seeds", "1"], "sim"),
        (&["sim"], "sim"),
    ];
    for (command, feature) in commands {
        let output = run(command);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
        let advice = format!("cargo build --release -p trefoil --features {feature}");
        assert!(said.contains(&advice), "{command:?}: {said}");
    }
    let help = run(&["--help"]);
    assert!(!text(&help.stdout).contains("bench"), "{help:?}");
}
