//! Ranges of places: what is asked for at once, and what a page leaves of it.

use crate::copy::leads_on;
use crate::machine::Nonsense;
use crate::page::Page;
use std::ops::Range;
use trefoil_store::PLACES;

/// Ranges in one question. One that asks for more waits for pages in any case: a page has
/// room for about as many.
pub(crate) const RANGES_MAX: usize = 512;

/// Refuses ranges that are none, or not in order.
pub(crate) fn check(ranges: &[Range<u64>]) -> Result<(), Nonsense> {
    let is_place = |range: &Range<u64>| range.start < range.end && range.end <= PLACES.end;
    let in_order = ranges.windows(2).all(|two| two[0].end <= two[1].start);
    match ranges.iter().all(is_place) && in_order {
        true => Ok(()),
        false => Err(Nonsense("places that are none")),
    }
}

/// A page has to lead on, and not beyond what was asked for.
pub(crate) fn check_page<D>(ranges: &[Range<u64>], page: &Page<D>) -> Result<(), Nonsense> {
    match ranges {
        [first, .., last] => leads_on(page, (first.start, last.end)),
        [only] => leads_on(page, (only.start, only.end)),
        [] => Err(Nonsense("a page of nothing")),
    }
}

/// What lies before `next`: a page has told of it.
pub(crate) fn told(ranges: &[Range<u64>], next: u64) -> impl Iterator<Item = Range<u64>> {
    let before = ranges.iter().filter(move |range| range.start < next);
    before.map(move |range| range.start..range.end.min(next))
}

/// What is left of them from `next` on.
pub(crate) fn left(ranges: &[Range<u64>], next: u64) -> Vec<Range<u64>> {
    let behind = ranges.iter().filter(|range| range.end > next);
    let behind = behind.map(|range| range.start.max(next)..range.end);
    behind.collect()
}

/// Places, in any order, as ranges.
pub(crate) fn ranges_of(mut places: Vec<u64>) -> Vec<Range<u64>> {
    places.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for place in places {
        match ranges.last_mut() {
            Some(last) if place < last.end => {}
            Some(last) if place == last.end => last.end += 1,
            _ => ranges.push(place..place + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_of_what_lies_before_its_next_and_leaves_the_rest() {
        let ranges = [2..5, 7..9, 9..20];
        let told = |next| told(&ranges, next).collect::<Vec<_>>();
        for next in 0..25 {
            let places: Vec<u64> = told(next)
                .into_iter()
                .chain(left(&ranges, next))
                .flatten()
                .collect();
            let all: Vec<u64> = ranges.iter().cloned().flatten().collect();
            assert_eq!(places, all, "{next}");
            assert!(told(next).iter().all(|range| range.end <= next));
        }
        assert_eq!(told(8), [2..5, 7..8]);
        assert_eq!(left(&ranges, 8), [8..9, 9..20]);
    }

    #[test]
    fn places_become_ranges_and_ranges_that_are_none_are_refused() {
        assert_eq!(ranges_of(vec![9, 3, 4, 4, 5, 8]), [3..6, 8..10]);
        assert_eq!(ranges_of(Vec::new()), []);
        assert!(check(&[3..6, 6..8]).is_ok());
        let range = |start, end| Range { start, end };
        for nonsense in [
            [range(3, 6), range(5, 8)],
            [range(6, 3), range(6, 7)],
            [range(3, 3), range(3, 4)],
            [range(3, 4), range(5, PLACES.end + 1)],
        ] {
            assert!(check(&nonsense).is_err(), "{nonsense:?}");
        }
    }
}
