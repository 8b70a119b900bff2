//! GETs at R=3.2 from three hosts, of which one takes ten times as long to answer.

use std::time::Duration;
use trefoil_client::Options;

use super::super::NetworkBenchError;
use super::cluster::Cluster;
use super::load::{Load, Seen};
use super::{Findings, Ground};
use crate::hosts::{Network, Quality};

/// Each way, of every host; and of the slow one.
const DELAY: Duration = Duration::from_millis(1);
const SLOW: Duration = Duration::from_millis(10);
/// Until clients know.
const LEARNED: Duration = Duration::from_secs(1);
const CHANGE_MAX: f64 = 1.1;

pub(super) fn slowed(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let client = network.host("client")?;
    let cluster = Cluster::build(ground, network)?;
    let load = Load {
        cell: &cluster.address,
        tls: Some(&cluster.tls),
        options: Options {
            deadline: Duration::from_secs(5),
            ..Options::default()
        },
        // No more than are woken in time on a small machine.
        readers: 2,
        value_len: 100,
    };
    load.run(&client, |running| {
        let delay = |delay| Quality {
            delay,
            ..Quality::default()
        };
        for (_, wire) in &cluster.hosts {
            wire.set(delay(DELAY));
        }
        running.watch(LEARNED);
        let before = running.watch(ground.length * 3);
        cluster.hosts[1].1.set(delay(SLOW));
        running.watch(LEARNED);
        let during = running.watch(ground.length * 3);
        let change = |of: fn(&Seen) -> u64| of(&during) as f64 / of(&before).max(1) as f64;
        let p50 = change(|seen| seen.get.p50_ns);
        let p99 = change(|seen| seen.get.p99_ns);
        let is_met =
            p50 <= CHANGE_MAX && p99 <= CHANGE_MAX && during.is_clean() && during.is_by_engine;
        let during = during
            .finding("one host ten times as far")
            .with("p50 to before", p50)
            .with("p99 to before", p99)
            .wanted("p50 and p99 of GETs unchanged within 10 %", is_met);
        findings.extend([before.finding("all hosts alike, 1 ms each way"), during]);
    })
}
