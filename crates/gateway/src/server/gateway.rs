//! Starting and stopping event loops.

use super::desk::Desk;
use super::doors::Doors;
use super::error::GatewayError;
use super::event_loop::{EventLoop, OpenSession, WAKER};
use super::front::LoopObserver;
use super::options::{DoorAddress, GatewayOptions, Protocol};
use super::shared::{Chosen, LoopHandle, Shared};
use super::speaker::Speaker;
use super::tls::Certificates;
use mio::{Poll, Waker};
use std::sync::Arc;
use std::thread::JoinHandle;
use trefoil_backend::raise_descriptor_limit;
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::session::Session;
use trefoil_gateway_core::world::Settings;

/// Descriptors for everything that is no connection.
const DESCRIPTORS_BESIDE: u64 = 256;

/// A running front door. Dropping it closes it.
pub struct Gateway {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<(Protocol, DoorAddress)>,
    certificates: Vec<Arc<Certificates>>,
}

impl Gateway {
    /// Serves memcached's and Redis's clients at these doors. `keyspace` and
    /// `observer` are called once for each event loop.
    pub fn start<K, O>(
        options: GatewayOptions,
        doors: Doors,
        keyspace: impl FnMut(usize) -> K,
        observer: impl FnMut(usize) -> O,
    ) -> Result<Self, GatewayError>
    where
        K: Keyspace + Send + 'static,
        O: LoopObserver + 'static,
    {
        Self::start_with(options, doors, keyspace, observer, Speaker::open)
    }

    /// The same with sessions of another kind: a session is made for each
    /// connection.
    pub fn start_with<K, O, S>(
        options: GatewayOptions,
        doors: Doors,
        mut keyspace: impl FnMut(usize) -> K,
        mut observer: impl FnMut(usize) -> O,
        open_session: OpenSession<S>,
    ) -> Result<Self, GatewayError>
    where
        K: Keyspace + Send + 'static,
        O: LoopObserver + 'static,
        S: Session + Send + 'static,
    {
        let addresses = doors.addresses();
        let loop_count = options.thread_count.max(1);
        allow_connections(options.limits.connections_max);
        let mut polls = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..loop_count {
            let poll = Poll::new().map_err(|source| GatewayError::System {
                what: "the system's event queue",
                source,
            })?;
            let waker = Waker::new(poll.registry(), WAKER);
            let waker = waker.map_err(|source| GatewayError::System {
                what: "the system's event queue",
                source,
            })?;
            polls.push(poll);
            handles.push(LoopHandle::new(waker));
        }
        let settings = options.settings();
        let shared = Arc::new(Shared::new(
            Chosen {
                settings,
                limits: options.limits,
                upload_rate_min: options.upload_rate_min,
            },
            options.users,
            options.on_failure,
            options.on_shutdown,
            handles,
        ));
        let mut gateway = Gateway {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            addresses,
            certificates: doors
                .doors
                .iter()
                .filter_map(|door| door.tls.clone())
                .collect(),
        };
        let mut doors = doors.doors;
        for (index, poll) in polls.into_iter().enumerate() {
            let desk = Desk::new(keyspace(index), observer(index), Arc::clone(&shared), index);
            // The first loop has the doors, and hands connections over.
            let doors = std::mem::take(&mut doors);
            let run = EventLoop::new(
                poll,
                desk,
                open_session,
                doors,
                options.spin,
                options.io_uring,
            );
            let run = run.map_err(|source| GatewayError::System {
                what: "watching the listening sockets",
                source,
            })?;
            let thread = std::thread::Builder::new()
                .name(format!("trefoil-door-{index}"))
                .spawn({
                    let alarm = Alarm {
                        shared: Arc::clone(&shared),
                        index,
                    };
                    move || {
                        // Last to be dropped, and so after the sockets.
                        let _alarm = alarm;
                        run.run();
                    }
                })
                .map_err(|source| GatewayError::System {
                    what: "an event loop",
                    source,
                })?;
            gateway.threads.push(thread);
        }
        tracing::info!(addresses = ?gateway.addresses, loop_count, "the front door is open");
        Ok(gateway)
    }

    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[(Protocol, DoorAddress)] {
        &self.addresses
    }

    /// Where a protocol is spoken first.
    pub fn address(&self, protocol: Protocol) -> Option<&DoorAddress> {
        let mut doors = self.addresses.iter();
        doors
            .find(|(spoken, _)| *spoken == protocol)
            .map(|(_, address)| address)
    }

    /// Takes these options' users, limits, longest value and permissions, and reads
    /// certificates and keys again. Limits hold for all connections at once; users
    /// and certificates for those to come: who is in stays in. What listens where,
    /// event loops, and whether users have to show who they are, stay as they are.
    /// Nothing is changed if anything cannot be had.
    pub fn reload(&self, options: &GatewayOptions) -> Result<(), GatewayError> {
        let before = self.shared.chosen();
        let has_users = options.users.is_some();
        if has_users != before.settings.authentication {
            return Err(match has_users {
                true => GatewayError::NoUsersBefore,
                false => GatewayError::UsersBefore,
            });
        }
        let read = |certificates: &Arc<Certificates>| certificates.read_again();
        let fresh: Vec<_> = self
            .certificates
            .iter()
            .map(read)
            .collect::<Result<_, _>>()?;
        for (certificates, config) in self.certificates.iter().zip(fresh) {
            certificates.replace(config);
        }
        if let Some(users) = options.users.clone() {
            self.shared.set_users(users);
        }
        allow_connections(options.limits.connections_max);
        self.shared.choose(Chosen {
            settings: Settings {
                thread_count: before.settings.thread_count,
                ..options.settings()
            },
            limits: options.limits,
            upload_rate_min: options.upload_rate_min,
        });
        Ok(())
    }

    /// What sessions are told of the operator's choices.
    pub fn settings(&self) -> Settings {
        self.shared.chosen().settings.clone()
    }

    /// Connections now.
    pub fn connection_count(&self) -> usize {
        self.shared.connections()
    }

    /// Closes the door: nobody comes in, commands that were begun end, their
    /// answers leave if the clients take them within a second.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Sounds when an event loop ends though nobody has stopped it.
struct Alarm {
    shared: Arc<Shared>,
    index: usize,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.shared.is_stopping() {
            return;
        }
        let why = match std::thread::panicking() {
            true => "panicked",
            false => "cannot go on",
        };
        let reason = format!("event loop {} of the front door {why}", self.index);
        tracing::error!("{reason}");
        match &self.shared.on_failure {
            Some(on_failure) => on_failure(&reason),
            None => {
                eprintln!("trefoil: {reason}; the process ends");
                std::process::exit(FAILURE_STATUS);
            }
        }
    }
}

/// Exit status of a process whose front door has failed.
const FAILURE_STATUS: i32 = 70;

/// Every connection is a descriptor.
fn allow_connections(connections_max: usize) {
    let wanted = connections_max as u64 + DESCRIPTORS_BESIDE;
    if let Err(descriptors) = raise_descriptor_limit(wanted) {
        tracing::warn!(
            descriptors,
            connections_max,
            "the system allows fewer descriptors than connections are allowed: raise the limit (ulimit -n)"
        );
    }
}
