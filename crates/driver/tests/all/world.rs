//! Clocks that stand until a test moves them, and backends that do what it says.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trefoil_cell::{BackendConfig, CellConfig, Mode, RpcAddress};
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_driver::{
    CarrierInUse, Clock, Driver, Event, Host, Item, NotConnected, Options, Outcome, Owner, Topology,
};
use trefoil_fabric::RegionView;
use trefoil_fabric::port::{Closed, Completion, OutOfWindow, Port, Progress, SendError, Token};
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::op::{Ack, Outcome as Applied};
use trefoil_layout::{KeyHash, KeyHasher, Pointer, TopologyId, Version};
use trefoil_region::WordBuffer;

const MS: u64 = 1_000_000;

/// What comes of connecting to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connects {
    /// A carrier of messages.
    Near,
    /// Calls, and nothing better.
    Far,
    Down,
    /// Nothing, ever.
    Silent,
}

/// A backend. It applies whatever it is sent.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) connects: Cell<Connects>,
    /// There is no room on the way to it.
    pub(crate) is_full: Cell<bool>,
    /// It answers others, who keep the way full.
    pub(crate) answers_others: Cell<bool>,
    /// Bytes of others on their way to it.
    pub(crate) len_under_way: Cell<u64>,
    pub(crate) is_given_up: Cell<bool>,
    owes: RefCell<VecDeque<Token>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    now_ns: Cell<u64>,
    pub(crate) backends: Vec<Rc<Backend>>,
    events: RefCell<VecDeque<Event<TestPort>>>,
    pub(crate) learned: Cell<u32>,
}

#[derive(Debug)]
pub(crate) struct TestPort(Rc<Backend>);

pub(crate) struct TestHost(Rc<World>);

/// One client.
pub(crate) struct Client {
    pub(crate) world: Rc<World>,
    driver: Driver<TestHost>,
    at: u32,
}

impl Client {
    /// In a cell whose backends can be connected to like this.
    pub(crate) fn new(mode: Mode, connects: &[Connects]) -> Client {
        let backend = |connects: &Connects| {
            Rc::new(Backend {
                connects: Cell::new(*connects),
                is_full: Cell::new(false),
                answers_others: Cell::new(false),
                len_under_way: Cell::new(0),
                is_given_up: Cell::new(false),
                owes: RefCell::default(),
            })
        };
        let world = Rc::new(World {
            now_ns: Cell::new(1_000_000 * MS),
            backends: connects.iter().map(backend).collect(),
            events: RefCell::default(),
            learned: Cell::new(0),
        });
        let topology = Arc::new(Topology::new(Arc::new(config(mode, connects.len() as u32))));
        let options = Options {
            deadline: Duration::from_secs(60),
            ..Options::default()
        };
        let mut driver = Driver::new(TestHost(Rc::clone(&world)), topology, options, 0);
        driver.turn();
        Client {
            world,
            driver,
            at: 0,
        }
    }

    pub(crate) fn begin_set(&mut self) {
        let item = Item::default();
        self.at = self.driver.begin_set(b"key", b"value", item, Owner::Waiter);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.now_ns.set(self.world.now_ns.get() + MS);
            self.driver.turn_for(self.at);
        }
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.driver.ended(self.at).map(|ended| ended.outcome)
    }

    pub(crate) fn carrier(&self, number: usize) -> CarrierInUse {
        self.driver.carriers()[number].carrier
    }
}

fn config(mode: Mode, count: u32) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![RpcAddress::Unix("/nowhere".into())],
        fabric_socket: None,
    };
    CellConfig {
        life: 1,
        config_id: 1,
        cell: "test".to_owned(),
        mode,
        backends: (0..count).map(backend).collect(),
        hash: KeyHasher::default(),
        value_len_max: 16 << 20,
        eviction: "lru".to_owned(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

impl Clock for TestHost {
    fn coarse_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn unix_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn coarse_unix_ms(&self) -> u64 {
        self.0.now_ns.get() / MS
    }
}

impl Host for TestHost {
    type Port = TestPort;

    fn random(&mut self) -> u64 {
        7
    }

    fn running_since_ns(&self) -> u64 {
        0
    }

    fn connect(&mut self, topology: &Arc<Topology>, backend: u32, _has_moved: bool) {
        let of = &self.0.backends[backend as usize];
        let result = match of.connects.get() {
            Connects::Near => Ok(TestPort(Rc::clone(of))),
            Connects::Far => Err(NotConnected {
                why: "calls only".to_owned(),
                is_down: false,
                is_final: true,
            }),
            Connects::Down => Err(NotConnected::down("nobody listens")),
            Connects::Silent => return,
        };
        self.0.events.borrow_mut().push_back(Event::Connected {
            backend,
            topology: Arc::clone(topology),
            result,
        });
    }

    fn caller(&mut self, _: &Arc<Topology>, backend: u32) -> Result<TestPort, String> {
        Ok(TestPort(Rc::clone(&self.0.backends[backend as usize])))
    }

    fn learn(&mut self) {
        self.0.learned.set(self.0.learned.get() + 1);
        let nothing = Event::Learned(Err("nobody knows".to_owned()));
        self.0.events.borrow_mut().push_back(nothing);
    }

    fn next_event(&mut self) -> Option<Event<TestPort>> {
        self.0.events.borrow_mut().pop_front()
    }

    fn degraded(&mut self, _: u32, _: &str) {}
}

impl Port for TestPort {
    fn view(&self) -> Option<&Arc<RegionView>> {
        None
    }

    fn has_messages(&self) -> bool {
        true
    }

    fn submit_index(&mut self, _: Token, _: usize, _: KeyHash) -> Progress<IndexVote> {
        Progress::Refused
    }

    fn submit_data(
        &mut self,
        _: Token,
        _: Pointer,
        _: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        Progress::Refused
    }

    fn send(&mut self, token: Token, _: TopologyId, _: &Request<'_>) -> Result<(), SendError> {
        if self.0.is_full.get() {
            return Err(SendError::Full);
        }
        self.0.owes.borrow_mut().push_back(token);
        Ok(())
    }

    fn touch(&mut self, _: usize, _: TouchBatch<'_>) {}

    fn others_have_moved(&mut self) -> bool {
        self.0.answers_others.get()
    }

    fn len_under_way(&self) -> u64 {
        self.0.len_under_way.get()
    }

    fn give_up(&mut self) {
        self.0.is_given_up.set(true);
    }

    fn poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        let mut count = 0;
        while let Some(token) = self.0.owes.borrow_mut().pop_front() {
            count += 1;
            let (epoch, outcome) = (1, Applied::Applied);
            on(Completion::Answer(
                token,
                Answer::Ack(Ack { epoch, outcome }),
            ));
        }
        Ok(count)
    }

    fn is_ready(&self) -> bool {
        !self.0.owes.borrow().is_empty()
    }

    fn arm(&self) {}

    fn disarm(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
