//! A service of one method, without generated code, that redirects as it is
//! told.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use trefoil_router::{Redirect, Routed};

type Codec = ProstCodec<String, String>;

/// What a server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Says its name.
    Name,
    Redirect(Redirect),
    Fails(Status),
}

/// One server.
#[derive(Debug)]
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
pub(crate) struct Shared {
    name: String,
    pub(crate) answer: Mutex<Answer>,
    pub(crate) asked: AtomicU32,
    pub(crate) routed: Mutex<Option<Routed>>,
}

impl TestServer {
    pub(crate) async fn start(name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            answer: Mutex::new(Answer::Name),
            asked: AtomicU32::new(0),
            routed: Mutex::new(None),
        });
        let server = tonic::transport::Server::builder()
            .add_service(Name(Arc::clone(&shared)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        TestServer {
            address,
            shared,
            task: tokio::spawn(server).abort_handle(),
        }
    }

    pub(crate) fn answers(&self, answer: Answer) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    pub(crate) fn asked(&self) -> u32 {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Asks for the server's name.
pub(crate) async fn ask(channel: Channel, metadata: MetadataMap) -> Result<String, Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(String::new());
    *request.metadata_mut() = metadata;
    let path = http::uri::PathAndQuery::from_static("/test.Name/Name");
    grpc.unary(request, path, Codec::default())
        .await
        .map(Response::into_inner)
}

#[derive(Clone)]
struct Name(Arc<Shared>);

impl tonic::server::NamedService for Name {
    const NAME: &'static str = "test.Name";
}

type Answered<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Name {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answered<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Method(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Codec::default());
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method(Arc<Shared>);

impl tonic::server::UnaryService<String> for Method {
    type Response = String;
    type Future = Answered<Response<String>, Status>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        shared.asked.fetch_add(1, Ordering::SeqCst);
        *shared.routed.lock().unwrap() = Routed::of(request.metadata());
        let answer = shared.answer.lock().unwrap().clone();
        Box::pin(async move {
            match answer {
                Answer::Name => Ok(Response::new(shared.name.clone())),
                Answer::Redirect(redirect) => Err(redirect.status()),
                Answer::Fails(status) => Err(status),
            }
        })
    }
}
