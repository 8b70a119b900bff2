//! An engine, a backend and a host that are lost under load, one after another, in a cell of
//! three hosts.

use std::cell::Cell;
use std::time::Duration;
use trefoil_client::Options;

use super::super::{NetworkBenchError, cell_error};
use super::cluster::Cluster;
use super::load::{Load, Running, Seen};
use super::{Finding, Findings, Ground};
use crate::hosts::Network;

/// Of a client that wants none of its operations to fail when a host vanishes.
const DEADLINE: Duration = Duration::from_secs(5);
const WANTED: &str = "0 failed, 0 missed, 0 stale";
/// What a host whose link is down still tries; with it up there are thousands.
const FRAMES_CUT_MAX: u64 = 500;
const BACK_WITHIN: Duration = Duration::from_secs(40);

pub(super) fn kills(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let client = network.host("client")?;
    let cluster = Cluster::build(ground, network)?;
    let network = &*network;
    let load = Load {
        cell: &cluster.address,
        tls: Some(&cluster.tls),
        options: Options {
            deadline: DEADLINE,
            ..Options::default()
        },
        readers: 2,
        value_len: 100,
    };
    load.run(&client, |running| -> Result<(), NetworkBenchError> {
        let steady = running.watch(ground.length);
        findings.push(judged("nothing is killed", &steady));
        let mut stretch = |what: &str, lose: &dyn Fn() -> Result<(), NetworkBenchError>| {
            let mut lost = Ok(());
            let seen = running.watch_while(|| {
                std::thread::sleep(ground.length / 4);
                lost = lose();
                std::thread::sleep(ground.length);
            });
            findings.push(judged(what, &seen));
            lost
        };
        stretch("kill -9 of an engine", &|| {
            cluster.kill(0, "engine").map(drop)
        })?;
        is_back(running)?;
        stretch("kill -9 of a backend", &|| {
            cluster.kill(1, "backend").map(drop)
        })?;
        cluster.await_whole(&client)?;
        is_back(running)?;
        let (cut, wire) = &cluster.hosts[2];
        let at_cut = Cell::new(0);
        let cut_off = || {
            network.link(cut, false)?;
            at_cut.set(wire.counts().frames);
            Ok(())
        };
        stretch("link of a host down", &cut_off)?;
        let after = wire.counts().frames - at_cut.get();
        if after > FRAMES_CUT_MAX {
            let said = format!("{after} frames went over a link that is down");
            return Err(cell_error(said));
        }
        stretch("and up again", &|| Ok(network.link(cut, true)?))?;
        is_back(running)
    })?
}

fn judged(what: &str, seen: &Seen) -> Finding {
    let finding = seen.finding(what);
    finding.wanted(WANTED, seen.is_clean())
}

fn is_back(running: &Running<'_>) -> Result<(), NetworkBenchError> {
    match running.await_engines(BACK_WITHIN) {
        true => Ok(()),
        false => Err(cell_error("clients do not go by all engines again")),
    }
}
