//! What both forms of the simulation promise of a seed.

use std::fmt::Debug;
use trefoil_sim::Violation;

/// A seed makes the same run each time; to listen to it changes nothing.
#[track_caller]
pub(crate) fn replays<S: PartialEq + Debug>(
    run_seed: impl Fn(u64, &mut dyn FnMut(&str)) -> Result<S, Violation>,
    run: impl Fn(u64) -> Result<S, Violation>,
) {
    for seed in [1, 77, u64::MAX] {
        let mut traces = [Vec::new(), Vec::new()];
        let stats = traces.each_mut().map(|lines| {
            run_seed(seed, &mut |line| lines.push(line.to_owned())).expect("a clean seed")
        });
        assert_eq!(stats[0], stats[1]);
        assert_eq!(traces[0], traces[1]);
        assert!(traces[0].len() > 20);
        assert_eq!(run(seed).expect("a clean seed"), stats[0]);
    }
}
