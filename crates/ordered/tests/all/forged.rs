//! Positions that a client forges: what comes of its own lane, and of others.

use crate::sim::memory::Memory;
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::merge::{LaneId, Merge, PATIENCE_NS, Step};
use trefoil_ordered::producer::Producer;
use trefoil_ordered::service::{Answer, Request, Service};

const EPOCH: u64 = 5;

/// Client and position of each request.
#[derive(Default)]
struct Seen(Vec<(u64, u64)>);

impl Service for Seen {
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        self.0.push((request.client_id, request.position));
    }
}

fn lane(merge: &mut Merge<Memory>, client_id: u64) -> (LaneId, Producer<Memory>) {
    let terms = Terms {
        epoch: EPOCH,
        client_id,
        slot_count: 8,
    };
    let memory = Memory::new(terms.object_len());
    lane::initialise(&memory, terms);
    let id = merge.admit(memory.clone(), terms);
    (id, Producer::new(memory, terms))
}

fn publish(producer: &mut Producer<Memory>, position: u64) {
    let written = producer.write(1, b"request", true).expect("room");
    producer.claim().expect("an open lane");
    let committed = producer.publish(written, position).expect("no skip");
    producer.mark(committed.sequence);
}

fn run(merge: &mut Merge<Memory>) -> Vec<(u64, u64)> {
    let mut seen = Seen::default();
    while merge.step(|| 1, &mut seen) == Step::Executed {}
    seen.0
}

#[test]
fn a_lane_whose_positions_do_not_rise_is_broken() {
    for second in [3, 2] {
        let mut merge = Merge::new(PATIENCE_NS);
        let (forger, mut forged) = lane(&mut merge, 1);
        let (other, mut honest) = lane(&mut merge, 2);
        publish(&mut forged, 3);
        publish(&mut forged, second);
        publish(&mut honest, 1);
        publish(&mut honest, 4);
        assert_eq!(run(&mut merge), [(2, 1), (1, 3), (2, 4)]);
        assert!(merge.is_broken(forger) && !merge.is_broken(other));
    }
}

#[test]
fn late_heads_take_turns_with_each_other_and_with_the_rest() {
    let mut merge = Merge::new(PATIENCE_NS);
    let (_, mut high) = lane(&mut merge, 1);
    let (_, mut low) = lane(&mut merge, 2);
    let (_, mut honest) = lane(&mut merge, 3);
    let (_, mut on_time) = lane(&mut merge, 4);
    publish(&mut high, 1000);
    assert_eq!(run(&mut merge), [(1, 1000)]);
    for position in 1..=6 {
        publish(&mut low, position);
    }
    publish(&mut honest, 500);
    publish(&mut honest, 501);
    publish(&mut on_time, 1001);
    publish(&mut on_time, 1002);
    let seen = run(&mut merge);
    assert_eq!(seen.len(), 10);
    let last = |client| seen.iter().rposition(|(of, _)| *of == client);
    assert!(last(3) < Some(7) && last(4) < Some(7), "{seen:?}");
}

/// A request that was committed by one who died before its mark, while another client goes
/// on at these positions.
fn unmarked_beside(busy_at: impl Iterator<Item = u64>, is_forger_busy: bool) {
    let mut merge = Merge::new(PATIENCE_NS);
    let (_, mut high) = lane(&mut merge, 1);
    let (_, mut dead) = lane(&mut merge, 2);
    let (_, mut honest) = lane(&mut merge, 3);
    publish(&mut high, 100_000);
    assert_eq!(run(&mut merge), [(1, 100_000)]);
    let written = dead.write(1, b"request", true).expect("room");
    dead.claim().expect("an open lane");
    dead.publish(written, 1).expect("no skip");
    let busy = match is_forger_busy {
        true => &mut high,
        false => &mut honest,
    };
    let mut seen = Seen::default();
    for position in busy_at {
        publish(busy, position);
        assert_eq!(merge.step(|| 1, &mut seen), Step::Executed);
        if seen.0.last() == Some(&(2, 1)) {
            return;
        }
    }
    panic!("it was not executed");
}

#[test]
fn a_request_without_its_mark_is_executed_while_others_are_late() {
    unmarked_beside(2..200, false);
}

#[test]
fn a_request_without_its_mark_is_executed_while_the_forger_is_busy() {
    unmarked_beside(100_001..120_000, true);
}

#[test]
fn the_highest_position_ends_the_order_and_nothing_else() {
    let mut merge = Merge::new(PATIENCE_NS);
    let (_, mut forged) = lane(&mut merge, 1);
    let (_, mut honest) = lane(&mut merge, 2);
    publish(&mut forged, u64::MAX);
    assert_eq!(run(&mut merge), [(1, u64::MAX)]);
    publish(&mut honest, 7);
    publish(&mut honest, 8);
    assert_eq!(run(&mut merge), [(2, 7), (2, 8)]);
    assert_eq!(merge.counts().out_of_order, 2);
}
