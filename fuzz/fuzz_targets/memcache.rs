//! Any bytes as input of a memcached connection, binary and text: no panic,
//! and memory within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_fuzz::session::drive;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memcache::binary::{BinarySession, REQUEST_MAGIC};

fuzz_target!(|input: (bool, bool, Vec<Vec<u8>>)| {
    let (authentication, is_binary, mut chunks) = input;
    if is_binary {
        // Half of them get as far as a header.
        if let Some(first) = chunks.iter_mut().find_map(|chunk| chunk.first_mut()) {
            *first = REQUEST_MAGIC;
        }
        drive(BinarySession::new(), authentication, &chunks);
    }
    drive(MemcacheSession::new(), authentication, &chunks);
});
