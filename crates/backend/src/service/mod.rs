//! The RPC contract, served. Requests are executed on the thread that has read
//! them: a mutation takes a microsecond, handing it over would take more.

pub(crate) mod copy;
mod list;
mod reload;
mod stats;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use stats::statistics;
use stats::top_keys;

use crate::admission::{self, Admitted, LEN_MIN, LongAnswer};
use crate::flush::FlushError;
use crate::handover;
use crate::member::{Member, found_len};
use crate::recovery;
use crate::repair;
use crate::resize;
use crate::state::State;
use bytes::Bytes;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use trefoil_layout::TopologyId;
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_region::WordBuffer;
use trefoil_rpc::v1::trefoil_server::Trefoil;
use trefoil_rpc::{ContractError, MESSAGE_LEN_MAX, TOUCH_COUNT_MAX, v1};
use trefoil_store::Access;

/// How often, and how long between, a large value is tried again for which there
/// was no room, although the process could hold it.
const ROOM_LOOKS: u32 = 40;
const ROOM_PAUSE: Duration = Duration::from_millis(25);
/// Longest answer whose buffer a thread keeps for the next one.
const SCRATCH_LEN_MAX: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<WordBuffer> = RefCell::default();
}

/// See the module.
#[derive(Clone)]
pub(crate) struct RpcService {
    state: Arc<State>,
}

impl RpcService {
    pub(crate) fn new(state: Arc<State>) -> Self {
        RpcService { state }
    }

    fn member(&self, number: u32) -> Result<&Arc<Member>, Status> {
        if self.state.is_stopping() {
            return Err(trefoil_rpc::not_executed());
        }
        self.state.member(number).ok_or_else(|| {
            let numbers = self.state.members.iter().map(|m| m.number.to_string());
            let numbers: Vec<String> = numbers.collect();
            Status::not_found(format!(
                "backend {number} is not served here; this process is backend {}",
                numbers.join(", ")
            ))
        })
    }

    /// The member whose shard a request names.
    fn member_of(&self, shard: Option<&v1::ShardName>) -> Result<&Arc<Member>, Status> {
        self.member(shard.map_or(0, |shard| shard.backend))
    }

    /// A lookup, or a look without a use.
    async fn look_up(
        &self,
        request: &v1::LookupRequest,
        access: Access,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        let member = self.member(request.backend)?;
        let topology = topology(request.life, request.config_id);
        let key = &request.key;
        let (asked, takes_plain) = (request.layout_version, request.takes_plain);
        let is_plain = copy::is_plain(asked, takes_plain, self.state.layout_version)?;
        if member.entry_len(key) > LEN_MIN {
            let asked = (topology, &key[..], is_plain);
            return self.look_up_long(member, asked, access).await;
        }
        let response = SCRATCH.with_borrow_mut(|scratch| {
            // Before the answer: what comes after it changes the stamp.
            let stamp = member.stamp(key);
            let answer = member.lookup(topology, key, scratch, access);
            if access == Access::Use {
                member.hot.message(key, found_len(&answer));
            }
            let mut response = trefoil_rpc::encode_lookup_answer(&answer, stamp);
            if is_plain {
                trefoil_rpc::make_answer_plain(&mut response, &member.store.config().hasher);
            }
            if scratch.bytes().len() > SCRATCH_LEN_MAX {
                *scratch = WordBuffer::default();
            }
            response
        });
        Ok(Response::new(response))
    }

    /// Looks up what is long: when its turn has come, and copied once.
    async fn look_up_long(
        &self,
        member: &Member,
        (topology, key, is_plain): (TopologyId, &[u8], bool),
        access: Access,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        loop {
            let room_len = member.entry_len(key);
            // What is asked for is not what goes to make room for its copy, where others have
            // something.
            let state = Arc::clone(&self.state);
            let admitted = admission::admit_answer(state, room_len as u64, member.number).await?;
            // Before it is resident: whoever measures meanwhile would take the copy for
            // overhead, for which items have to go.
            admitted.count(room_len as i64);
            let mut buffer = WordBuffer::default();
            // Before the answer: what comes after it changes the stamp.
            let stamp = member.stamp(key);
            let answer = member.lookup(topology, key, &mut buffer, access);
            let len = found_len(&answer);
            if len > room_len.max(LEN_MIN) {
                // Meanwhile there is a longer one.
                continue;
            }
            if access == Access::Use {
                member.hot.message(key, len);
            }
            if is_plain {
                // Rare: between two releases. What is copied once more is not counted.
                let mut response = trefoil_rpc::encode_lookup_answer(&answer, stamp);
                trefoil_rpc::make_answer_plain(&mut response, &member.store.config().hasher);
                return Ok(Response::new(response));
            }
            let (response, head) = trefoil_rpc::encode_long_answer(&answer, stamp);
            let mut response = Response::new(response);
            if let Some(head) = head {
                admitted.count(len as i64 - room_len as i64);
                let data = Bytes::from_owner(Copied {
                    buffer,
                    _admitted: admitted,
                });
                response.extensions_mut().insert(LongAnswer { head, data });
            }
            return Ok(response);
        }
    }

