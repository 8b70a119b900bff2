//! A caller of the stateful form: asks the server that the assigner names,
//! follows one redirect, and tries again while keys change hands.

use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::v1::{ChangeRequest, LookupRequest};
use address_book_contract::{SERVER_METADATA, client, endpoint};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};
use trefoil_coordination::View;
use trefoil_layout::hash::KeyHasher;
use trefoil_sharder::KeyPoint;

/// How long a request is tried again: longer than it takes to notice a death.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
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

/// What an answer took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effort {
    pub(super) redirects: u64,
    pub(super) retries: u64,
}

/// Connections to all servers.
pub(super) struct Callers {
    view: watch::Receiver<Arc<View>>,
    hasher: KeyHasher,
    clients: Mutex<HashMap<String, AddressBooksClient<Channel>>>,
}

impl Callers {
    pub(super) fn new(view: watch::Receiver<Arc<View>>) -> Self {
        Callers {
            view,
            hasher: KeyHasher::default(),
            clients: Mutex::default(),
        }
    }

    pub(super) fn client(&self, address: &str) -> Result<AddressBooksClient<Channel>, Status> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(address) {
            return Ok(client.clone());
        }
        let endpoint = endpoint(address).map_err(|error| Status::unavailable(error.to_string()))?;
        let client = client(endpoint.connect_lazy());
        clients.insert(address.to_owned(), client.clone());
        Ok(client)
    }

    /// Calls until there is an answer, or patience has ended.
    pub(super) async fn call(&self, call: &Call) -> (Result<(), Status>, Effort) {
        let begin = Instant::now();
        let mut effort = Effort::default();
        let mut redirect = None;
        loop {
            let address = redirect.take().or_else(|| self.owner_of(call.owner()));
            let refused = match address {
                Some(address) => match self.try_at(&address, call).await {
                    Ok(()) => return (Ok(()), effort),
                    Err(status) => status,
                },
                None => Status::unavailable("nobody has the key"),
            };
            let may_pass = matches!(
                refused.code(),
                Code::Unavailable
                    | Code::FailedPrecondition
                    | Code::Cancelled
                    | Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Aborted
            );
            if !may_pass || begin.elapsed() > PATIENCE {
                return (Err(refused), effort);
            }
            let elsewhere = refused.metadata().get(SERVER_METADATA);
            redirect = elsewhere.and_then(|address| Some(address.to_str().ok()?.to_owned()));
            if redirect.is_some() && effort.redirects == 0 {
                effort.redirects += 1;
            } else {
                effort.retries += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn try_at(&self, address: &str, call: &Call) -> Result<(), Status> {
        let mut client = self.client(address)?;
        let answer = async {
            match call.clone() {
                Call::Lookup(request) => client.lookup(request).await.map(drop),
                Call::Change(request) => client.change(request).await.map(drop),
            }
        };
        let late = |_| Status::deadline_exceeded(format!("no answer from {address}"));
        tokio::time::timeout(TRY_WITHIN, answer)
            .await
            .map_err(late)?
    }

    fn owner_of(&self, key: &str) -> Option<String> {
        let point = KeyPoint::of(&self.hasher, key.as_bytes());
        let view = self.view.borrow();
        let owner = view.assignment.slice_of(point).servers.first()?;
        Some(view.servers.get(owner)?.address.clone())
    }
}
