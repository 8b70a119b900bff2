//! An engine: threads that read and place requests, one that lets clients in, one that maps
//! backends, one that sees how many are to read where there are several, and one for each queue
//! that asks it for lanes; stopped when it is dropped.

mod backends;
mod claimer;
mod counters;
mod datagrams;
mod event_loop;
#[cfg(test)]
mod event_loop_tests;
mod greeter;
mod guest;
mod lane;
mod mapper;
mod messages;
mod meter;
mod orders;
mod patience;
mod ports;
mod scaler;
mod seats;
mod session;
mod shared;
mod shares;
mod strangers;

pub use claimer::{GiveLane, GivenLane, Queues};
pub use counters::{Count, Counted};
pub use mapper::{CellPlaces, Place};
pub use orders::{Asker, CLAIM_WITHIN};
pub use shared::Admits;

use claimer::Claimer;
use event_loop::EventLoop;
use greeter::Greeter;
use mapper::Mapper;
use orders::Orders;
use scaler::Scaler;
use seats::Seats;
use shared::Shared;
use shares::Shares;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use trefoil_tls::{Caller, Tls};

/// Most clients at a time.
pub const SESSION_COUNT_MAX: usize = 1 << 16;
/// Most threads that read.
pub const ENGINE_COUNT_MAX: usize = 64;

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Threads that read: sessions are spread over them.
    pub engines: usize,
    /// So many read under load, and `engines` without it; fewer than these are as many.
    pub engines_max: usize,
    /// How long it looks for requests after the last one before it sleeps, where they come
    /// soon (within half of it); elsewhere it sleeps at once.
    pub spin: Duration,
    /// Clients at a time; who comes when there are so many is refused. Strangers take none
    /// of these places. Each may make the engine keep a megabyte, if it asks for much
    /// and does not take the answers.
    pub sessions_max: usize,
    /// Most of them of one identity: a certificate's name, or a token. If it is not chosen,
    /// half of them with TLS; without it all who come show one token, and share them all.
    pub sessions_of_one_max: Option<usize>,
    /// How long a connection may take to show whose it is.
    pub greeting_max: Duration,
    /// How long a client may leave answers untaken.
    pub stuck_max: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            engines: 1,
            engines_max: 1,
            spin: Duration::from_micros(50),
            sessions_max: 256,
            sessions_of_one_max: None,
            greeting_max: Duration::from_secs(2),
            stuck_max: Duration::from_secs(10),
        }
    }
}

/// Whose a session is.
#[derive(Clone, PartialEq, Eq)]
pub enum Who {
    /// Theirs who know this token.
    Token(Box<[u8]>),
    /// Theirs who have this certificate, of an authority that is believed.
    Certificate(Arc<Caller>),
}

/// Why no engine could be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system's reason.
    #[error("cannot {what}: {source}")]
    System {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> EngineError {
    move |source| EngineError::System {
        what,
        source: source.into(),
    }
}

/// Most sessions of one identity.
fn share(options: &EngineOptions, has_identities: bool) -> usize {
    let most = match has_identities {
        true => options.sessions_max.div_ceil(2),
        false => options.sessions_max,
    };
    options.sessions_of_one_max.unwrap_or(most)
}

/// See the module.
pub struct Engine {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Serves on `listener`. `places` says which backends there are; it is asked by a
    /// thread that may wait, now and then and whenever one cannot be found where it was
    /// (then with `true`: what is known may be out of date). With `tls`, everybody speaks
    /// TLS and shows a certificate. `admits` says who reads, and `writes` which of those may hand
    /// messages to the backends that change something.
    pub fn start(
        listener: TcpListener,
        (tls, admits, writes): (Option<Tls>, Admits, Admits),
        places: impl FnMut(bool) -> CellPlaces + Send + 'static,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let may = (admits, writes);
        Engine::start_beside(listener, (tls, may), Box::new(places), None, options)
    }

    /// Serves on `listener` for clients of ordered queues, as [`Engine::start`] does for those
    /// of backends.
    pub fn start_for_queues(
        listener: TcpListener,
        (tls, admits): (Option<Tls>, Admits),
        queues: Queues,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let nowhere = Box::new(|_| CellPlaces::default());
        let may = (admits, Arc::new(|_: &Who| false) as Admits);
        Engine::start_beside(listener, (tls, may), nowhere, Some(queues), options)
    }

    fn start_beside(
        listener: TcpListener,
        (tls, may): (Option<Tls>, (Admits, Admits)),
        places: Box<dyn FnMut(bool) -> CellPlaces + Send>,
        queues: Option<Queues>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let address = listener
            .local_addr()
            .map_err(failed("ask for the address"))?;
        let prepared = |source: io::Error| EngineError::System {
            what: "prepare the sockets",
            source,
        };
        let (claims, orders) = match queues {
            None => (Vec::new(), None),
            Some(Queues {
                admits,
                claims,
                lanes_max,
            }) => {
                let orders = Orders::new(admits, claims.len(), options.sessions_max);
                let claims = claims.into_iter();
                let claims = claims.map(|give| (give, Shares::new(lanes_max)));
                (claims.collect(), Some(orders))
            }
        };
        let seats = Seats::new(options.sessions_max, share(&options, tls.is_some()));
        let shared = Shared::new(options, may, (seats, orders));
        let shared = Arc::new(shared.map_err(prepared)?);
        let mut loops = Vec::new();
        for at in 0..shared.loops.len() {
            let event_loop = EventLoop::new(Arc::clone(&shared), at);
            loops.push(event_loop.map_err(prepared)?);
        }
        let greeter = Greeter::new(Arc::clone(&shared), listener, tls).map_err(prepared)?;
        let mapper = Mapper::new(Arc::clone(&shared), places);
        let mut engine = Engine {
            shared: Arc::clone(&shared),
            address,
            threads: Vec::new(),
        };
        for (at, event_loop) in loops.into_iter().enumerate() {
            engine.spawn(&format!("trefoil-nic-{at}"), move || event_loop.run())?;
        }
        if shared.loops.len() > 1 {
            let scaler = Scaler::new(Arc::clone(&shared));
            engine.spawn("trefoil-scaler", move || scaler.run())?;
        }
        engine.spawn("trefoil-greeter", move || greeter.run())?;
        engine.spawn("trefoil-mapper", move || mapper.run())?;
        for (queue, claim) in claims.into_iter().enumerate() {
            let claimer = Claimer::new(Arc::clone(&shared), queue, claim);
            engine.spawn(&format!("trefoil-claim-{queue}"), move || claimer.run())?;
        }
        Ok(engine)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), EngineError> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(run).map_err(failed("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks again, of everybody who is in, whether they may read; who may not is out
    /// before the next request.
    pub fn judge_again(&self) {
        self.shared.judge_again();
    }

    /// What all its threads have counted together.
    pub fn counted(&self) -> Counted {
        self.shared.counted()
    }

    /// What the threads that let clients in and map backends have counted.
    pub fn counted_by_set_up(&self) -> Counted {
        self.shared.counted_by_set_up()
    }

    /// What each thread that reads has counted.
    pub fn counted_by_engine(&self) -> impl Iterator<Item = Counted> {
        self.shared.loops.iter().map(|share| share.counters.read())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