    /// Lets nobody raise an epoch who recovers under another configuration than the one in
    /// force here: a place may have changed hands, and two processes must not vote in it.
    async fn agree_on_config(&self, member: &Member, theirs: u32) -> Result<(), Status> {
        if theirs == 0 {
            // A release that does not say.
            return Ok(());
        }
        let mut why = String::new();
        if theirs > member.config_id() {
            let state = Arc::clone(&self.state);
            let followed = tokio::task::spawn_blocking(move || state.catch_up()).await;
            let followed = followed
                .map_err(|error| Status::internal(format!("looking for it failed: {error}")))?;
            why = followed.map_or_else(|error| format!(" ({error})"), |()| String::new());
        }
        let ours = member.config_id();
        if theirs == ours {
            return Ok(());
        }
        let number = member.number;
        Err(Status::failed_precondition(format!(
            "backend {number} serves config id {ours}, not {theirs}: an epoch is raised only under the same configuration{why}"
        )))
    }

    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A copy of a data entry, to be sent, and its place on the accounts, given back
/// when it is freed.
struct Copied {
    buffer: WordBuffer,
    _admitted: Arc<Admitted>,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

fn malformed(error: ContractError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn topology(life: u64, config_id: u32) -> TopologyId {
    TopologyId { life, config_id }
}

/// For what has no answer of its own for a client of another life.
fn check_life(member: &Member, life: u64) -> Result<(), Status> {
    if life == member.topology().life {
        return Ok(());
    }
    Err(Status::failed_precondition(
        "the cell was started anew: fetch its configuration and try again",
    ))
}

#[tonic::async_trait]
impl Trefoil for RpcService {
    async fn ping(
        &self,
        _: Request<v1::PingRequest>,
    ) -> Result<Response<v1::PingResponse>, Status> {
        Ok(Response::new(v1::PingResponse {}))
    }

    async fn hello(
        &self,
        request: Request<v1::HelloRequest>,
    ) -> Result<Response<v1::HelloResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let member = self.member(request.get_ref().backend)?;
        let config = self.state.config();
        let shape = member.shape();
        let backend = config.backend(member.number);
        let fabric_socket = backend.and_then(|b| b.fabric_socket.as_ref());
        let engine = fabric_socket.and_then(|socket| trefoil_cell::engine_beside(socket));
        Ok(Response::new(v1::HelloResponse {
            backend: member.number,
            layout_version: self.state.layout_version,
            boot_id: self.state.boot_id.clone(),
            fabric_socket: fabric_socket.map_or_else(String::new, |p| p.display().to_string()),
            incarnation: shape.incarnation,
            partition_count: shape.partition_count as u32,
            epoch: member.epoch(),
            limits: Some(v1::Limits {
                key_len_max: KEY_LEN_MAX as u32,
                value_len_max: config.value_len_max as u32,
                touch_count_max: TOUCH_COUNT_MAX as u32,
                message_len_max: MESSAGE_LEN_MAX as u32,
            }),
            config: Some(trefoil_cell::encode_config(&config)),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            tells_plain: true,
            knows_ranges: true,
            engine: engine.map_or_else(String::new, |address| address.to_string()),
        }))
    }

    async fn config(
        &self,
        _: Request<v1::ConfigRequest>,
    ) -> Result<Response<v1::ConfigResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let config = trefoil_cell::encode_config(&self.state.config());
        let begun = |(&backend, &incarnation): (&u32, &u32)| v1::BackendBegun {
            backend,
            incarnation,
        };
        Ok(Response::new(v1::ConfigResponse {
            config: Some(config),
            begun: self.state.begun().iter().map(begun).collect(),
        }))
    }

