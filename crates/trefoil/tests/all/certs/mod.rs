//! TLS between the parts of a cell: certificates that `cell certs` makes, real
//! servers, and everything that can be wrong with either.

mod commands;
mod gateways;
mod maker;
mod refusals;
mod reload;
mod rights;
mod roles;
