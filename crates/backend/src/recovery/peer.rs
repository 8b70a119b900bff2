//! Another member of a shard's cohort, asked by messages.

use super::memory::{Memory, Missed, check_placed, decode_placed, encode_places};
use crate::clock;
use crate::member::Member;
use crate::state::State;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::{Response, Status};
use trefoil_cell::CellConfig;
use trefoil_layout::op::Found;
use trefoil_layout::{KeyHash, KeyHasher, TopologyId, Version};
use trefoil_recovery::{Answer, Ask, Data, Item, Page, Placed, Standing};
use trefoil_rpc::v1::lookup_response;
use trefoil_rpc::{Client, ContractError, v1};
use trefoil_store::{PLACES, Recency};

/// How long a call may take. Raising an epoch rewrites an index's headers; a page takes
/// milliseconds.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// The same of a long value, which may wait for its turn at the peer.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// Items, keys or places in one page at most: more than fit into the room that any replica
/// gives them, however short they are.
const PAGE_COUNT_MAX: usize = 1 << 17;
/// How often one who waits for an answer looks whether the server stops.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// A message of so many bytes is a long value's.
const LONG_LEN: u64 = 64 << 10;
/// How long a connection may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// Why a shard's recovery, or its repair, cannot go on at the moment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Setback {
    /// It may come back.
    #[error("backend {number} cannot be asked: {why}")]
    Unreachable {
        /// Which.
        number: u32,
        /// What it, or the system, says.
        why: String,
    },
    /// It is over when that replica votes.
    #[error("a replica of the shard is recovering")]
    Recovering,
    /// This server ends.
    #[error("the server is shutting down")]
    Stopping,
}

/// See the module.
pub(crate) struct Peer {
    /// Its number.
    number: u32,
    /// The cell's number of the shard.
    shard: u32,
    life: u64,
    /// Of the cell: in one of another size the shard is another one.
    backends: u32,
    /// The memory that was met first; 0 before.
    incarnation: AtomicU64,
    /// By how many nanoseconds its time is ahead of the host's clock, about.
    ahead_ns: AtomicU64,
    client: Client,
    /// Its memory, if values are read from it.
    memory: Option<Arc<Memory>>,
    /// Which of these values are not wanted ([`trefoil_store::Store::skips_copy`]).
    for_member: Option<Arc<Member>>,
    hasher: KeyHasher,
    state: Arc<State>,
}

impl Peer {
    /// Backend `number` of the cell. Nothing is connected yet.
    pub(crate) fn new(
        state: &Arc<State>,
        config: &CellConfig,
        number: u32,
        shard: u32,
    ) -> Result<Self, Setback> {
        let unreachable = |why: String| Setback::Unreachable { number, why };
        let address = config
            .backend(number)
            .and_then(|backend| backend.addresses.first())
            .ok_or_else(|| unreachable("it has no address".into()))?;
        let client = trefoil_cell::rpc_client(address, state.tls.get(), CONNECT_PATIENCE)
            .map_err(|e| unreachable(e.to_string()))?;
        Ok(Peer {
            number,
            shard,
            life: config.life,
            backends: config.backends.len() as u32,
            incarnation: AtomicU64::new(0),
            ahead_ns: AtomicU64::new(0),
            client,
            memory: None,
            for_member: None,
            hasher: config.hash,
            state: Arc::clone(state),
        })
    }

    /// Reads values from its memory, if it is on this host.
    pub(super) fn reading(self, memory: Arc<Memory>, for_member: &Arc<Member>) -> Self {
        Peer {
            memory: Some(memory),
            for_member: Some(Arc::clone(for_member)),
            ..self
        }
    }

