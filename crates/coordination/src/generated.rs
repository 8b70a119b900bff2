//! Generated stubs. The lints of hand-written code do not apply.
#![allow(missing_docs, unreachable_pub, clippy::all)]

pub(crate) mod v1 {
    tonic::include_proto!("trefoil.coordination.v1");
}

pub(crate) mod etcd {
    tonic::include_proto!("etcdserverpb");
}
