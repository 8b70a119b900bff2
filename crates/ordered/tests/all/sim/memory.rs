//! Simulated shared memory: sequentially consistent words. Weaker orders are loom's
//! (`tests/loom`).

use std::cell::Cell;
use std::rc::Rc;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_ordered::words::Atomics;

/// A run of shared words. `between` is called before each access: that is where other
/// actors take their steps.
#[derive(Clone)]
pub(crate) struct Memory {
    words: Rc<[Cell<u64>]>,
    between: Option<Rc<dyn Fn()>>,
}

impl Memory {
    pub(crate) fn new(len: u64) -> Self {
        Memory {
            words: (0..len / 8).map(|_| Cell::new(0)).collect(),
            between: None,
        }
    }

    /// The same words, with something that happens before each access.
    pub(crate) fn with(&self, between: Rc<dyn Fn()>) -> Self {
        Memory {
            words: Rc::clone(&self.words),
            between: Some(between),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    fn at(&self, index: usize) -> &Cell<u64> {
        if let Some(between) = &self.between {
            between();
        }
        &self.words[index]
    }
}

impl Words for Memory {
    fn load(&self, index: usize) -> u64 {
        self.at(index).get()
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.at(index).get()
    }
    fn fence_acquire(&self) {}
}

impl WordsMut for Memory {
    fn store(&self, index: usize, value: u64) {
        self.at(index).set(value);
    }
    fn store_release(&self, index: usize, value: u64) {
        self.at(index).set(value);
    }
    fn fence_release(&self) {}
}

impl Atomics for Memory {
    fn fetch_add(&self, index: usize, by: u64) -> u64 {
        let word = self.at(index);
        word.replace(word.get().wrapping_add(by))
    }
    fn compare_exchange(&self, index: usize, from: u64, to: u64) -> Result<(), u64> {
        let word = self.at(index);
        if word.get() == from {
            word.set(to);
            Ok(())
        } else {
            Err(word.get())
        }
    }
}
