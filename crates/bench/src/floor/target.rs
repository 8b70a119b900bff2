//! The floor as a target, so that it is timed by the very loop that times the
//! systems compared with it.

use std::time::Duration;

use super::{BucketRead, FloorCorpus};
use crate::load::KeyCodec;
use crate::target::{GetOutcome, SetOutcome, Target, TargetError};

/// One reader of a [`FloorCorpus`].
#[derive(Debug)]
pub struct FloorTarget<'a> {
    corpus: &'a FloorCorpus,
    codec: KeyCodec,
    private: Vec<u8>,
}

impl<'a> FloorTarget<'a> {
    /// A reader with private memory of its own, for keys spelled by `codec`.
    pub fn new(corpus: &'a FloorCorpus, codec: KeyCodec) -> Self {
        Self {
            corpus,
            codec,
            private: vec![0; corpus.value_len()],
        }
    }
}

fn unsupported(operation: &'static str) -> TargetError {
    TargetError::Unsupported {
        system: "floor",
        operation,
    }
}

impl Target for FloorTarget<'_> {
    /// The value's bytes are the floor's own and prove nothing to
    /// [`verify`](crate::load::verify), so a read that passed its checksum counts
    /// as a hit without bytes: "unverified" in a summary.
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        let Some(number) = self.codec.decode(key) else {
            return Ok(GetOutcome::Miss);
        };
        let read = self
            .corpus
            .read(number as usize, BucketRead::Copy, &mut self.private);
        Ok(match read {
            Some(_) => GetOutcome::Hit(&[]),
            None => GetOutcome::Miss,
        })
    }

    fn set(
        &mut self,
        _key: &[u8],
        _value: &[u8],
        _ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        Err(unsupported("set"))
    }

    fn erase(&mut self, _key: &[u8]) -> Result<SetOutcome, TargetError> {
        Err(unsupported("erase"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::FloorOptions;
    use crate::load::{
        Bound, RequestSource as _, RunOptions, RunShared, Summary, SyntheticOptions,
        SyntheticSource, run,
    };

    #[test]
    fn the_floor_is_measured_by_the_load_runner() {
        let corpus = FloorCorpus::create(FloorOptions::new(1 << 20, 1024)).unwrap();
        let mut source = SyntheticSource::new(SyntheticOptions {
            keys_count: corpus.keys_count() as u64,
            ..Default::default()
        })
        .unwrap();
        let mut target = FloorTarget::new(&corpus, source.codec());
        let options = RunOptions {
            bound: Bound::Ops(20_000),
            ..Default::default()
        };
        let result = run(&mut target, &mut source, &options, &RunShared::reading()).unwrap();
        let summary = Summary::of(&result);
        assert_eq!(
            (summary.hits, summary.misses, summary.wrong),
            (20_000, 0, 0)
        );
        assert!((20..100_000).contains(&summary.p50_ns), "{summary:?}");
    }
}
