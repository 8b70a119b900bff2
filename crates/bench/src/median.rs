//! Medians of interleaved runs: A B C, A B C, … so that a machine's slow minute
//! falls on all alike, and one odd run decides nothing.

use std::collections::BTreeMap;

use crate::load::{Latency, Summary};

/// Something measured several times.
pub trait Median: Sized {
    /// Figure by figure, the middle of all runs (the upper one of two middles);
    /// nothing of no runs.
    fn median(runs: &[Self]) -> Option<Self>;
}

impl Median for u64 {
    fn median(runs: &[Self]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

impl Median for f64 {
    fn median(runs: &[Self]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

impl Median for Latency {
    fn median(runs: &[Self]) -> Option<Self> {
        Some(Self {
            count: median_of(runs, |run| run.count)?,
            mean_ns: median_of(runs, |run| run.mean_ns)?,
            p50_ns: median_of(runs, |run| run.p50_ns)?,
            p99_ns: median_of(runs, |run| run.p99_ns)?,
            p999_ns: median_of(runs, |run| run.p999_ns)?,
            max_ns: median_of(runs, |run| run.max_ns)?,
        })
    }
}

/// Latencies, rates and ordinary counts are medians. What must not happen at all
/// (failed, stale, wrong and so on) and retries are sums over all runs: a median
/// would hide the one run in which it did.
impl Median for Summary {
    fn median(runs: &[Self]) -> Option<Self> {
        let sum = |figure: fn(&Self) -> u64| runs.iter().map(figure).sum();
        let mut retries = BTreeMap::new();
        for (cause, count) in runs.iter().flat_map(|run| &run.retries) {
            *retries.entry(cause.clone()).or_default() += count;
        }
        Some(Self {
            ops: median_of(runs, |run| run.ops)?,
            failed: sum(|run| run.failed),
            misses: median_of(runs, |run| run.misses)?,
            stale: sum(|run| run.stale),
            retries,
            ops_per_s: median_of(runs, |run| run.ops_per_s)?,
            p50_ns: median_of(runs, |run| run.p50_ns)?,
            p99_ns: median_of(runs, |run| run.p99_ns)?,
            p999_ns: median_of(runs, |run| run.p999_ns)?,
            hits: median_of(runs, |run| run.hits)?,
            wrong: sum(|run| run.wrong),
            unverified: median_of(runs, |run| run.unverified)?,
            superseded: sum(|run| run.superseded),
            indeterminate: sum(|run| run.indeterminate),
            seconds: median_of(runs, |run| run.seconds)?,
            get: median_of(runs, |run| run.get)?,
            set: median_of(runs, |run| run.set)?,
            first_error: runs.iter().find_map(|run| run.first_error.clone()),
        })
    }
}

fn median_of<R, M: Median>(runs: &[R], figure: impl Fn(&R) -> M) -> Option<M> {
    M::median(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// One of several systems to be measured in turn.
pub struct Contender<'a, M, E> {
    /// Its name in the results.
    pub name: String,
    /// Measures it once; told the number of the round, from 0.
    pub measure: Box<dyn FnMut(usize) -> Result<M, E> + 'a>,
}

impl<'a, M, E> Contender<'a, M, E> {
    /// A name and what measures it.
    pub fn new(name: &str, measure: impl FnMut(usize) -> Result<M, E> + 'a) -> Self {
        Self {
            name: name.to_owned(),
            measure: Box::new(measure),
        }
    }
}

/// Measures all contenders in turn, `rounds` times, and gives the medians in the
/// contenders' order. `progress` is told before each measurement who is next.
/// The first error ends everything.
pub fn interleave<M: Median, E>(
    contenders: &mut [Contender<'_, M, E>],
    rounds: usize,
    progress: &mut dyn FnMut(usize, &str),
) -> Result<Vec<(String, M)>, E> {
    let mut runs: Vec<Vec<M>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (contender, runs) in contenders.iter_mut().zip(&mut runs) {
            progress(round, &contender.name);
            runs.push((contender.measure)(round)?);
        }
    }
    let names = contenders.iter().map(|contender| contender.name.clone());
    Ok(names
        .zip(runs)
        .filter_map(|(name, runs)| Some((name, M::median(&runs)?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_interleave_and_medians_stand() {
        let mut order = Vec::new();
        let mut contenders = [
            Contender::new("a", |round| Ok::<u64, ()>([9, 1, 5][round])),
            Contender::new("b", |round| Ok([2, 2, 80][round])),
        ];
        let medians = interleave(&mut contenders, 3, &mut |round, name| {
            order.push(format!("{name}{round}"));
        });
        assert_eq!(medians.unwrap(), [("a".to_owned(), 5), ("b".to_owned(), 2)]);
        assert_eq!(order, ["a0", "b0", "a1", "b1", "a2", "b2"]);
    }

    #[test]
    fn an_error_ends_everything() {
        let mut contenders = [Contender::new("a", |round| match round {
            0 => Ok(1u64),
            _ => Err("gone"),
        })];
        let result = interleave(&mut contenders, 9, &mut |round, _| assert!(round < 2));
        assert_eq!(result, Err("gone"));
    }

    #[test]
    fn nothing_bad_hides_behind_a_median() {
        let run = |p50_ns, stale| Summary {
            p50_ns,
            stale,
            retries: BTreeMap::from([("torn".to_owned(), 1)]),
            ..Summary::default()
        };
        let median = Summary::median(&[run(10, 0), run(30, 7), run(20, 0)]).unwrap();
        assert_eq!((median.p50_ns, median.stale), (20, 7));
        assert_eq!(median.retries["torn"], 3);
        assert_eq!(Summary::median(&[]), None);
        assert_eq!(f64::median(&[1.0, f64::NAN, 2.0]), Some(2.0));
    }
}
