//! What a session sees as its observer: counters go to the loop's own
//! [`LoopObserver`], what concerns connections and the server is kept here.

use super::options::Protocol;
use super::scripts::Executor;
use super::shared::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::resp::{Libraries, ScriptHash, ScriptJob, Scripts};
use trefoil_gateway_core::world::{
    Client, Command, Done, Ending, Introduction, Observer, Role, ServerRequest, SlowCommand,
};

/// What an event loop tells whoever counts, beyond what sessions tell. One
/// belongs to each loop. `watch`, `request` and `authenticate` never reach it:
/// the loop answers those itself.
pub trait LoopObserver: Observer + Send {
    /// A connection was accepted.
    fn connection_opened(&mut self, _protocol: Protocol) {}

    /// A connection has ended.
    fn connection_closed(&mut self) {}

    /// A connection was sent away because there are too many.
    fn connection_refused(&mut self) {}

    /// A connection was closed because it was idle for too long.
    fn connection_timed_out(&mut self) {}

    /// A connection was closed because it would have taken too much memory.
    fn connection_overflowed(&mut self) {}

    /// Bytes came from a client and went to it.
    fn traffic(&mut self, _read: usize, _written: usize) {}

    /// Somebody gave a name and a password.
    fn authenticated(&mut self, _is_known: bool) {}

    /// A round of the loop begins: it has learnt who is ready.
    fn round_began(&mut self) {}

    /// It has served all of them.
    fn round_ended(&mut self) {}

    /// So many answers have left by one call.
    fn left_together(&mut self, _answers: usize) {}

    /// A connection's turn begins.
    fn served(&mut self) {}

    /// Its input is executed, or what is left of it.
    fn driven(&mut self) {}

    /// The command of this turn waits for an operation of the keyspace. When it
    /// began, by the observer's own clock.
    fn parked(&mut self) -> u64 {
        0
    }

    /// The next command of this turn is one that was parked, and began then.
    fn resumed(&mut self, _began: u64) {}

    /// Whether it wants to know who sent the command that was last told as done.
    fn wants_client(&self) -> bool {
        false
    }

    /// Who that was.
    fn client(&mut self, _name: &str) {}
}

/// What a session has asked of its event loop.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// Log lines of these kinds, for this connection.
    pub(super) watch: Option<u8>,
    /// It has a watcher's place.
    pub(super) is_watcher: bool,
}

/// See the module.
pub(super) struct Front<'a, O> {
    pub(super) observer: &'a mut O,
    pub(super) shared: &'a Shared,
    pub(super) scripts: &'a mut Executor,
    pub(super) orders: &'a mut Orders,
    /// Loop that this is, which needs no waking.
    pub(super) index: usize,
    pub(super) fd: i32,
    pub(super) connection: u64,
    pub(super) now_s: u32,
}

impl<O> Front<'_, O> {
    /// Posts a log line to those who watch.
    #[cold]
    fn publish(&self, done: &Done<'_>) {
        self.shared.hub.publish(done, self.fd, |index| {
            if index != self.index {
                self.shared.loops[index].wake();
            }
        });
    }
}

