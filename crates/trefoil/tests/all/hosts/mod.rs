//! A cell whose backends are on several hosts, each with a network, a directory and a boot of
//! its own, over a real etcd and with TLS; a client on one more host.

mod engines;
mod load;
mod network;
mod refusals;

use crate::support::{Cell, text};
use load::Load;
use network::{Authority, CELL, Network, Process, address, can_run, eventually};
use serde_json::Value;
use std::time::Instant;

/// Where nobody but clients and spares is.
const SPARE: usize = 3;
const CLIENT: usize = 4;

/// All three, which wait for each other.
fn up(network: &Network, authority: &Authority) -> Vec<Cell> {
    std::thread::scope(|scope| {
        let start = |host: usize| {
            let certs = authority.of(&format!("host{host}"));
            scope.spawn(move || network.up(host, host, &certs, &[]))
        };
        let starting: Vec<_> = (0..3).map(start).collect();
        let started = starting.into_iter();
        started.map(|one| one.join().unwrap()).collect()
    })
}

fn servers() -> String {
    let servers: Vec<String> = (0..3)
        .map(|host| format!("{}:7411", address(host)))
        .collect();
    format!("trefoil://{}", servers.join(","))
}

/// What the cell says of itself, asked from the client's host.
fn status(network: &Network, authority: &Authority) -> Option<Value> {
    let certs = authority.of("client");
    let args = [
        "cell", "status", "--json", "--cell", CELL, "--certs", &certs,
    ];
    let output = network.run(CLIENT, &args);
    serde_json::from_slice(&output.stdout).ok()
}

/// Waits until every backend is up and has recovered.
fn is_whole(network: &Network, authority: &Authority) -> Value {
    eventually("all backends are up", || {
        let status = status(network, authority)?;
        let backends = status["backends"].as_array()?;
        let is_up = |backend: &Value| backend["state"] == "up";
        backends.iter().all(is_up).then_some(status)
    })
}

/// Again and again: a command waits a second for its answer, and the machine may be busy.
fn set_and_get(network: &Network, certs: &str, cell: &str, key: &str) {
    let more = ["--cell", cell, "--certs", certs];
    let run = |args: &[&str]| network.run(CLIENT, &[args, &more].concat());
    eventually("a value is set", || {
        run(&["set", key, "value"]).status.success().then_some(())
    });
    eventually("it is read", || {
        let get = run(&["get", key]);
        let is_read = text(&get.stdout).trim_end() == "value";
        is_read.then_some(())
    });
}

#[test]
fn a_machine_is_lost_under_load_and_a_spare_takes_its_place() {
    if !can_run() {
        return;
    }
    let network = Network::new(5);
    let authority = network.authority("authority");
    let cells = up(&network, &authority);
    let certs = authority.of("client");
    assert_eq!(cells[0].address, CELL);
    set_and_get(&network, &certs, CELL, "by-etcd");
    set_and_get(&network, &certs, &servers(), "by-servers");
    let first = is_whole(&network, &authority);
    // Nothing of it is shared memory: it is another host.
    let carriers = first["backends"].as_array().unwrap().iter();
    assert!(carriers.clone().all(|b| b["carrier"] == "rpc"), "{first:#}");

    let load = Load::begin(&network, CLIENT, &servers(), &authority.path("client"));
    // A process: its own host starts it again, and it learns from the other hosts.
    let pid = first["backends"][1]["pid"].as_u64().unwrap() as u32;
    crate::support::kill(pid, "KILL");
    eventually("backend 1 was started again and has recovered", || {
        let status = status(&network, &authority)?;
        let backend = &status["backends"][1];
        let is_new = backend["pid"].as_u64()? as u32 != pid && backend["state"] == "up";
        is_new.then_some(())
    });
    load.goes_on();

    // A machine.
    let dir = network.local().join("spare").display().to_string();
    let listen = format!("{}:7411", address(SPARE));
    let spare_certs = authority.of(&format!("host{SPARE}"));
    let args = [
        "cell", "spare", "--dir", &dir, "--store", CELL, "--memory", "64MiB",
    ];
    let more = [
        "--listen",
        &listen,
        "--certs",
        &spare_certs,
        "--dead-after",
        "1s",
    ];
    let mut command = network.on(SPARE, crate::support::PROGRAM);
    let spare = Process::start(command.args(args).args(more), "spare");
    eventually("the spare stands by", || spare.is_ready().then_some(()));
    network.link(2, false);
    let cut = Instant::now();
    // Whoever is cut off with it neither writes nor reads what may be old by now.
    let behind = format!("trefoil://{}:7411", address(2));
    for args in [&["set", "by-etcd", "other"][..], &["get", "by-etcd"]] {
        let more = ["--cell", &behind, "--certs", &certs];
        network.refused(2, &[args, &more].concat());
    }
    let replaced = eventually("the spare has the place and has recovered", || {
        let status = status(&network, &authority)?;
        let is_there = !status["replacements"].as_array()?.is_empty();
        let is_up = |number: usize| status["backends"][number]["state"] == "up";
        (is_there && (0..3).all(is_up)).then_some(status)
    });
    eprintln!("replaced after {:?}", cut.elapsed());
    let to = &replaced["replacements"][0]["to"][0];
    assert_eq!(to, &Value::from(listen.as_str()), "{replaced:#}");
    load.goes_on();

    // It comes back with all that it held, and is told that its place is another's.
    network.link(2, true);
    let log = cells[2].log();
    eventually("the former process has ended", || {
        let is_told = log.count(&["place of backend 2 was given to another process", &listen]) > 0;
        (is_told && log.count(&["a spare has taken its place"]) > 0).then_some(())
    });
    load.goes_on();
    load.end();
    is_whole(&network, &authority);
    // As the operator of that machine finds out.
    let certs2 = authority.of("host2");
    drop(cells);
    let args = network.up_args(2, 2, &certs2);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = network.refused(2, &args);
    for part in ["backend 2 of the cell", &listen, "trefoil cell spare"] {
        assert!(said.contains(part), "{said}");
    }
}