    async fn mutate(
        &self,
        request: Request<v1::MutateRequest>,
    ) -> Result<Response<v1::MutateResponse>, Status> {
        self.count(&self.state.counters.rpc_mutations);
        let request = request.get_ref();
        let member = self.member(request.backend)?;
        let mutation = trefoil_rpc::decode_mutation(request).map_err(malformed)?;
        member
            .hot
            .message(mutation.entry.key, mutation.entry.value.len());
        let topology = topology(request.life, request.config_id);
        let mut ack = member.mutate(topology, &mutation);
        // What is missing may be held by other requests for a moment.
        for _ in 0..ROOM_LOOKS {
            let no_room = ack.outcome == Outcome::Rejected(Rejection::NoMemory);
            if !no_room || !self.state.lending.may_fit(mutation.entry.encoded_len()) {
                break;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
            ack = member.mutate(topology, &mutation);
        }
        Ok(Response::new(trefoil_rpc::encode_ack(&ack)))
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        self.count(&self.state.counters.rpc_lookups);
        self.look_up(request.get_ref(), Access::Use).await
    }

    async fn peek(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        self.look_up(request.get_ref(), Access::Peek).await
    }

    async fn r#use(
        &self,
        request: Request<v1::UseRequest>,
    ) -> Result<Response<v1::UseResponse>, Status> {
        self.count(&self.state.counters.rpc_lookups);
        let request = request.get_ref();
        let member = self.member(request.backend)?;
        let topology = topology(request.life, request.config_id);
        let found = member.item_use(topology, &request.key);
        Ok(Response::new(v1::UseResponse {
            found: found.map(|found| v1::ItemUse {
                version: Some(trefoil_rpc::encode_version(found.version)),
                hit_before: found.hit_before,
                last_use_s: found.last_use_s,
            }),
        }))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        self.count(&self.state.counters.rpc_touches);
        let request = request.get_ref();
        let member = self.member(request.backend)?;
        if request.life != member.topology().life {
            return Ok(Response::new(v1::TouchResponse {}));
        }
        for touches in trefoil_rpc::decode_touches(request).map_err(malformed)? {
            member.touch(touches.partition, touches.window_id, touches.slots);
            member.touch_by_name(touches.partition, touches.window_id, touches.names);
        }
        Ok(Response::new(v1::TouchResponse {}))
    }

    async fn stats(
        &self,
        _: Request<v1::StatsRequest>,
    ) -> Result<Response<v1::StatsResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        Ok(Response::new(statistics(&self.state)))
    }

