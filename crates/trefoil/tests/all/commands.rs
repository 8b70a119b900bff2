//! The command line against a running cell: outputs, exit codes, messages.

use crate::support::{Cell, free_port, run, text};

#[test]
fn set_get_cas_erase_on_one_copy_and_on_three() {
    for mode in ["R=1", "R=3.2"] {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::serve(dir.path(), &["--mode", mode, "--memory", "128MiB"]);

        let miss = cell.run(&["get", "k"]);
        assert_eq!(miss.status.code(), Some(1));
        assert!(miss.stdout.is_empty());
        assert!(
            text(&miss.stderr).contains("absent"),
            "{}",
            text(&miss.stderr)
        );

        let set = cell.json(&["set", "k", "one", "--json"]);
        assert_eq!(set["outcome"], "stored");
        let first = set["version"].as_str().unwrap().to_owned();
        assert_eq!(first.len(), 32);

        let get = cell.run(&["get", "k"]);
        assert_eq!(
            (get.status.code(), text(&get.stdout).as_str()),
            (Some(0), "one"),
            "no newline is added"
        );
        let get = cell.json(&["get", "k", "--json"]);
        assert_eq!(
            (&get["outcome"], &get["version"]),
            (&"hit".into(), &first.clone().into())
        );

        let cas = cell.json(&["cas", "k", "two", "--version", &first, "--json"]);
        assert_eq!(cas["outcome"], "stored");
        let again = cell.run(&["cas", "k", "three", "--version", &first, "--json"]);
        assert_eq!(again.status.code(), Some(1));
        assert!(
            text(&again.stdout).contains("\"exists\""),
            "{}",
            text(&again.stdout)
        );
        assert_eq!(text(&cell.run(&["get", "k"]).stdout), "two");

        assert_eq!(cell.run(&["erase", "k"]).status.code(), Some(0));
        assert_eq!(cell.run(&["get", "k"]).status.code(), Some(1));
        assert_eq!(cell.stop(), 0, "SIGTERM is a clean end");
    }
}

#[test]
fn values_of_every_size_and_the_limits_beyond() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--mode", "R=3.2", "--memory", "256MiB"]);
    let file = dir.path().join("value");
    let path = file.display().to_string();
    for len in [0usize, 1, 1000, 70_000, 1 << 20, 16 << 20] {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        std::fs::write(&file, &value).unwrap();
        let key = format!("len-{len}");
        let set = cell.run(&["set", &key, "--file", &path]);
        assert!(set.status.success(), "{len}: {}", text(&set.stderr));
        let got = cell.run(&["get", &key]);
        assert!(got.status.success(), "{len}: {}", text(&got.stderr));
        assert!(got.stdout == value, "{len}: another value");
    }
    std::fs::write(&file, vec![0u8; (16 << 20) + 1]).unwrap();
    let over = cell.run(&["set", "over", "--file", &path]);
    assert_eq!(over.status.code(), Some(1));
    assert!(
        text(&over.stderr).contains("limit"),
        "{}",
        text(&over.stderr)
    );

    let key = "k".repeat(65_536);
    assert!(cell.run(&["set", &key, "v"]).status.success());
    assert_eq!(cell.run(&["get", &key]).stdout, b"v");
    let key = "k".repeat(65_537);
    let over = cell.run(&["set", &key, "v"]);
    assert_eq!(over.status.code(), Some(1));
    assert!(
        text(&over.stderr).contains("65536"),
        "{}",
        text(&over.stderr)
    );
    let empty = cell.run(&["set", "", "v"]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(
        text(&empty.stderr).contains("empty"),
        "{}",
        text(&empty.stderr)
    );
}

