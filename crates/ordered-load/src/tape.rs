//! What is asked for and when, made before the measurement: to draw from a distribution
//! costs the client more than to send a request, and a peak would be the client's.

use crate::cache::spell;
use crate::clusters::{Cluster, Stream, Wanted};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Requests until they come again.
const REQUESTS: usize = 1 << 17;
/// Gaps until they come again; another number, so that both together take long.
const GAPS: usize = (1 << 16) - 15;

/// An endless sequence of requests and of gaps between them.
pub struct Tape {
    requests: Vec<Wanted>,
    next_request: usize,
    /// Exponentially distributed around 1.
    gaps: Vec<f32>,
    next_gap: usize,
    get: Vec<u8>,
    set: Vec<u8>,
}

impl Tape {
    pub(crate) fn new(cluster: Cluster, mut stream: Stream, value: &[u8]) -> Self {
        let mut rng = SmallRng::seed_from_u64(11);
        let (mut get, mut set) = (Vec::new(), Vec::new());
        spell(&mut get, 0, cluster.key_len, None);
        spell(&mut set, 0, cluster.key_len, Some(value));
        Tape {
            requests: (0..REQUESTS).map(|_| stream.next()).collect(),
            next_request: 0,
            gaps: (0..GAPS)
                .map(|_| -(1.0 - rng.random::<f64>()).ln() as f32)
                .collect(),
            next_gap: 0,
            get,
            set,
        }
    }

    /// The next gap, of so many nanoseconds on average.
    #[inline]
    pub(crate) fn gap_ns(&mut self, mean_ns: f64) -> f64 {
        self.next_gap = (self.next_gap + 1) % GAPS;
        f64::from(self.gaps[self.next_gap]) * mean_ns
    }

    /// The request that is due, and whether it is a SET; the same until [`Tape::advance`].
    #[inline]
    pub(crate) fn request(&mut self) -> (&[u8], bool) {
        let Wanted { key, is_set } = self.requests[self.next_request];
        let bytes = if is_set { &mut self.set } else { &mut self.get };
        crate::cache::set_key(bytes, key);
        (bytes, is_set)
    }

    /// Any GET.
    pub(crate) fn get(&self) -> &[u8] {
        &self.get
    }

    /// That one was sent.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next_request = (self.next_request + 1) % REQUESTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_poisson_arrivals_and_requests_are_the_clusters() {
        let cluster = Cluster::all().expect("a table")[0];
        let stream = Stream::new(cluster, 1000, 7).expect("a stream");
        let mut tape = Tape::new(cluster, stream, &[5; 10]);
        let gaps: Vec<f64> = (0..GAPS).map(|_| tape.gap_ns(100.0)).collect();
        let mean = gaps.iter().sum::<f64>() / GAPS as f64;
        assert!((mean - 100.0).abs() < 2.0, "{mean}");
        let longer = gaps.iter().filter(|gap| **gap > 100.0).count() as f64 / GAPS as f64;
        assert!((longer - (-1f64).exp()).abs() < 0.01, "{longer}");
        let mut sets = 0.0;
        for _ in 0..REQUESTS {
            let (bytes, is_set) = tape.request();
            let len = 2 + cluster.key_len + if is_set { 10 } else { 0 };
            assert_eq!(bytes.len(), len);
            sets += f64::from(u8::from(is_set));
            tape.advance();
        }
        assert!((sets / REQUESTS as f64 - cluster.sets).abs() < 0.01);
    }
}
