//! Another member of a shard's cohort, as the one sees it that asks it for what it
//! knows.

use super::Setback;
use crate::state::State;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Response, Status};
use trefoil_cell::CellConfig;
use trefoil_layout::Version;
use trefoil_layout::op::Found;
use trefoil_rpc::v1::lookup_response;
use trefoil_rpc::{Client, ContractError, Credentials, v1};

/// How long a call may take. Raising an epoch rewrites an index's headers; a page takes
/// milliseconds.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// How often one who waits for an answer looks whether the server stops.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long a connection may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Peer {
    /// Its number.
    pub(super) number: u32,
    /// The cell's number of the shard.
    shard: u32,
    life: u64,
    /// The memory that was met first; 0 before.
    incarnation: u64,
    client: Client,
    state: Arc<State>,
}

/// What a peer says of the shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) epoch: u32,
    /// It has lost its memory, too.
    pub(super) recovering: bool,
    pub(super) incarnation: u64,
    /// The highest version that it has ever applied.
    pub(super) newest: Version,
}

impl Peer {
    /// Backend `number` of the cell. Nothing is connected yet.
    pub(super) fn new(
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
        let endpoint = trefoil_cell::endpoint(address).map_err(|e| unreachable(e.to_string()))?;
        let channel = endpoint.connect_timeout(CONNECT_PATIENCE).connect_lazy();
        Ok(Peer {
            number,
            shard,
            life: config.life,
            incarnation: 0,
            client: trefoil_rpc::client(channel, Credentials::none()),
            state: Arc::clone(state),
        })
    }

    fn name(&self) -> Option<v1::ShardName> {
        Some(v1::ShardName {
            backend: self.number,
            shard: self.shard,
            life: self.life,
            incarnation: self.incarnation,
        })
    }

    /// Its standing, after it has raised the shard's epoch to `epoch`; 0 only asks. The
    /// first one that is asked for fixes the memory that is meant from then on.
    pub(super) async fn raise_epoch(&mut self, epoch: u32) -> Result<Standing, Setback> {
        let request = v1::RaiseEpochRequest {
            shard: self.name(),
            epoch,
        };
        let mut client = self.client.clone();
        let answer = self.call(client.raise_epoch(request)).await?;
        self.incarnation = answer.incarnation;
        Ok(Standing {
            epoch: answer.epoch,
            recovering: answer.recovering,
            incarnation: answer.incarnation,
            newest: answer
                .newest
                .map(trefoil_rpc::decode_version)
                .unwrap_or_default(),
        })
    }

    /// One page of what stands in its index from place `from` on.
    pub(super) async fn items(
        &self,
        (from, until): (u64, u64),
        values: bool,
    ) -> Result<v1::CopyItemsResponse, Setback> {
        let request = v1::CopyItemsRequest {
            shard: self.name(),
            from,
            until,
            values,
        };
        let mut client = self.client.clone();
        let page = self.call(client.copy_items(request)).await?;
        if page.next <= from || page.next > until {
            return Err(self.nonsense("a page that does not lead on"));
        }
        Ok(page)
    }

    /// One page of its other bounds, after `page` if there was one.
    pub(super) async fn bounds(
        &self,
        page: Option<&v1::CopyBoundsResponse>,
    ) -> Result<v1::CopyBoundsResponse, Setback> {
        let request = v1::CopyBoundsRequest {
            shard: self.name(),
            partition: page.map_or(0, |page| page.partition),
            tombstone: page.map_or(0, |page| page.tombstone),
        };
        let mut client = self.client.clone();
        self.call(client.copy_bounds(request)).await
    }

    /// A long value's data entry, if it is still of this version.
    pub(super) async fn long_item(
        &self,
        key: &[u8],
        version: Version,
    ) -> Result<Option<bytes::Bytes>, Setback> {
        let request = v1::LookupRequest {
            backend: self.number,
            config_id: self.state.config().config_id,
            key: key.to_vec().into(),
            life: self.life,
        };
        let mut client = self.client.clone();
        let answer = self.call(client.lookup(request)).await?;
        let found = trefoil_rpc::decode_lookup_answer(&answer).map_err(|e| self.malformed(e))?;
        let is_this = matches!(found.found, Found::Present { version: v, .. } if v == version);
        Ok(match answer.found {
            Some(lookup_response::Found::Present(present)) if is_this => Some(present.data),
            _ => None,
        })
    }

    /// What it has sent is none of this contract's messages.
    pub(super) fn malformed(&self, error: ContractError) -> Setback {
        self.nonsense(&error.to_string())
    }

    /// The same, in other words.
    pub(super) fn nonsense(&self, why: &str) -> Setback {
        let why = format!("it answers nonsense: {why}");
        let number = self.number;
        Setback::Unreachable { number, why }
    }

    /// Waits for an answer, but not for ever, nor beyond the server's end.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Setback> {
        let mut call = std::pin::pin!(call);
        let begin = Instant::now();
        let number = self.number;
        loop {
            match tokio::time::timeout(LOOK_PERIOD, call.as_mut()).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if status.code() == Code::Aborted => {
                    return Err(Setback::Restarted { number });
                }
                Ok(Err(status)) => {
                    let why = status.message().to_owned();
                    return Err(Setback::Unreachable { number, why });
                }
                Err(_) if self.state.is_stopping() => return Err(Setback::Stopping),
                Err(_) if begin.elapsed() >= CALL_PATIENCE => {
                    let why = format!("no answer within {} s", CALL_PATIENCE.as_secs());
                    return Err(Setback::Unreachable { number, why });
                }
                Err(_) => {}
            }
        }
    }
}
