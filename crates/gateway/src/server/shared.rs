//! What the event loops of one gateway share. None of it is touched on the path
//! of a request, but for counters that only their own loop writes.

use super::options::{Limits, OnFailure, Protocol};
use super::scripts::{Library, Running};
use super::socket::Socket;
use super::users::Users;
use super::watch::Hub;
use mio::Waker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use trefoil_gateway_core::resp::Libraries;
use trefoil_gateway_core::world::{Client, Introduction, Settings};

/// See the module.
pub(super) struct Shared {
    chosen: RwLock<Arc<Chosen>>,
    /// Raised with every choice.
    chosen_count: AtomicU64,
    users: RwLock<Option<Arc<Users>>>,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) on_shutdown: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(super) hub: Hub,
    pub(super) loops: Vec<LoopHandle>,
    pub(super) table: ConnectionTable,
    /// Scripts that clients have sent.
    pub(super) scripts: Library,
    /// Libraries of functions that they have loaded.
    pub(super) libraries: Mutex<Libraries>,
    /// Those that are being executed.
    pub(super) running: Running,
    connection_count: AtomicUsize,
    next_connection: AtomicU64,
    unwanted_count: AtomicU64,
    stopping: AtomicBool,
    /// When everything is to be flushed, in milliseconds since the Unix epoch;
    /// 0 never. The last one to ask decides.
    pub(super) flush_at_ms: AtomicU64,
}

/// What an operator chose, and may choose anew while the gateway runs. Each loop
/// has its own copy of the pointer.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    /// See `GatewayOptions::upload_rate_min`.
    pub(super) upload_rate_min: u64,
}

/// How others reach an event loop.
pub(super) struct LoopHandle {
    pub(super) waker: Waker,
    arrivals: Mutex<Vec<Arrival>>,
    pub(super) connection_count: AtomicUsize,
}

/// A connection on its way to its event loop.
pub(super) struct Arrival {
    pub(super) socket: Socket,
    pub(super) protocol: Protocol,
    pub(super) number: u64,
    pub(super) entry: Arc<TableEntry>,
}

impl LoopHandle {
    pub(super) fn new(waker: Waker) -> Self {
        LoopHandle {
            waker,
            arrivals: Mutex::default(),
            connection_count: AtomicUsize::new(0),
        }
    }

    /// Hands a connection over.
    pub(super) fn send(&self, arrival: Arrival) {
        self.lock().push(arrival);
        self.wake();
    }

