//! The questions of a scan, put to another member by messages.

use crate::clock;
use crate::member::Member;
use crate::recovery::{Peer, Setback};
use bytes::Bytes;
use prost::Message as _;
use trefoil_layout::op::Mutation;
use trefoil_layout::{KeyHash, Version};
use trefoil_recovery::Data;
use trefoil_recovery::scan::{self, Question, Reply};
use trefoil_region::WordBuffer;
use trefoil_rpc::v1::scan_request;
use trefoil_rpc::{ContractError, v1};
use trefoil_store::{Access, KeyState};

/// What frames a call's request and answer, about.
const FRAME_LEN: u64 = 64;

/// An answer, and the bytes of the call that brought it; 0 if none did.
pub(super) struct Answered {
    pub(super) reply: Reply<Bytes>,
    pub(super) bytes: u64,
}

impl Peer {
    /// Asks it, and waits for the answer.
    pub(super) async fn scan(&self, question: Question<Bytes>) -> Result<Answered, Setback> {
        let ranges = |starts, len, parts| v1::ScanRanges { starts, len, parts };
        let of_request = |question| v1::ScanRequest {
            shard: self.name(),
            question: Some(question),
        };
        let (reply, bytes) = match question {
            Question::Begin => {
                let begin = scan_request::Question::Begin(v1::ScanBegin {});
                let (answer, bytes) = self.put(of_request(begin)).await?;
                let (epoch, items) = (answer.epoch, answer.items);
                (Reply::Begin { epoch, items }, bytes)
            }
            Question::Digests { starts, len, parts } => {
                let digests = scan_request::Question::Digests(ranges(starts, len, parts));
                let (answer, bytes) = self.put(of_request(digests)).await?;
                let (epoch, sums) = (answer.epoch, answer.sums);
                (Reply::Digests { epoch, sums }, bytes)
            }
            Question::Held { starts, len } => {
                let held = scan_request::Question::Held(ranges(starts, len, 0));
                let (answer, bytes) = self.put(of_request(held)).await?;
                let held = trefoil_rpc::decode_held(&answer.held);
                let reply = Reply::Held {
                    epoch: answer.epoch,
                    is_cut: answer.cut,
                    held: held.map_err(|error| self.malformed(error))?,
                };
                (reply, bytes)
            }
            Question::States { keys } => {
                let hashes = trefoil_rpc::encode_hashes(&keys);
                let states = scan_request::Question::States(v1::ScanKeys { hashes });
                let (answer, bytes) = self.put(of_request(states)).await?;
                let states = trefoil_rpc::decode_states(&answer.states);
                let states = states.map_err(|error| self.malformed(error))?;
                let flushed = answer.flushed.map(trefoil_rpc::decode_version);
                // Earlier releases tell of a flush by the bound alone.
                let of_bound = |bound: Version| match bound.is_flush() {
                    true => bound,
                    false => Version::ZERO,
                };
                let state = |words: trefoil_rpc::StateWords| KeyState {
                    flushed: flushed.unwrap_or_else(|| of_bound(words.bound)),
                    held: words.held,
                    bound: words.bound,
                    is_erased: words.is_erased,
                    epoch: words.epoch,
                };
                let reply = Reply::States {
                    is_full: answer.full,
                    states: states.into_iter().map(state).collect(),
                };
                (reply, bytes)
            }
            Question::Item {
                hash,
                version,
                key_only,
            } => {
                let item = scan_request::Question::Item(v1::ScanItem {
                    place: hash.place,
                    tag: hash.tag,
                    version: Some(trefoil_rpc::encode_version(version)),
                    key_only,
                    layout_version: self.own_layout(),
                    takes_plain: true,
                });
                let (mut answer, mut bytes) = self.put(of_request(item)).await?;
                if let Some(item) = &mut answer.item {
                    trefoil_rpc::settle_item(item, self.hasher());
                }
                let data = match answer.item {
                    None => None,
                    Some(item) if !item.data.is_empty() => Some(Data::Whole(item.data)),
                    Some(item) if key_only => Some(Data::Long { key: item.key }),
                    Some(item) => {
                        let data = self.long(item.key.to_vec(), version).await?;
                        bytes += data.as_ref().map_or(0, |data| data.len() as u64);
                        data.map(Data::Whole)
                    }
                };
                (Reply::Item(data), bytes)
            }
            Question::Mutate(order) => match order.mutation() {
                None => (Reply::Item(None), 0),
                Some(mutation) => self.mutate(&mutation).await?,
            },
        };
        Ok(Answered { reply, bytes })
    }

    async fn put(&self, request: v1::ScanRequest) -> Result<(v1::ScanResponse, u64), Setback> {
        let asked = request.encoded_len() as u64;
        let mut client = self.client_of_short();
        let answer = self.call(client.scan(request)).await?;
        let bytes = FRAME_LEN + asked + answer.encoded_len() as u64;
        Ok((answer, bytes))
    }

