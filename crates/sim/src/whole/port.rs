//! What carries a client's operations: mapped memory and rings to one process, or
//! calls.

use super::calls::Calls;
use super::engine::{Eyes, Scan, Scans, Wanted};
use super::net::Net;
use super::process::{Process, State};
use super::profile::Reach;
use super::stats::Count;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::port::{
    Closed, Completion, OutOfWindow, Port, Progress, Refreshed, SendError, Token,
};
use trefoil_fabric::{Agreement, RegionView};
use trefoil_layout::message::{Request, RequestHead, Slots, parse_answer};
use trefoil_layout::{KeyHash, Pointer, TopologyId};
use trefoil_region::WordBuffer;

/// The two rings of one connection.
pub(super) struct Ring {
    client: usize,
    requests: RefCell<VecDeque<Vec<u8>>>,
    answers: RefCell<VecDeque<Vec<u8>>>,
    /// Answers that were taken, and come once more.
    again: RefCell<VecDeque<Vec<u8>>>,
    is_closed: Cell<bool>,
    /// By a process that has ended in order.
    is_settled: Cell<bool>,
}

impl Ring {
    pub(super) fn next_request(&self) -> Option<Vec<u8>> {
        self.requests.borrow_mut().pop_front()
    }

    pub(super) fn has_request(&self) -> bool {
        !self.requests.borrow().is_empty()
    }

    pub(super) fn put_answer(&self, net: &Net, answer: Vec<u8>) {
        self.answers.borrow_mut().push_back(answer);
        net.wake(self.client, net.rng.below(3_000));
    }

    /// The process has closed its end. One that ends in order executes nothing more, and
    /// says so.
    pub(super) fn close(&self, net: &Net, is_clean: bool) {
        self.is_closed.set(true);
        self.is_settled.set(is_clean);
        net.wake(self.client, net.rng.below(100_000));
    }
}

/// Mapped memory of one process, and its rings if there were any left.
pub(super) struct Near {
    net: Rc<Net>,
    process: Rc<Process>,
    view: Arc<RegionView>,
    ring: Option<Rc<Ring>>,
    /// Nothing is mapped: an engine reads.
    engine: Option<Engine>,
}

struct Engine {
    eyes: Eyes,
    scans: Rc<Scans>,
}

/// One backend, by one carrier.
pub(super) enum SimPort {
    Near(Near),
    Far(Rc<Calls>),
}

impl SimPort {
    /// A connection to a process.
    pub(super) fn near(net: &Rc<Net>, process: &Rc<Process>, client: usize, reach: Reach) -> Self {
        let ring = (reach != Reach::Reads).then(|| {
            Rc::new(Ring {
                client,
                requests: RefCell::default(),
                answers: RefCell::default(),
                again: RefCell::default(),
                is_closed: Cell::new(false),
                is_settled: Cell::new(false),
            })
        });
        if let Some(ring) = &ring {
            process.attach(ring);
        }
        SimPort::Near(Near {
            view: Arc::new(process.view()),
            net: Rc::clone(net),
            process: Rc::clone(process),
            ring,
            engine: (reach == Reach::Engine).then(|| Engine {
                eyes: Eyes::open(process),
                scans: Rc::new(Scans::new(client)),
            }),
        })
    }
}

impl SimPort {
    /// What is under way, for the report of a leak.
    pub(super) fn describe(&self) -> String {
        match self {
            SimPort::Near(near) => format!(
                "backend {}'s rings with {} requests and {} answers, {:?}",
                near.process.number,
                near.ring
                    .as_ref()
                    .map_or(0, |ring| ring.requests.borrow().len()),
                near.ring
                    .as_ref()
                    .map_or(0, |ring| ring.answers.borrow().len()),
                near.process.state.get(),
            ),
            SimPort::Far(calls) => calls.describe(),
        }
    }
}

