//! Connections: accepted, served by HTTP/2 (gRPC) or HTTP/1 (metrics), ended.

use crate::access::{Access, Tokens};
use crate::admission::{AdmittedAnswer, AdmittedBody, Kind, LongAnswer};
use crate::guests::{Guests, Place};
use crate::metrics;
use crate::permission;
use crate::service::RpcService;
use crate::shared_stream::Shared;
use crate::state::State;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};
use tonic::codegen::Service as _;
use tonic::service::interceptor::InterceptedService;
use trefoil_endpoint::exposition;
use trefoil_fabric::shm::UserPolicy;
use trefoil_tls::{AcceptError, LOOK_PERIOD, Tls};

/// HTTP/2 flow control of a stream, in bytes: what may be sent that nobody has
/// read yet. A long message that waits for its turn waits there.
const STREAM_WINDOW_LEN: u32 = 64 << 10;
/// Longest HTTP/2 frame taken, in bytes.
const FRAME_LEN_MAX: u32 = 64 << 10;
/// Calls in flight on one connection.
const STREAM_COUNT_MAX: u32 = 128;
/// Calls that a client has taken back before they were looked at: after a pause of this process
/// these may be all that it had in flight, and more that it began in their place. More of them
/// end the connection, and with it what else is in flight.
const RESET_COUNT_MAX: usize = 16 * STREAM_COUNT_MAX as usize;
/// Flow control of a connection: those who wait never keep the others from
/// getting on.
const CONNECTION_WINDOW_LEN: u32 = STREAM_COUNT_MAX * STREAM_WINDOW_LEN;
/// What a stream may have waiting to be sent, in bytes.
const SEND_BUFFER_LEN: usize = 64 << 10;
/// A client of which nothing was heard for so long is asked whether it is there.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long it may take to say so: its host may have vanished, and its connection with
/// it.
const KEEP_ALIVE_PATIENCE: Duration = Duration::from_secs(20);
/// Connections at a time, of clients that are known, by each socket.
const CONNECTION_COUNT_MAX: usize = 4096;
/// The same for those who scrape metrics, whoever they are.
const SCRAPE_COUNT_MAX: usize = 64;
/// How long a scrape may take, from its connection's beginning to its end: one who does
/// not read what it has asked for does not keep its place.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a call may take that is one message and one answer: longer than all
/// that it may wait for together. (A stream's messages have their own patience.)
const CALL_PATIENCE: Duration = Duration::from_secs(120);
/// Pause after the system refused to accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long calls in flight may take once the server stops, and clients to hang up then.
const FAREWELL: Duration = Duration::from_millis(500);

/// Between two lines about handshakes that have failed: anybody can make one fail.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(10);

/// How clients over TCP show who they are.
pub(crate) enum TcpAccess {
    /// By the server's token or a listed one, in plain text.
    Token(Tokens),
    /// By certificates, with TLS.
    Certificates(Tls),
}

/// Turns true when the server stops.
pub(crate) type Stopping = watch::Receiver<bool>;