impl<O: LoopObserver> Observer for Front<'_, O> {
    #[inline]
    fn done(&mut self, done: &Done<'_>) {
        self.observer.done(done);
        if self.observer.wants_client() {
            self.observer
                .client(&self.shared.table.peer(self.connection));
        }
        if self.shared.hub.kinds() != 0 {
            self.publish(done);
        }
    }

    #[inline]
    fn watched(&self) -> u8 {
        self.shared.hub.kinds()
    }

    fn looked_up(&mut self, key: &[u8], value_len: Option<usize>) {
        self.publish(&Done {
            command: Command::Get,
            ending: value_len.map_or(Ending::Miss, |_| Ending::Hit),
            key,
            value_len: value_len.unwrap_or(0),
        });
    }

    fn stats(&mut self, group: &str, totals: &Totals, each: &mut dyn FnMut(&str, &str)) -> bool {
        if group == "conns" {
            self.shared.table.report(self.now_s, each);
            return true;
        }
        self.observer.stats(group, totals, each)
    }

    fn slow_log(&self, each: &mut dyn FnMut(&SlowCommand<'_>) -> bool) {
        self.observer.slow_log(each);
    }

    fn clients(&self, each: &mut dyn FnMut(&Client<'_>)) {
        self.shared.table.clients(self.now_s, each);
    }

    fn own_client(&self, each: &mut dyn FnMut(&Client<'_>)) {
        self.shared.table.client(self.connection, self.now_s, each);
    }

    fn own_port(&self) -> u16 {
        self.shared.table.own_port(self.connection)
    }

    fn introduce(&mut self, said: &Introduction) {
        self.shared.table.introduce(self.connection, said);
    }

    fn has_user(&self, name: &[u8]) -> bool {
        match self.shared.users() {
            Some(users) => users.has(name),
            None => name == b"default",
        }
    }

    fn end_clients(&mut self, numbers: &[u64]) {
        self.shared.end_clients(numbers);
    }

    fn forget_slow(&mut self) {
        self.observer.forget_slow();
    }

    fn reset(&mut self, totals: &Totals) {
        self.observer.reset(totals);
    }

    fn watch(&mut self, _connection: u64, kinds: u8) -> bool {
        let has_place = kinds == 0 || self.orders.is_watcher;
        if !has_place {
            if !self.shared.hub.admit() {
                return false;
            }
            self.orders.is_watcher = true;
        }
        self.orders.watch = Some(kinds);
        true
    }

    fn request(&mut self, request: ServerRequest) {
        match request {
            ServerRequest::Shutdown => {
                tracing::info!("a client asked for a shutdown");
                if let Some(on_shutdown) = &self.shared.on_shutdown {
                    on_shutdown();
                }
            }
            ServerRequest::FlushAt(at_ms) => {
                self.shared.flush_at_ms.store(at_ms, Ordering::Relaxed);
                // The first loop keeps the time.
                self.shared.loops[0].wake();
            }
            ServerRequest::FlushNoMore => self.shared.flush_at_ms.store(0, Ordering::Relaxed),
            ServerRequest::Verbosity(level) => {
                tracing::debug!(level, "verbosity is chosen by RUST_LOG");
            }
        }
        self.observer.request(request);
    }

    fn scripts(&mut self) -> Option<&mut dyn Scripts> {
        Some(self)
    }

    fn authenticate(&mut self, name: &[u8], password: &[u8]) -> Option<Role> {
        let role = match self.shared.users() {
            Some(users) => users.role(name, password),
            // Without a file of users there is nothing to prove.
            None => Some(Role::Admin),
        };
        self.observer.authenticated(role.is_some());
        role
    }
}

impl<O> Scripts for Front<'_, O> {
    fn libraries(&mut self, act: &mut dyn FnMut(&mut Libraries)) {
        let libraries = self.shared.libraries.lock();
        act(&mut libraries.unwrap_or_else(PoisonError::into_inner));
    }

    fn find(&mut self, hash: &ScriptHash) -> Option<Arc<[u8]>> {
        self.shared.scripts.find(hash)
    }

    fn keep(&mut self, hash: ScriptHash, source: Arc<[u8]>) {
        self.shared.scripts.keep(hash, source);
    }

    fn forget(&mut self) {
        self.shared.scripts.forget();
    }

    fn kill(&mut self) -> bool {
        self.shared.running.stop_all()
    }

    fn begin(&mut self, job: Box<ScriptJob>) -> Result<(), Box<ScriptJob>> {
        self.scripts.begin(self.connection, job)
    }

    fn take(&mut self) -> Option<Box<ScriptJob>> {
        self.scripts.take(self.connection)
    }
}
