//! Any bytes as input of a Redis connection: no panic, and memory within its
//! bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_fuzz::input::Input;
use trefoil_fuzz::session::drive;
use trefoil_gateway_core::resp::RespSession;

fuzz_target!(|bytes: &[u8]| {
    if let Some(input) = Input::new(bytes) {
        drive(RespSession::new(), input.authentication, &input.pieces);
    }
});