/// Waits until the server stops.
pub(crate) async fn stopped(mut stopping: Stopping) {
    // An error means that the sender is gone: the server has stopped.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Serves gRPC over TCP, until the server stops. Once it is `closing`, nobody else comes in,
/// and another process may have the port.
pub(crate) async fn rpc_over_tcp(
    listener: TcpListener,
    access: TcpAccess,
    state: Arc<State>,
    (stopping, closing): (Stopping, Stopping),
) {
    let accept = || async {
        let (stream, from) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok((stream, from))
    };
    let guests = Guests::default();
    let complaints = Arc::<Complaints>::default();
    let served = accept_each(accept, CONNECTION_COUNT_MAX, &stopping, |(stream, from)| {
        let place = guests.come_in();
        let (state, stopping) = (Arc::clone(&state), stopping.clone());
        let encrypted = match &access {
            TcpAccess::Token(_) => None,
            TcpAccess::Certificates(tls) => Some((tls.clone(), Arc::clone(&complaints))),
        };
        let access = match &access {
            TcpAccess::Token(tokens) => Access::Token(tokens.clone(), place.guest()),
            TcpAccess::Certificates(_) => Access::Plain,
        };
        async move {
            match encrypted {
                None => rpc(stream, access, Some(place), None, state, stopping).await,
                Some((tls, complaints)) => {
                    rpc_over_tls(stream, from, tls, &complaints, place, state, stopping).await;
                }
            }
        }
    });
    tokio::select! {
        () = served => {}
        () = stopped(closing) => {}
    }
}

/// Serves a client whose certificate is believed. It is a guest until then; one that
/// speaks without TLS is told why it gets no further, and so is one without a role.
async fn rpc_over_tls(
    stream: TcpStream,
    from: SocketAddr,
    tls: Tls,
    complaints: &Complaints,
    place: Place,
    state: Arc<State>,
    stopping: Stopping,
) {
    let accepted = tokio::select! {
        accepted = trefoil_tls::accept(&tls, stream) => accepted,
        () = place.ends() => {
            return complaints.note(from, "the other end does not get on with it");
        }
        () = stopped(stopping.clone()) => return,
    };
    match accepted {
        Ok(accepted) => {
            if !accepted.caller.roles.is_empty() {
                place.guest().is_introduced();
            }
            let left = accepted.caller.left(SystemTime::now());
            let access = Access::Certificate(Arc::new(accepted.caller), tls.clone());
            let stream = accepted.stream;
            rpc(stream, access, Some(place), Some(left), state, stopping).await;
        }
        Err(AcceptError::Plain(stream)) => {
            complaints.note(from, "the other end speaks without TLS");
            rpc(stream, Access::Plain, Some(place), None, state, stopping).await;
        }
        Err(AcceptError::Failed(error)) => complaints.note(from, &error.to_string()),
    }
}

/// What is wrong with those who come, in few lines.
#[derive(Default)]
struct Complaints(Mutex<Complained>);

#[derive(Default)]
struct Complained {
    at: Option<Instant>,
    /// Since then.
    unsaid: u64,
}

impl Complaints {
    fn note(&self, from: SocketAddr, what: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.is_some_and(|at| at.elapsed() < COMPLAINT_PERIOD) {
            last.unsaid += 1;
            return;
        }
        let others = last.unsaid;
        tracing::warn!(%from, others, "a client was not let in: {what}");
        *last = Complained {
            at: Some(Instant::now()),
            unsaid: 0,
        };
    }
}

/// Keeps certificates up to date where nobody comes for a while.
pub(crate) async fn watch_certificates(tls: Tls, stopping: Stopping) {
    let mut stopped = pin!(stopped(stopping));
    loop {
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(LOOK_PERIOD) => tls.look(),
        }
    }
}

/// Serves gRPC over a Unix socket.
pub(crate) async fn rpc_over_unix(
    listener: UnixListener,
    users: UserPolicy,
    state: Arc<State>,
    stopping: Stopping,
) {
    let accept = || async { Ok(listener.accept().await?.0) };
    let guests = Guests::default();
    accept_each(accept, CONNECTION_COUNT_MAX, &stopping, |stream| {
        let (access, place) = match users.allows_client(&stream) {
            true => (Access::Granted, None),
            // Until it has read why.
            false => (Access::Refused, Some(guests.come_in())),
        };
        rpc(
            stream,
            access,
            place,
            None,
            Arc::clone(&state),
            stopping.clone(),
        )
    })
    .await;
}

/// Serves metrics over HTTP.
pub(crate) async fn metrics_over_tcp(listener: TcpListener, state: Arc<State>, stopping: Stopping) {
    let accept = || async { Ok(listener.accept().await?.0) };
    accept_each(accept, SCRAPE_COUNT_MAX, &stopping, |stream| {
        scrape(stream, Arc::clone(&state), stopping.clone())
    })
    .await;
}

