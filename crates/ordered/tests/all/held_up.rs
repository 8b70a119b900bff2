//! A server that has no turn of the processor between two looks at its lanes, while clients go
//! on: they find their requests executed in the order of their positions all the same.

use crate::sim::memory::Memory;
use std::cell::RefCell;
use std::rc::Rc;
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::merge::{Merge, PATIENCE_NS, Step};
use trefoil_ordered::order;
use trefoil_ordered::producer::Producer;
use trefoil_ordered::service::{Answer, Request, Service};

#[derive(Default)]
struct Positions(Vec<u64>);

impl Service for Positions {
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        self.0.push(request.position);
    }
}

/// A lane, and what happens once before the server's first access to it.
fn lane(
    merge: &mut Merge<Memory>,
    client_id: u64,
    before: impl FnOnce() + 'static,
) -> Rc<RefCell<Producer<Memory>>> {
    let terms = Terms {
        epoch: 5,
        client_id,
        slot_count: 8,
    };
    let memory = Memory::new(terms.object_len());
    lane::initialise(&memory, terms);
    let before = RefCell::new(Some(before));
    let once = move || {
        let before = before.borrow_mut().take();
        if let Some(before) = before {
            before();
        }
    };
    merge.admit(memory.with(Rc::new(once)), terms);
    Rc::new(RefCell::new(Producer::new(memory, terms)))
}

/// The first lane is looked at and empty. Before the second one is looked at, the client of the
/// first commits two requests, the latter of which it does not mark, or only claims, and then
/// that of the second commits one.
fn executed(is_second_committed: bool) -> Vec<u64> {
    let order = Memory::new(order::OBJECT_LEN);
    order::initialise(&order);
    let mut merge = Merge::new(PATIENCE_NS);
    let first = lane(&mut merge, 1, || ());
    let late = Rc::new(RefCell::new(None::<Rc<RefCell<Producer<Memory>>>>));
    let second = lane(&mut merge, 2, {
        let (first, second, order) = (Rc::clone(&first), Rc::clone(&late), order.clone());
        move || {
            let mut first = first.borrow_mut();
            first.submit(&order, 1, b"first", true).expect("room");
            let written = first.write(2, b"second", true).expect("room");
            first.claim().expect("an open lane");
            let position = first.ticket(&order).expect("a position");
            if is_second_committed {
                first.publish(written, position).expect("no skip");
            }
            let second = second.borrow().clone().expect("a lane");
            let third = second.borrow_mut().submit(&order, 1, b"third", true);
            third.expect("room");
        }
    });
    *late.borrow_mut() = Some(second);
    let mut positions = Positions::default();
    let mut now_ns = 0;
    for _ in 0..200 {
        match merge.step(|| now_ns, &mut positions) {
            Step::Executed | Step::Idle => {}
            // The client of the first lane never goes on.
            Step::Waiting { until_ns } => {
                assert!(
                    until_ns <= PATIENCE_NS,
                    "{until_ns}: longer than others wait"
                );
                now_ns = until_ns;
            }
        }
    }
    assert_eq!(merge.counts().out_of_order, 0);
    assert_eq!(merge.counts().skipped, u64::from(!is_second_committed));
    positions.0
}

#[test]
fn what_a_lane_has_committed_behind_its_head_is_executed_before_what_came_later() {
    assert_eq!(executed(true), [1, 2, 3]);
}

#[test]
fn what_a_lane_claims_behind_its_head_is_waited_for_and_skipped() {
    assert_eq!(executed(false), [1, 3]);
}
