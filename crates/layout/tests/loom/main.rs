//! What two processes share, under a real memory model.
//!
//! Run by `make soak`: `RUSTFLAGS="--cfg loom" cargo test --release -p
//! trefoil-layout --test loom`. Loom explores the interleavings and the stale
//! values that the C11 memory model allows (up to a bound on pre-emptions).
#![cfg(loom)]

mod bucket;
mod ring;
