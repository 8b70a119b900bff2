//! The engine's side: carries out the requests of a datagram, and cuts the answers into
//! pieces. It keeps nothing.

use super::piece::{PIECE_HEAD_LEN, PIECE_LEN, Piece, decode_requests};
use super::{DATAGRAM_DATA_LEN_MAX, PAYLOAD_LEN_MAX};
use crate::limits::WINDOW_LEN;
use crate::target::{Memory, execute_alone};
use crate::wire::{ANSWER_LEN, Malformed, Request};

/// Buffers that are used for every datagram.
#[derive(Debug, Default)]
pub struct Buffers {
    answer: Vec<u8>,
    payload: Vec<u8>,
}

/// Carries out what a payload asks for; `send` is called for each payload of the answer.
/// Nothing is carried out of one that is malformed, or solicits more than datagrams are for.
/// Returns how many of the requests were asked before: their answers, or they, were lost or
/// late.
pub fn carry_out(
    payload: &[u8],
    memory: &mut impl Memory,
    buffers: &mut Buffers,
    mut send: impl FnMut(&[u8]),
) -> Result<u64, Malformed> {
    let (mut solicited, mut repeated) = (0, 0);
    for request in decode_requests(payload)? {
        let (attempt, ask) = request?;
        repeated += u64::from(attempt > 1);
        if ask.is_answered() {
            if ask.solicited() > DATAGRAM_DATA_LEN_MAX {
                return Err(Malformed("more is solicited than goes by datagrams"));
            }
            solicited += ANSWER_LEN + ask.solicited() as usize;
        }
    }
    if solicited > WINDOW_LEN as usize {
        return Err(Malformed("more is solicited at once than a window holds"));
    }
    let Buffers {
        answer,
        payload: out,
    } = buffers;
    out.clear();
    for request in decode_requests(payload)? {
        let (attempt, ask) = request?;
        if let Request::Touch { place, hash } = ask.request {
            memory.touch(ask.handle, place, hash);
            continue;
        }
        answer.clear();
        execute_alone(&ask, memory, answer);
        for (number, bytes) in answer.chunks(PIECE_LEN).enumerate() {
            if out.len() + PIECE_HEAD_LEN + bytes.len() > PAYLOAD_LEN_MAX {
                send(out);
                out.clear();
            }
            let piece = Piece {
                id: ask.id,
                attempt,
                total_len: answer.len(),
                offset: number * PIECE_LEN,
                bytes,
            };
            piece.encode(out);
        }
    }
    if !out.is_empty() {
        send(out);
    }
    Ok(repeated)
}
