//! memcached's protocols: text with its meta commands, and binary.
//!
//! Answers, errors and silences are those of memcached 1.6.18 where that
//! version has the command, and of its current protocol document where it is
//! newer. What differs, and why, is a table in `tests/all/memcache_differential.rs`.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | the classic commands, and the lines that meta commands share with them |
//! | `meta` | `mg`, `ms`, `md`, `ma`, `me`, `mn` |
//! | `binary` | the binary protocol |
//! | `expiry` | what expiration times mean |
//! | `number` | numbers as memcached reads and writes them |
//! | `mutate` | what commands of both kinds do to an item |
//! | `session` | which of the protocols a connection speaks |

pub mod binary;
mod expiry;
mod meta;
mod mutate;
mod number;
mod session;
mod text;

pub use session::MemcacheSession;

/// Longest key, in bytes.
pub(crate) const KEY_LEN_MAX: usize = 250;
