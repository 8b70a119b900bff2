//! memcached's text and meta commands as scripts: a request, its answer.
//!
//! Every script runs three times: as it stands, with its input cut at random
//! places, and with room for one byte of output at a time.

mod items;
mod meta;
mod server;

use crate::rig::Rig;
use crate::rig::random::Random;
use trefoil_gateway_core::memcache::MemcacheSession;

type TextRig = Rig<MemcacheSession>;
type Script<'a> = &'a [(&'a str, &'a str)];

fn rig() -> TextRig {
    Rig::new(MemcacheSession::new())
}

fn run(script: Script<'_>) {
    run_on(rig, script);
}

fn run_on(rig: impl Fn() -> TextRig, script: Script<'_>) {
    let mut whole = rig();
    let mut pieces = rig();
    let mut narrow = rig();
    narrow.out_len_max = 1;
    let mut random = Random::new(1);
    for (request, answer) in script {
        let got = whole.feed(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), *answer, "to {request:?}");
        let got = pieces.feed_in_pieces(request.as_bytes(), &mut random);
        assert_eq!(
            String::from_utf8_lossy(&got),
            *answer,
            "to {request:?} in pieces"
        );
        let got = narrow.feed(request.as_bytes());
        assert_eq!(
            String::from_utf8_lossy(&got),
            *answer,
            "to {request:?} through a narrow output"
        );
    }
}
