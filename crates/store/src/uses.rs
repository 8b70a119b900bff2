//! When items were last read, in seconds: kept only after somebody has asked,
//! because it costs four bytes for each slot.

use crate::policy::SPACE;

/// Times by slot number.
#[derive(Debug, Default)]
pub(crate) struct LastUse {
    /// Seconds since the Unix epoch; 0 is not since it was written, or not known.
    seconds: [Vec<u32>; 2],
    kept: bool,
}

impl LastUse {
    /// Keeps times from now on.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// The item in `slot` was read.
    #[inline]
    pub(crate) fn note(&mut self, slot: u32, now_s: u32, slot_count: u32) {
        if !self.kept {
            return;
        }
        let (seconds, at) = self.place(slot);
        if seconds.is_empty() {
            // Asked for zeroed: nothing is touched that is not used.
            *seconds = vec![0; (slot_count as usize).max(at + 1)];
        } else if at >= seconds.len() {
            seconds.resize(at + 1, 0);
        }
        seconds[at] = now_s;
    }

    /// The times of a number's space, and its place there.
    #[inline]
    fn place(&mut self, slot: u32) -> (&mut Vec<u32>, usize) {
        let at = (slot & !SPACE) as usize;
        (&mut self.seconds[usize::from(slot & SPACE != 0)], at)
    }

    /// When the item in `slot` was last read, if that is known.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<u32> {
        let seconds = &self.seconds[usize::from(slot & SPACE != 0)];
        let seconds = seconds.get((slot & !SPACE) as usize).copied();
        seconds.filter(|seconds| *seconds != 0)
    }

    /// Another item, or another value, stands in `slot` now.
    #[inline]
    pub(crate) fn forget(&mut self, slot: u32) {
        let (seconds, at) = self.place(slot);
        if let Some(seconds) = seconds.get_mut(at) {
            *seconds = 0;
        }
    }

    /// The item in `from` stands in `to` now, in an index of `slot_count` slots.
    pub(crate) fn relocate(&mut self, from: u32, to: u32, slot_count: u32) {
        let seconds = self.get(from);
        self.forget(from);
        match seconds {
            Some(seconds) => self.note(to, seconds, slot_count),
            None => self.forget(to),
        }
    }

    /// Takes the times of a space away; see [`crate::policy::Policy::retire`].
    pub(crate) fn retire(&mut self, space: u32) -> Vec<u32> {
        std::mem::take(&mut self.seconds[usize::from(space != 0)])
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        let capacity = self.seconds[0].capacity() + self.seconds[1].capacity();
        (capacity * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_before_somebody_asks() {
        let mut uses = LastUse::default();
        uses.note(3, 77, 8);
        assert_eq!((uses.get(3), uses.private_len()), (None, 0));
        uses.keep();
        uses.note(3, 77, 8);
        assert_eq!(uses.get(3), Some(77));
        assert!(uses.private_len() >= 32);
    }

    #[test]
    fn times_go_with_their_items() {
        let mut uses = LastUse::default();
        uses.keep();
        uses.note(1, 10, 4);
        uses.note(2, 20, 4);
        uses.relocate(1, 3, 4);
        assert_eq!((uses.get(1), uses.get(3)), (None, Some(10)));
        uses.relocate(2, SPACE | 9, 10);
        uses.relocate(3, SPACE, 10);
        assert_eq!((uses.get(SPACE | 9), uses.get(SPACE)), (Some(20), Some(10)));
        uses.retire(0);
        uses.forget(SPACE | 9);
        assert_eq!((uses.get(SPACE | 9), uses.get(SPACE)), (None, Some(10)));
    }
}
