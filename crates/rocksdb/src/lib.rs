//! The part of RocksDB that a queue's service needs, out of the system's own library.
//!
//! The library is loaded at run time, by its C interface: nothing of it is needed to build
//! anything here, and a program that does not use it does not load it. Debian 12's package
//! is `librocksdb7.8`.
//!
//! | module | what |
//! |---|---|
//! | [`library`] | the functions, found by name |
//! | [`db`] | a database: reads, batches of writes, what is persistent when |
//!
//! All `unsafe` is here. What it rests on:
//! 1. **The declarations are those of `rocksdb/c.h`**, of functions whose form has stayed
//!    from release 5 on. A library without one of them is refused.
//! 2. **The library is never unloaded**: it has threads of its own.
//! 3. **Whoever makes an object destroys it**, once, and a database is closed after
//!    everything that was made of it.
//! 4. **Bytes are lent for the time of a call**; what the library hands out is copied and
//!    given back.

pub mod db;
pub mod library;

pub use db::{Batch, Db, DbError, DbOptions, Wal};
pub use library::{Library, LibraryError};
