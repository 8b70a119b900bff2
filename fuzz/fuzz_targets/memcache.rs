//! Any bytes as input of a memcached connection, binary and text: no panic,
//! and memory within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_fuzz::input::Input;
use trefoil_fuzz::session::drive;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memcache::binary::{BinarySession, REQUEST_MAGIC};

fuzz_target!(|bytes: &[u8]| {
    let Some(mut input) = Input::new(bytes) else {
        return;
    };
    let is_binary = input.choice;
    if is_binary {
        // Half of them get as far as a header.
        if let Some(first) = input.pieces.iter_mut().find_map(|piece| piece.first_mut()) {
            *first = REQUEST_MAGIC;
        }
        drive(BinarySession::new(), input.authentication, &input.pieces);
    }
    drive(MemcacheSession::new(), input.authentication, &input.pieces);
});
