//! Generated from `proto/linklet.proto`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

tonic::include_proto!("trefoil.linklet.v1");
