//! Engines beside the backends of several hosts, and clients on another one that find them
//! by themselves, over TLS.

use super::load::Load;
use super::network::{Authority, CELL, Network, address, can_run, eventually};
use super::{CLIENT, servers};
use crate::support::{Cell, PROGRAM, kill, text};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{CertFiles, CertUse, Lookup, Options, SetOptions, Tls};

const ENGINE_PORT: u16 = 7431;

/// Three backends on three hosts, each with an engine.
fn up(network: &Network, authority: &Authority) -> Vec<Cell> {
    // By an address of the host, and by all of them.
    let listen = |host: usize| match host {
        0 => format!("0.0.0.0:{ENGINE_PORT}"),
        _ => format!("{}:{ENGINE_PORT}", address(host)),
    };
    std::thread::scope(|scope| {
        let start = |host: usize| {
            let certs = authority.of(&format!("host{host}"));
            scope.spawn(move || network.up(host, host, &certs, &["--engine", &listen(host)]))
        };
        let starting: Vec<_> = (0..3).map(start).collect();
        let started = starting.into_iter();
        started.map(|one| one.join().unwrap()).collect()
    })
}

/// What the cell says of itself to who has this certificate, once it says what is looked
/// for.
fn status<T>(
    network: &Network,
    authority: &Authority,
    name: &str,
    look: impl Fn(&Value) -> Option<T>,
) -> T {
    let certs = authority.of(name);
    let args = [
        "cell", "status", "--json", "--cell", CELL, "--certs", &certs,
    ];
    let mut last = Value::Null;
    eventually("the cell is as it should be", || {
        let output = network.run(CLIENT, &args);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let found = look(&status);
        if found.is_none() && last != status["engines"] {
            last = status["engines"].clone();
            eprintln!("{last:#}");
        }
        found
    })
}

fn carried_by_engines(status: &Value) -> Option<()> {
    let backends = status["backends"].as_array()?;
    let is_so = |of: &Value| of["carrier"] == "engine";
    (backends.len() == 3 && backends.iter().all(is_so)).then_some(())
}

/// The process of each host's engine.
fn engines(status: &Value) -> Option<Vec<u32>> {
    let engines = status["engines"].as_array()?;
    let pid = |of: &Value| of["counters"]["pid"].as_u64().map(|pid| pid as u32);
    let pids: Option<Vec<u32>> = engines.iter().map(pid).collect();
    pids.filter(|pids| pids.len() == 3)
}

fn sum(status: &Value, counter: &str) -> u64 {
    let engines = status["engines"].as_array().into_iter().flatten();
    engines
        .filter_map(|of| of["counters"][counter].as_u64())
        .sum()
}

#[test]
fn readers_on_another_host_go_by_engines_until_they_are_revoked() {
    if !can_run() {
        return;
    }
    let network = Network::new(5);
    let authority = network.authority("authority");
    let _cells = up(&network, &authority);
    status(&network, &authority, "admin", carried_by_engines);
    let first = status(&network, &authority, "admin", engines);

    // An engine is killed under load, and its host starts another one.
    let load = Load::begin(&network, CLIENT, &servers(), &authority.path("client"));
    load.goes_on();
    let scans = status(&network, &authority, "admin", |status| {
        Some(sum(status, "scans")).filter(|scans| *scans > 0)
    });
    for pid in &first {
        kill(*pid, "KILL");
        load.goes_on();
    }
    let next = status(&network, &authority, "admin", engines);
    assert!(next.iter().all(|pid| !first.contains(pid)), "{next:?}");
    load.goes_on();
    // The same client is back.
    status(&network, &authority, "admin", |status| {
        (sum(status, "scans") > 200).then_some(())
    });
    load.goes_on();
    load.end();
    assert!(scans > 0);
    revoke(&network, &authority);
}

