//! Tests of the software NIC's protocol, without sockets.

mod allocations;
mod datagrams;
mod frames;
mod groups;
mod hostile;
mod incast;
mod leases;
mod messages;
mod pair;
mod placing;
mod world;
