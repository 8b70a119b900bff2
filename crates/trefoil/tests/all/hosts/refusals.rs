//! Hosts, clients and spares that do not belong to a cell, or not where they want to be: each
//! is told why and what to do, and the cell has lost nothing by it.

use super::network::{CELL, Network, Process, address, can_run, eventually};
use super::{is_whole, set_and_get, status, up};
use crate::support::{PROGRAM, text};

const STRANGER: usize = 3;
const CLIENT: usize = 4;

fn has_all(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing: {said}");
    }
}

/// `cell up` of another host with something changed.
fn refused(network: &Network, host: usize, number: usize, certs: &str, more: &[&str]) -> String {
    let args = network.up_args(host, number, certs);
    let args = args.iter().map(String::as_str).chain(more.iter().copied());
    network.refused(host, &args.collect::<Vec<&str>>())
}

#[test]
fn a_cell_begins_with_none_but_those_who_mean_the_same() {
    if !can_run() {
        return;
    }
    let network = Network::new(2);
    let authority = network.authority("authority");
    let foreign = network.authority("foreign");
    let certs = authority.of("host0");
    let begin = || {
        let args = network.up_args(0, 0, &certs);
        let waits = Process::start(network.on(0, PROGRAM).args(args), "host 0");
        eventually("it waits for the others", || {
            (waits.log.count(&["begins when its other hosts have come"]) > 0).then_some(())
        });
        waits
    };
    let mut first = begin();
    let own = authority.of("host1");
    let said = refused(&network, 1, 0, &own, &[]);
    has_all(
        &said,
        &["another host is to be backend 0", "host0", "--here"],
    );
    let said = refused(&network, 1, 1, &own, &["--backends", "5"]);
    has_all(
        &said,
        &[
            "host0 begins this cell with",
            "--backends 3",
            "--backends 5",
        ],
    );
    // The certificate of another host.
    let said = refused(&network, 1, 1, &certs, &[]);
    let other = address(1);
    has_all(
        &said,
        &[
            "this host's own certificate",
            "is not for that name",
            &other,
        ],
    );
    let said = refused(&network, 1, 7, &own, &[]);
    has_all(&said, &["--here 7", "0 to 2"]);
    let plain = [
        "cell", "up", "--dir", "/nowhere", "--store", CELL, "--here", "1",
    ];
    let said = network.refused(1, &[&plain[..], &["--listen", "10.78.0.12:7411"]].concat());
    has_all(&said, &["reachable from other machines", "--certs DIR"]);
    let anywhere = ["--listen", "0.0.0.0:7411", "--certs", &own];
    let said = network.refused(1, &[&plain[..], &anywhere].concat());
    has_all(
        &said,
        &["other hosts cannot reach 0.0.0.0:7411", "--advertise"],
    );
    // It takes its word back.
    crate::support::kill(first.child.id(), "TERM");
    assert_eq!(first.ends(), 0);
    assert_eq!(network.held("founders/0").unwrap(), "");

    // Certificates of two authorities: neither begins with the other.
    let two = ["--backends", "2", "--mode", "R=1"];
    let start = |host: usize, certs: &str, who| {
        let args = network.up_args(host, host, certs);
        Process::start(network.on(host, PROGRAM).args(args).args(two), who)
    };
    let both = [
        start(0, &certs, "host 0"),
        start(1, &foreign.of("host1"), "host 1"),
    ];
    eventually("one of them says why", || {
        let parts = ["is to be at", "authority", "Nothing has begun"];
        let told = both.iter().map(|one| one.log.count(&parts));
        (told.sum::<usize>() > 0).then_some(())
    });
    assert_eq!(network.held("config").unwrap(), "", "nothing was written");
}