/// A client reads on and on; its certificate is revoked on every host.
fn revoke(network: &Network, authority: &Authority) {
    let tls = |name: &str| {
        let files = CertFiles::in_directory(&authority.path(name));
        Tls::read(&files, CertUse::Client).unwrap()
    };
    let (stop, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
    // When it read last, and how often it was refused in a row.
    let (read_us, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (mine, other) = (tls("client"), tls("admin"));
    let serial = mine.identity().certificate.serial.clone();
    let (ended, last, failed) = (
        Arc::clone(&stop),
        Arc::clone(&read_us),
        Arc::clone(&refused),
    );
    let reader = network.spawn_within(CLIENT, move || {
        let connect = |tls| trefoil_client::Cell::connect_with(&servers(), Some(tls)).unwrap();
        let options = Options {
            deadline: Duration::from_millis(500),
            ..Options::default()
        };
        let mut writer = connect(other).client(Options::default());
        crate::support::reaches_all(&mut writer);
        writer
            .set(b"secret", b"value", SetOptions::default())
            .unwrap();
        let mut client = connect(mine).client(options);
        while !ended.load(Ordering::Relaxed) {
            match client.get(b"secret") {
                Ok(Lookup::Hit(_)) => {
                    last.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                    failed.store(0, Ordering::Relaxed);
                }
                Ok(Lookup::Miss(miss)) => panic!("{:?}", miss.reason),
                Err(_) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    eventually("it reads", || {
        (read_us.load(Ordering::Relaxed) > 0).then_some(())
    });
    status(network, authority, "admin", carried_by_engines);
    assert_eq!(
        status(network, authority, "admin", |s| Some(sum(s, "revoked"))),
        0
    );
    for host in 0..3 {
        let file = authority.path(&format!("host{host}")).join("revoked");
        std::fs::write(file, format!("{serial}  # lost\n")).unwrap();
    }
    let revoked_us = began.elapsed().as_micros() as u64;
    eventually("it reads no more", || {
        (refused.load(Ordering::Relaxed) >= 4).then_some(())
    });
    let last_us = read_us.load(Ordering::Relaxed);
    eprintln!(
        "its last read came {} us after it was revoked",
        last_us.saturating_sub(revoked_us)
    );
    // Nothing is cached by which it would read again.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(read_us.load(Ordering::Relaxed), last_us);
    stop.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    let count = status(network, authority, "admin", |s| Some(sum(s, "revoked")));
    assert!(count >= 2, "{count} sessions were ended");
}

/// One process with everything in it, which clients find by the address of its service.
#[test]
fn a_server_s_own_engine_is_found_by_its_address() {
    if !can_run() {
        return;
    }
    let network = Network::new(2);
    let authority = network.authority("authority");
    let certs = authority.of("host0");
    let socket = network.local().join("socket").display().to_string();
    let (listen, engine) = (
        format!("{}:7411", address(0)),
        format!("{}:{ENGINE_PORT}", address(0)),
    );
    let args = [
        "serve",
        "--listen",
        &listen,
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memcached",
        "off",
        "--memory",
        "64MiB",
        "--certs",
        &certs,
        "--engine",
        &engine,
    ];
    let _cell = Cell::start_by(network.on(0, PROGRAM).args(args));
    let cell = format!("trefoil://{listen}");
    let more = ["--cell", &cell, "--certs", &authority.of("client")];
    let set = network.run(1, &[&["set", "k", "hello"], &more[..]].concat());
    assert!(set.status.success(), "{}", text(&set.stderr));
    let get = network.run(1, &[&["get", "k"], &more[..]].concat());
    assert_eq!(text(&get.stdout), "hello");
    let status = network.run(1, &[&["cell", "status", "--json"], &more[..]].concat());
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["engines"][0]["address"], engine, "{status:#}");
    let counters = &status["engines"][0]["counters"];
    assert!(counters["scans"].as_u64() >= Some(1), "{counters:#}");
    assert_eq!(counters["backends_mapped"], 1);
    // Who speaks without TLS, or is of another authority, is told nothing.
    let stranger = network.authority("another");
    let strange = ["--cell", &cell, "--certs", &stranger.of("client")];
    let get = network.run(
        1,
        &[&["get", "k", "--engine", &engine], &strange[..]].concat(),
    );
    assert!(!get.status.success());
    let said = network
        .on(1, "bash")
        .args(["-c", &format!(
            "exec 3<>/dev/tcp/{}/{ENGINE_PORT}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; timeout 5 cat <&3 | wc -c",
            address(0)
        )])
        .output()
        .unwrap();
    let count: u64 = text(&said.stdout).trim().parse().unwrap();
    assert!(count <= 18, "{count} bytes");
}
