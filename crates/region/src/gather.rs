//! Huge pages gathered from small ones, in the background.
//!
//! A read at a random place of a large region costs two address translations
//! that miss; with huge pages hardly any. Where none are reserved, the kernel
//! can gather wholly populated ranges after the fact.

use crate::mapping::{HUGE_PAGE_LEN, Mapping};
use crate::object::MemoryObject;
use std::io;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Gathered a huge page, or tried to: there may be more.
    Page,
    /// Everything that is populated has been looked at.
    Nothing,
    /// The system does not do this.
    Unsupported,
}

/// Goes over one object, a huge page at a time.
#[derive(Debug)]
pub struct Gatherer {
    /// A bit for each range that was gathered; cleared when it has holes.
    gathered: Vec<u64>,
    next: u64,
    /// Resident bytes at the end of the last pass: without a change there is
    /// nothing new to find.
    seen_len: u64,
    supported: bool,
}

impl Gatherer {
    /// For an object of `len` bytes.
    pub fn new(len: u64) -> Self {
        let words = (len / HUGE_PAGE_LEN).div_ceil(64) as usize;
        Gatherer {
            gathered: vec![0; words],
            next: 0,
            seen_len: 0,
            supported: true,
        }
    }

    /// Gathers at most one huge page (some milliseconds of copying).
    pub fn step(&mut self, object: &MemoryObject, mapping: &Mapping) -> Gathered {
        if !self.supported || object.page_len() >= HUGE_PAGE_LEN {
            return Gathered::Unsupported;
        }
        if self.next == 0 && object.resident_len().unwrap_or(0) == self.seen_len {
            return Gathered::Nothing;
        }
        while let Some(at) = object.next_populated(self.next) {
            let start = at.next_multiple_of(HUGE_PAGE_LEN);
            if start + HUGE_PAGE_LEN > mapping.len() {
                break;
            }
            self.next = start + HUGE_PAGE_LEN;
            let (word, bit) = (
                (start / HUGE_PAGE_LEN / 64) as usize,
                1 << (start / HUGE_PAGE_LEN % 64),
            );
            if !mapping.is_populated(start) {
                self.gathered[word] &= !bit;
                continue;
            }
            if self.gathered[word] & bit != 0 {
                continue;
            }
            self.gathered[word] |= bit;
            if let Err(error) = mapping.collapse(start)
                && error.kind() == io::ErrorKind::InvalidInput
            {
                self.supported = false;
                return Gathered::Unsupported;
            }
            return Gathered::Page;
        }
        self.next = 0;
        self.seen_len = object.resident_len().unwrap_or(0);
        Gathered::Nothing
    }
}
