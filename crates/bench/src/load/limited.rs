//! The next so many requests of an endless stream.

use super::{KeyCodec, Request, RequestSource};

/// Ends after a number of requests. Two systems asked through the same source
/// and the same limit are asked for exactly the same: a limit of time would give
/// the slower one fewer requests, and with them a colder cache.
#[derive(Debug)]
pub struct Limited<'a, S> {
    source: &'a mut S,
    left: u64,
}

impl<'a, S: RequestSource> Limited<'a, S> {
    /// The next `count` requests of `source`, which goes on from there.
    pub fn new(source: &'a mut S, count: u64) -> Self {
        Self {
            source,
            left: count,
        }
    }
}

impl<S: RequestSource> RequestSource for Limited<'_, S> {
    fn codec(&self) -> KeyCodec {
        self.source.codec()
    }

    fn keys_count(&self) -> u64 {
        self.source.keys_count()
    }

    fn is_finite(&self) -> bool {
        true
    }

    fn next_request(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        self.source.next_request()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SyntheticOptions, SyntheticSource};
    use super::*;

    #[test]
    fn parts_of_a_stream_follow_one_another() {
        let source = || SyntheticSource::new(SyntheticOptions::default()).unwrap();
        let mut whole = source();
        let expected: Vec<_> = (0..7).filter_map(|_| whole.next_request()).collect();
        let mut parted = source();
        let mut found = Vec::new();
        for count in [0, 3, 4] {
            let mut part = Limited::new(&mut parted, count);
            found.extend(std::iter::from_fn(|| part.next_request()));
            assert_eq!(part.next_request(), None);
        }
        assert_eq!(found, expected);
    }
}
