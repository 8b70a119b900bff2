//! The promise of the mutation and quorum rules, checked while the history is
//! made. All events are in real-time order: the simulator is one thread.

use crate::violation::Property;
use trefoil_layout::Version;

/// A broken promise, and how.
pub(crate) type Broken = (Property, String);

/// What a GET must not fall behind, taken when it begins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    acknowledged: Version,
    hit: Version,
}

/// Everything that was promised about one key.
#[derive(Debug, Default)]
pub(crate) struct KeyHistory {
    acknowledged: Vec<Version>,
    acknowledged_max: Version,
    /// Whether that one stored something that lasts.
    is_there: bool,
    /// Versions that fills have gone out under, and when their misses ended.
    fills: Vec<(Version, u64)>,
    /// Versions that mutations were acknowledged at, and when they began.
    written: Vec<(Version, u64)>,
    /// Versions of whatever may have left nothing behind, done or not.
    removing: Vec<Version>,
    /// Those that stored something that lasts, and CAS over nothing.
    lasting: Vec<Version>,
    added: Vec<Version>,
    /// Nobody has ended what survivors disagree about since the run began.
    survivors_disagree: bool,
    seen: Vec<Version>,
    seen_max: Version,
    /// Versions of CAS reported failed.
    failed: Vec<Version>,
    /// Versions of mutations reported as not done.
    undone: Vec<Version>,
    /// Expected and own version of CAS reported successful.
    exact: Vec<(Version, Version)>,
}

impl KeyHistory {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            acknowledged: self.acknowledged_max,
            hit: self.seen_max,
        }
    }

    /// A GET that began at `snapshot` returned `version`.
    pub(crate) fn hit(&mut self, snapshot: Snapshot, version: Version) -> Result<(), Broken> {
        if version < snapshot.acknowledged {
            let newer = snapshot.acknowledged;
            return broken(
                Property::Fresh,
                format!("hit {version:?}, but {newer:?} was acknowledged before the GET began"),
            );
        }
        if version < snapshot.hit {
            let newer = snapshot.hit;
            return broken(
                Property::Monotone,
                format!("hit {version:?}, but {newer:?} was hit before the GET began"),
            );
        }
        if self.failed.contains(&version) {
            return broken(
                Property::Failed,
                format!("hit {version:?}, a CAS that was reported failed"),
            );
        }
        if self.undone.contains(&version) {
            return broken(
                Property::Ghost,
                format!("hit {version:?}, which was reported as not done"),
            );
        }
        if self.seen.contains(&version) {
            return Ok(());
        }
        self.check_between(version, "seen")?;
        self.seen.push(version);
        self.seen_max = self.seen_max.max(version);
        self.check_fills()
    }

    /// A GET found nothing while nothing fails and nobody else is at work.
    pub(crate) fn lonely_miss(&self, is_inquorate: bool) -> Result<(), Broken> {
        if is_inquorate && !self.survivors_disagree {
            return broken(Property::Quorum, "a GET found no quorum".to_owned());
        }
        if self.is_there {
            let version = self.acknowledged_max;
            let message = format!("a GET found nothing, but {version:?} was acknowledged");
            return broken(Property::Kept, message);
        }
        Ok(())
    }

    /// What survivors hold when the run begins, and who has died.
    pub(crate) fn begin_with(&mut self, held: [Option<Version>; 3]) {
        self.survivors_disagree = held[0] != held[1];
        for version in held.into_iter().flatten() {
            if held.iter().filter(|other| **other == Some(version)).count() > 1 {
                self.acknowledged.push(version);
                self.acknowledged_max = self.acknowledged_max.max(version);
            }
        }
        self.is_there = held[0].is_some() && held[0] == held[1];
    }

    /// A fill goes out under this version, after a miss that ended at this step.
    pub(crate) fn fills(&mut self, version: Version, missed: u64) {
        self.fills.push((version, missed));
    }

    /// Something was acknowledged at this version; it had begun at this step.
    pub(crate) fn written(&mut self, version: Version, begun: u64) -> Result<(), Broken> {
        self.written.push((version, begun));
        self.check_fills()
    }

    /// A fill that was stored, or seen, lies below whatever was acknowledged and
    /// had begun after its miss.
    fn check_fills(&self) -> Result<(), Broken> {
        for (fill, missed) in &self.fills {
            if !self.acknowledged.contains(fill) && !self.seen.contains(fill) {
                continue;
            }
            let replaced = |(version, begun): &&(Version, u64)| begun > missed && version < fill;
            if let Some((version, begun)) = self.written.iter().find(replaced) {
                let message = format!(
                    "fill {fill:?} of a miss at step {missed} replaced {version:?}, which began at step {begun}"
                );
                return broken(Property::StaleFill, message);
            }
        }
        Ok(())
    }

    /// A mutation goes out under this version that leaves nothing that lasts.
    pub(crate) fn removing(&mut self, version: Version) {
        self.removing.push(version);
    }

    /// While nothing is evicted or forgotten: no CAS over nothing takes the place
    /// of what was stored and not removed.
    pub(crate) fn check_added(&self) -> Result<(), Broken> {
        for added in &self.added {
            let below = |version: &&Version| *version < added;
            let Some(last) = self.lasting.iter().filter(below).max() else {
                continue;
            };
            let between = |version: &&Version| last < *version && *version < added;
            if !self.removing.iter().any(|version| between(&version)) {
                let message =
                    format!("CAS {added:?} over nothing is successful, but {last:?} was there");
                return broken(Property::Kept, message);
            }
        }
        Ok(())
    }

    /// A CAS over nothing was reported stored.
    pub(crate) fn added(&mut self, version: Version) {
        self.added.push(version);
    }

    /// A mutation was reported stored; `leaves` something that lasts.
    pub(crate) fn stored(&mut self, version: Version, leaves: bool) -> Result<(), Broken> {
        self.check_between(version, "acknowledged")?;
        self.survivors_disagree = false;
        self.acknowledged.push(version);
        if leaves {
            self.lasting.push(version);
        } else {
            self.removing.push(version);
        }
        if version > self.acknowledged_max {
            self.acknowledged_max = version;
            self.is_there = leaves;
        }
        self.check_fills()
    }

    /// A CAS over `expected` was reported stored.
    pub(crate) fn cas_stored(&mut self, expected: Version, version: Version) -> Result<(), Broken> {
        let between = |other: &&Version| expected < **other && **other < version;
        if let Some(other) = self.acknowledged.iter().chain(&self.seen).find(between) {
            return broken(
                Property::Exact,
                format!(
                    "CAS {version:?} over {expected:?} is successful, but {other:?} was acknowledged or seen"
                ),
            );
        }
        self.exact.push((expected, version));
        Ok(())
    }

    /// A CAS that expects no value, after a GET that found none and with nobody
    /// else at work, did not store at its first attempt.
    pub(crate) fn not_healed(&self) -> Result<(), Broken> {
        let message = "survivors disagree, and a CAS that expects no value was not stored";
        broken(Property::Healed, message.to_owned())
    }

    /// A CAS was reported failed.
    pub(crate) fn cas_failed(&mut self, version: Version) -> Result<(), Broken> {
        if self.seen.contains(&version) {
            return broken(
                Property::Failed,
                format!("CAS {version:?} is reported failed, but was seen"),
            );
        }
        self.failed.push(version);
        Ok(())
    }

    /// A mutation was reported as not done at all.
    pub(crate) fn undone(&mut self, version: Version) -> Result<(), Broken> {
        if self.seen.contains(&version) {
            return broken(
                Property::Ghost,
                format!("{version:?} is reported as not done, but was seen"),
            );
        }
        self.undone.push(version);
        Ok(())
    }

    fn check_between(&self, version: Version, how: &str) -> Result<(), Broken> {
        let around = self
            .exact
            .iter()
            .find(|(expected, own)| *expected < version && version < *own);
        match around {
            None => Ok(()),
            Some((expected, own)) => broken(
                Property::Exact,
                format!(
                    "{version:?} was {how}, between CAS {own:?} and the {expected:?} it replaced"
                ),
            ),
        }
    }
}

