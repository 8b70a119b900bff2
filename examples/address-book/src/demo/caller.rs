//! A caller of the stateful form: the router finds the server, follows a
//! redirect, and tries again while keys change hands.

use address_book_contract::client;
use address_book_contract::v1::{ChangeRequest, LookupRequest};
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use trefoil_router::{CallOptions, Router};

/// How long a request is tried again: longer than it takes to notice a death.
/// Changes may be repeated, too: they replace contacts.
const PATIENCE: Duration = Duration::from_secs(10);
/// One try; a stopped process never answers.
const TRY_WITHIN: Duration = Duration::from_secs(1);

/// Something to ask for.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Lookup(LookupRequest),
    Change(ChangeRequest),
}

impl Call {
    fn owner(&self) -> &str {
        match self {
            Call::Lookup(request) => &request.owner,
            Call::Change(request) => &request.owner,
        }
    }
}

/// Calls until there is an answer, or patience has ended; also says how many
/// requests were sent.
pub(super) async fn call(router: &Router, call: &Call) -> (Result<(), String>, u64) {
    let mut sent = 0;
    let result = router
        .call_with(
            call.owner().as_bytes(),
            CallOptions::repeatable(PATIENCE),
            |channel, metadata| {
                sent += 1;
                send(call, channel, metadata)
            },
        )
        .await;
    (result.map_err(|error| error.to_string()), sent)
}

/// The version of a book that is served now, if anybody serves it.
pub(super) async fn version(router: &Router, owner: &str) -> Option<u64> {
    let found = router.call(owner.as_bytes(), |channel, metadata| {
        let message = LookupRequest {
            owner: owner.to_owned(),
            ..LookupRequest::default()
        };
        async move { client(channel).lookup(with(metadata, message)).await }
    });
    Some(found.await.ok()?.into_inner().version)
}

async fn send(call: &Call, channel: Channel, metadata: MetadataMap) -> Result<(), Status> {
    let mut server = client(channel);
    let answer = async {
        match call.clone() {
            Call::Lookup(message) => {
                let request = with(metadata, message);
                server.lookup(request).await.map(drop)
            }
            Call::Change(message) => {
                let request = with(metadata, message);
                server.change(request).await.map(drop)
            }
        }
    };
    // Unavailable is what the router tries again after.
    let late = |_| Status::unavailable("no answer in time");
    let answered = tokio::time::timeout(TRY_WITHIN, answer).await;
    match answered.map_err(late)? {
        // A connection that broke while its server died.
        Err(status) if status.code() == Code::Unknown => {
            Err(Status::unavailable(status.message().to_owned()))
        }
        answer => answer,
    }
}

fn with<T>(metadata: MetadataMap, message: T) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = metadata;
    request
}
