//! The way over gRPC: works for everything, everywhere, at RPC prices.
//!
//! The runtime starts with the first call: a client of shared memory alone
//! has none. Calls run as tasks and put their answers into their client's inbox,
//! so that the third replica's call goes on whatever becomes of who began it. Each has
//! a deadline, and a place in the [`account`] of what is under way. To a driver they
//! are a [`port`].

mod account;
mod bell;
mod port;
mod queue;

pub(crate) use account::Purpose;
pub(crate) use bell::Bell;
pub(crate) use port::RpcPort;

use crate::{pulse, time};
use account::{Account, Place};
use port::Inbox;
use queue::RoomWatch;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use trefoil_cell::{CellConfig, RpcAddress};
use trefoil_driver::OWED_NS_MIN;
use trefoil_driver::inline::RESUMING_NS;
use trefoil_fabric::Token;
use trefoil_fabric::port::SendError;
use trefoil_rpc::{Client, failure_text, v1};
use trefoil_tls::Tls;

/// Longest time from a call's start to its answer: what has not been answered by
/// then, and everything that it holds, is given up. Generous, because values of
/// megabytes cross a busy network; short operations have their own deadlines.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether a backend that is reached over TCP has a Unix socket here.
const NEARER_PERIOD: Duration = Duration::from_secs(1);
/// Patience with who listens there.
const NEARER_PATIENCE: Duration = Duration::from_millis(500);
/// How long the last owner of a cell waits for mutations that are under way.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);

/// What a call goes to and costs.
pub(crate) struct CallPlan {
    pub(crate) backend: u32,
    /// Bytes of the request.
    pub(crate) len: usize,
    pub(crate) purpose: Purpose,
}

/// When a call ends though it has no answer.
struct Ends {
    /// Its backend is given up.
    given_up: watch::Receiver<bool>,
    /// Nobody waits for it after that, on the monotonic clock: others have its place. It goes
    /// on until it has been under way for [`OWED_NS_MIN`].
    until_ns: u64,
}

#[derive(Debug)]
pub(crate) enum CallAnswer {
    Lookup(Result<v1::LookupResponse, tonic::Status>),
    Mutate(Result<v1::MutateResponse, tonic::Status>),
    Use(Result<v1::UseResponse, tonic::Status>),
    /// Nobody waits for it any more.
    Expired,
}

impl CallAnswer {
    /// Why there is none, if so.
    fn failure(&self) -> Option<&tonic::Status> {
        match self {
            CallAnswer::Lookup(result) => result.as_ref().err(),
            CallAnswer::Mutate(result) => result.as_ref().err(),
            CallAnswer::Use(result) => result.as_ref().err(),
            CallAnswer::Expired => None,
        }
    }

    /// Whether the backend itself has said something.
    fn is_heard(&self) -> bool {
        let is_answer = |status: &tonic::Status| {
            !is_of_the_way(status) && status.code() != tonic::Code::DeadlineExceeded
        };
        !matches!(self, CallAnswer::Expired) && self.failure().is_none_or(is_answer)
    }
}

/// Channels to every server of a cell; shared by the clients of a process.
pub(crate) struct Rpc {
    runtime: OnceLock<Runtime>,
    /// Held while the runtime is built: a second one could not even be dropped where
    /// tasks run.
    building: Mutex<()>,
    channels: Arc<Channels>,
    account: Arc<Account>,
    /// Longest time to establish a connection.
    patience: Duration,
    /// What is spoken over TCP, if it is TLS.
    tls: Option<Tls>,
}

/// By the numbers of backends.
type Channels = Mutex<Vec<Option<Channel>>>;

/// A server's client, and the addresses that it was found by.
struct Channel {
    addresses: Vec<RpcAddress>,
    client: Client,
    /// Of one that is reached over TCP and has a Unix socket: when it is looked next whether
    /// that is there by now.
    look_at: Option<Instant>,
}

impl Rpc {
    pub(crate) fn new(patience: Duration, tls: Option<Tls>) -> Arc<Self> {
        Arc::new(Rpc {
            runtime: OnceLock::new(),
            building: Mutex::new(()),
            channels: Arc::default(),
            account: Arc::default(),
            patience,
            tls,
        })
    }

