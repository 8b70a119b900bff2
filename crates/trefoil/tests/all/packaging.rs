//! The files that operators copy.

use crate::support::{Cell, repository};

#[test]
fn a_server_starts_with_the_example_settings() {
    let dir = tempfile::tempdir().unwrap();
    let example = std::fs::read_to_string(repository().join("packaging/serve.toml")).unwrap();
    // The defaults that it names are settings, too.
    let named = example.lines().map(|line| {
        let setting = line.strip_prefix('#');
        setting
            .filter(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()))
            .unwrap_or(line)
    });
    let all: Vec<&str> = named.collect();
    assert!(all.contains(&"mode = \"R=1\""), "{example}");
    for (name, settings) in [("example", example.clone()), ("all", all.join("\n"))] {
        let config = dir.path().join(format!("{name}.toml"));
        std::fs::write(&config, settings).unwrap();
        // What this machine's other processes may have.
        let socket = dir.path().join(format!("{name}.sock"));
        let cell = Cell::start(&[
            "serve",
            "--config",
            config.to_str().unwrap(),
            "--socket",
            socket.to_str().unwrap(),
            "--metrics",
            "off",
            "--memcached",
            "127.0.0.1:0",
            "--memory",
            "64MiB",
        ]);
        assert!(cell.run(&["set", "k", "v"]).status.success(), "{name}");
        assert_eq!(cell.run(&["get", "k"]).stdout, b"v", "{name}");
    }
}
