//! What an engine has found: items of an ANSWERS frame.
//!
//! | offset | bytes | answer (80, then its data) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | the request's |
//! | 8 | 1 | status | see [`Status`] |
//! | 9 | 1 | vote | of a scan: 1 present, 2 absent, 3 ask by message, 4 unstable, 5 config changed, 6 recovering; 0 otherwise |
//! | 10 | 2 | reserved, zero | |
//! | 12 | 4 | data length | bytes behind this item, a multiple of 8; of status *too long* what there is instead |
//! | 16 | 4 | epoch | the shard's, at the moment of the entry |
//! | 20 | 4 | slot number | |
//! | 24 | 4 | config id | that the backend serves; of vote 5 what the bucket says |
//! | 28 | 4 | lease left | microseconds until the backend's lease ends, as of this answer |
//! | 32 | 16 | version | of the entry: time, then origin |
//! | 48 | 8 | pointer | of the entry |
//! | 56 | 16 | flush floor | read after the data: what was flushed before the request is known |
//! | 72 | 8 | stamp | of a scan that was carried out: the key's, read before the bucket; for fills (`trefoil_client_core::fill`) |
//!
//! A scan's data are there if its vote is *present*, and are whatever the pointer led
//! to: the client judges them. The tag is the one that was asked for.

use super::{Malformed, is_zero, put, u32_at, u64_at};
use crate::limits::DATA_LEN_MAX;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{IndexEntry, Pointer, Version};

const AT_STATUS: usize = 8;
const AT_VOTE: usize = 9;
const AT_GAP: usize = 10;
const AT_DATA_LEN: usize = 12;
const AT_EPOCH: usize = 16;
const AT_SLOT: usize = 20;
const AT_CONFIG_ID: usize = 24;
const AT_LEASE: usize = 28;
const AT_VERSION: usize = 32;
const AT_POINTER: usize = 48;
const AT_FLOOR: usize = 56;
const AT_STAMP: usize = 72;

/// Bytes of an answer without its data.
pub const ANSWER_LEN: usize = 80;

const _: () = {
    // `Answer::encode_into` writes these as words.
    assert!(AT_STATUS == 8 && AT_VOTE == AT_STATUS + 1 && AT_GAP == AT_VOTE + 1);
    assert!(AT_DATA_LEN == AT_GAP + 2 && AT_EPOCH == AT_DATA_LEN + 4 && AT_SLOT == AT_EPOCH + 4);
    assert!(AT_CONFIG_ID == AT_SLOT + 4 && AT_LEASE == AT_CONFIG_ID + 4);
    assert!(AT_VERSION == AT_LEASE + 4 && AT_POINTER == AT_VERSION + 16);
    assert!(AT_FLOOR == AT_POINTER + 8 && AT_STAMP == AT_FLOOR + 16);
    assert!(AT_STAMP + 8 == ANSWER_LEN);
};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was carried out.
    Done = 0,
    /// The handle names no backend that is mapped now: open it anew.
    Gone = 1,
    /// The backend's lease had ended after the last read: nothing is believed.
    Lapsed = 2,
    /// The data are longer than was solicited; so long they are.
    TooLong = 3,
    /// The range does not lie inside the window that was named, or inside the one that
    /// is advertised now.
    OutOfWindow = 4,
    /// A bucket's header moved while it was copied: read again.
    Unstable = 5,
}

impl Status {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Status::Done,
            1 => Status::Gone,
            2 => Status::Lapsed,
            3 => Status::TooLong,
            4 => Status::OutOfWindow,
            5 => Status::Unstable,
            _ => return None,
        })
    }
}

/// One answer; its data stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What became of the request.
    pub status: Status,
    /// Of a scan that was carried out. Its entry's tag is the one that was asked for.
    pub vote: Option<IndexVote>,
    /// Bytes of data, or with [`Status::TooLong`] what there would be.
    pub data_len: u32,
    /// That the backend serves.
    pub config_id: u32,
    /// As of the answer; saturates. An engine fills it in last ([`crate::Memory::end_reads`]).
    pub lease_left_us: u32,
    /// Items at or below it are misses.
    pub flush_floor: Version,
    /// Of a scan that was carried out: what a fill must find again.
    pub stamp: u64,
}

impl Answer {
    /// An answer that says nothing but this.
    pub const fn bare(status: Status) -> Self {
        Answer {
            status,
            vote: None,
            data_len: 0,
            config_id: 0,
            lease_left_us: 0,
            flush_floor: Version::ZERO,
            stamp: 0,
        }
    }

    /// Bytes of data that follow it.
    pub fn data_follows(&self) -> usize {
        match self.status {
            Status::TooLong => 0,
            _ => self.data_len as usize,
        }
    }