    pub(crate) fn runtime(&self) -> std::io::Result<&Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let _building = self.building.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("trefoil-rpc")
            .enable_all()
            .build()?;
        Ok(self.runtime.get_or_init(|| runtime))
    }

    /// What is spoken over TCP, if it is TLS.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// A client of the server at `address`, connecting when first used.
    pub(crate) fn open(&self, address: &RpcAddress) -> Result<Client, String> {
        let runtime = self.runtime().map_err(|e| e.to_string())?;
        let _guard = runtime.enter();
        trefoil_cell::rpc_client(address, self.tls.as_ref(), self.patience)
            .map_err(|e| e.to_string())
    }

    /// The client of backend `number`, made on first use.
    pub(crate) fn backend(&self, config: &CellConfig, number: u32) -> Result<Client, String> {
        let mut channels = lock(&self.channels);
        let index = number as usize;
        if channels.len() <= index {
            channels.resize_with(index + 1, || None);
        }
        let backend = config.backend(number).ok_or("no such backend")?;
        let has_tls = self.tls.is_some();
        // Another topology may have it elsewhere.
        if let Some(channel) = &mut channels[index]
            && channel.addresses == backend.addresses
        {
            if let Some(at) = &mut channel.look_at
                && *at <= Instant::now()
            {
                *at = Instant::now() + NEARER_PERIOD;
                if let Some(socket @ RpcAddress::Unix(_)) = preferred(&channel.addresses, has_tls) {
                    self.come_nearer(socket, number, config.life);
                }
            }
            return Ok(channel.client.clone());
        }
        let address = preferred(&backend.addresses, has_tls);
        let address = address.ok_or("the backend has no address")?;
        let client = self.open(address)?;
        let is_unix = |a: &RpcAddress| matches!(a, RpcAddress::Unix(_));
        let has_unix = backend.addresses.iter().any(is_unix);
        let may_come_nearer = !has_tls && has_unix && !is_unix(address);
        channels[index] = Some(Channel {
            addresses: backend.addresses.clone(),
            client: client.clone(),
            look_at: may_come_nearer.then(|| Instant::now() + NEARER_PERIOD),
        });
        Ok(client)
    }

    /// Has backend `number` of the cell's `life`, which is reached over TCP, be reached by its
    /// Unix socket, if it answers there: it may have been away when it was looked for. At such
    /// a path of another host there may be another cell's.
    fn come_nearer(&self, socket: &RpcAddress, number: u32, life: u64) {
        let (Ok(runtime), Ok(client)) = (self.runtime(), self.open(socket)) else {
            return;
        };
        let (channels, socket) = (Arc::clone(&self.channels), socket.clone());
        let mut asked = client.clone();
        runtime.spawn(async move {
            let call = asked.config(v1::ConfigRequest {});
            let answer = tokio::time::timeout(NEARER_PATIENCE, call).await;
            let Ok(Ok(answer)) = answer else {
                return;
            };
            let config = answer.into_inner().config;
            if config.is_none_or(|config| config.life != life) {
                return;
            }
            if let Some(Some(channel)) = lock(&channels).get_mut(number as usize)
                && channel.addresses.contains(&socket)
                && channel.look_at.take().is_some()
            {
                channel.client = client;
            }
        });
    }

    /// Runs `call` to its end and waits for it.
    pub(crate) fn wait<T: Send>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>> + Send,
        patience: Duration,
    ) -> Result<T, String> {
        self.block_on(async { tokio::time::timeout(patience, call).await })?
            .map_err(|_| format!("no answer within {} ms", patience.as_millis()))?
            .map_err(|status| failure_text(&status))
    }

    /// Waits for `future` on this thread. A thread on which tasks of the caller's
    /// own runtime run must not wait inside a runtime: another one does it then.
    pub(crate) fn block_on<T: Send>(
        &self,
        future: impl Future<Output = T> + Send,
    ) -> Result<T, String> {
        let runtime = self.runtime().map_err(|e| e.to_string())?;
        if tokio::runtime::Handle::try_current().is_err() {
            return Ok(runtime.block_on(future));
        }
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("trefoil-wait".to_owned())
                .spawn_scoped(scope, || runtime.block_on(future))
                .map_err(|e| e.to_string())?
                .join()
                .map_err(|_| "the call panicked".to_owned())
        })
    }

    /// A place for a call. An error means that too much is under way: `watch` is told
    /// when there may be room.
    fn enter(&self, plan: &CallPlan, watch: &Arc<RoomWatch>) -> Result<Place, SendError> {
        self.account
            .enter(plan.backend, plan.len, plan.purpose, Some(watch))
            .ok_or(SendError::Full)
    }

    /// Starts a call; its answer goes to `inbox`, whatever becomes of the caller.
    /// An error means that it was not sent.
    fn start(
        &self,
        inbox: &Arc<Inbox>,
        token: Token,
        mut place: Place,
        ends: Ends,
        late: fn(tonic::Status) -> CallAnswer,
        call: impl Future<Output = CallAnswer> + Send + 'static,
    ) -> Result<(), SendError> {
        let inbox = Arc::clone(inbox);
        let begun_ns = time::monotonic_ns();
        let Ends { given_up, until_ns } = ends;
        self.runtime()
            .map_err(|_| SendError::Closed)?
            .spawn(async move {
                let mut call = pin!(tokio::time::timeout(CALL_PATIENCE, call));
                let in_time = by(begun_ns, until_ns, call.as_mut());
                let mut ended = unless_lost(in_time, &mut place, given_up.clone()).await;
                if let Some(None) = ended {
                    // Nobody waits for it. It goes on for a while: what comes late is heard.
                    place.is_overdue();
                    let while_owed = by(begun_ns, begun_ns + OWED_NS_MIN, call);
                    ended = unless_lost(while_owed, &mut place, given_up).await;
                }
                let answer = match ended {
                    Some(Some(Ok(answer))) => answer,
                    Some(Some(Err(_))) => {
                        let why = format!("no answer within {} s", CALL_PATIENCE.as_secs());
                        late(tonic::Status::deadline_exceeded(why))
                    }
                    Some(None) => CallAnswer::Expired,
                    // Its backend is given up.
                    None => return,
                };
                if answer.is_heard() {
                    place.has_answer();
                }
                drop(place);
                inbox.put(token, answer);
            });
        Ok(())
    }

    /// Reports reads to backend `number`, unless reports are under way to it
    /// already.
    pub(crate) fn report(&self, config: &CellConfig, request: v1::TouchRequest) {
        let account = &self.account;
        let Some(place) = account.enter(request.backend, 0, Purpose::Touch, None) else {
            return;
        };
        let (Ok(mut client), Ok(runtime)) = (self.backend(config, request.backend), self.runtime())
        else {
            return;
        };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(CALL_PATIENCE, client.touch(request)).await;
            drop(place);
        });
    }

    /// Names keys on which replicas differ to the backend that repairs them, unless
    /// reports are under way to it already. Nobody waits for an answer.
    pub(crate) fn suspect(&self, config: &CellConfig, backend: u32, request: v1::SuspectRequest) {
        let Some(place) = self.account.enter(backend, 0, Purpose::Touch, None) else {
            return;
        };
        let (Ok(mut client), Ok(runtime)) = (self.backend(config, backend), self.runtime()) else {
            return;
        };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(CALL_PATIENCE, client.suspect(request)).await;
            drop(place);
        });
    }

    /// Whether every mutation that was sent has been answered or given up.
    pub(crate) fn is_finished(&self) -> bool {
        self.account.is_finished()
    }

    /// Waits until every mutation that was sent has been answered or given up;
    /// `false` if some are still under way after `patience`.
    pub(crate) fn finish(&self, patience: Duration) -> bool {
        self.account.finish(patience)
    }
}

