//! One backend, asked by messages that change nothing there.

use bytes::Bytes;
use std::time::{Duration, Instant};
use tonic::{Code, Response, Status};
use trefoil_cell::{BackendConfig, CellConfig};
use trefoil_client::is_nobody_there;
use trefoil_layout::KeyHasher;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_recovery::examine::{Question, Reply};
use trefoil_recovery::{Data, Item, Page, Recency};
use trefoil_rpc::v1::lookup_response;
use trefoil_rpc::{Client, v1};
use trefoil_tls::Tls;

/// How long a page, or a long value, may take.
const PAGE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection, and what a backend says of itself, may take.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// Before a question that came to nothing is asked again, once.
const RETRY_PAUSE: Duration = Duration::from_millis(300);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) number: u32,
    life: u64,
    config_id: u32,
    hasher: KeyHasher,
    client: Client,
}

/// Why a backend has said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) kind: TroubleKind,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TroubleKind {
    /// Nobody is there, or the connection broke.
    Away,
    /// Neither an answer nor a refusal in time.
    Silent,
    /// It answers, and refuses.
    Refused,
}

impl Trouble {
    fn away(why: impl ToString) -> Self {
        Trouble {
            kind: TroubleKind::Away,
            why: why.to_string(),
        }
    }

    pub(super) fn refused(why: impl ToString) -> Self {
        Trouble {
            kind: TroubleKind::Refused,
            why: why.to_string(),
        }
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        let why = trefoil_rpc::failure_text(&status);
        match status.code() {
            _ if is_nobody_there(&status) => Trouble::away(why),
            Code::Unimplemented => Trouble::refused("it is of an older release: upgrade it"),
            Code::PermissionDenied
            | Code::Unauthenticated
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::InvalidArgument => Trouble::refused(why),
            _ => Trouble::away(why),
        }
    }
}

/// What a backend says of itself, and when.
pub(super) struct Greeting {
    pub(super) hello: v1::HelloResponse,
    pub(super) stats: v1::StatsResponse,
    /// Halfway between the question for the statistics and the answer, by this host's
    /// clock.
    pub(super) asked_ns: i128,
    /// How far off that may be.
    pub(super) error_ns: i128,
}

/// Its standing in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) epoch: u32,
    /// It has lost its memory and does not vote yet.
    pub(super) is_recovering: bool,
    pub(super) incarnation: u64,
}

/// A reply and the bytes that it took.
pub(super) type Read = (Reply<Bytes>, u64);

impl Replica {
    /// Connects to nothing yet. Must be called where tasks run.
    pub(super) fn new(
        config: &CellConfig,
        backend: &BackendConfig,
        tls: Option<&Tls>,
    ) -> Result<Self, Trouble> {
        let address = backend.nearest_address();
        let address = address.ok_or_else(|| Trouble::away("it has no address"))?;
        let client = trefoil_cell::rpc_client(address, tls, HELLO_PATIENCE);
        Ok(Replica {
            number: backend.number,
            life: config.life,
            config_id: config.config_id,
            hasher: config.hash,
            client: client.map_err(Trouble::away)?,
        })
    }

    pub(super) async fn greet(&self) -> Result<Greeting, Trouble> {
        let mut client = self.client.clone();
        let request = v1::HelloRequest {
            backend: self.number,
            layout_version: u32::from(trefoil_layout::limits::LAYOUT_VERSION),
        };
        let hello = within(HELLO_PATIENCE, client.hello(request)).await?;
        let (begin_ns, begin) = (now_ns(), Instant::now());
        let stats = within(HELLO_PATIENCE, client.stats(v1::StatsRequest {})).await?;
        let error_ns = begin.elapsed().as_nanos() as i128 / 2;
        Ok(Greeting {
            hello,
            stats,
            asked_ns: begin_ns + error_ns,
            error_ns,
        })
    }