    /// The bytes to send, before its data.
    pub fn encode(&self, id: u64) -> [u8; ANSWER_LEN] {
        let mut out = [0; ANSWER_LEN];
        self.encode_into(id, &mut out);
        out
    }

    /// The same at its place. In whole words: what is written in small pieces and read in
    /// large ones holds the processor up, and this is done for each key of a batch.
    #[inline]
    pub(crate) fn encode_into(&self, id: u64, out: &mut [u8; ANSWER_LEN]) {
        let (mut epoch, mut slot_number, mut config_id) = (0, 0, self.config_id);
        let (mut version, mut pointer) = (Version::ZERO, Pointer(0));
        let vote = match self.vote {
            None => 0,
            Some(IndexVote::Present {
                slot_number: number,
                entry,
                epoch: of,
            }) => {
                (epoch, slot_number) = (of, number);
                (version, pointer) = (entry.version, entry.pointer);
                1
            }
            Some(IndexVote::Absent { epoch: of }) => {
                epoch = of;
                2
            }
            Some(IndexVote::AskByMessage { epoch: of }) => {
                epoch = of;
                3
            }
            Some(IndexVote::Unstable) => 4,
            Some(IndexVote::ConfigChanged { found }) => {
                config_id = found;
                5
            }
            Some(IndexVote::Recovering) => 6,
        };
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words: [u64; ANSWER_LEN / 8] = [
            id,
            pair(self.status as u32 | vote << 8, self.data_len),
            pair(epoch, slot_number),
            pair(config_id, self.lease_left_us),
            version.time_ns,
            version.origin,
            pointer.0,
            self.flush_floor.time_ns,
            self.flush_floor.origin,
            self.stamp,
        ];
        let (places, _) = out.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
    }

    /// Writes what is left of the lease into an item that was encoded before.
    #[inline]
    pub(crate) fn put_lease(item: &mut [u8], left_us: u32) {
        put(item, AT_LEASE, left_us.to_le_bytes());
    }

    /// Judges the item at the beginning of `bytes`: the request's id and the answer,
    /// the data, and how many bytes they take together. `tag_of` says which tag the
    /// scan with this id has asked for; it is asked once, of any answer.
    pub fn decode(
        bytes: &[u8],
        tag_of: impl FnOnce(u64) -> u64,
    ) -> Result<(u64, Answer, &[u8], usize), Malformed> {
        let wrong = Malformed("not an answer");
        let (item, rest) = bytes.split_first_chunk::<ANSWER_LEN>().ok_or(wrong)?;
        let id = u64_at(item, 0);
        let mut answer = Answer::decode_head(item)?;
        let tag = tag_of(id);
        if let Some(IndexVote::Present { entry, .. }) = &mut answer.vote {
            entry.tag = tag;
        }
        let len = answer.data_follows();
        let data = rest.get(..len).ok_or(wrong)?;
        Ok((id, answer, data, ANSWER_LEN + len))
    }

    /// Judges an item before its data, whatever its id: its entry, if it has one, is without
    /// the tag.
    pub(crate) fn decode_head(item: &[u8; ANSWER_LEN]) -> Result<Answer, Malformed> {
        let wrong = Malformed("not an answer");
        let status = Status::from_number(item[AT_STATUS]).ok_or(wrong)?;
        if !is_zero(&item[AT_GAP..AT_DATA_LEN]) {
            return Err(wrong);
        }
        let epoch = u32_at(item, AT_EPOCH);
        let config_id = u32_at(item, AT_CONFIG_ID);
        let vote = match item[AT_VOTE] {
            0 => None,
            1 => Some(IndexVote::Present {
                slot_number: u32_at(item, AT_SLOT),
                entry: IndexEntry {
                    tag: 0,
                    version: version_at(item, AT_VERSION),
                    pointer: Pointer(u64_at(item, AT_POINTER)),
                },
                epoch,
            }),
            2 => Some(IndexVote::Absent { epoch }),
            3 => Some(IndexVote::AskByMessage { epoch }),
            4 => Some(IndexVote::Unstable),
            5 => Some(IndexVote::ConfigChanged { found: config_id }),
            6 => Some(IndexVote::Recovering),
            _ => return Err(wrong),
        };
        let answer = Answer {
            status,
            vote,
            data_len: u32_at(item, AT_DATA_LEN),
            config_id,
            lease_left_us: u32_at(item, AT_LEASE),
            flush_floor: version_at(item, AT_FLOOR),
            stamp: u64_at(item, AT_STAMP),
        };
        let len = answer.data_follows();
        if !len.is_multiple_of(8) || len > DATA_LEN_MAX || (len > 0 && status != Status::Done) {
            return Err(wrong);
        }
        Ok(answer)
    }
}

fn version_at(bytes: &[u8], at: usize) -> Version {
    Version {
        time_ns: u64_at(bytes, at),
        origin: u64_at(bytes, at + 8),
    }
}
