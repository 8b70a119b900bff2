//! The tests of `trefoil` from outside, as one program: a module for each subject.
//! All of them: `cargo test -p trefoil --features full`.

#[cfg(feature = "linked")]
mod assigner;
#[cfg(feature = "bench")]
mod bench;
mod certs;
mod clock_back;
mod commands;
mod committed;
mod controller;
mod dashboards;
mod doctor;
mod doors;
mod engines;
mod etcd;
#[cfg(feature = "bench")]
mod failures;
mod flush;
mod gateways;
mod gateways_committing;
mod hosts;
#[cfg(all(feature = "bench", feature = "top"))]
mod hot_keys;
#[cfg(not(any(
    feature = "bench",
    feature = "linked",
    feature = "queue",
    feature = "sim"
)))]
mod left_out;
#[cfg(feature = "linked")]
mod linked;
mod maintenance;
mod no_return;
mod packaging;
#[cfg(feature = "queue")]
mod queue;
mod read_path;
mod readme;
mod recovery;
mod reload;
mod repair;
mod resizing;
mod restarts;
#[cfg(any(feature = "bench", feature = "linked"))]
mod strangers;
mod supervised;
mod support;
#[cfg(feature = "top")]
mod top;
mod updates;
