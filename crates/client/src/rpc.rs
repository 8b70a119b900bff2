//! The way over gRPC: works for everything, everywhere, at RPC prices.
//!
//! The runtime starts with the first call: a client of shared memory alone
//! has none. Calls run as tasks and put their answers into a queue that the
//! synchronous drivers wait on, so that the third replica's call is never
//! cancelled.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use trefoil_cell::{CellConfig, RpcAddress};
use trefoil_rpc::{Client, v1};

/// One backend's answer to a call that a driver started.
pub(crate) struct Completion {
    /// The driver's number of the operation: late answers are told by it.
    pub(crate) operation: u64,
    /// Place in the cohort.
    pub(crate) replica: usize,
    pub(crate) answer: CallAnswer,
}

pub(crate) enum CallAnswer {
    Lookup(Result<v1::LookupResponse, tonic::Status>),
    Mutate(Result<v1::MutateResponse, tonic::Status>),
    Use(Result<v1::UseResponse, tonic::Status>),
}

/// Channels to every server of a cell; shared by the clients of a process.
pub(crate) struct Rpc {
    runtime: OnceLock<Runtime>,
    channels: Mutex<Vec<Option<Client>>>,
    /// Longest time to establish a connection.
    patience: Duration,
}

impl Rpc {
    pub(crate) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Rpc {
            runtime: OnceLock::new(),
            channels: Mutex::new(Vec::new()),
            patience,
        })
    }

    pub(crate) fn runtime(&self) -> std::io::Result<&Runtime> {
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

    /// A client of the server at `address`, connecting when first used.
    pub(crate) fn open(&self, address: &RpcAddress) -> Result<Client, String> {
        let endpoint = trefoil_cell::endpoint(address).map_err(|e| e.to_string())?;
        let runtime = self.runtime().map_err(|e| e.to_string())?;
        let _guard = runtime.enter();
        Ok(trefoil_rpc::client(
            endpoint.connect_timeout(self.patience).connect_lazy(),
        ))
    }

    /// The client of backend `number`, made on first use.
    pub(crate) fn backend(&self, config: &CellConfig, number: u32) -> Result<Client, String> {
        let mut channels = self.channels.lock().unwrap_or_else(|e| e.into_inner());
        let index = number as usize;
        if channels.len() <= index {
            channels.resize_with(index + 1, || None);
        }
        if let Some(client) = &channels[index] {
            return Ok(client.clone());
        }
        let backend = config.backend(number).ok_or("no such backend")?;
        // Unix sockets before TCP: cheaper, and reachable only from here.
        let address = backend
            .addresses
            .iter()
            .find(|a| matches!(a, RpcAddress::Unix(path) if path.exists()))
            .or_else(|| {
                backend
                    .addresses
                    .iter()
                    .find(|a| matches!(a, RpcAddress::Tcp { .. }))
            })
            .or_else(|| backend.addresses.first())
            .ok_or("the backend has no address")?;
        let client = self.open(address)?;
        channels[index] = Some(client.clone());
        Ok(client)
    }

    /// Runs `call` to its end and waits for it; not from within a runtime.
    pub(crate) fn wait<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
        patience: Duration,
    ) -> Result<T, String> {
        let runtime = self.runtime().map_err(|e| e.to_string())?;
        runtime
            .block_on(async { tokio::time::timeout(patience, call).await })
            .map_err(|_| format!("no answer within {} ms", patience.as_millis()))?
            .map_err(|status| status_text(&status))
    }

    /// Starts a call; its answer goes to `done`, whatever becomes of the caller.
    pub(crate) fn start(
        &self,
        done: &Sender<Completion>,
        operation: u64,
        replica: usize,
        call: impl Future<Output = CallAnswer> + Send + 'static,
    ) -> Result<(), String> {
        let done = done.clone();
        self.runtime()
            .map_err(|e| e.to_string())?
            .spawn(async move {
                let answer = call.await;
                let _ = done.send(Completion {
                    operation,
                    replica,
                    answer,
                });
            });
        Ok(())
    }
}

/// A call's failure for people: what the server said, or that it was not reached.
pub(crate) fn status_text(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
