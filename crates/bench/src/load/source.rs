//! Where requests come from: a synthetic mix here; traces and synthesised
//! clusters in [`workload`](crate::workload).

use std::time::Duration;

use rand::RngExt as _;

use super::{KeyChooser, KeyCodec, LoadError, Popularity};

/// What to do with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Look it up.
    Get,
    /// Write it.
    Set,
    /// Remove it.
    Erase,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// With which key.
    pub key: u64,
    /// Bytes of its value, where one is written.
    pub value_len: usize,
    /// How long a written value lives.
    pub ttl: Option<Duration>,
}

/// An endless or finite stream of requests.
pub trait RequestSource {
    /// How this source's keys are spelled.
    fn codec(&self) -> KeyCodec;
    /// Keys are numbered below this.
    fn keys_count(&self) -> u64;
    /// Whether the stream ends by itself.
    fn is_finite(&self) -> bool {
        false
    }
    /// The next request; nothing at the end.
    fn next_request(&mut self) -> Option<Request>;
}

/// A part of the writers: number `index` of `count`, from 0. Each key belongs to
/// one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Whose part.
    pub index: u64,
    /// Of how many.
    pub count: u64,
}

impl Share {
    /// The only client.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The nearest key that this share may write.
    #[inline]
    pub fn own(&self, key: u64, keys_count: u64) -> u64 {
        let own = key - key % self.count + self.index;
        if own < keys_count {
            own
        } else {
            own.saturating_sub(self.count)
        }
    }
}

/// Bytes of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueLen {
    /// All alike.
    Fixed(usize),
    /// Evenly between two lengths, both included.
    Uniform {
        /// Shortest.
        min: usize,
        /// Longest.
        max: usize,
    },
}

impl ValueLen {
    /// The longest value there will be.
    pub fn max(&self) -> usize {
        match *self {
            Self::Fixed(len) => len,
            Self::Uniform { min, max } => max.max(min),
        }
    }

    fn draw(&self, rng: &mut rand::rngs::SmallRng) -> usize {
        match *self {
            Self::Fixed(len) => len,
            Self::Uniform { min, max } => rng.random_range(min..=max.max(min)),
        }
    }
}

/// What a synthetic load asks for.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticOptions {
    /// Number of keys.
    pub keys_count: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: ValueLen,
    /// How often each key is asked for.
    pub popularity: Popularity,
    /// Part of the requests that are lookups, 0 to 1.
    pub gets: f64,
    /// Life of written values.
    pub ttl: Option<Duration>,
    /// The keys this client may write.
    pub share: Share,
    /// Dice.
    pub seed: u64,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self {
            keys_count: 100_000,
            key_len: 16,
            value_len: ValueLen::Fixed(1024),
            popularity: Popularity::Uniform,
            gets: 1.0,
            ttl: None,
            share: Share::WHOLE,
            seed: 1,
        }
    }
}

/// An endless stream of lookups and writes.
#[derive(Debug, Clone)]
pub struct SyntheticSource {
    options: SyntheticOptions,
    codec: KeyCodec,
    chooser: KeyChooser,
}

impl SyntheticSource {
    /// Checks the options.
    pub fn new(options: SyntheticOptions) -> Result<Self, LoadError> {
        if !(0.0..=1.0).contains(&options.gets) {
            return Err(LoadError::Share {
                what: "a share of lookups",
                value: options.gets,
            });
        }
        Ok(Self {
            codec: KeyCodec::new(options.key_len, options.keys_count)?,
            chooser: KeyChooser::new(options.popularity, options.keys_count, options.seed)?,
            options,
        })
    }
}

impl RequestSource for SyntheticSource {
    fn codec(&self) -> KeyCodec {
        self.codec
    }

    fn keys_count(&self) -> u64 {
        self.options.keys_count
    }

    #[inline]
    fn next_request(&mut self) -> Option<Request> {
        let key = self.chooser.next_key();
        let options = &self.options;
        let rng = self.chooser.rng();
        let is_get = options.gets >= 1.0 || rng.random::<f64>() < options.gets;
        Some(if is_get {
            Request {
                operation: Operation::Get,
                key,
                value_len: options.value_len.max(),
                ttl: options.ttl,
            }
        } else {
            Request {
                operation: Operation::Set,
                key: options.share.own(key, options.keys_count),
                value_len: options.value_len.draw(rng),
                ttl: options.ttl,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_as_asked_and_writes_stay_in_their_share() {
        let mut source = SyntheticSource::new(SyntheticOptions {
            keys_count: 1001,
            gets: 0.95,
            value_len: ValueLen::Uniform { min: 10, max: 20 },
            share: Share { index: 2, count: 3 },
            ..Default::default()
        })
        .unwrap();
        let mut sets = 0;
        for _ in 0..100_000 {
            let request = source.next_request().unwrap();
            assert!(request.key < 1001);
            if request.operation == Operation::Set {
                sets += 1;
                assert_eq!(request.key % 3, 2);
                assert!((10..=20).contains(&request.value_len));
            }
        }
        assert!((4_500..5_500).contains(&sets), "{sets}");
    }

    #[test]
    fn every_own_key_is_reachable() {
        let share = Share { index: 1, count: 4 };
        let own: std::collections::BTreeSet<u64> = (0..13).map(|k| share.own(k, 13)).collect();
        assert_eq!(own.into_iter().collect::<Vec<_>>(), [1, 5, 9]);
    }

    #[test]
    fn shares_outside_0_to_1_are_refused() {
        for gets in [-0.1, 1.1, f64::NAN] {
            let options = SyntheticOptions {
                gets,
                ..Default::default()
            };
            assert!(SyntheticSource::new(options).is_err());
        }
    }
}