    /// Asks it, and waits for the answer.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Answer<Bytes>, Setback> {
        match ask {
            Ask::Standing { raise_to } => self.raise_epoch(raise_to).await.map(Answer::Standing),
            Ask::Items {
                from,
                until,
                values,
            } => self.items(from..until, values).await.map(Answer::Items),
            Ask::Long { key, version } => self.long(key, version).await.map(Answer::Long),
        }
    }

    /// Names keys on which the replicas of the shard differ: it is the one that repairs it.
    pub(super) async fn suspect(&self, keys: &[KeyHash]) -> Result<(), Setback> {
        let request = v1::SuspectRequest {
            shard: self.name(),
            keys: Some(v1::ScanKeys {
                hashes: trefoil_rpc::encode_hashes(keys),
            }),
        };
        let mut client = self.client.clone();
        self.call(client.suspect(request)).await.map(|_| ())
    }

    /// The layout of the data entries that this process takes.
    pub(crate) fn own_layout(&self) -> u32 {
        self.state.layout_version
    }

    /// What keys are hashed with.
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// What calls are made with.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The same for calls that are answered by numbers, and by no value that is long.
    pub(crate) fn client_of_short(&self) -> Client {
        trefoil_rpc::of_short(self.client.clone())
    }

    /// What requests to it name.
    pub(crate) fn topology(&self) -> TopologyId {
        TopologyId {
            life: self.life,
            config_id: self.state.config().config_id,
        }
    }

    /// By how many nanoseconds its time is ahead of the host's clock, about, as it said when it
    /// was asked last how it stands.
    pub(super) fn ahead_ns(&self) -> u64 {
        self.ahead_ns.load(Ordering::Relaxed)
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Nothing can be had of it, for this reason.
    pub(crate) fn cannot(&self, why: String) -> Setback {
        let number = self.number;
        Setback::Unreachable { number, why }
    }

    pub(crate) fn malformed(&self, error: ContractError) -> Setback {
        self.cannot(format!("it answers nonsense: {error}"))
    }

    pub(crate) fn name(&self) -> Option<v1::ShardName> {
        Some(v1::ShardName {
            backend: self.number,
            shard: self.shard,
            life: self.life,
            incarnation: self.incarnation.load(Ordering::Relaxed),
            backends: self.backends,
        })
    }

    async fn raise_epoch(&self, epoch: u32) -> Result<Standing, Setback> {
        let shard = self.name();
        let config_id = self.state.config().config_id;
        let request = v1::RaiseEpochRequest {
            shard,
            epoch,
            config_id,
        };
        let mut client = self.client_of_short();
        let answer = self.call(client.raise_epoch(request)).await;
        let answer = answer.inspect_err(|_| {
            // It may know of a later configuration.
            self.state.behind.notice();
        })?;
        // From now on it is this memory that is meant.
        self.incarnation
            .store(answer.incarnation, Ordering::Relaxed);
        let ahead_ns = answer.unix_ns.saturating_sub(clock::host().unix_ns);
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        let bound_max = answer.bound_max.map(trefoil_rpc::decode_version);
        let missing = || self.malformed(ContractError::Missing("bound_max"));
        Ok(Standing {
            epoch: answer.epoch,
            is_lost: answer.recovering,
            incarnation: answer.incarnation,
            bound_max: bound_max.ok_or_else(missing)?,
            bucket_count: answer.bucket_count,
        })
    }

    async fn items(&self, places: Range<u64>, values: bool) -> Result<Page<Bytes>, Setback> {
        let places = [places];
        let incarnation = self.incarnation.load(Ordering::Relaxed);
        let config = self.state.config();
        let memory = self.memory.as_ref().filter(|_| values);
        let Some(memory) = memory.filter(|memory| memory.is_open(&config, incarnation)) else {
            return Ok(self.page(&places, values, false, 0).await?.0);
        };
        let (mut page, mut named) = self.page(&places, values, true, 0).await?;
        if let Some(member) = &self.for_member {
            named.retain(|one| !member.store.skips_copy(one.hash, one.version, one.recency));
        }
        let mut missing = match memory.read(named, &mut page) {
            Missed::Places(missing) => missing,
            Missed::All => return Ok(self.page(&places, values, false, 0).await?.0),
        };
        while let Some(places) = missing.places() {
            let (more, _) = self.page(places, values, false, 0).await?;
            let taken = missing.take(more, &mut page);
            taken.map_err(|error| self.malformed(error))?;
        }
        Ok(page)
    }

    /// A page of an immutable corpus, from a place on, while it is served whole under
    /// `config_id`.
    pub(crate) async fn corpus_page(
        &self,
        from: u64,
        config_id: u32,
    ) -> Result<Page<Bytes>, Setback> {
        let places = from..PLACES.end;
        let places = std::slice::from_ref(&places);
        let page = self.page(places, true, false, config_id).await?;
        Ok(page.0)
    }

    /// What stands at places that are in order. Under a configuration, if its number is
    /// not 0.
    async fn page(
        &self,
        places: &[Range<u64>],
        values: bool,
        placed: bool,
        config_id: u32,
    ) -> Result<(Page<Bytes>, Vec<Placed>), Setback> {
        let (places, ranges) = encode_places(places);
        let request = v1::CopyItemsRequest {
            shard: self.name(),
            from: places.start,
            until: places.end,
            ranges,
            values,
            layout_version: self.state.layout_version,
            takes_plain: true,
            placed,
            config_id,
            ..v1::CopyItemsRequest::default()
        };
        let mut client = self.client.clone();
        let page = self.call(client.copy_items(request)).await?;
        let malformed = |error| self.malformed(error);
        let (page, named) = decode_page(page, &self.hasher).map_err(malformed)?;
        check_wanted(&page, &named, (values, placed)).map_err(malformed)?;
        check_placed(&named, &places, &page).map_err(malformed)?;
        Ok((page, named))
    }

    pub(crate) async fn long(
        &self,
        key: Vec<u8>,
        version: Version,
    ) -> Result<Option<Bytes>, Setback> {
        let request = v1::LookupRequest {
            backend: self.number,
            config_id: self.state.config().config_id,
            key: key.into(),
            life: self.life,
            layout_version: self.state.layout_version,
            takes_plain: true,
        };
        let mut client = self.client.clone();
        let mut answer = self
            .call_within(LONG_PATIENCE, client.peek(request))
            .await?;
        trefoil_rpc::settle_answer(&mut answer, &self.hasher);
        let found = trefoil_rpc::decode_lookup_answer(&answer).map_err(|e| self.malformed(e))?;
        let is_this = match found.found {
            Found::Present { version: found, .. } => found == version,
            Found::Absent => false,
            Found::Rejected(rejection) => return Err(self.cannot(rejection.to_string())),
        };
        Ok(match answer.found {
            Some(lookup_response::Found::Present(present)) if is_this => Some(present.data),
            _ => None,
        })
    }

    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Setback> {
        self.call_within(CALL_PATIENCE, call).await
    }

    /// The same for a request of `len` bytes.
    pub(crate) async fn call_of<T>(
        &self,
        len: u64,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Setback> {
        let patience = match len > LONG_LEN {
            true => LONG_PATIENCE,
            false => CALL_PATIENCE,
        };
        self.call_within(patience, call).await
    }

    /// Waits for an answer, but not for ever, nor beyond the server's end.
    pub(crate) async fn call_within<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Setback> {
        let mut call = std::pin::pin!(call);
        let begin = Instant::now();
        loop {
            match tokio::time::timeout(LOOK_PERIOD, call.as_mut()).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => return Err(self.cannot(trefoil_rpc::failure_text(&status))),
                Err(_) if self.state.is_stopping() => return Err(Setback::Stopping),
                Err(_) if begin.elapsed() >= patience => {
                    let seconds = patience.as_secs();
                    return Err(self.cannot(format!("no answer within {seconds} s")));
                }
                Err(_) => {}
            }
        }
    }
}

