//! When items were last read, in seconds: kept only after somebody has asked,
//! because it costs four bytes for each slot.

/// Times by slot number.
#[derive(Debug, Default)]
pub(crate) struct LastUse {
    /// Seconds since the Unix epoch; 0 is not since it was written, or not known.
    seconds: Vec<u32>,
    kept: bool,
}

impl LastUse {
    /// Keeps times from now on.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// Whether times are kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    /// The item in `slot` was read.
    #[inline]
    pub(crate) fn note(&mut self, slot: u32, now_s: u32, slot_count: u32) {
        if !self.kept {
            return;
        }
        if slot as usize >= self.seconds.len() {
            self.seconds.resize(slot_count.max(slot + 1) as usize, 0);
        }
        self.seconds[slot as usize] = now_s;
    }

    /// When the item in `slot` was last read, if that is known.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<u32> {
        let seconds = self.seconds.get(slot as usize).copied();
        seconds.filter(|seconds| *seconds != 0)
    }

    /// Another item, or another value, stands in `slot` now.
    #[inline]
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(seconds) = self.seconds.get_mut(slot as usize) {
            *seconds = 0;
        }
    }

    /// The item in `from` stands in `to` now.
    pub(crate) fn relocate(&mut self, from: u32, to: u32) {
        let seconds = self.get(from);
        self.forget(from);
        if let (Some(seconds), Some(slot)) = (seconds, self.seconds.get_mut(to as usize)) {
            *slot = seconds;
        }
    }

    /// All items have other slots: `new` gives them in the order of the old.
    pub(crate) fn rebuild(&mut self, new: impl Iterator<Item = Option<u32>>) {
        if self.seconds.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.seconds);
        for (seconds, to) in old.into_iter().zip(new) {
            let Some(to) = to.filter(|_| seconds != 0) else {
                continue;
            };
            if to as usize >= self.seconds.len() {
                self.seconds.resize(to as usize + 1, 0);
            }
            self.seconds[to as usize] = seconds;
        }
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        (self.seconds.capacity() * size_of::<u32>()) as u64
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
        uses.relocate(1, 3);
        assert_eq!((uses.get(1), uses.get(3)), (None, Some(10)));
        uses.rebuild([None, None, Some(9), Some(0)].into_iter());
        assert_eq!((uses.get(9), uses.get(0)), (Some(20), Some(10)));
        uses.forget(9);
        assert_eq!(uses.get(9), None);
    }
}
