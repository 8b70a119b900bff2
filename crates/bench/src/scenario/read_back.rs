//! What a load has written is read in the end, each key once. What is not found then is
//! read again for some seconds: a value that was written is lost if nobody finds it any more,
//! and was missed for a moment if a later GET does.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How long what was not found is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// So many keys that were not found are told one by one.
const SHOWN_MAX: usize = 10;

/// What a GET of a key that was written came to.
pub(super) enum Reading {
    Fine,
    Stale,
    /// What was never written there.
    Wrong,
    /// Why there is no value: the reason of the miss, or of the failure.
    Nothing(String),
}

/// See the module.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReadBack {
    /// Keys read in the end.
    pub checked: u64,
    /// Of these, those that were not found, nor within the seconds after.
    pub lost: u64,
    /// Those that were found within the seconds after.
    pub missed_for_a_moment: u64,
    /// Those with a value that was replaced before.
    pub stale: u64,
    /// Those with a value that was never written there.
    pub wrong: u64,
    /// The first that were not found at once.
    pub missing: Vec<Missing>,
}

/// A key that was not found at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Missing {
    /// Which.
    pub key: usize,
    /// Why: the first GET's reason of a miss, or its error.
    pub why: String,
    /// After so many seconds it was found; never, if there are none.
    pub found_after_s: Option<f64>,
    /// Why not, at last.
    pub why_at_last: Option<String>,
}

impl ReadBack {
    /// Reads each of so many keys.
    pub(super) fn of(keys: usize, mut read: impl FnMut(usize) -> Reading) -> Self {
        let mut sum = ReadBack {
            checked: keys as u64,
            ..ReadBack::default()
        };
        let begin = Instant::now();
        let mut missing = Vec::new();
        for key in 0..keys {
            match read(key) {
                Reading::Fine => {}
                Reading::Stale => sum.stale += 1,
                Reading::Wrong => sum.wrong += 1,
                Reading::Nothing(why) => missing.push((key, why, None, begin.elapsed())),
            }
        }
        let looked = Instant::now();
        let mut found = Vec::new();
        while !missing.is_empty() && looked.elapsed() < PATIENCE {
            std::thread::sleep(LOOK_PERIOD);
            missing.retain_mut(|(key, why, why_at_last, since)| {
                match read(*key) {
                    Reading::Nothing(why) => {
                        *why_at_last = Some(why);
                        return true;
                    }
                    Reading::Stale => sum.stale += 1,
                    Reading::Wrong => sum.wrong += 1,
                    Reading::Fine => {}
                }
                let found_after_s = Some((begin.elapsed() - *since).as_secs_f64());
                found.push(Missing {
                    key: *key,
                    why: std::mem::take(why),
                    found_after_s,
                    why_at_last: None,
                });
                false
            });
        }
        sum.lost = missing.len() as u64;
        sum.missed_for_a_moment = found.len() as u64;
        let lost = missing
            .into_iter()
            .map(|(key, why, why_at_last, _)| Missing {
                key,
                why,
                found_after_s: None,
                why_at_last,
            });
        sum.missing = lost.chain(found).take(SHOWN_MAX).collect();
        sum
    }

    /// Every key was found, with its last value.
    pub(super) fn is_clean(&self) -> bool {
        self.lost + self.missed_for_a_moment + self.stale + self.wrong == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_later_is_not_lost() {
        let mut looks = 0;
        let read = ReadBack::of(5, |key| match key {
            1 => Reading::Stale,
            2 => Reading::Wrong,
            3 => {
                looks += 1;
                match looks {
                    1 | 2 => Reading::Nothing("inquorate".to_owned()),
                    _ => Reading::Fine,
                }
            }
            4 => Reading::Nothing("absent".to_owned()),
            _ => Reading::Fine,
        });
        assert_eq!(
            (read.checked, read.lost, read.stale, read.wrong),
            (5, 1, 1, 1)
        );
        assert_eq!(read.missed_for_a_moment, 1);
        let [lost, moment] = &read.missing[..] else {
            panic!("{read:?}");
        };
        assert_eq!((lost.key, lost.why.as_str()), (4, "absent"));
        assert_eq!(lost.why_at_last.as_deref(), Some("absent"));
        assert_eq!((moment.key, moment.why.as_str()), (3, "inquorate"));
        assert!(moment.found_after_s > Some(0.09), "{moment:?}");
        assert!(!read.is_clean() && ReadBack::of(3, |_| Reading::Fine).is_clean());
    }
}