/// A page tells of what was asked for: values, where values stand, or which keys there are.
fn check_wanted(
    page: &Page<Bytes>,
    named: &[Placed],
    (values, placed): (bool, bool),
) -> Result<(), ContractError> {
    let unasked = |field| ContractError::Unexpected {
        field,
        why: "it was not asked for",
    };
    if !values && !page.items.is_empty() {
        return Err(unasked("items"));
    }
    if values && !page.held.is_empty() {
        return Err(unasked("held"));
    }
    match placed || named.is_empty() {
        true => Ok(()),
        false => Err(unasked("placed")),
    }
}

fn check_count(field: &'static str, count: usize) -> Result<(), ContractError> {
    match count <= PAGE_COUNT_MAX {
        true => Ok(()),
        false => Err(ContractError::OutOfRange {
            field,
            found: count as u64,
            why: "more than a page holds",
        }),
    }
}

/// A page of what stands in another process's index, and what stands where in its memory.
pub(crate) fn decode_page(
    page: v1::CopyItemsResponse,
    hasher: &KeyHasher,
) -> Result<(Page<Bytes>, Vec<Placed>), ContractError> {
    let item = |mut item: v1::CopiedItem| {
        trefoil_rpc::settle_item(&mut item, hasher);
        let version = item.version.map(trefoil_rpc::decode_version)?;
        let data = match item.data.is_empty() {
            false => Data::Whole(item.data),
            true => Data::Long { key: item.key },
        };
        Some(Item {
            version,
            recency: Recency::from_bits(item.recency as u16),
            data,
        })
    };
    check_count("items", page.items.len())?;
    let items: Option<Vec<_>> = page.items.into_iter().map(item).collect();
    let placed = decode_placed(&page.placed)?;
    let page = Page {
        next: page.next,
        epoch: page.epoch,
        items: items.ok_or(ContractError::Missing("version"))?,
        held: trefoil_rpc::decode_held(&page.held)?,
    };
    check_count("held", page.held.len())?;
    Ok((page, placed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::KeyHash;

    fn item() -> v1::CopiedItem {
        v1::CopiedItem {
            version: Some(trefoil_rpc::encode_version(Version::new(1, 2, 3))),
            key: vec![b'k'].into(),
            ..v1::CopiedItem::default()
        }
    }

    #[test]
    fn a_page_of_more_than_any_page_holds_is_refused() {
        let held = |count: usize| {
            let key = (KeyHash { place: 1, tag: 2 }, Version::new(1, 2, 3));
            trefoil_rpc::encode_held(&vec![key; count])
        };
        let decoded = |items: usize, keys: usize| {
            let page = v1::CopyItemsResponse {
                items: vec![item(); items],
                held: held(keys),
                ..v1::CopyItemsResponse::default()
            };
            decode_page(page, &KeyHasher::default()).map(|(page, _)| page)
        };
        let page = decoded(PAGE_COUNT_MAX, PAGE_COUNT_MAX).unwrap();
        assert_eq!(page.items.len(), PAGE_COUNT_MAX);
        assert!(decoded(PAGE_COUNT_MAX + 1, 0).is_err());
        assert!(decoded(0, PAGE_COUNT_MAX + 1).is_err());
    }

    #[test]
    fn a_page_of_something_else_than_was_asked_for_is_refused() {
        let page = |items: usize, held: usize| Page::<Bytes> {
            items: vec![
                Item {
                    version: Version::new(1, 2, 3),
                    recency: Recency::default(),
                    data: Data::Long {
                        key: Bytes::from_static(b"k"),
                    },
                };
                items
            ],
            held: vec![(KeyHash { place: 1, tag: 2 }, Version::new(1, 2, 3)); held],
            ..Page::default()
        };
        let is_wanted = |page: &Page<Bytes>, asked| check_wanted(page, &[], asked).is_ok();
        assert!(is_wanted(&page(1, 0), (true, false)) && is_wanted(&page(1, 0), (true, true)));
        assert!(is_wanted(&page(0, 1), (false, false)));
        assert!(!is_wanted(&page(1, 0), (false, false)), "values");
        assert!(!is_wanted(&page(0, 1), (true, false)), "no values");
        let placed = Placed {
            hash: KeyHash { place: 1, tag: 2 },
            version: Version::new(1, 2, 3),
            recency: Recency::default(),
            pointer: trefoil_layout::Pointer::default(),
        };
        assert!(check_wanted(&page(0, 0), &[placed], (true, true)).is_ok());
        assert!(check_wanted(&page(0, 0), &[placed], (true, false)).is_err());
    }
}
