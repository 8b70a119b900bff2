//! A cell without shared memory whose answers a test chooses.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};
use trefoil_cell::{BackendConfig, CellConfig, Mode};
use trefoil_layout::{KeyHasher, Version};
use trefoil_rpc::v1;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;
type OnMutate = dyn Fn(v1::MutateRequest) -> Answer<v1::MutateResponse> + Send + Sync;
type OnLookup = dyn Fn(v1::LookupRequest) -> Answer<v1::LookupResponse> + Send + Sync;
type OnPing = dyn Fn() -> Answer<v1::PingResponse> + Send + Sync;
type OnConfig = dyn Fn() -> Answer<()> + Send + Sync;
type OnTouch = dyn Fn(v1::TouchRequest) + Send + Sync;
type OnList = dyn Fn(v1::ListRequest) -> Result<v1::ListResponse, Status> + Send + Sync;
type OnFlush = dyn Fn(v1::FlushRequest) -> Result<v1::FlushResponse, Status> + Send + Sync;

/// What the backends answer. All of them are this one server.
pub(crate) struct Script {
    pub(crate) mode: Mode,
    pub(crate) on_mutate: Box<OnMutate>,
    pub(crate) on_lookup: Box<OnLookup>,
    pub(crate) on_ping: Box<OnPing>,
    /// Before it tells its configuration.
    pub(crate) on_config: Box<OnConfig>,
    pub(crate) on_touch: Box<OnTouch>,
    pub(crate) on_flush: Box<OnFlush>,
    pub(crate) on_list: Box<OnList>,
}

impl Script {
    pub(crate) fn new(
        mode: Mode,
        on_mutate: impl Fn(v1::MutateRequest) -> Answer<v1::MutateResponse> + Send + Sync + 'static,
    ) -> Self {
        Script {
            mode,
            on_mutate: Box::new(on_mutate),
            on_lookup: Box::new(|_| Box::pin(async { Err(Status::unimplemented("not asked")) })),
            on_ping: Box::new(|| Box::pin(async { Ok(v1::PingResponse {}) })),
            on_config: Box::new(|| Box::pin(async { Ok(()) })),
            on_touch: Box::new(|_| {}),
            on_flush: Box::new(|_| Err(Status::unimplemented("not in this test"))),
            on_list: Box::new(|_| Err(Status::unimplemented("not in this test"))),
        }
    }
}

/// A running server.
pub(crate) struct Fake {
    pub(crate) address: String,
    _runtime: Runtime,
}

struct Service {
    script: Script,
    config: Arc<Mutex<Option<CellConfig>>>,
}

impl Fake {
    pub(crate) fn start(script: Script) -> Fake {
        Fake::start_with(script, |_| {})
    }

    /// The same with a configuration that a test changes.
    pub(crate) fn start_with(script: Script, change: impl FnOnce(&mut CellConfig)) -> Fake {
        let runtime = Runtime::new().unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = config(script.mode, address);
        change(&mut config);
        let service = service(script, config);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &service);
            }
        });
        Fake {
            address: address.to_string(),
            _runtime: runtime,
        }
    }

    /// A server at a Unix socket, of the cell's `life`.
    pub(crate) fn at_socket(path: &Path, life: u64, script: Script) -> Fake {
        let runtime = Runtime::new().unwrap();
        let entered = runtime.enter();
        let listener = tokio::net::UnixListener::bind(path).unwrap();
        drop(entered);
        let mut config = config(script.mode, (Ipv4Addr::LOCALHOST, 1).into());
        config.life = life;
        let service = service(script, config);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &service);
            }
        });
        Fake {
            address: format!("unix:{}", path.display()),
            _runtime: runtime,
        }
    }
}

type Served = TowerToHyperService<trefoil_rpc::Service<Service>>;

fn service(script: Script, config: CellConfig) -> Served {
    let config = Arc::new(Mutex::new(Some(config)));
    TowerToHyperService::new(trefoil_rpc::service(Service { script, config }))
}

fn serve(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    service: &Served,
) {
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        // What is bounded is bounded by the client.
        .max_concurrent_streams(None)
        .serve_connection(TokioIo::new(stream), service.clone());
    tokio::spawn(connection);
}