    pub(super) async fn standing(&self, shard: u32) -> Result<Standing, Trouble> {
        let mut client = self.client.clone();
        // Epoch 0 asks, and raises nothing.
        let request = v1::RaiseEpochRequest {
            shard: self.name(shard, 0),
            epoch: 0,
            // Nothing is raised.
            config_id: 0,
        };
        let answer = within(HELLO_PATIENCE, client.raise_epoch(request)).await?;
        Ok(Standing {
            epoch: answer.epoch,
            is_recovering: answer.recovering,
            incarnation: answer.incarnation,
        })
    }

    /// Asks, and once more if that comes to nothing.
    pub(super) async fn ask(
        &self,
        shard: u32,
        incarnation: u64,
        question: &Question,
    ) -> Result<Read, Trouble> {
        match self.ask_once(shard, incarnation, question).await {
            Err(trouble) if trouble.kind == TroubleKind::Away => {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.ask_once(shard, incarnation, question).await
            }
            answer => answer,
        }
    }

    async fn ask_once(
        &self,
        shard: u32,
        incarnation: u64,
        question: &Question,
    ) -> Result<Read, Trouble> {
        match question {
            Question::Page {
                from,
                until,
                values,
            } => {
                let request = v1::CopyItemsRequest {
                    shard: self.name(shard, incarnation),
                    from: *from,
                    until: *until,
                    values: *values,
                    layout_version: LAYOUT_VERSION.into(),
                    takes_plain: true,
                    placed: false,
                    config_id: 0,
                };
                let mut client = self.client.clone();
                let answer = within(PAGE_PATIENCE, client.copy_items(request)).await?;
                page(answer, &self.hasher)
            }
            Question::Long { key, version } => {
                let request = v1::LookupRequest {
                    backend: self.number,
                    config_id: self.config_id,
                    key: key.clone().into(),
                    life: self.life,
                    layout_version: LAYOUT_VERSION.into(),
                    takes_plain: true,
                };
                let mut client = self.client.clone();
                let call = within(PAGE_PATIENCE, client.peek(request));
                // One value that cannot be had now is not worth the backend: if that is
                // gone, the next page says so.
                let mut answer = call.await.unwrap_or_default();
                trefoil_rpc::settle_answer(&mut answer, &self.hasher);
                let data = match answer.found {
                    Some(lookup_response::Found::Present(present))
                        if present.version.map(trefoil_rpc::decode_version) == Some(*version) =>
                    {
                        Some(present.data)
                    }
                    _ => None,
                };
                let len = data.as_ref().map_or(0, Bytes::len);
                Ok((Reply::Long(data), len as u64))
            }
        }
    }

    fn name(&self, shard: u32, incarnation: u64) -> Option<v1::ShardName> {
        Some(v1::ShardName {
            backend: self.number,
            shard,
            life: self.life,
            incarnation,
        })
    }
}

fn page(answer: v1::CopyItemsResponse, hasher: &KeyHasher) -> Result<Read, Trouble> {
    let mut len = 8 * answer.held.len() as u64;
    let held = trefoil_rpc::decode_held(&answer.held).map_err(Trouble::refused)?;
    let mut items = Vec::with_capacity(answer.items.len());
    for mut item in answer.items {
        trefoil_rpc::settle_item(&mut item, hasher);
        len += (item.data.len() + item.key.len()) as u64;
        let version = item.version.map(trefoil_rpc::decode_version);
        let missing = || Trouble::refused("it answers nonsense: an item without a version");
        let version = version.ok_or_else(missing)?;
        let data = match item.data.is_empty() {
            false => Data::Whole(item.data),
            true => Data::Long { key: item.key },
        };
        items.push(Item {
            version,
            recency: Recency::default(),
            data,
        });
    }
    let page = Page {
        next: answer.next,
        epoch: answer.epoch,
        items,
        held,
    };
    Ok((Reply::Page(page), len))
}

async fn within<T>(
    patience: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(patience, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => Err(Trouble {
            kind: TroubleKind::Silent,
            why: format!("no answer within {} s", patience.as_secs()),
        }),
    }
}

/// This host's clock, in nanoseconds since the Unix epoch.
pub(super) fn now_ns() -> i128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_nanos() as i128
}
