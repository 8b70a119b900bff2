//! Any bytes as a client's request ring: the server's side takes messages out
//! until it finds nonsense, and never reads outside or takes a message longer
//! than there can be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_layout::message::{MESSAGE_LEN_MAX, parse_request};
use trefoil_layout::ring::{Consumer, Geometry};

fuzz_target!(|input: Vec<u64>| {
    let geometry = Geometry::default();
    let mut words = vec![0u64; geometry.object_len() as usize / 8];
    // Cursors first, then the request ring's content.
    for (to, from) in words.iter_mut().zip(&input) {
        *to = *from;
    }
    for (to, from) in words[512..].iter_mut().zip(input.iter().skip(32)) {
        *to = *from;
    }
    let mut message = vec![0u64; MESSAGE_LEN_MAX / 8];
    let mut requests = Consumer::requests(geometry);
    while let Ok(Some(len)) = requests.pop(&words[..], &mut message) {
        assert!(len <= MESSAGE_LEN_MAX);
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
        let _ = parse_request(&bytes[..len]);
    }
});