#[test]
fn a_stranger_is_told_why_and_a_host_that_was_booted_comes_back() {
    if !can_run() {
        return;
    }
    let mut network = Network::new(5);
    let authority = network.authority("authority");
    let foreign = network.authority("foreign");
    let mut cells = up(&network, &authority);
    let certs = authority.of("client");
    set_and_get(&network, &certs, CELL, "before");

    // Its number is another host's.
    let own = authority.of(&format!("host{STRANGER}"));
    let said = refused(&network, STRANGER, 0, &own, &[]);
    let at = format!("{}:7411", address(0));
    has_all(
        &said,
        &[
            "backend 0 of the cell",
            &at,
            "on host host0",
            "trefoil cell spare",
            "--here",
        ],
    );
    // It would be reached by nobody.
    let strange = foreign.of(&format!("host{STRANGER}"));
    let dir = network.local().join("spare").display().to_string();
    let listen = format!("{}:7411", address(STRANGER));
    let spare = [
        "cell", "spare", "--dir", &dir, "--store", CELL, "--listen", &listen,
    ];
    let said = network.refused(STRANGER, &[&spare[..], &["--certs", &strange]].concat());
    has_all(
        &said,
        &["no other backend of the cell is reached", "authority"],
    );
    // Nor are clients of another authority let in, or of none.
    let get = ["get", "before", "--cell", CELL];
    let said = network.refused(
        CLIENT,
        &[&get[..], &["--certs", &foreign.of("client")]].concat(),
    );
    has_all(&said, &["authority"]);
    network.refused(CLIENT, &get);
    // A directory is of one cell.
    let dir = network.local().join("cell").display().to_string();
    let other = "etcd://10.78.0.1:2379/cells/other";
    let listen = format!("{}:7412", address(0));
    let args = [
        "cell", "up", "--dir", &dir, "--store", other, "--here", "0", "--listen", &listen,
    ];
    let said = network.refused(
        0,
        &[&args[..], &["--certs", &authority.of("host0")]].concat(),
    );
    has_all(
        &said,
        &["is the directory of the cell", "choose another one"],
    );

    // As if it were on one host.
    let up = [
        "cell", "up", "--dir", &dir, "--store", CELL, "--memory", "64MiB",
    ];
    let said = network.refused(CLIENT, &up);
    has_all(&said, &["is on several hosts", "--here", "--listen"]);
    let spare = ["cell", "spare", "--dir", &dir, "--store", CELL];
    let said = network.refused(STRANGER, &spare);
    has_all(&said, &["the cell is on several hosts", "--listen"]);

    // A machine is switched off, and on.
    let old = network.held("config").unwrap();
    let before = is_whole(&network, &authority)["config_id"]
        .as_u64()
        .unwrap();
    cells.remove(1).crash();
    network.boot(1);
    // Nothing is written for one that means another cell.
    let own = authority.of("host1");
    let said = refused(&network, 1, 1, &own, &["--mode", "R=1", "--backends", "3"]);
    has_all(&said, &["the cell is R=3.2"]);
    assert_eq!(network.held("config").unwrap(), old);
    cells.push(network.up(1, 1, &authority.of("host1"), &[]));
    let after = eventually("backend 1 has recovered", || {
        let status = status(&network, &authority)?;
        let backend = &status["backends"][1];
        (backend["state"] == "up" && !backend["recovery"].is_null()).then_some(status)
    });
    assert_eq!(after["config_id"], before + 1, "{after:#}");
    let get = network.run(
        CLIENT,
        &["get", "before", "--cell", CELL, "--certs", &certs],
    );
    assert_eq!(
        text(&get.stdout).trim_end(),
        "value",
        "{}",
        text(&get.stderr)
    );

    // Orders are for the backends of their host; the others stay as they are.
    let here = format!("unix:{dir}");
    let output = network.run(0, &["cell", "restart", "--cell", &here]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let restarted = is_whole(&network, &authority);
    assert_ne!(restarted["backends"][0]["pid"], after["backends"][0]["pid"]);
    assert_eq!(restarted["backends"][2]["pid"], after["backends"][2]["pid"]);
    let said = network.refused(0, &["cell", "restart", "1", "--cell", &here]);
    has_all(&said, &["backend 1 is on another host"]);
    let said = network.refused(0, &["cell", "resize", "--backends", "4", "--cell", &here]);
    has_all(&said, &["not resized in this release"]);
    set_and_get(&network, &certs, CELL, "after");

    // etcd has old data: nobody is named anew over it.
    let now = network.held("config").unwrap();
    network.put("config", old.trim_end());
    cells.remove(1).crash();
    network.boot(2);
    let said = refused(&network, 2, 2, &authority.of("host2"), &[]);
    has_all(&said, &["was in force before", "restore-config"]);
    assert_eq!(network.held("config").unwrap().trim_end(), old.trim_end());
    network.put("config", now.trim_end());

    // etcd is away: what runs serves on, and who starts says so.
    network.end_etcd();
    let servers = super::servers();
    set_and_get(&network, &certs, &servers, "without");
    let said = refused(&network, 2, 2, &authority.of("host2"), &[]);
    has_all(&said, &["etcd cannot be reached"]);
}

#[test]
fn a_cell_whose_machines_were_all_switched_off_is_there_again_and_empty() {
    if !can_run() {
        return;
    }
    let network = Network::new(5);
    let authority = network.authority("authority");
    let cells = up(&network, &authority);
    let certs = authority.of("client");
    set_and_get(&network, &certs, CELL, "before");
    let life = network.held("config").unwrap();
    for (host, cell) in cells.into_iter().enumerate() {
        cell.crash();
        network.boot(host);
    }
    let _cells = up(&network, &authority);
    is_whole(&network, &authority);
    let get = ["get", "before", "--cell", CELL, "--certs", &certs];
    network.refused(CLIENT, &get);
    set_and_get(&network, &certs, CELL, "after");
    let of = |config: &str| -> serde_json::Value {
        let config: serde_json::Value = serde_json::from_str(config).unwrap();
        config["life"].clone()
    };
    assert_eq!(
        of(&life),
        of(&network.held("config").unwrap()),
        "it is the same cell"
    );
}

/// One of a host's two backends was given away while the host was off.
#[test]
fn a_host_starts_those_of_its_backends_that_are_still_here() {
    if !can_run() {
        return;
    }
    let network = Network::new(1);
    let authority = network.authority("authority");
    let certs = authority.of("host0");
    let mut args = network.up_args(0, 0, &certs);
    let here = args.iter().position(|arg| arg == "--here").unwrap();
    args[here + 1] = "0,1".to_owned();
    let start = || {
        let mut command = network.on(0, PROGRAM);
        command
            .args(&args)
            .args(["--mode", "R=1", "--backends", "2"]);
        let started = Process::start(&mut command, "host 0");
        eventually("it is ready", || started.is_ready().then_some(()));
        started
    };
    let mut first = start();
    crate::support::kill(first.child.id(), "TERM");
    assert_eq!(first.ends(), 0);
    let mut config: serde_json::Value =
        serde_json::from_str(&network.held("config").unwrap()).unwrap();
    config["config_id"] = 2.into();
    config["backends"][1]["addresses"] = vec!["10.78.0.99:7411"].into();
    config["backends"][1]["place"] = "another".into();
    network.put("config", &config.to_string());
    let mut second = start();
    let parts = ["it is left out", "backend 1 of the cell", "10.78.0.99:7411"];
    assert_eq!(second.log.count(&parts), 1);
    assert_ne!(network.held("backends/0").unwrap(), "");
    assert_eq!(network.held("backends/1").unwrap(), "");
    crate::support::kill(second.child.id(), "TERM");
    assert_eq!(second.ends(), 0);
}

/// Without certificates: what a spare asks of the others is shown the token, too.
#[test]
fn a_spare_shows_the_token_that_it_was_given() {
    if !can_run() {
        return;
    }
    let network = Network::new(2);
    let file = |host: usize, digit: &str| {
        let path = network.local().join(format!("token-{digit}"));
        let path = path.display().to_string();
        let script = format!("umask 077; echo {} > {path}", digit.repeat(64));
        let written = network.on(host, "sh").args(["-ec", &script]).status();
        assert!(written.unwrap().success());
        path
    };
    let start = |host: usize, what: &[&str], token: &str| {
        let listen = format!("{}:7411", address(host));
        let dir = network.local().join(what[0]).display().to_string();
        let mut command = network.on(host, PROGRAM);
        command.arg("cell").args(what).args(["--dir", &dir]);
        command.args(["--store", CELL, "--memory", "64MiB", "--listen", &listen]);
        command.args(["--plaintext", "rpc", "--token-file", token]);
        Process::start(&mut command, "one")
    };
    let up = ["up", "--here", "0", "--mode", "R=1", "--backends", "1"];
    let first = start(0, &up, &file(0, "1"));
    eventually("the cell is ready", || first.is_ready().then_some(()));
    let mut wrong = start(1, &["spare"], &file(1, "2"));
    assert_eq!(wrong.ends(), 1);
    let parts = ["no other backend of the cell is reached"];
    assert_eq!(wrong.log.count(&parts), 1);
    let spare = start(1, &["spare"], &file(1, "1"));
    eventually("it stands by", || spare.is_ready().then_some(()));
}
