//! A long way: how many round trips operations take.

use std::time::{Duration, Instant};
use trefoil_client::{Carrier, Client, Lookup, Mutated, Options, SetOptions};

use super::super::{NetworkBenchError, await_engine, cell_error, connect_to};
use super::{Finding, Findings, Ground};
use crate::hosts::{Network, Quality};

/// Each way.
const DELAY: Duration = Duration::from_millis(25);
const KEYS_COUNT: usize = 100;
const ROUNDS: usize = 15;
/// Of a round trip, beside it: the machine's own time.
const TARGET_ROUND_TRIPS: f64 = 1.25;

pub(super) fn wan(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let server = network.host("server")?;
    let (host, wire) = network.host_by_wire("client")?;
    let site = ground.site(&server)?;
    let options = Options {
        deadline: Duration::from_secs(10),
        ..Options::default()
    };
    let ways = [
        ("an engine over TCP", Some(site.engine), false),
        ("an engine over UDP", Some(site.engine), true),
        ("calls", None, false),
    ];
    let keys: Vec<Vec<u8>> = (0..KEYS_COUNT)
        .map(|number| format!("key-{number}").into_bytes())
        .collect();
    let tls = Some(site.tls.clone());
    host.enter(|| {
        let mut filler = connect_to(&site.address, tls.clone())?.client(options);
        keys.iter().try_for_each(|key| set(&mut filler, key))
    })??;
    // Clients that come now know no shorter way.
    wire.set(Quality {
        delay: DELAY,
        ..Quality::default()
    });
    for (by, engine, engine_datagrams) in ways {
        let found = host.enter(|| {
            let cell = connect_to(&site.address, tls.clone())?;
            let mut client = cell.client(Options {
                engine,
                engine_datagrams,
                carrier: match engine {
                    Some(_) => Carrier::Auto,
                    None => Carrier::Rpc,
                },
                ..options
            });
            if engine.is_some() {
                await_engine(&mut client)?;
            }
            let many: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let get = half_of(|round| match client.get(&keys[round % keys.len()]) {
                Ok(Lookup::Hit(_)) => Ok(()),
                other => Err(cell_error(format!("{other:?}"))),
            })?;
            let get_many = half_of(|_| {
                let mut hits = 0;
                client.get_many(&many, |_, found| {
                    hits += usize::from(matches!(found, Ok(Lookup::Hit(_))));
                });
                match hits == KEYS_COUNT {
                    true => Ok(()),
                    false => Err(cell_error(format!("{hits} of {KEYS_COUNT}"))),
                }
            })?;
            let set = half_of(|round| set(&mut client, &keys[round % keys.len()]))?;
            Ok::<_, NetworkBenchError>((get, get_many, set))
        })??;
        let round_trips = |took: Duration| took.as_secs_f64() / (2.0 * DELAY.as_secs_f64());
        let (get, get_many, set) = found;
        let is_met = round_trips(get) <= TARGET_ROUND_TRIPS
            && round_trips(get_many) <= TARGET_ROUND_TRIPS
            && round_trips(set) <= TARGET_ROUND_TRIPS;
        findings.push(
            Finding::new(format!("25 ms each way, by {by}: p50 in round trips"))
                .with("GET", round_trips(get))
                .with("get_many of 100", round_trips(get_many))
                .with("SET, by call", round_trips(set))
                .wanted(
                    "each in one round trip (1.25 with the hosts' own time)",
                    is_met,
                ),
        );
    }
    Ok(())
}

fn set(client: &mut Client, key: &[u8]) -> Result<(), NetworkBenchError> {
    match client.set(key, &[b'v'; 100], SetOptions::default()) {
        Ok(Mutated::Stored { .. }) => Ok(()),
        other => Err(cell_error(format!("{other:?}"))),
    }
}

/// What half of the rounds took at most, after two that are not counted.
fn half_of(
    mut work: impl FnMut(usize) -> Result<(), NetworkBenchError>,
) -> Result<Duration, NetworkBenchError> {
    (0..2).try_for_each(&mut work)?;
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let begin = Instant::now();
        work(round)?;
        all.push(begin.elapsed());
    }
    all.sort_unstable();
    Ok(all[ROUNDS / 2])
}
