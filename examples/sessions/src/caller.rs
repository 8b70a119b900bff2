//! A caller of the servers: asks who has a session, and repeats what was not
//! answered.

use crate::CORPUS;
use crate::v1::sessions_client::SessionsClient;
use crate::v1::{BeginRequest, Done, EndRequest, GetRequest, PutRequest, Session};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use trefoil_coordination::{CoordinationError, Security, Watcher};
use trefoil_router::Router;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Repeats every request until it is answered, or for as long as it has patience: each
/// of them may be repeated. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Caller {
    router: Arc<Router>,
    patience: Duration,
}

impl Caller {
    /// Learns from the assigner which servers there are, and follows their changes.
    pub async fn connect(assigner: &str, patience: Duration) -> Result<Self, CoordinationError> {
        Caller::connect_with(assigner, patience, Security::Loopback).await
    }

    /// Likewise, with what protects the connections.
    pub async fn connect_with(
        assigner: &str,
        patience: Duration,
        security: Security,
    ) -> Result<Self, CoordinationError> {
        let watcher = Watcher::open_with(assigner, CORPUS, security).await?;
        let router = Arc::new(Router::new(watcher));
        Ok(Caller { router, patience })
    }

    async fn ask<T, F>(
        &self,
        id: &str,
        send: impl Fn(SessionsClient<Channel>, MetadataMap) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let since = Instant::now();
        loop {
            let send = |channel, metadata| send(SessionsClient::new(channel), metadata);
            match self.router.call(id.as_bytes(), send).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(error) => {
                    let absent = error.status().is_some_and(|s| s.code() == Code::NotFound);
                    if absent || since.elapsed() > self.patience {
                        return Err(error.into());
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Begins a session, unless it is there already.
    pub async fn begin(&self, id: &str, user: &str) -> Result<Done, Status> {
        let send = |mut client: SessionsClient<Channel>, metadata| {
            let (id, user) = (id.to_owned(), user.to_owned());
            let request = with(metadata, BeginRequest { id, user });
            async move { client.begin(request).await }
        };
        self.ask(id, send).await
    }

    /// Puts a value into a session.
    pub async fn put(&self, id: &str, name: &str, value: &str) -> Result<Done, Status> {
        let send = |mut client: SessionsClient<Channel>, metadata| {
            let (id, name, value) = (id.to_owned(), name.to_owned(), value.to_owned());
            let request = with(metadata, PutRequest { id, name, value });
            async move { client.put(request).await }
        };
        self.ask(id, send).await
    }

    /// A session with all its values.
    pub async fn get(&self, id: &str) -> Result<Session, Status> {
        let send = |mut client: SessionsClient<Channel>, metadata| {
            let request = with(metadata, GetRequest { id: id.to_owned() });
            async move { client.get(request).await }
        };
        self.ask(id, send).await
    }

    /// Ends a session.
    pub async fn end(&self, id: &str) -> Result<Done, Status> {
        let send = |mut client: SessionsClient<Channel>, metadata| {
            let request = with(metadata, EndRequest { id: id.to_owned() });
            async move { client.end(request).await }
        };
        self.ask(id, send).await
    }
}

fn with<T>(metadata: MetadataMap, message: T) -> Request<T> {
    Request::from_parts(metadata, tonic::Extensions::default(), message)
}
