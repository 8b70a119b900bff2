//! GETs and SETs over a wire that loses, doubles, damages and reorders.

use std::time::Duration;
use trefoil_client::Options;

use super::super::NetworkBenchError;
use super::load::Load;
use super::{Finding, Findings, Ground};
use crate::hosts::{Network, Quality};

/// Each way.
const DELAY: Duration = Duration::from_millis(2);
/// One percent, of 10,000.
const ONE_PERCENT: u16 = 100;
/// A GET at a time each: enough for a p99.9 in seconds.
const READERS: usize = 12;
const VALUE_LEN: usize = 100;
const ROUND_TRIPS_MAX: f64 = 3.0;
/// Less than a round trip: what the kernel has measured of it decides then.
const RTO_MIN: Duration = Duration::from_millis(1);

pub(super) fn faults(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let of = Quality {
        delay: DELAY,
        ..Quality::default()
    };
    let qualities = [
        (
            "1 % loss",
            Quality {
                lost: ONE_PERCENT,
                ..of
            },
        ),
        (
            "1 % doubled",
            Quality {
                doubled: ONE_PERCENT,
                ..of
            },
        ),
        (
            "1 % damaged",
            Quality {
                damaged: ONE_PERCENT,
                ..of
            },
        ),
        (
            "1 % early, before others",
            Quality {
                early: ONE_PERCENT,
                ..of
            },
        ),
        (
            "all of these",
            Quality {
                lost: ONE_PERCENT,
                doubled: ONE_PERCENT,
                damaged: ONE_PERCENT,
                early: ONE_PERCENT,
                ..of
            },
        ),
    ];
    let ways = [
        ("UDP", true, None),
        ("TCP", false, None),
        ("TCP, tcp_rto_min_us 1000", false, Some(RTO_MIN)),
    ];
    for (number, (by, engine_datagrams, rto_min)) in ways.into_iter().enumerate() {
        let server = network.host(&format!("server{number}"))?;
        let (client, wire) = network.host_by_wire(&format!("client{number}"))?;
        if let Some(least) = rto_min
            && !(server.set_tcp_rto_min(least)? && client.set_tcp_rto_min(least)?)
        {
            findings.push(Finding::new(format!(
                "{by}: skipped, this kernel has no such setting"
            )));
            continue;
        }
        let site = ground.site(&server)?;
        let load = Load {
            cell: &site.address,
            tls: Some(&site.tls),
            options: Options {
                engine: Some(site.engine),
                engine_datagrams,
                deadline: Duration::from_secs(5),
                ..Options::default()
            },
            readers: READERS,
            value_len: VALUE_LEN,
        };
        load.run(&client, |running| {
            wire.set(of);
            running.watch(Duration::from_millis(300));
            let sound = running.watch(ground.length);
            // Without faults a GET is one round trip.
            let round_trip_ns = sound.get.p50_ns.max(1) as f64;
            let what = format!("{by}, 2 ms each way, no faults: a round trip");
            findings.push(sound.finding(what));
            for (what, quality) in qualities {
                let before = wire.counts();
                wire.set(quality);
                let seen = running.watch(ground.length);
                let after = wire.counts();
                let hurt = (after.lost + after.doubled + after.damaged + after.early)
                    - (before.lost + before.doubled + before.damaged + before.early);
                let round_trips = seen.get.p999_ns as f64 / round_trip_ns;
                let is_met = seen.is_clean()
                    && hurt > 0
                    && seen.is_by_engine
                    && round_trips <= ROUND_TRIPS_MAX;
                let finding = seen
                    .finding(format!("{by}, {what}"))
                    .with("frames hurt", hurt as f64)
                    .with("p99.9 round trips", round_trips);
                findings.push(finding.wanted(
                    "0 failed, 0 missed, 0 wrong, by the engine, p99.9 of GETs <= 3 round trips",
                    is_met,
                ));
            }
            wire.set(Quality::default());
        })?;
    }
    Ok(())
}
