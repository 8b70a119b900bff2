//! The tests of `trefoil-gateway-core` from outside, as one program: a module for each subject.

mod any_bytes;
mod corpus;
mod deferred;
mod fuzz_seeds;
mod memcache_allocations;
mod memcache_binary;
mod memcache_binary_differential;
mod memcache_differential;
mod memcache_releases;
mod memcache_text;
mod resp;
mod resp_commands;
mod resp_differential;
mod resp_scripts;
mod resp_together;
mod rig;
mod roles;
mod work;
