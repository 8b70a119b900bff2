//! What engines cost that have nothing to do, and what a second one gains.

use std::time::{Duration, Instant};

use super::super::crowd::{CrowdOptions, EngineKeys, Whom, connect};
use super::super::{CLIENT_CORE, keys_of_case};
use super::super::{DEPTH, NetworkBenchError, SERVER_CORE, asked_at, cell_error, crowd, io_error};
use super::{Finding, Findings, Ground};
use crate::hosts::{Host, Network};
use crate::load::pin_current_thread;
use crate::peer::procfs;
use crate::server::{EngineGuard, EngineSetup, Server, ServerOptions};
use trefoil_client::{Cell, Options, SetOptions};

const KEYS_COUNT: usize = 2000;
const VALUE_LEN: usize = 100;
const IDLE_PERCENT_MAX: f64 = 0.5;
const GAIN_MIN: f64 = 1.7;

/// A cell with its keys, and an engine of so many threads, all on the servers' core.
struct Stand {
    keys: Vec<Vec<u8>>,
    token: Vec<u8>,
    life: u64,
    cell: Server,
}

impl Stand {
    fn build(ground: &Ground<'_>) -> Result<Self, NetworkBenchError> {
        let cell = Server::start(&ServerOptions {
            processes: true,
            core: Some(SERVER_CORE),
            ..ServerOptions::new(ground.program, "R=1", 64 << 20)
        })?;
        let connected = Cell::connect(&cell.address).map_err(cell_error)?;
        let mut filler = connected.client(Options::default());
        let keys = keys_of_case(KEYS_COUNT);
        for key in &keys {
            let value = [b'v'; VALUE_LEN];
            filler
                .set(key, &value, SetOptions::default())
                .map_err(cell_error)?;
        }
        let token = ground.secrets.read_token()?;
        Ok(Stand {
            keys,
            token,
            life: connected.config().life,
            cell,
        })
    }

    fn engine(
        &self,
        ground: &Ground<'_>,
        host: &Host,
        engines: usize,
    ) -> Result<EngineGuard, NetworkBenchError> {
        let setup = EngineSetup {
            program: ground.program,
            cell: &self.cell.address,
            host: host.address,
            engines,
            core: Some(SERVER_CORE),
            spin: None,
            certs: None,
            token: &ground.secrets.token,
        };
        Ok(host.enter(|| EngineGuard::start(&setup))??)
    }

    fn crowd(&self, engine: &EngineGuard, depth: usize) -> CrowdOptions<'_> {
        CrowdOptions {
            address: engine.address,
            whom: Whom::Engine(EngineKeys {
                life: self.life,
                token: &self.token,
            }),
            depth,
            value_len: VALUE_LEN,
        }
    }
}

pub(super) fn idle(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let (server, client) = (network.host("server")?, network.host("client")?);
    let stand = Stand::build(ground)?;
    for engines in [1, 2] {
        let engine = stand.engine(ground, &server, engines)?;
        let options = stand.crowd(&engine, 1);
        let percent = client.enter(|| {
            // They have worked, and are connected.
            let _connections = connect(&options).map_err(io_error(asked_at(engine.address)))?;
            crowd(&options, &stand.keys, Duration::from_millis(300))
                .map_err(io_error(asked_at(engine.address)))?;
            std::thread::sleep(Duration::from_millis(200));
            let (before, begin) = (procfs::cpu_time(engine.pid)?, Instant::now());
            std::thread::sleep(ground.length.max(Duration::from_secs(2)));
            let used = procfs::cpu_time(engine.pid)?.saturating_sub(before);
            Ok::<_, NetworkBenchError>(used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
        })??;
        findings.push(
            Finding::new(format!(
                "{engines} threads that read, 50 sessions, no requests"
            ))
            .with("percent of a core", percent)
            .wanted("<= 0.5 % of a core", percent <= IDLE_PERCENT_MAX),
        );
    }
    Ok(())
}

pub(super) fn scaling(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let (server, client) = (network.host("server")?, network.host("client")?);
    let stand = Stand::build(ground)?;
    for (depth, what) in [(1, "one at a time"), (DEPTH, "32 under way")] {
        let mut cost_us = Vec::new();
        for engines in [1, 2] {
            let engine = stand.engine(ground, &server, engines)?;
            let options = stand.crowd(&engine, depth);
            cost_us.push(client.enter(|| {
                pin_current_thread(CLIENT_CORE).map_err(io_error("pin a thread"))?;
                crowd(&options, &stand.keys, Duration::from_millis(200))
                    .map_err(io_error(asked_at(engine.address)))?;
                let before = procfs::cpu_time(engine.pid)?;
                let (count, _) = crowd(&options, &stand.keys, ground.length)
                    .map_err(io_error(asked_at(engine.address)))?;
                let used = procfs::cpu_time(engine.pid)?.saturating_sub(before);
                Ok::<_, NetworkBenchError>(used.as_secs_f64() * 1e6 / count.max(1) as f64)
            })??);
        }
        let (one, two) = (cost_us[0], cost_us[1]);
        let gain = 2.0 * one / two;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        findings.push(
            Finding::new(format!("50 connections, {what}"))
                .with("CPU us for a GET by 1 engine", one)
                .with("by 2", two)
                .with("gain if each has a core", gain)
                .wanted(
                    "throughput >= 1.7 times with a second engine",
                    gain >= GAIN_MIN,
                )
                .noted(format!(
                    "computed from what a GET costs each: both share a core here ({cores} cores, \
                     of which the clients need one), so cache and memory that two cores share are \
                     not in it. The number of engines is chosen by hand; none is added or ended \
                     by load"
                )),
        );
    }
    Ok(())
}
