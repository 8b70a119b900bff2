//! A client whose certificate is revoked while it reads: when it has read last, by whatever
//! way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Lookup, Options, SetOptions};

use super::super::{NetworkBenchError, await_engine, cell_error, connect_to, io_error};
use super::{Finding, Findings, Ground};
use crate::hosts::Network;

/// Clients revoked of each kind.
const CLIENTS: usize = 3;
const MOST: Duration = Duration::from_millis(100);
/// For so long it is looked whether it still reads.
const WATCHED: Duration = Duration::from_millis(600);

pub(super) fn revoked(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let (server, host) = (network.host("server")?, network.host("client")?);
    let site = ground.site(&server)?;
    let mut serials = Vec::new();
    for engine_datagrams in [false, true] {
        let mut last: Vec<f64> = Vec::new();
        let mut reads = 0;
        for number in 0..CLIENTS {
            let name = format!("reader-{}-{number}", u8::from(engine_datagrams));
            let tls = site.another_client(ground, &name)?;
            serials.push(tls.identity().certificate.serial.clone());
            let (began, is_over) = (Instant::now(), AtomicBool::new(false));
            let (last_us, count) = (AtomicU64::new(0), AtomicU64::new(0));
            let now_us = || began.elapsed().as_micros() as u64;
            let options = Options {
                engine: Some(site.engine),
                engine_datagrams,
                deadline: Duration::from_millis(100),
                ..Options::default()
            };
            let read = || -> Result<(), NetworkBenchError> {
                let cell = connect_to(&site.address, Some(tls))?;
                let mut client = cell.client(options);
                await_engine(&mut client)?;
                client
                    .set(b"secret", b"value", SetOptions::default())
                    .map_err(cell_error)?;
                while !is_over.load(Ordering::Acquire) {
                    if let Ok(Lookup::Hit(_)) = client.get(b"secret") {
                        last_us.store(now_us(), Ordering::Release);
                        count.fetch_add(1, Ordering::AcqRel);
                    }
                }
                Ok(())
            };
            let revoked_us = std::thread::scope(|scope| {
                let reader = scope.spawn(|| host.enter(read)?);
                while count.load(Ordering::Acquire) < 100 && !reader.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let revoked_us = now_us();
                let revoked = site
                    .revoke(&serials)
                    .map_err(io_error(format!("revoke {name}")));
                std::thread::sleep(WATCHED);
                is_over.store(true, Ordering::Release);
                let read = reader.join();
                read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                revoked.map(|()| revoked_us)
            })?;
            let late_us = last_us.load(Ordering::Acquire).saturating_sub(revoked_us);
            last.push(late_us as f64 / 1e3);
            reads += count.load(Ordering::Acquire);
        }
        let most = last.iter().copied().fold(0.0, f64::max);
        let by = match engine_datagrams {
            true => "UDP",
            false => "TCP",
        };
        findings.push(
            Finding::new(format!("{by}, {CLIENTS} clients, one after another"))
                .with("reads before", reads as f64)
                .with("last read ms after", most)
                .wanted(
                    "last successful read <= 100 ms after, by engine or call",
                    most <= MOST.as_secs_f64() * 1e3 && reads > 0,
                ),
        );
    }
    Ok(())
}