    /// Once: nobody sends it again.
    async fn mutate(&self, mutation: &Mutation<'_>) -> Result<(Reply<Bytes>, u64), Setback> {
        let topology = self.topology();
        let request = trefoil_rpc::encode_mutation(self.number(), topology, mutation);
        let asked = request.encoded_len() as u64;
        let mut client = self.client();
        let answer = self.call_of(asked, client.mutate(request)).await?;
        let bytes = FRAME_LEN + asked + answer.encoded_len() as u64;
        let ack = trefoil_rpc::decode_ack(&answer).map_err(|error| self.malformed(error))?;
        Ok((Reply::Ack(ack), bytes))
    }
}

/// A value of the own store, however long.
pub(super) fn own_item(
    member: &Member,
    hash: KeyHash,
    version: Version,
    key_only: bool,
    shard: usize,
) -> Option<Data<Bytes>> {
    let question = Question::<Bytes>::Item {
        hash,
        version,
        key_only,
    };
    let Reply::Item(item) = scan::answer(&member.store, clock::now(), shard, &question) else {
        return None;
    };
    match item? {
        Data::Long { key } if !key_only => {
            let mut buffer = WordBuffer::default();
            let found = member.lookup(member.topology(), &key, &mut buffer, Access::Peek);
            let found = found.found;
            match found {
                trefoil_layout::op::Found::Present {
                    version: found,
                    data,
                } if found == version => Some(Data::Whole(Bytes::copy_from_slice(data))),
                _ => None,
            }
        }
        Data::Whole(data) => Some(Data::Whole(data.into())),
        Data::Long { key } => Some(Data::Long { key: key.into() }),
    }
}

/// What another member's scan asks. A value is told plain if `is_plain`.
pub(crate) fn answer(
    member: &Member,
    shard: usize,
    request: v1::ScanRequest,
    is_plain: bool,
) -> Result<v1::ScanResponse, ContractError> {
    let missing = || ContractError::Missing("question");
    let question: Question<Bytes> = match request.question.ok_or_else(missing)? {
        scan_request::Question::Begin(_) => Question::Begin,
        scan_request::Question::Digests(v1::ScanRanges { starts, len, parts }) => {
            Question::Digests { starts, len, parts }
        }
        scan_request::Question::Held(v1::ScanRanges { starts, len, .. }) => {
            Question::Held { starts, len }
        }
        scan_request::Question::States(keys) => Question::States {
            keys: trefoil_rpc::decode_hashes(&keys.hashes)?,
        },
        scan_request::Question::Item(item) => {
            let version = item.version.map(trefoil_rpc::decode_version);
            Question::Item {
                hash: KeyHash {
                    place: item.place,
                    tag: item.tag,
                },
                version: version.ok_or(ContractError::Missing("version"))?,
                key_only: item.key_only,
            }
        }
    };
    let empty = v1::ScanResponse::default();
    Ok(
        match scan::answer(&member.store, clock::now(), shard, &question) {
            Reply::Begin { epoch, items } => v1::ScanResponse {
                epoch,
                items,
                ..empty
            },
            Reply::Digests { epoch, sums } => v1::ScanResponse {
                epoch,
                sums,
                ..empty
            },
            Reply::Held {
                epoch,
                is_cut,
                held,
            } => v1::ScanResponse {
                epoch,
                cut: is_cut,
                held: trefoil_rpc::encode_held(&held),
                ..empty
            },
            Reply::States { is_full, states } => {
                let words = |state: KeyState| trefoil_rpc::StateWords {
                    epoch: state.epoch,
                    held: state.held,
                    bound: state.bound,
                    is_erased: state.is_erased,
                };
                let flushed = states.iter().map(|state| state.flushed).max();
                v1::ScanResponse {
                    full: is_full,
                    flushed: flushed.map(trefoil_rpc::encode_version),
                    states: trefoil_rpc::encode_states(states.into_iter().map(words)),
                    ..empty
                }
            }
            Reply::Item(item) => v1::ScanResponse {
                item: item.map(|data| {
                    let (data, key) = match data {
                        Data::Whole(data) => (data, Vec::new()),
                        Data::Long { key } => (Vec::new(), key),
                    };
                    let version = match question {
                        Question::Item { version, .. } => {
                            Some(trefoil_rpc::encode_version(version))
                        }
                        _ => None,
                    };
                    let mut copied = v1::CopiedItem {
                        version,
                        data: data.into(),
                        key: key.into(),
                        // It is not what makes it stay.
                        recency: 0,
                        plain: None,
                    };
                    if is_plain {
                        trefoil_rpc::make_item_plain(&mut copied, &member.store.config().hasher);
                    }
                    copied
                }),
                ..empty
            },
            Reply::Ack(_) => empty,
        },
    )
}
