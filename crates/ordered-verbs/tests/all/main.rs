//! The ordered queue over RDMA devices, which are Soft-RoCE's in a virtual machine.
//! What every carrier promises is checked by `crates/ordered/tests/all/conformance.rs`.

mod admission;
mod breaks;
mod hostile;
mod servers;
mod serving;
