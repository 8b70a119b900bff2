//! The world of one client's driver.

use super::calls::Calls;
use super::net::{BEGIN_UNIX_NS, Errand, Net};
use super::port::SimPort;
use super::process::State;
use super::profile::Reach;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use trefoil_driver::{Clock, Event, Host, NotConnected, Topology};

/// What a connection takes to be made, usually.
const KNOCK_NS: u64 = 300_000;
/// Patience with a backend that does not greet.
const GREETING_NS: u64 = 2_000_000_000;
/// How often whoever knocks looks whether it is answered.
const KNOCK_AGAIN_NS: u64 = 50_000_000;
/// How far the coarse clock lags.
const COARSE_NS: u64 = 4_000_000;

/// Where a client's events are put.
pub(super) struct Mailbox {
    net: Weak<Net>,
    client: usize,
    events: RefCell<VecDeque<Event<SimPort>>>,
    /// The client has died.
    pub(super) is_closed: Cell<bool>,
}

impl Mailbox {
    fn put(&self, net: &Net, event: Event<SimPort>) {
        if !self.is_closed.get() {
            self.events.borrow_mut().push_back(event);
            net.wake(self.client, net.rng.below(50_000));
        }
    }

    /// A connection is asked for, perhaps not for the first time.
    pub(super) fn knock(
        self: Rc<Self>,
        net: &Net,
        topology: Arc<Topology>,
        backend: u32,
        since_ns: u64,
    ) {
        let failed = |why: &str, is_down, is_final| {
            Err(NotConnected {
                why: why.to_owned(),
                is_down,
                is_final,
            })
        };
        let result = match net.at(&topology, backend) {
            None => failed("nobody listens", true, false),
            Some(process) if process.state.get() == State::Stopped => {
                if net.now_ns.get() < since_ns + GREETING_NS {
                    let errand = Errand::Connect {
                        to: self,
                        topology,
                        backend,
                        since_ns,
                    };
                    return net.send(KNOCK_AGAIN_NS, errand);
                }
                failed("the backend does not greet", true, false)
            }
            Some(_) if net.is_struck(net.profile.connect_failure) => {
                failed("no descriptors left", false, false)
            }
            // An engine does not take a client of another life: where nothing is mapped,
            // the client cannot see whose memory is read.
            Some(process)
                if process.life != topology.id().life && net.profile.reach == Reach::Engine =>
            {
                failed("another life of the cell", true, false)
            }
            Some(process) => {
                let reach = match net.rng.chance(net.profile.other_reach) {
                    true => net.rng.pick(&[Reach::Rings, Reach::Reads, Reach::Calls]),
                    false => net.profile.reach,
                };
                match (reach, self.net.upgrade()) {
                    (Reach::Rings | Reach::Reads | Reach::Engine, Some(net)) => {
                        Ok(SimPort::near(&net, &process, self.client, reach))
                    }
                    _ => failed("no shared memory", false, true),
                }
            }
        };
        self.put(
            net,
            Event::Connected {
                backend,
                topology,
                result,
            },
        );
    }

    /// The configuration was asked for.
    pub(super) fn learn(&self, net: &Net) {
        let result = match net.is_struck(net.profile.connect_failure) {
            true => Err("no backend answers".to_owned()),
            false => Ok(Arc::clone(&net.published.borrow())),
        };
        self.put(net, Event::Learned(result));
    }
}

/// See the module.
pub(super) struct SimHost {
    net: Rc<Net>,
    client: usize,
    skew_ns: i64,
    mailbox: Rc<Mailbox>,
}

impl SimHost {
    pub(super) fn new(net: &Rc<Net>, client: usize) -> Self {
        SimHost {
            client,
            skew_ns: net.skew(),
            mailbox: Rc::new(Mailbox {
                net: Rc::downgrade(net),
                client,
                events: RefCell::default(),
                is_closed: Cell::new(false),
            }),
            net: Rc::clone(net),
        }
    }

    /// The process has ended: what is still coming finds nobody.
    pub(super) fn close(&self) {
        self.mailbox.is_closed.set(true);
    }

    pub(super) fn has_event(&self) -> bool {
        !self.mailbox.events.borrow().is_empty()
    }
}

impl Clock for SimHost {
    fn coarse_ns(&self) -> u64 {
        // Asked between two reads, and behind the last.
        self.net.beside();
        let now = self.net.now_ns.get();
        now - now % COARSE_NS
    }

    fn monotonic_ns(&self) -> u64 {
        self.net.look()
    }

    fn unix_ns(&self) -> u64 {
        (BEGIN_UNIX_NS + self.net.now_ns.get()).saturating_add_signed(self.skew_ns)
    }

    fn coarse_unix_ms(&self) -> u64 {
        (BEGIN_UNIX_NS + self.net.now_ns.get() / COARSE_NS * COARSE_NS) / 1_000_000
    }
}

impl Host for SimHost {
    type Port = SimPort;

    fn random(&mut self) -> u64 {
        self.net.rng.next()
    }

    fn running_since_ns(&self) -> u64 {
        0
    }

    fn connect(&mut self, topology: &Arc<Topology>, backend: u32, _has_moved: bool) {
        let errand = Errand::Connect {
            to: Rc::clone(&self.mailbox),
            topology: Arc::clone(topology),
            backend,
            since_ns: self.net.now_ns.get(),
        };
        self.net.send(self.net.takes(KNOCK_NS), errand);
    }

    fn caller(&mut self, topology: &Arc<Topology>, backend: u32) -> Result<SimPort, String> {
        let calls = Calls::new(&self.net, self.client, topology, backend);
        Ok(SimPort::Far(Rc::new(calls)))
    }

    fn learn(&mut self) {
        let errand = Errand::Learn(Rc::clone(&self.mailbox));
        self.net.send(self.net.takes(KNOCK_NS), errand);
    }

    fn next_event(&mut self) -> Option<Event<SimPort>> {
        self.mailbox.events.borrow_mut().pop_front()
    }

    fn degraded(&mut self, backend: u32, why: &str) {
        let client = self.client;
        self.net.trace(None, || {
            format!("client {client}, backend {backend}: {why}")
        });
    }
}