/// Answers that were delivered come once more, some later than the next ones. They are of
/// nobody's attempt then: the driver has to tell that by their tokens. No port counts them.
pub(super) fn deliver_again(
    net: &Net,
    again: &RefCell<VecDeque<Vec<u8>>>,
    on: &mut impl FnMut(Completion<'_>),
) {
    while net.is_struck(512)
        && let Some(bytes) = again.borrow_mut().pop_front()
    {
        let (id, answer) = parse_answer(&bytes).expect("a backend encodes well");
        net.stats.add(Count::AnswersTwice);
        on(Completion::Answer(Token(id), answer));
    }
}

pub(super) fn keep_for_again(net: &Net, again: &RefCell<VecDeque<Vec<u8>>>, bytes: Vec<u8>) {
    if net.is_struck(net.profile.twice) {
        again.borrow_mut().push_back(bytes);
    }
}

/// A request as it travels.
pub(super) fn encode(token: Token, config_id: u32, request: &Request<'_>) -> Vec<u8> {
    let mut bytes = vec![0; request.encoded_len()];
    let head = RequestHead {
        id: token.0,
        config_id,
    };
    request.encode(head, &mut bytes);
    bytes
}

impl Near {
    fn push(&self, ring: &Ring, bytes: Vec<u8>) {
        ring.requests.borrow_mut().push_back(bytes);
        if self.process.state.get() == State::Running {
            self.process.ring(&self.net);
        }
    }

    fn is_full(&self, ring: &Ring) -> bool {
        ring.requests.borrow().len() >= self.net.profile.ring_len
            || self.net.is_struck(self.net.profile.full)
    }

    fn send(
        &self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        let Some(ring) = &self.ring else {
            return Err(SendError::NoMessages);
        };
        if request.encoded_len() > self.net.profile.message_len_max {
            self.net.stats.add(Count::TooLarge);
            return Err(SendError::TooLarge);
        }
        // A closed socket may not have been noticed yet.
        if ring.is_closed.get() && self.net.rng.chance(512) {
            return Err(SendError::Closed);
        }
        if self.is_full(ring) {
            self.net.stats.add(Count::RingFull);
            return Err(SendError::Full);
        }
        self.push(ring, encode(token, under.config_id, request));
        Ok(())
    }

    fn touch(&self, partition: usize, batch: TouchBatch<'_>) {
        if let Some(ring) = &self.ring
            && !self.is_full(ring)
        {
            let request = Request::Touch {
                partition: partition as u16,
                window_id: batch.window_id,
                slots: Slots::from(batch.slots),
                names: Slots::from(batch.names),
            };
            self.push(ring, encode(Token(0), 0, &request));
        }
    }

    fn poll(&self, mut on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        let Some(ring) = &self.ring else {
            return Ok(0);
        };
        let mut count = match &self.engine {
            Some(engine) => engine.scans.poll(&mut on),
            None => 0,
        };
        deliver_again(&self.net, &ring.again, &mut on);
        loop {
            let Some(bytes) = ring.answers.borrow_mut().pop_front() else {
                break;
            };
            let (id, answer) = parse_answer(&bytes).expect("a backend encodes well");
            count += 1;
            on(Completion::Answer(Token(id), answer));
            keep_for_again(&self.net, &ring.again, bytes);
        }
        match ring.is_closed.get() && count == 0 {
            true => Err(Closed {
                is_settled: ring.is_settled.get(),
            }),
            false => Ok(count),
        }
    }

    fn is_ready(&self) -> bool {
        let has_scan = |engine: &Engine| engine.scans.is_ready();
        let has_answer =
            |ring: &Rc<Ring>| ring.is_closed.get() || !ring.answers.borrow().is_empty();
        self.engine.as_ref().is_some_and(has_scan) || self.ring.as_ref().is_some_and(has_answer)
    }
}

impl SimPort {
    fn ask_engine<T>(&mut self, token: Token, wanted: Wanted) -> Progress<T> {
        let SimPort::Near(near) = self else {
            return Progress::Refused;
        };
        let Some(engine) = &near.engine else {
            return Progress::Refused;
        };
        let scan = Scan {
            process: Rc::clone(&near.process),
            scans: Rc::clone(&engine.scans),
            eyes: engine.eyes.clone(),
            token,
            wanted,
        };
        scan.begin(&near.net);
        Progress::Pending
    }
}

impl Port for SimPort {
    fn view(&self) -> Option<&Arc<RegionView>> {
        match self {
            SimPort::Near(near) if near.engine.is_none() => Some(&near.view),
            SimPort::Near(_) | SimPort::Far(_) => None,
        }
    }

    fn agreement(&self) -> Option<&Agreement> {
        match self {
            SimPort::Near(near) => Some(near.view.agreement()),
            SimPort::Far(_) => None,
        }
    }

    fn config_id(&self) -> Option<u32> {
        match self {
            SimPort::Near(near) => Some(match &near.engine {
                Some(engine) => engine.eyes.config_id(),
                None => near.view.config_id(),
            }),
            SimPort::Far(_) => None,
        }
    }

    fn is_indirect(&self) -> bool {
        self.has_scans()
    }

    fn has_scans(&self) -> bool {
        matches!(self, SimPort::Near(near) if near.engine.is_some())
    }

    fn answer_ns(&self) -> u64 {
        0
    }

    fn backlog_ns(&self) -> u64 {
        0
    }

    /// Now and then.
    fn prefers_votes(&self) -> bool {
        match self {
            SimPort::Near(near) => near.engine.is_some() && near.net.ways.chance(256),
            SimPort::Far(_) => false,
        }
    }

    fn submit_scan(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        // Engines report no uses here, as no clients do by way of them.
        let _ = is_use;
        let has_data = true;
        self.ask_engine(
            token,
            Wanted::Vote {
                place,
                hash,
                has_data,
            },
        )
    }

    fn submit_vote(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        let _ = is_use;
        let has_data = false;
        self.ask_engine(
            token,
            Wanted::Vote {
                place,
                hash,
                has_data,
            },
        )
    }

    fn has_messages(&self) -> bool {
        match self {
            SimPort::Near(near) => near.ring.is_some(),
            SimPort::Far(_) => true,
        }
    }

    fn refresh(&mut self) -> Refreshed {
        match self {
            SimPort::Near(near) => {
                if let Some(engine) = &mut near.engine {
                    engine.eyes = Eyes::open(&near.process);
                }
                RegionView::refresh_shared(&mut near.view)
            }
            SimPort::Far(_) => Refreshed::Unchanged,
        }
    }

    fn submit_index(&mut self, _: Token, place: usize, hash: KeyHash) -> Progress<IndexVote> {
        match self {
            SimPort::Near(near) if near.engine.is_none() => {
                Progress::Done(near.view.index_vote(place, hash))
            }
            SimPort::Near(_) | SimPort::Far(_) => Progress::Refused,
        }
    }

    fn submit_data(
        &mut self,
        token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        if self.has_scans() {
            return self.ask_engine(token, Wanted::Data(pointer));
        }
        match self {
            SimPort::Near(near) if near.engine.is_none() => {
                near.net.beside();
                Progress::Done(near.view.read_data(pointer, into))
            }
            SimPort::Near(_) | SimPort::Far(_) => Progress::Refused,
        }
    }

    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        match self {
            SimPort::Near(near) => near.send(token, under, request),
            SimPort::Far(calls) => calls.send(token, under, request),
        }
    }

    fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        if let SimPort::Near(near) = self {
            near.touch(partition, batch);
        }
    }

    /// Its room is its own.
    fn others_have_moved(&mut self) -> bool {
        false
    }

    fn len_under_way(&self) -> u64 {
        0
    }

    fn give_up(&mut self) {}

    fn poll(&mut self, on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        match self {
            SimPort::Near(near) => near.poll(on),
            SimPort::Far(calls) => Ok(calls.poll(on)),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            SimPort::Near(near) => near.is_ready(),
            SimPort::Far(calls) => calls.is_ready(),
        }
    }

    fn arm(&self) {}

    fn disarm(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
