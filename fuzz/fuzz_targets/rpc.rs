//! Any bytes as protobuf requests and answers: the conversions to the
//! vocabulary of operations are total.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use trefoil_rpc::{decode_ack, decode_lookup_answer, decode_mutation, decode_touches, v1};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = v1::MutateRequest::decode(bytes) {
        let _ = decode_mutation(&request);
    }
    if let Ok(request) = v1::TouchRequest::decode(bytes) {
        let _ = decode_touches(&request);
    }
    if let Ok(answer) = v1::MutateResponse::decode(bytes) {
        let _ = decode_ack(&answer);
    }
    if let Ok(answer) = v1::LookupResponse::decode(bytes) {
        let _ = decode_lookup_answer(&answer);
    }
});
