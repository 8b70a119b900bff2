//! The servers that are compared, each with all its processes on one core.

use super::{Dialect, GatewayBenchError, GatewayOptions};
use crate::peer::{
    CONGESTION, Endpoint, PeerError, PeerKind, PeerOptions, PeerProcess, procfs,
    set_listener_congestion,
};
use crate::server::{Door, Server, ServerOptions};
use std::net::SocketAddr;
use std::time::Duration;

/// Memory of each server: far more than the corpus needs.
const MEMORY: u64 = 512 << 20;

/// One of the systems compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// memcached, Redis or Valkey.
    Peer,
    /// `trefoil serve`, one copy, the door in the backend's process.
    Serve,
    /// `trefoil gateway` in front of a cell of three copies.
    Gateway,
}

impl System {
    pub(super) fn name(self, peer: PeerKind) -> &'static str {
        match self {
            System::Peer => peer.name(),
            System::Serve => "trefoil serve R=1",
            System::Gateway => "trefoil gateway R=3.2",
        }
    }
}

enum Processes {
    Peer(PeerProcess),
    Serve(Server),
    /// The gateway before its cell, which it needs until it ends.
    Gateway(Door, Server),
}

/// A server under test.
pub(super) struct Running {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    processes: Processes,
}

impl Running {
    pub(super) fn start(
        options: &GatewayOptions,
        system: System,
        core: usize,
    ) -> Result<Self, GatewayBenchError> {
        let dialect = options.dialect();
        let name = system.name(options.peer).to_owned();
        let server = ServerOptions {
            core: Some(core),
            doors: system == System::Serve,
            processes: system == System::Gateway,
            ..ServerOptions::new(
                &options.program,
                if system == System::Gateway {
                    "R=3.2"
                } else {
                    "R=1"
                },
                MEMORY,
            )
        };
        match system {
            System::Peer => {
                let peer = PeerProcess::start(PeerOptions {
                    core: Some(core),
                    ..PeerOptions::new(options.peer, MEMORY >> 20)
                })?;
                let Endpoint::Tcp(address) = *peer.endpoint() else {
                    return Err(no_door("a peer"));
                };
                Ok(Running {
                    name: peer.label(),
                    address,
                    processes: Processes::Peer(peer),
                })
            }
            System::Serve => {
                let server = Server::start(&server)?;
                let address = match dialect {
                    Dialect::Memcached => server.memcached,
                    Dialect::Redis => server.redis,
                };
                let address = address.ok_or_else(|| no_door("serve"))?;
                set_congestion(server.pids.first().copied());
                Ok(Running {
                    name,
                    address,
                    processes: Processes::Serve(server),
                })
            }
            System::Gateway => {
                let cell = Server::start(&server)?;
                let door = Door::start(&options.program, &cell.address, Some(core))?;
                let address = match dialect {
                    Dialect::Memcached => door.memcached,
                    Dialect::Redis => door.redis,
                };
                let address = address.ok_or_else(|| no_door("gateway"))?;
                set_congestion(Some(door.pid));
                Ok(Running {
                    name,
                    address,
                    processes: Processes::Gateway(door, cell),
                })
            }
        }
    }

    /// CPU time of all its processes.
    pub(super) fn cpu_time(&self) -> Result<Duration, PeerError> {
        match &self.processes {
            Processes::Peer(peer) => peer.cpu_time(),
            Processes::Serve(server) => server.cpu_time(),
            Processes::Gateway(door, cell) => Ok(procfs::cpu_time(door.pid)? + cell.cpu_time()?),
        }
    }

    /// Waits until filling has left nothing to do.
    pub(super) fn settle(&self) -> Result<(), PeerError> {
        match &self.processes {
            Processes::Peer(_) => Ok(()),
            Processes::Serve(server) | Processes::Gateway(_, server) => server.settle().map(drop),
        }
    }
}

/// The same congestion control as the peers get; where that is not allowed the
/// default stays.
fn set_congestion(pid: Option<u32>) {
    if let Some(pid) = pid {
        let _ = set_listener_congestion(pid, CONGESTION);
    }
}

fn no_door(what: &'static str) -> GatewayBenchError {
    GatewayBenchError::Server(PeerError::NotReady {
        program: "trefoil",
        why: format!("{what} has no such door"),
        output: String::new(),
    })
}
