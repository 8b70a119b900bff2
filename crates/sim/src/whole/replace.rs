//! A backend's place is given to another process, which has to learn everything by
//! recovery: what a controller and a spare do, without threads and sockets. The process
//! that had the place may be dead, hang, or live cut off from the configuration store, and
//! a second one may have begun there under the configuration of before. The others hear of
//! it late.

use super::net::{Errand, Net};
use super::process::{Process, State};
use super::stats::Count;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_cell::RpcAddress;
use trefoil_driver::Topology;
use trefoil_recovery::mutants::{self, Mutant};

/// Who learns of a change learns of it so soon, usually.
const LEARNS_NS: u64 = 2_000_000;

/// Gives the place of backend `number` to a process that begins there for the `count`th
/// time.
pub(super) fn begin(net: &Net, number: u32, count: u32) {
    let current = Arc::clone(&net.published.borrow());
    let address = RpcAddress::Unix(format!("/sim/{number}/{count}").into());
    let next = current.config().with_place(number, &[address], None);
    let next = Arc::new(Topology::new(Arc::new(next.expect("ids are left"))));
    net.stats.add(Count::Replaced);
    net.trace(None, || {
        let id = next.id().config_id;
        format!("config {id} gives the place of backend {number} to another process")
    });
    *net.published.borrow_mut() = Arc::clone(&next);
    for process in net.everybody() {
        learns_late(net, &process);
    }
    let count = match mutants::is_on(Mutant::SpareUncounted) {
        true => 1,
        false => count,
    };
    let spare = Process::start(net, &next, number, count);
    let former = std::mem::replace(&mut net.processes.borrow_mut()[number as usize], spare);
    net.others.borrow_mut().push(former);
}

/// A process begins where a backend was, whose supervisor has read this configuration and
/// no later one.
pub(super) fn begin_late(net: &Net, topology: &Arc<Topology>, number: u32, count: u32) {
    net.stats.add(Count::BegunLate);
    let late = Process::start(net, topology, number, count);
    learns_late(net, &late);
    net.others.borrow_mut().push(late);
}

fn learns_late(net: &Net, process: &Rc<Process>) {
    let cut_off = match net.profile.cut_off_ns {
        0 => 0,
        cut_off => net.rng.below(cut_off),
    };
    let errand = Errand::CatchUp(Rc::clone(process));
    net.send(net.takes(LEARNS_NS) + cut_off, errand);
}

/// Kills one that had the place, if it lives.
pub(super) fn kill_former(net: &Net, number: u32) -> bool {
    let others = net.others.borrow();
    let lives = |process: &&Rc<Process>| {
        process.number == number && process.listens.get() && process.state.get() != State::Dead
    };
    let Some(former) = others.iter().find(lives) else {
        return false;
    };
    former.end(net, false);
    true
}
