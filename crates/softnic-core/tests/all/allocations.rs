//! Once buffers are as large as they get, neither side allocates for a request.

use crate::world::{CONFIG, Fake, LIFE, TOKEN};
use trefoil_layout::KeyHash;
use trefoil_softnic_core::{Event, Initiator, InitiatorOptions, Target};

#[test]
fn requests_allocate_nothing() {
    let mut client = Initiator::new(InitiatorOptions {
        token: TOKEN,
        ..InitiatorOptions::default()
    });
    client.open(1, 0, LIFE, 0);
    let (mut target, mut memory) = (Target::new(), Fake::new());
    let mut out = Vec::new();
    let mut exchange = |client: &mut Initiator| {
        out.clear();
        client.flush(0);
        let done = target
            .handle(client.output(), &mut memory, &mut out)
            .unwrap();
        client.sent(done);
        let mut count = 0;
        let done = client.handle(&out, 1, |event| {
            count += usize::from(!matches!(event, Event::Unanswered { .. }));
        });
        assert_eq!(done, Ok(out.len()));
        count
    };
    assert_eq!(exchange(&mut client), 1);
    let mut batch = |client: &mut Initiator| {
        for id in 0..100 {
            let hash = KeyHash {
                place: id,
                tag: 4096 + id % 32,
            };
            client.scan(id, 9, 0, hash, CONFIG, 0);
        }
        exchange(client)
    };
    for _ in 0..3 {
        assert_eq!(batch(&mut client), 100);
    }
    let counted = allocation_counter::measure(|| {
        assert_eq!(batch(&mut client), 100);
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
