//! The driver in a world whose clock and backends a test moves.

mod copies;
mod successors;
mod waiting;
mod world;
