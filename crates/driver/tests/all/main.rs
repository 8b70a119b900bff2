//! The driver in a world whose clock and backends a test moves.

mod batches;
mod copies;
mod slow;
mod successors;
mod waiting;
mod world;
