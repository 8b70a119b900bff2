//! Shared memory objects and word-wise racy copies.
//!
//! Together with `layout` this is the only place with `unsafe` over shared
//! bytes. A backend creates [`MemoryObject`]s, maps them writable
//! ([`Mapping::owner`]) and hands read-only descriptors to clients, who map them
//! with [`Mapping::reader`]. Nobody ever holds a reference or a slice over live
//! shared memory: all access goes through [`SharedWords`], each word loaded
//! whole and once, into private memory.

mod copy;
mod fork;
mod gather;
mod heap;
mod hold;
mod mapping;
mod object;
mod present;
mod program;
mod turns;
mod unmap;
mod words;

pub use fork::ForkMark;
pub use gather::{Gathered, Gatherer};
pub use heap::{return_free_blocks, return_long_blocks, share_heaps};
pub use mapping::{HUGE_PAGE_LEN, Mapping, MappingError};
pub use object::{HugePages, MemoryObject, ObjectError};
pub use program::ProgramPages;
pub use turns::{take_short_turns, take_usual_turns};
pub use unmap::maps_foreign;
pub use words::{SharedBlock, SharedWords, WordBuffer, prefetch_read};

/// Bytes of an ordinary page.
pub const PAGE_LEN: u64 = 4096;