/// Spawns `serve` for every connection until the server stops; what comes on top of
/// `count_max` is hung up on.
async fn accept_each<A, S, T>(
    accept: impl Fn() -> A,
    count_max: usize,
    stopping: &Stopping,
    serve: impl Fn(T) -> S,
) where
    A: Future<Output = io::Result<T>>,
    S: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(count_max));
    let mut stopped = pin!(stopped(stopping.clone()));
    loop {
        tokio::select! {
            () = &mut stopped => return,
            accepted = accept() => match accepted {
                Ok(stream) => match Arc::clone(&room).try_acquire_owned() {
                    Ok(permit) => {
                        let served = serve(stream);
                        tokio::spawn(async move {
                            served.await;
                            drop(permit);
                        });
                    }
                    Err(_) => tracing::debug!(count_max, "a connection too many"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Serves a connection to its end; with `left`, for so long at most: what is under way
/// by then comes to its end.
async fn rpc<T>(
    stream: T,
    access: Access,
    place: Option<Place>,
    left: Option<Duration>,
    state: Arc<State>,
    stopping: Stopping,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Until it has ended: who stops the server waits for that.
    let _serving = stopping.clone();
    let service = trefoil_rpc::service(RpcService::new(Arc::clone(&state)));
    let service = InterceptedService::new(service, access);
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (state, mut service) = (Arc::clone(&state), service.clone());
        async move {
            let (mut head, body) = request.into_parts();
            let kind = Kind::of(head.uri.path());
            head.extensions.insert(permission::of_path(head.uri.path()));
            let (body, arrived) = AdmittedBody::new(body, kind, state);
            let call = service.call(hyper::Request::from_parts(head, body));
            let answer = match kind {
                Kind::Streamed => call.await,
                // A client whose call is reset knows as much as by a late answer.
                Kind::Unary | Kind::Short => tokio::time::timeout(CALL_PATIENCE, call)
                    .await
                    .map_err(io::Error::from)?,
            };
            drop(arrived);
            let mut answer = answer.map_err(io::Error::other)?;
            let admitted = answer.extensions_mut().remove::<LongAnswer>();
            let answer = answer.map(|body| AdmittedAnswer::new(body, admitted));
            Ok::<_, io::Error>(answer)
        }
    });
    let stream = Shared::new(stream);
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_LEN)
        .initial_connection_window_size(CONNECTION_WINDOW_LEN)
        .max_concurrent_streams(STREAM_COUNT_MAX)
        .max_pending_accept_reset_streams(RESET_COUNT_MAX)
        .max_frame_size(FRAME_LEN_MAX)
        .max_send_buf_size(SEND_BUFFER_LEN)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_PATIENCE)
        .serve_connection(TokioIo::new(stream.clone()), service);
    let mut connection = pin!(connection);
    tokio::select! {
        result = &mut connection => note(result),
        () = ends(place.as_ref()) => tracing::debug!("a client has not shown whose it is"),
        () = passes(left) => {
            tracing::debug!("a client's certificate has ended");
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(CALL_PATIENCE, connection).await;
        }
        () = stopped(stopping) => {
            connection.as_mut().graceful_shutdown();
            let farewell = async {
                let _ = connection.await;
                stream.until_hung_up().await;
            };
            let _ = tokio::time::timeout(FAREWELL, farewell).await;
        }
    }
}

/// Ends when a guest has to go.
async fn ends(place: Option<&Place>) {
    match place {
        Some(place) => place.ends().await,
        None => std::future::pending().await,
    }
}

/// Ends after a time, if there is one.
async fn passes(left: Option<Duration>) {
    match left {
        Some(left) => tokio::time::sleep(left).await,
        None => std::future::pending().await,
    }
}

async fn scrape(stream: tokio::net::TcpStream, state: Arc<State>, stopping: Stopping) {
    let service = hyper::service::service_fn(move |request| {
        let response = answer(&state, &request);
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        // The next scrape comes by the next connection.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        result = tokio::time::timeout(SCRAPE_PATIENCE, connection) => match result {
            Ok(result) => note(result),
            Err(_) => tracing::debug!("a scraper takes too long"),
        },
        () = stopped(stopping) => {}
    }
}

/// A peer that speaks something else, or breaks off, is no event.
fn note(result: Result<(), hyper::Error>) {
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

fn answer<B>(state: &Arc<State>, request: &hyper::Request<B>) -> hyper::Response<Full<Bytes>> {
    let accept = request.headers().get(hyper::header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or("");
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&hyper::Method::GET, "/metrics") => match metrics::render(state) {
            Ok(text) => {
                let (kind, body) = exposition(accept, text);
                (200, kind, body)
            }
            Err(error) => (500, "text/plain", format!("{error}\n")),
        },
        (&hyper::Method::GET, _) => (404, "text/plain", "metrics are at /metrics\n".to_owned()),
        _ => (405, "text/plain", "only GET is served here\n".to_owned()),
    };
    let mut response = hyper::Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static(kind),
    );
    response
}
