//! The ordered queue over RDMA devices, which are Soft-RoCE's in a virtual machine.

mod admission;
mod breaks;
mod hostile;
mod serving;