    pub(super) fn take_arrivals(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.lock())
    }

    pub(super) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake an event loop");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(super) fn new(
        chosen: Chosen,
        users: Option<Users>,
        on_failure: Option<OnFailure>,
        on_shutdown: Option<Arc<dyn Fn() + Send + Sync>>,
        loops: Vec<LoopHandle>,
    ) -> Self {
        Shared {
            chosen: RwLock::new(Arc::new(chosen)),
            chosen_count: AtomicU64::new(0),
            users: RwLock::new(users.map(Arc::new)),
            on_failure,
            on_shutdown,
            hub: Hub::new(loops.len()),
            loops,
            table: ConnectionTable::default(),
            scripts: Library::default(),
            libraries: Mutex::default(),
            running: Running::default(),
            connection_count: AtomicUsize::new(0),
            next_connection: AtomicU64::new(1),
            unwanted_count: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            flush_at_ms: AtomicU64::new(0),
        }
    }

    /// What is chosen now.
    pub(super) fn chosen(&self) -> Arc<Chosen> {
        let chosen = self.chosen.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&chosen)
    }

    /// How often something was chosen anew.
    #[inline]
    pub(super) fn chosen_count(&self) -> u64 {
        self.chosen_count.load(Ordering::Acquire)
    }

    /// Puts another choice in place, and tells all loops.
    pub(super) fn choose(&self, chosen: Chosen) {
        let mut known = self.chosen.write().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(chosen);
        drop(known);
        self.chosen_count.fetch_add(1, Ordering::AcqRel);
        for handle in &self.loops {
            handle.wake();
        }
    }

    /// Who may come in; everybody if there is no list.
    pub(super) fn users(&self) -> Option<Arc<Users>> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.clone()
    }

    pub(super) fn set_users(&self, users: Users) {
        let mut known = self.users.write().unwrap_or_else(PoisonError::into_inner);
        *known = Some(Arc::new(users));
    }

    /// Room for one more connection and its number, unless all are taken.
    pub(super) fn admit(&self) -> Option<u64> {
        let before = self.connection_count.fetch_add(1, Ordering::Relaxed);
        if before >= self.chosen().limits.connections_max {
            self.connection_count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// An admitted connection has come to nothing.
    pub(super) fn forget(&self) {
        self.connection_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection of loop `index` has ended.
    pub(super) fn leave(&self, index: usize, number: u64) {
        self.connection_count.fetch_sub(1, Ordering::Relaxed);
        self.loops[index]
            .connection_count
            .fetch_sub(1, Ordering::Relaxed);
        self.table.remove(number);
    }

    /// Has connections of any loops ended.
    pub(super) fn end_clients(&self, numbers: &[u64]) {
        let known = self.table.lock();
        let entries: Vec<_> = numbers
            .iter()
            .filter_map(|number| known.get(number).cloned())
            .collect();
        drop(known);
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            entry.is_unwanted.store(true, Ordering::Release);
        }
        // Each loop looks through its connections once, however many there are.
        self.unwanted_count.fetch_add(1, Ordering::AcqRel);
        for handle in &self.loops {
            handle.wake();
        }
    }

    /// How often somebody wanted a connection to end.
    #[inline]
    pub(super) fn unwanted_count(&self) -> u64 {
        self.unwanted_count.load(Ordering::Acquire)
    }

    /// The loop with the fewest connections.
    pub(super) fn least_busy(&self) -> usize {
        let count = |index: &usize| self.loops[*index].connection_count.load(Ordering::Relaxed);
        (0..self.loops.len()).min_by_key(count).unwrap_or(0)
    }

    pub(super) fn connections(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells all loops to finish.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for handle in &self.loops {
            handle.wake();
        }
    }
}

/// All connections of a gateway, for `stats conns`.
#[derive(Default)]
pub(super) struct ConnectionTable {
    entries: Mutex<BTreeMap<u64, Arc<TableEntry>>>,
}

/// A line of the table.
pub(super) struct TableEntry {
    pub(super) fd: i32,
    pub(super) peer: String,
    pub(super) door: String,
    /// Where its client has come to.
    pub(super) own_address: String,
    /// When it was accepted, in seconds of the monotonic clock.
    pub(super) accepted_s: u32,
    /// Somebody wants it to end.
    pub(super) is_unwanted: AtomicBool,
    /// Seconds of the monotonic clock.
    pub(super) used_s: AtomicU32,
    /// What its client has said of itself.
    pub(super) said: Mutex<Introduction>,
}

impl TableEntry {
    fn show(&self, number: u64, now_s: u32, each: &mut dyn FnMut(&Client<'_>)) {
        let plain = |address: &'_ str| address.strip_prefix("tcp:").unwrap_or(address).to_owned();
        let said = self.said.lock();
        let said = said.unwrap_or_else(PoisonError::into_inner).clone();
        each(&Client {
            number,
            fd: self.fd,
            address: &plain(&self.peer),
            own_address: &plain(&self.own_address),
            age_s: now_s.saturating_sub(self.accepted_s),
            idle_s: now_s.saturating_sub(self.used_s.load(Ordering::Relaxed)),
            said: &said,
        });
    }
}

impl ConnectionTable {
    pub(super) fn insert(&self, number: u64, entry: Arc<TableEntry>) {
        self.lock().insert(number, entry);
    }

    fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// The address of a connection's client.
    pub(super) fn peer(&self, number: u64) -> String {
        let entry = self.lock().get(&number).cloned();
        entry.map_or_else(String::new, |entry| entry.peer.clone())
    }

    /// The TCP port that a connection has come to; 0 if it is none.
    pub(super) fn own_port(&self, number: u64) -> u16 {
        let entry = self.lock().get(&number).cloned();
        let address = entry
            .as_ref()
            .and_then(|entry| entry.own_address.strip_prefix("tcp:"));
        let port = address.and_then(|address| address.rsplit_once(':'));
        port.and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }

    /// Takes note of what a client says of itself.
    pub(super) fn introduce(&self, number: u64, said: &Introduction) {
        let Some(entry) = self.lock().get(&number).cloned() else {
            return;
        };
        let mut known = entry.said.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone_from(said);
    }

    /// Shows all of them but those that are about to end.
    pub(super) fn clients(&self, now_s: u32, each: &mut dyn FnMut(&Client<'_>)) {
        let entries: Vec<_> = self
            .lock()
            .iter()
            .map(|(number, entry)| (*number, Arc::clone(entry)))
            .collect();
        for (number, entry) in entries {
            if entry.is_unwanted.load(Ordering::Acquire) {
                continue;
            }
            entry.show(number, now_s, each);
        }
    }

    /// Shows this one, if it is there.
    pub(super) fn client(&self, number: u64, now_s: u32, each: &mut dyn FnMut(&Client<'_>)) {
        let entry = self.lock().get(&number).cloned();
        if let Some(entry) = entry {
            entry.show(number, now_s, each);
        }
    }

    /// What `stats conns` shows, in memcached's words.
    pub(super) fn report(&self, now_s: u32, each: &mut dyn FnMut(&str, &str)) {
        let entries: Vec<_> = self.lock().values().cloned().collect();
        for entry in entries {
            let fd = entry.fd;
            let idle = now_s.saturating_sub(entry.used_s.load(Ordering::Relaxed));
            each(&format!("{fd}:addr"), &entry.peer);
            each(&format!("{fd}:listen_addr"), &entry.door);
            each(&format!("{fd}:state"), "conn_read");
            each(&format!("{fd}:secs_since_last_cmd"), &idle.to_string());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<TableEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