fn config(mode: Mode, address: SocketAddr) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![address.to_string().parse().unwrap()],
        fabric_socket: None,
        place: None,
    };
    CellConfig {
        life: 1,
        config_id: 1,
        cell: "fake".to_owned(),
        mode,
        backends: (0..mode.copy_count() as u32).map(backend).collect(),
        hash: KeyHasher::default(),
        value_len_max: 16 << 20,
        eviction: "lru".to_owned(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

fn no<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this test"))
}

type ReloadStream =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ReloadResponse, Status>> + Send>>;

#[tonic::async_trait]
impl v1::trefoil_server::Trefoil for Service {
    type ReloadStream = ReloadStream;

    async fn ping(
        &self,
        _: Request<v1::PingRequest>,
    ) -> Result<Response<v1::PingResponse>, Status> {
        (self.script.on_ping)().await.map(Response::new)
    }

    async fn hello(
        &self,
        _: Request<v1::HelloRequest>,
    ) -> Result<Response<v1::HelloResponse>, Status> {
        // One that hangs does not refuse it, either.
        (self.script.on_ping)().await?;
        no()
    }

    async fn config(
        &self,
        _: Request<v1::ConfigRequest>,
    ) -> Result<Response<v1::ConfigResponse>, Status> {
        (self.script.on_config)().await?;
        let config = self.config.lock().unwrap();
        Ok(Response::new(v1::ConfigResponse {
            begun: Vec::new(),
            config: config.as_ref().map(trefoil_cell::encode_config),
        }))
    }

    async fn mutate(
        &self,
        request: Request<v1::MutateRequest>,
    ) -> Result<Response<v1::MutateResponse>, Status> {
        let answer = (self.script.on_mutate)(request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        let answer = (self.script.on_lookup)(request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn peek(
        &self,
        _: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        no()
    }

    async fn r#use(&self, _: Request<v1::UseRequest>) -> Result<Response<v1::UseResponse>, Status> {
        no()
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        (self.script.on_touch)(request.into_inner());
        Ok(Response::new(v1::TouchResponse {}))
    }

    async fn stats(
        &self,
        _: Request<v1::StatsRequest>,
    ) -> Result<Response<v1::StatsResponse>, Status> {
        no()
    }

    async fn top_keys(
        &self,
        _: Request<v1::TopKeysRequest>,
    ) -> Result<Response<v1::TopKeysResponse>, Status> {
        no()
    }

    async fn set_memory_limit(
        &self,
        _: Request<v1::SetMemoryLimitRequest>,
    ) -> Result<Response<v1::SetMemoryLimitResponse>, Status> {
        no()
    }

    async fn flush(
        &self,
        request: Request<v1::FlushRequest>,
    ) -> Result<Response<v1::FlushResponse>, Status> {
        (self.script.on_flush)(request.into_inner()).map(Response::new)
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        (self.script.on_list)(request.into_inner()).map(Response::new)
    }

    async fn raise_epoch(
        &self,
        _: Request<v1::RaiseEpochRequest>,
    ) -> Result<Response<v1::RaiseEpochResponse>, Status> {
        no()
    }

    async fn copy_items(
        &self,
        _: Request<v1::CopyItemsRequest>,
    ) -> Result<Response<v1::CopyItemsResponse>, Status> {
        no()
    }

    async fn hand_over(
        &self,
        _: Request<v1::HandOverRequest>,
    ) -> Result<Response<v1::HandOverResponse>, Status> {
        no()
    }

    async fn resize(
        &self,
        _: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        no()
    }

    async fn scan(
        &self,
        _: Request<v1::ScanRequest>,
    ) -> Result<Response<v1::ScanResponse>, Status> {
        no()
    }

    async fn suspect(
        &self,
        _: Request<v1::SuspectRequest>,
    ) -> Result<Response<v1::SuspectResponse>, Status> {
        no()
    }

    async fn reload(
        &self,
        _: Request<tonic::Streaming<v1::ReloadRequest>>,
    ) -> Result<Response<ReloadStream>, Status> {
        no()
    }
}

/// Counts itself while it lives.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
