//! A trace in memory, as a source of requests.

use std::collections::HashMap;

use super::{TraceError, TraceReader};
use crate::load::{KeyCodec, LoadError, Operation, Request, RequestSource, Share};

const OBJECTS_MAX: u64 = u32::MAX as u64;

/// A whole trace, its blocks renumbered from 0 in the order of first use.
#[derive(Debug, Clone)]
pub struct Trace {
    references: Vec<u32>,
    objects_count: u64,
}

impl Trace {
    /// Reads all of a trace.
    pub fn load(reader: TraceReader) -> Result<Self, TraceError> {
        let mut numbers = HashMap::new();
        let mut references = Vec::new();
        for block in reader {
            let next = numbers.len() as u64;
            if next >= OBJECTS_MAX {
                return Err(TraceError::TooManyObjects { max: OBJECTS_MAX });
            }
            references.push(*numbers.entry(block?).or_insert(next as u32));
        }
        Ok(Self {
            references,
            objects_count: numbers.len() as u64,
        })
    }

    /// The objects referred to, in order.
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// How many distinct objects there are, numbered from 0.
    pub fn objects_count(&self) -> u64 {
        self.objects_count
    }
}

/// Replays a trace as lookups: run it with `fill_on_miss`, as a look-aside cache
/// is used. Of several clients each replays the objects of its share, so that
/// every object has one writer.
#[derive(Debug, Clone)]
pub struct TraceSource<'a> {
    trace: &'a Trace,
    at: usize,
    codec: KeyCodec,
    value_len: usize,
    share: Share,
}

impl<'a> TraceSource<'a> {
    /// From the beginning, with keys and values of these lengths.
    pub fn new(
        trace: &'a Trace,
        key_len: usize,
        value_len: usize,
        share: Share,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            trace,
            at: 0,
            codec: KeyCodec::new(key_len, trace.objects_count)?,
            value_len,
            share,
        })
    }
}

impl RequestSource for TraceSource<'_> {
    fn codec(&self) -> KeyCodec {
        self.codec
    }

    fn keys_count(&self) -> u64 {
        self.trace.objects_count
    }

    fn is_finite(&self) -> bool {
        true
    }

    fn next_request(&mut self) -> Option<Request> {
        loop {
            let key = u64::from(*self.trace.references.get(self.at)?);
            self.at += 1;
            if key % self.share.count == self.share.index {
                return Some(Request {
                    operation: Operation::Get,
                    key,
                    value_len: self.value_len,
                    ttl: None,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::OLTP;

    #[test]
    fn the_carried_trace_is_complete() {
        let trace = Trace::load(TraceReader::new(OLTP).unwrap()).unwrap();
        assert_eq!(trace.references().len(), 914_145);
        assert_eq!(trace.references()[..3], [0, 1, 2]);
        let highest = trace.references().iter().max().copied().unwrap();
        assert_eq!(u64::from(highest) + 1, trace.objects_count());
    }

    #[test]
    fn shares_cover_a_trace_without_overlap() {
        let text = &b"10 3 0 1\n11 2 0 2\n10 1 0 3\n"[..];
        let trace = Trace::load(TraceReader::new(text).unwrap()).unwrap();
        assert_eq!(trace.references(), [0, 1, 2, 1, 2, 0]);
        let replay = |index, count| {
            let mut source = TraceSource::new(&trace, 16, 100, Share { index, count }).unwrap();
            std::iter::from_fn(move || source.next_request().map(|r| r.key)).collect::<Vec<_>>()
        };
        assert_eq!(replay(0, 1), [0, 1, 2, 1, 2, 0]);
        assert_eq!(replay(0, 2), [0, 2, 2, 0]);
        assert_eq!(replay(1, 2), [1, 1]);
    }
}
