//! An engine, a backend and a host that are lost under load, one after another, in a cell of
//! three hosts.

use std::time::Duration;
use trefoil_client::Options;

use super::super::{NetworkBenchError, cell_error};
use super::cluster::Cluster;
use super::load::{Load, Running, Seen};
use super::{Finding, Ground};
use crate::hosts::Network;

/// Of a client that wants none of its operations to fail when a host vanishes.
const DEADLINE: Duration = Duration::from_secs(5);
const WANTED: &str = "0 failed, 0 missed, 0 stale";
const BACK_WITHIN: Duration = Duration::from_secs(40);

pub(super) fn kills(
    ground: &Ground<'_>,
    network: &mut Network,
) -> Result<Vec<Finding>, NetworkBenchError> {
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
    load.run(&client, |running| -> Result<_, NetworkBenchError> {
        let steady = running.watch(ground.length);
        let mut findings = vec![judged("nothing is killed", &steady)];
        let mut problem = None;
        let mut stretch = |what: &str, lose: &dyn Fn() -> Result<(), NetworkBenchError>| {
            let seen = running.watch_while(|| {
                std::thread::sleep(ground.length / 4);
                if let Err(error) = lose() {
                    problem.get_or_insert(error);
                }
                std::thread::sleep(ground.length);
            });
            findings.push(judged(what, &seen));
        };
        stretch("kill -9 of an engine", &|| {
            cluster.kill(0, "engine").map(drop)
        });
        is_back(running)?;
        stretch("kill -9 of a backend", &|| {
            cluster.kill(1, "backend").map(drop)
        });
        cluster.await_whole(&client)?;
        is_back(running)?;
        let cut = &cluster.hosts[2].0;
        stretch("link of a host down", &|| Ok(network.link(cut, false)?));
        stretch("and up again", &|| Ok(network.link(cut, true)?));
        match problem {
            Some(error) => Err(error),
            None => Ok(findings),
        }
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
