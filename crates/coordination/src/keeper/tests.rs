//! Joining, at an assigner that answers as it is told to.

use crate::error::{CoordinationError, Refusal};
use crate::generated::v1;
use crate::generated::v1::coordination_server::{Coordination, CoordinationServer};
use crate::session::{JoinOptions, Session};
use crate::view::ServerInfo;
use crate::wire::status_of;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use trefoil_sharder::Capacity;

#[derive(Clone, Copy, Debug)]
enum Says {
    Granted,
    NotLeading,
    Expired,
    /// It may have done what it was asked for.
    Nothing,
}

#[derive(Debug, Default)]
struct Heard {
    /// The ids that registered, and whether they said that it was again.
    registered: Vec<(u64, bool)>,
    left: Vec<u64>,
}

#[derive(Clone)]
struct Fake {
    heard: Arc<Mutex<Heard>>,
    /// The last one goes on.
    says: Arc<Mutex<VecDeque<Says>>>,
}

impl Fake {
    async fn start(says: &[Says]) -> (Fake, SocketAddr) {
        let fake = Fake {
            heard: Arc::default(),
            says: Arc::new(Mutex::new(says.iter().copied().collect())),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = CoordinationServer::new(fake.clone());
        let serving = Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        (fake, address)
    }
}

#[tonic::async_trait]
impl Coordination for Fake {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::LeaseResponse>, Status> {
        let request = request.into_inner();
        let id = request.server.unwrap().id;
        (self.heard.lock().unwrap().registered).push((id, request.again));
        let says = {
            let mut says = self.says.lock().unwrap();
            match says.len() {
                1 => says[0],
                _ => says.pop_front().unwrap(),
            }
        };
        match says {
            Says::Granted => Ok(Response::new(v1::LeaseResponse {
                lease_ms: 60_000,
                by: String::new(),
            })),
            Says::NotLeading => Err(status_of(&Refusal::NotLeading { address: None })),
            Says::Expired => Err(status_of(&Refusal::Expired)),
            Says::Nothing => Err(Status::new(Code::Unavailable, "the store is slow")),
        }
    }

    async fn keep_alive(
        &self,
        _: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::LeaseResponse>, Status> {
        Err(Status::unimplemented("nobody keeps a lease here"))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        let id = request.into_inner().id;
        self.heard.lock().unwrap().left.push(id);
        Ok(Response::new(v1::LeaveResponse {}))
    }

    async fn report(
        &self,
        _: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        Err(Status::unimplemented("nobody is loaded here"))
    }

    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("there is no map here"))
    }

    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("nobody asks here"))
    }

    async fn set_freeze(
        &self,
        _: Request<v1::SetFreezeRequest>,
    ) -> Result<Response<v1::SetFreezeResponse>, Status> {
        Err(Status::unimplemented("nobody asks here"))
    }

    async fn begin_incarnation(
        &self,
        _: Request<v1::BeginIncarnationRequest>,
    ) -> Result<Response<v1::BeginIncarnationResponse>, Status> {
        Err(Status::unimplemented("nobody asks here"))
    }
}

async fn join(address: &str, timeout: Duration) -> Result<Session, CoordinationError> {
    let capacity = Capacity { cpu: 1.0, bytes: 1 };
    let options = JoinOptions {
        timeout,
        ..JoinOptions::default()
    };
    Session::join_with(address, "mail", ServerInfo::new("a:1", capacity), options).await
}

const PATIENCE: Duration = Duration::from_secs(60);

/// At port 1 nobody listens.
#[tokio::test]
async fn who_was_certainly_not_written_down_does_not_say_that_it_may_have_been() {
    let (fake, address) = Fake::start(&[Says::NotLeading, Says::Granted]).await;
    let both = format!("127.0.0.1:1,{address}");
    let joined = join(&both, PATIENCE).await.unwrap();
    let id = joined.server_id().0;
    let heard = fake.heard.lock().unwrap();
    assert_eq!(heard.registered, [(id, false), (id, false)]);
}

#[tokio::test]
async fn who_may_have_been_written_down_says_so_and_takes_another_id_if_that_is_used_up() {
    let says = [
        Says::Nothing,
        Says::NotLeading,
        Says::Expired,
        Says::Granted,
    ];
    let (fake, address) = Fake::start(&says).await;
    let joined = join(&address.to_string(), PATIENCE).await.unwrap();
    let id = joined.server_id().0;
    let heard = fake.heard.lock().unwrap();
    let former = heard.registered[0].0;
    assert_ne!(id, former);
    let expected = [(former, false), (former, true), (former, true), (id, false)];
    assert_eq!(heard.registered, expected);
}

/// There is time for another attempt under another id, if not for a whole pause.
#[tokio::test]
async fn who_is_told_late_that_its_id_is_used_up_tries_another_one() {
    let (_, address) = Fake::start(&[Says::Expired, Says::Granted]).await;
    let until = std::time::Instant::now() + PATIENCE;
    let mut attempts = super::Attempts::until(until);
    // So much longer than what is left.
    attempts.backoff = PATIENCE * 2;
    assert!(!attempts.pause().await);
    attempts.until = std::time::Instant::now() + Duration::from_millis(100);
    assert!(attempts.pause_if_time().await);
    assert!(!attempts.pause_if_time().await, "not for ever");
    assert!(join(&address.to_string(), PATIENCE).await.is_ok());
}

/// A store that takes nothing, and says after each attempt that nothing was written.
#[tokio::test]
async fn who_takes_one_id_after_the_other_asks_less_and_less_often() {
    let says: Vec<Says> = [Says::Nothing, Says::Expired].repeat(50);
    let (fake, address) = Fake::start(&says).await;
    let address = address.to_string();
    let error = join(&address, Duration::from_millis(1_500)).await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, CoordinationError::Unreachable { reason, .. } if reason.contains("the store is slow")),
        "{error}"
    );
    // Pauses of 50, 100, 200, 400 ms, and what is left.
    let heard = fake.heard.lock().unwrap();
    assert!(heard.registered.len() <= 7, "{:?}", heard.registered);
}

#[tokio::test]
async fn who_gives_up_takes_back_what_was_perhaps_written_down() {
    let (fake, address) = Fake::start(&[Says::Nothing]).await;
    let address = address.to_string();
    assert!(join(&address, Duration::from_millis(200)).await.is_err());
    {
        let heard = fake.heard.lock().unwrap();
        assert_eq!(heard.left, [heard.registered[0].0]);
    }
    let (fake, address) = Fake::start(&[Says::NotLeading]).await;
    let address = address.to_string();
    assert!(join(&address, Duration::from_millis(200)).await.is_err());
    assert!(fake.heard.lock().unwrap().left.is_empty());
}