fn broken<T>(property: Property, message: String) -> Result<T, Broken> {
    Err((property, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(time_ns: u64) -> Version {
        Version::new(time_ns, 1, 0)
    }

    #[track_caller]
    fn breaks(result: Result<(), Broken>, property: Property) {
        assert_eq!(result.unwrap_err().0, property);
    }

    #[test]
    fn hits_are_fresh_and_monotone_only_against_what_ended_before() {
        let mut history = KeyHistory::default();
        let early = history.snapshot();
        history.stored(v(5), true).unwrap();
        let late = history.snapshot();
        history.hit(early, v(3)).unwrap();
        breaks(history.hit(late, v(4)), Property::Fresh);
        history.hit(late, v(9)).unwrap();
        breaks(history.hit(history.snapshot(), v(8)), Property::Monotone);
        history.hit(late, v(8)).unwrap();
    }

    #[test]
    fn what_was_denied_is_never_seen_before_or_after() {
        let mut history = KeyHistory::default();
        history.cas_failed(v(5)).unwrap();
        history.undone(v(6)).unwrap();
        let now = history.snapshot();
        breaks(history.hit(now, v(5)), Property::Failed);
        breaks(history.hit(now, v(6)), Property::Ghost);
        history.hit(now, v(7)).unwrap();
        breaks(history.cas_failed(v(7)), Property::Failed);
        breaks(history.undone(v(7)), Property::Ghost);
    }

    #[test]
    fn what_was_stored_last_is_kept_and_what_was_erased_is_not_missed() {
        let mut history = KeyHistory::default();
        history.lonely_miss(false).unwrap();
        breaks(history.lonely_miss(true), Property::Quorum);
        history.stored(v(5), true).unwrap();
        breaks(history.lonely_miss(false), Property::Kept);
        history.stored(v(6), false).unwrap();
        history.stored(v(4), true).unwrap();
        history.lonely_miss(false).unwrap();
    }

    #[test]
    fn nothing_stands_between_a_cas_and_what_it_replaced() {
        let mut history = KeyHistory::default();
        history.stored(v(5), true).unwrap();
        history.cas_stored(v(5), v(9)).unwrap();
        breaks(history.stored(v(7), true), Property::Exact);
        breaks(history.hit(Snapshot::default(), v(7)), Property::Exact);
        history.stored(v(12), true).unwrap();
        breaks(history.cas_stored(v(9), v(15)), Property::Exact);
    }
}