fn lock(channels: &Channels) -> MutexGuard<'_, Vec<Option<Channel>>> {
    channels.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unix sockets before TCP: cheaper, and reachable only from here. But not where servers
/// have to show certificates: what listens at such a path of this host may be another
/// server than the one that has named it, or anybody's.
fn preferred(addresses: &[RpcAddress], has_tls: bool) -> Option<&RpcAddress> {
    let is_tcp = |a: &&RpcAddress| matches!(a, RpcAddress::Tcp { .. });
    let is_here = |a: &&RpcAddress| matches!(a, RpcAddress::Unix(path) if path.exists());
    let tcp = || addresses.iter().find(is_tcp);
    let here = || addresses.iter().find(is_here);
    let found = match has_tls {
        true => tcp().or_else(here),
        false => here().or_else(tcp),
    };
    found.or_else(|| addresses.first())
}

/// Carries a call on to its end; `None` if `until_ns` comes before. Shortly after a pause of this
/// process an answer may be there, and not have got to be heard.
async fn by<T>(begun_ns: u64, mut until_ns: u64, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    loop {
        let left = until_ns.saturating_sub(time::monotonic_ns());
        let left = Duration::from_nanos(left);
        if let Ok(answer) = tokio::time::timeout(left, &mut call).await {
            return Some(answer);
        }
        let since_ns = pulse::running_since_ns();
        let resumed_ns = since_ns.saturating_add(RESUMING_NS);
        if since_ns <= begun_ns || resumed_ns <= until_ns {
            return None;
        }
        until_ns = resumed_ns;
    }
}

/// Carries a call on to its end; `None` if its backend is given up before, and with it
/// the call.
async fn unless_lost<T>(
    call: impl Future<Output = T>,
    place: &mut Place,
    mut given_up: watch::Receiver<bool>,
) -> Option<T> {
    let mut call = pin!(call);
    // A client that is no more gives nobody up.
    let is_given_up = async { given_up.wait_for(|is_given_up| *is_given_up).await.is_ok() };
    tokio::select! {
        biased;
        answer = &mut call => return Some(answer),
        true = is_given_up => {}
    }
    match place.lose() {
        true => Some(call.await),
        false => None,
    }
}