#[test]
fn values_expire() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "128MiB"]);
    let ttl = std::time::Duration::from_secs(2);
    let set = || {
        let begin = std::time::Instant::now();
        assert!(cell.run(&["set", "k", "v", "--ttl", "2s"]).status.success());
        let found = cell.run(&["get", "k"]);
        // A busy machine may take all its time to ask.
        (begin.elapsed() < ttl).then_some(found)
    };
    let found = (0..10).find_map(|_| set()).expect("asked in time");
    assert_eq!(found.stdout, b"v");
    std::thread::sleep(ttl);
    let gone = cell.run(&["get", "k"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(gone.stdout.is_empty());
}

#[test]
fn usage_errors_exit_2_and_say_what_to_do() {
    for args in [
        &["frobnicate"][..],
        &["get"],
        &["get", "k", "--cell", "127.0.0.1:1", "--no-such-flag"],
        &["set", "k", "v", "--cell", "127.0.0.1:1", "--ttl", "0s"],
        &["cas", "k", "v", "--cell", "127.0.0.1:1", "--version", "xyz"],
        &[
            "cas",
            "k",
            "v",
            "--cell",
            "127.0.0.1:1",
            "--version",
            "0123",
        ],
        &["serve", "--memory", "a lot"],
        &["serve", "--eviction", "random"],
        &["get", "k", "--cell", "nonsense"],
        &["serve", "--memory", "10"],
        &["cell", "up", "--dir", "/nowhere", "--memory", "10"],
        &["serve", "--listen", "here"],
        &["serve", "--allow-user", "no such user"],
        &["serve", "--plaintext", "everything"],
        &["serve", "--value-max", "1TB"],
        &["serve", "--value-max", "0"],
        &["serve", "--partitions", "0"],
        &["serve", "--partitions", "65"],
        &["cell", "up", "--dir", "/nowhere", "--backends", "2"],
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(!output.stderr.is_empty());
        assert!(output.stdout.is_empty());
    }
    let output = run(&["cas", "k", "v", "--cell", "127.0.0.1:1", "--version", "xyz"]);
    assert!(
        text(&output.stderr).contains("32 hex"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn unreachable_cells_and_bad_addresses_are_named() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("unix:{}", dir.path().join("nothing").display());
    let empty = format!("unix:{}", dir.path().display());
    for cell in [
        address.as_str(),
        "not an address",
        "etcd://127.0.0.1/c",
        &missing,
        &empty,
    ] {
        let output = run(&["get", "k", "--cell", cell]);
        // What is no address is a mistake of who types; an absent cell is not.
        let code = match cell {
            "not an address" | "etcd://127.0.0.1/c" => 2,
            _ => 1,
        };
        assert_eq!(output.status.code(), Some(code), "{cell}");
        let message = text(&output.stderr);
        assert!(!message.contains("panicked"), "{cell}: {message}");
        assert!(
            message.contains(cell.trim_start_matches("unix:")),
            "{cell}: {message}"
        );
    }
}

#[test]
fn a_port_or_directory_in_use_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    let listen = cell.address.trim_start_matches("trefoil://").to_owned();
    let other = dir.path().join("other.sock").display().to_string();
    let second = run(&[
        "serve",
        "--listen",
        &listen,
        "--socket",
        &other,
        "--metrics",
        "off",
        "--memcached",
        "off",
        "--memory",
        "64MiB",
    ]);
    assert_eq!(second.status.code(), Some(1));
    let message = text(&second.stderr);
    assert!(
        message.contains(&listen) && message.contains("in use"),
        "{message}"
    );

    let up = tempfile::tempdir().unwrap();
    let path = up.path().display().to_string();
    let _first = Cell::up(up.path(), &["--mode", "R=1", "--memory", "64MiB"]);
    let second = run(&[
        "cell", "up", "--dir", &path, "--mode", "R=1", "--memory", "64MiB",
    ]);
    assert_eq!(second.status.code(), Some(1), "{}", text(&second.stdout));
    assert!(
        text(&second.stderr).contains(&path),
        "{}",
        text(&second.stderr)
    );
}

#[test]
fn off_loopback_without_tls_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").display().to_string();
    let output = run(&[
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memcached",
        "off",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("--plaintext rpc"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn status_and_memory_limit() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    assert_eq!(cell.pids.len(), 3);
    for i in 0..50 {
        assert!(cell.run(&["set", &format!("k{i}"), "v"]).status.success());
        if i == 3 {
            break;
        }
    }
    let status = cell.status();
    assert_eq!(status["mode"], "R=3.2");
    let backends = status["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 3);
    assert!(
        backends
            .iter()
            .all(|b| b["state"] == "up" && b["items"] == 4),
        "{status:#}"
    );
    let reached = |b: &serde_json::Value| b["carrier"] == "shared" && b["carrier_why"].is_null();
    assert!(backends.iter().all(reached), "{status:#}");
    let human = text(&cell.run(&["cell", "status"]).stdout);
    assert!(human.contains("R=3.2"), "{human}");

    let memory = cell.run(&["cell", "memory", "--limit", "96MiB"]);
    assert!(memory.status.success(), "{}", text(&memory.stderr));
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["backends"][0]["memory_limit_bytes"], 96 << 20);
    let low = cell.run(&["cell", "memory", "--limit", "1KiB"]);
    assert_eq!(low.status.code(), Some(1));

    cell.kill(1);
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["backends"][1]["state"], "down", "{status:#}");
    assert_eq!(cell.run(&["get", "k0"]).stdout, b"v");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn configuration_file_gives_defaults_and_refuses_unknown_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trefoil.toml");
    std::fs::write(
        &file,
        "mode = \"R=3.2\"\nmemory = \"192MiB\"\neviction = \"s3fifo\"\n",
    )
    .unwrap();
    let path = file.display().to_string();
    let cell = Cell::serve(dir.path(), &["--config", &path]);
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(
        (&status["mode"], &status["eviction"]),
        (&"R=3.2".into(), &"s3fifo".into())
    );
    drop(cell);

    let up = dir.path().join("cell").display().to_string();
    let settings =
        format!("dir = \"{up}\"\nmode = \"R=1\"\nname = \"orders\"\nmemory = \"64MiB\"\n");
    std::fs::write(&file, settings).unwrap();
    let cell = Cell::start(&["cell", "up", "--config", &path, "--memory", "96MiB"]);
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(
        (&status["cell"], &status["mode"]),
        (&"orders".into(), &"R=1".into())
    );
    let limit = &status["backends"][0]["memory_limit_bytes"];
    assert_eq!(*limit, 96 << 20, "options win");
    drop(cell);
    // What belongs to another command is a mistake, too.
    let output = run(&["serve", "--config", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no setting \"dir\""));

    std::fs::write(&file, "memroy = \"192MiB\"\n").unwrap();
    let output = run(&["gateway", "--config", &path]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let output = run(&["serve", "--config", &path]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("memroy"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn immutable_cell_loads_refuses_mutations_and_reloads() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("corpus.jsonl");
    let mut corpus: String = (0..1000)
        .map(|i| format!("{{\"key\":\"k{i}\",\"value\":\"v{i}\"}}\n"))
        .collect();
    corpus.push_str("{\"key_base64\":\"/w==\",\"value_base64\":\"AP8=\"}\n");
    std::fs::write(&lines, corpus).unwrap();
    let lines = lines.display().to_string();
    let up = dir.path().join("cell");
    let cell = Cell::up(
        &up,
        &[
            "--mode",
            "R=2",
            "--backends",
            "2",
            "--load",
            &lines,
            "--memory",
            "128MiB",
        ],
    );
    assert_eq!(cell.run(&["get", "k7"]).stdout, b"v7");
    for refused in [&["set", "k7", "x"][..], &["erase", "k7"]] {
        let output = cell.run(refused);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("immutable"),
            "{}",
            text(&output.stderr)
        );
    }
    let csv = dir.path().join("corpus.csv");
    std::fs::write(&csv, "key,value\nk7,new\nother,\"a,b\"\n").unwrap();
    let csv = csv.display().to_string();
    let reload = cell.run(&["cell", "reload", "--load", &csv]);
    assert!(reload.status.success(), "{}", text(&reload.stderr));
    assert_eq!(cell.run(&["get", "k7"]).stdout, b"new");
    assert_eq!(cell.run(&["get", "other"]).stdout, b"a,b");
    assert_eq!(cell.run(&["get", "k8"]).status.code(), Some(1));

    std::fs::write(&csv, "key,value\nk7,newer\n\"unclosed\n").unwrap();
    let bad = cell.run(&["cell", "reload", "--load", &csv]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad.stderr).contains("line"), "{}", text(&bad.stderr));
    assert_eq!(
        cell.run(&["get", "k7"]).stdout,
        b"new",
        "a bad file changes nothing"
    );

    // One of the two copies is enough.
    cell.kill(0);
    assert_eq!(cell.run(&["get", "k7"]).stdout, b"new");
}

/// What stopped people: each message says what is wanted instead.
#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(
        dir.path(),
        &[
            "--memory",
            "64MiB",
            "--value-max",
            "10000",
            "--listen",
            "localhost:0",
        ],
    );
    let version = "0".repeat(31) + "1";
    let cas = cell.run(&["cas", "k", "v", "--version", &version, "--json"]);
    assert_eq!(cas.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&cas.stdout).unwrap();
    assert_eq!(report["outcome"], "missing");
    let message = text(&cas.stderr);
    assert!(
        message.contains("not stored: the key has no value"),
        "{message}"
    );

    let erased = cell.json(&["erase", "k", "--json"]);
    assert_eq!(erased["outcome"], "erased");

    let long = "v".repeat(10_001);
    let set = cell.run(&["set", "k", &long, "--json"]);
    assert_eq!(set.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&set.stdout).unwrap();
    assert_eq!(report["outcome"], "rejected");
    let message = text(&set.stderr);
    assert!(
        message.contains("10001 bytes")
            && message.contains("10000")
            && message.contains("--value-max"),
        "{message}"
    );

    for (args, words) in [
        (["--memory", "64 MiBs"], "give a number"),
        (
            ["--listen", "localhost"],
            "give HOST:PORT, for example 127.0.0.1:7411",
        ),
        (["--metrics", "9411"], "give HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "invalid port value"),
    ] {
        let output = run(&[&["serve"][..], &args].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(words), "{args:?}: {message}");
    }
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, "memory = \"64 MiBs\"\n").unwrap();
    let output = run(&["serve", "--config", config.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert!(
        message.contains("line 1") && message.contains("give a number"),
        "{message}"
    );
}

/// A token file of no use is named, with what is wrong with it, by both sides.
#[test]
fn a_token_file_of_no_use_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let path = file.to_str().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    let get = || {
        let mut command = std::process::Command::new(crate::support::PROGRAM);
        let command = command.args(["get", "k", "--cell", &cell.address]);
        text(
            &command
                .env("TREFOIL_TOKEN_FILE", path)
                .output()
                .unwrap()
                .stderr,
        )
    };
    let serve_with = |metrics: &str| {
        let doors = ["--metrics", metrics, "--memcached", "off"];
        let serve = ["serve", "--listen", "127.0.0.1:0", "--token-file", path];
        text(&run(&[&serve[..], &doors].concat()).stderr)
    };
    let serve = || serve_with("off");
    for message in [get(), serve()] {
        assert!(
            message.contains(path) && message.contains("No such file"),
            "{message}"
        );
        assert!(message.contains("mode 0600"), "{message}");
    }
    std::fs::write(&file, "0".repeat(64)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for message in [get(), serve()] {
        assert!(
            message.contains(path) && message.contains("has mode 0644"),
            "{message}"
        );
    }
    // Together with whatever else is wrong.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let message = serve_with(&taken.local_addr().unwrap().to_string());
    assert!(
        message.contains("has mode 0644") && message.contains("is in use"),
        "{message}"
    );
}
