//! Any bytes as input of a Redis connection: no panic, and memory within its
//! bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_fuzz::session::drive;
use trefoil_gateway_core::resp::RespSession;

fuzz_target!(|input: (bool, Vec<Vec<u8>>)| {
    let (authentication, chunks) = input;
    drive(RespSession::new(), authentication, &chunks);
});
