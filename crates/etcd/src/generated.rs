//! Generated stubs. The lints of hand-written code do not apply.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::all)]

tonic::include_proto!("etcdserverpb");