/// What was sent goes out before its runtime ends. A runtime must not be waited
/// for where tasks run, so there a thread of its own sees to it.
impl Drop for Rpc {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let account = Arc::clone(&self.account);
        if !account.is_finished() && tokio::runtime::Handle::try_current().is_ok() {
            let end = move || {
                account.finish(FINISH_PATIENCE);
                runtime.shutdown_background();
            };
            // Without a thread, what is under way is given up.
            let _ = std::thread::Builder::new()
                .name("trefoil-finish".to_owned())
                .spawn(end);
            return;
        }
        account.finish(FINISH_PATIENCE);
        runtime.shutdown_background();
    }
}

/// Whether a call has failed on its way: no connection, or one that has ended. Also
/// what a server says by the means of the connection (it resets a stream because it
/// has too many, or does not speak this protocol) has a source, but another code.
pub(crate) fn is_of_the_way(status: &tonic::Status) -> bool {
    use tonic::Code::{Cancelled, Unavailable, Unknown};
    let is_of_connection = matches!(status.code(), Unavailable | Cancelled | Unknown);
    is_of_connection && std::error::Error::source(status).is_some()
}

/// Whether no connection stood on which the call could have gone out, or the
/// server refused it before executing anything.
pub(crate) fn certainly_not_sent(status: &tonic::Status) -> bool {
    if matches!(
        status.code(),
        tonic::Code::InvalidArgument
            | tonic::Code::NotFound
            | tonic::Code::Unauthenticated
            | tonic::Code::PermissionDenied
    ) {
        return true;
    }
    is_nobody_there(status)
        || trefoil_rpc::was_not_executed(status)
        || trefoil_rpc::handshake_error(status).is_some()
}

/// Whether the server lets this side not in, or not do that.
pub(crate) fn is_refused(status: &tonic::Status) -> bool {
    use tonic::Code::{PermissionDenied, Unauthenticated};
    matches!(status.code(), Unauthenticated | PermissionDenied)
}

/// Whether a connection was made, and whoever is there did not keep to its protocol, or
/// closed it at once.
pub(crate) fn is_no_grpc(status: &tonic::Status) -> bool {
    let has_answered = !matches!(
        status.code(),
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded
    );
    has_answered && std::error::Error::source(status).is_some() && !is_nobody_there(status)
}

/// Whether no connection could be made: nobody listens.
pub fn is_nobody_there(status: &tonic::Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind::{ConnectionRefused, NotFound};
            return matches!(error.kind(), ConnectionRefused | NotFound);
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use tonic::{Code, Status};

    /// What a backend says, by whatever means, does not make it one that is away.
    #[test]
    fn only_what_befalls_the_connection_is_of_the_way() {
        for (code, is_of_it) in [
            (Code::Unavailable, true),
            (Code::Unknown, true),
            (Code::Cancelled, true),
            (Code::Internal, false),
            (Code::ResourceExhausted, false),
            (Code::PermissionDenied, false),
        ] {
            let said = Status::new(code, "no");
            assert!(!is_of_the_way(&said), "{code:?}");
            let mut met = Status::new(code, "no");
            met.set_source(Arc::new(std::io::Error::other("reset")));
            assert_eq!(is_of_the_way(&met), is_of_it, "{code:?}");
        }
    }

    #[test]
    fn certificates_are_for_tcp_and_sockets_for_those_without() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("rpc");
        let tcp = RpcAddress::Tcp {
            host: "db1".to_owned(),
            port: 7411,
        };
        let unix = RpcAddress::Unix(socket.clone());
        let both = [unix.clone(), tcp.clone()];
        // Nothing is there.
        assert_eq!(preferred(&both, false), Some(&tcp));
        assert_eq!(preferred(&both, true), Some(&tcp));
        std::fs::write(&socket, "").unwrap();
        assert_eq!(preferred(&both, false), Some(&unix));
        assert_eq!(preferred(&both, true), Some(&tcp));
        assert_eq!(preferred(&both[..1], true), Some(&unix));
        assert_eq!(preferred(&[], true), None);
    }

    /// What loses a race must not be dropped where tasks run: that panics.
    #[test]
    fn first_calls_at_once_share_one_runtime() {
        const CALLERS: usize = 4;
        for _ in 0..8 {
            let (rpc, barrier) = (
                Rpc::new(Duration::from_secs(1), None),
                Barrier::new(CALLERS),
            );
            let first_call = || {
                let tasks = Builder::new_current_thread().build().unwrap();
                tasks.block_on(async {
                    barrier.wait();
                    rpc.runtime().unwrap().handle().id()
                })
            };
            let ids: Vec<_> = std::thread::scope(|scope| {
                let callers = [(); CALLERS].map(|()| scope.spawn(first_call));
                callers.map(|caller| caller.join().unwrap()).into()
            });
            assert!(ids.iter().all(|id| *id == ids[0]));
        }
    }
}
