//! The engine's side: carries out the requests of a datagram, and cuts the answers into
//! pieces. It keeps nothing.

use super::piece::{
    Asked, PIECE_HEAD_LEN, Piece, decode_probe, decode_requests, encode_probe_answer, piece_len,
};
use super::{DATAGRAM_DATA_LEN_MAX, payload_len};
use crate::limits::WINDOW_LEN;
use crate::target::{Memory, execute_alone};
use crate::wire::{ANSWER_LEN, Malformed, Request};

/// Buffers that are used for every datagram.
#[derive(Debug, Default)]
pub struct Buffers {
    answer: Vec<u8>,
    payload: Vec<u8>,
}

/// Carries out what a payload asks for, or answers a probe; `send` is called for each payload of the answer.
/// Nothing is carried out of one that is malformed, or solicits more than datagrams are for.
/// Returns how many of the requests were asked before: their answers, or they, were lost or
/// late.
pub fn carry_out(
    payload: &[u8],
    memory: &mut impl Memory,
    buffers: &mut Buffers,
    mut send: impl FnMut(&[u8]),
) -> Result<u64, Malformed> {
    if let Some(number) = decode_probe(payload) {
        // As long as it was: nobody gets more than they have sent.
        encode_probe_answer(number, payload.len(), &mut buffers.payload);
        send(&buffers.payload);
        return Ok(0);
    }
    let (mut solicited, mut repeated) = (0, 0);
    for request in decode_requests(payload)? {
        let Asked { attempt, ask, .. } = request?;
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
    let mut datagram_len = 0;
    for request in decode_requests(payload)? {
        let asked = request?;
        let ask = &asked.ask;
        if let Request::Touch { place, hash } = ask.request {
            memory.touch(ask.handle, place, hash);
            continue;
        }
        if datagram_len != asked.datagram_len {
            // What may be long takes nothing along that has to be short.
            flush(out, &mut send);
            datagram_len = asked.datagram_len;
        }
        answer.clear();
        execute_alone(ask, memory, answer);
        let piece_len = piece_len(datagram_len);
        for (number, bytes) in answer.chunks(piece_len).enumerate() {
            if out.len() + PIECE_HEAD_LEN + bytes.len() > payload_len(datagram_len) {
                flush(out, &mut send);
            }
            let piece = Piece {
                id: ask.id,
                attempt: asked.attempt,
                total_len: answer.len(),
                offset: number * piece_len,
                bytes,
            };
            piece.encode(out);
        }
    }
    flush(out, &mut send);
    Ok(repeated)
}

fn flush(out: &mut Vec<u8>, send: &mut impl FnMut(&[u8])) {
    if !out.is_empty() {
        send(out);
        out.clear();
    }
}