    async fn top_keys(
        &self,
        request: Request<v1::TopKeysRequest>,
    ) -> Result<Response<v1::TopKeysResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let count = request.get_ref().count as usize;
        Ok(Response::new(top_keys(&self.state, count)))
    }

    async fn set_memory_limit(
        &self,
        request: Request<v1::SetMemoryLimitRequest>,
    ) -> Result<Response<v1::SetMemoryLimitResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let bytes = request.get_ref().bytes;
        let previous_bytes = self
            .state
            .set_memory_limit(bytes)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let state = Arc::clone(&self.state);
        let noted = tokio::task::spawn_blocking(move || state.note_memory_limit(bytes));
        let _ = noted.await;
        Ok(Response::new(v1::SetMemoryLimitResponse {
            previous_bytes,
            resident_bytes: self.state.resident_bytes(),
        }))
    }

    async fn flush(
        &self,
        request: Request<v1::FlushRequest>,
    ) -> Result<Response<v1::FlushResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.into_inner();
        let member = Arc::clone(self.member(request.backend)?);
        check_life(&member, request.life)?;
        let state = Arc::clone(&self.state);
        let flushed = tokio::task::spawn_blocking(move || {
            // What was committed by now is flushed.
            state.settle_queues()?;
            let newest = member.store.newest();
            let config = match request.floor {
                Some(floor) => state.raise_flush_floor(trefoil_rpc::decode_version(floor))?,
                None => state.config(),
            };
            Ok::<_, FlushError>((newest, config))
        });
        let flushed = flushed.await;
        let (newest, config) = flushed
            .map_err(|error| Status::internal(format!("the flush failed: {error}")))?
            .map_err(|error| match error {
                FlushError::QueueHindered(_) => Status::unavailable(error.to_string()),
                _ => Status::failed_precondition(error.to_string()),
            })?;
        Ok(Response::new(v1::FlushResponse {
            config_id: config.config_id,
            flush_floor: Some(trefoil_rpc::encode_version(config.flush_floor)),
            newest: Some(trefoil_rpc::encode_version(newest)),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.get_ref();
        let member = self.member(request.backend)?;
        check_life(member, request.life)?;
        Ok(Response::new(list::page(member, request).await?))
    }

    async fn raise_epoch(
        &self,
        request: Request<v1::RaiseEpochRequest>,
    ) -> Result<Response<v1::RaiseEpochResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.into_inner();
        let member = Arc::clone(self.member_of(request.shard.as_ref())?);
        let shard = copy::shard(&member, request.shard.as_ref())?;
        let epoch = request.epoch;
        if epoch > 0 {
            self.agree_on_config(&member, request.config_id).await?;
        }
        if epoch > member.store.epoch(shard) {
            let (state, member) = (Arc::clone(&self.state), Arc::clone(&member));
            tokio::spawn(recovery::pass_on(state, member, shard, epoch));
        }
        let raised =
            tokio::task::spawn_blocking(move || copy::raise_epoch(&member, shard, epoch)).await;
        let raised = raised
            .map_err(|error| Status::internal(format!("raising the epoch failed: {error}")))?;
        Ok(Response::new(raised?))
    }

    async fn copy_items(
        &self,
        request: Request<v1::CopyItemsRequest>,
    ) -> Result<Response<v1::CopyItemsResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.get_ref();
        let member = self.member_of(request.shard.as_ref())?;
        let shard = copy::shard(member, request.shard.as_ref())?;
        let before = copy::check_corpus(member, request.config_id)?;
        let page = copy::items(member, shard, request, self.state.layout_version)?;
        // Another corpus may have taken its place meanwhile.
        match copy::check_corpus(member, request.config_id)? == before {
            true => Ok(Response::new(page)),
            false => Err(copy::not_served(member, request.config_id)),
        }
    }

    async fn hand_over(
        &self,
        request: Request<v1::HandOverRequest>,
    ) -> Result<Response<v1::HandOverResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.into_inner();
        let member = Arc::clone(self.member(request.backend)?);
        check_life(&member, request.life)?;
        let state = Arc::clone(&self.state);
        // It waits for those who hold partitions' locks.
        let step =
            tokio::task::spawn_blocking(move || handover::step(&state, &member, &request)).await;
        let step =
            step.map_err(|error| Status::internal(format!("the handover failed: {error}")))?;
        Ok(Response::new(step?))
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.into_inner();
        let member = Arc::clone(self.member(request.backend)?);
        check_life(&member, request.life)?;
        let state = Arc::clone(&self.state);
        // It waits for those who hold partitions' locks.
        let step =
            tokio::task::spawn_blocking(move || resize::step(&state, &member, &request)).await;
        let step = step.map_err(|error| Status::internal(format!("the resize failed: {error}")))?;
        Ok(Response::new(step?))
    }

    async fn scan(
        &self,
        request: Request<v1::ScanRequest>,
    ) -> Result<Response<v1::ScanResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.into_inner();
        let member = self.member_of(request.shard.as_ref())?;
        let shard = copy::shard(member, request.shard.as_ref())?;
        let is_plain = match &request.question {
            Some(v1::scan_request::Question::Item(item)) => copy::is_plain(
                item.layout_version,
                item.takes_plain,
                self.state.layout_version,
            )?,
            _ => false,
        };
        let answer = repair::answer(member, shard, request, is_plain).map_err(malformed)?;
        Ok(Response::new(answer))
    }

    async fn suspect(
        &self,
        request: Request<v1::SuspectRequest>,
    ) -> Result<Response<v1::SuspectResponse>, Status> {
        self.count(&self.state.counters.rpc_other);
        let request = request.get_ref();
        let member = self.member_of(request.shard.as_ref())?;
        let shard = copy::shard(member, request.shard.as_ref())?;
        let keys = request.keys.as_ref();
        let keys = keys.ok_or_else(|| malformed(ContractError::Missing("keys")))?;
        let mut keys = trefoil_rpc::decode_hashes(&keys.hashes).map_err(malformed)?;
        let shards = &member.store.config().shards;
        keys.retain(|key| shards.local(*key) == Some(shard));
        if let Some(repair) = &member.repair {
            repair.named.add(&keys);
        }
        Ok(Response::new(v1::SuspectResponse {}))
    }

    type ReloadStream = Pin<Box<dyn Stream<Item = Result<v1::ReloadResponse, Status>> + Send>>;

    async fn reload(
        &self,
        request: Request<Streaming<v1::ReloadRequest>>,
    ) -> Result<Response<Self::ReloadStream>, Status> {
        self.count(&self.state.counters.rpc_other);
        let answers = reload::start(Arc::clone(&self.state), request.into_inner());
        Ok(Response::new(Box::pin(answers)))
    }
}
