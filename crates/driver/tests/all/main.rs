//! The driver in a world whose clock and backends a test moves.

mod waiting;
mod world;
