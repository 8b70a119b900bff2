//! Busy and free time: sorted intervals without overlaps. Pure.

use crate::domain::RequestError;
use address_book_contract::v1::{AddressBook, Interval};

/// Checks a time to search in.
pub fn window(within: Option<Interval>) -> Result<Interval, RequestError> {
    match within {
        Some(time) if time.begin_min < time.end_min => Ok(time),
        _ => Err(RequestError::Interval),
    }
}

/// When a book's owner is busy, within a time.
pub fn busy(book: &AddressBook, within: Interval) -> Vec<Interval> {
    let times = book.events.iter().filter_map(|event| event.time);
    merged(times.filter_map(|time| clipped(time, within)).collect())
}

/// Several people's busy times as one.
pub fn merged(mut times: Vec<Interval>) -> Vec<Interval> {
    times.sort_unstable_by_key(|time| (time.begin_min, time.end_min));
    let mut merged: Vec<Interval> = Vec::with_capacity(times.len());
    for time in times {
        match merged.last_mut() {
            Some(last) if time.begin_min <= last.end_min => {
                last.end_min = last.end_min.max(time.end_min);
            }
            _ => merged.push(time),
        }
    }
    merged
}

/// The gaps of at least `minutes` that busy times (merged, within `within`)
/// leave.
pub fn free(busy: &[Interval], within: Interval, minutes: u32) -> Vec<Interval> {
    let begins = std::iter::once(within.begin_min).chain(busy.iter().map(|time| time.end_min));
    let ends = busy.iter().map(|time| time.begin_min);
    let ends = ends.chain(std::iter::once(within.end_min));
    begins
        .zip(ends)
        .filter(|(begin, end)| end.saturating_sub(*begin) >= i64::from(minutes.max(1)))
        .map(|(begin_min, end_min)| Interval { begin_min, end_min })
        .collect()
}

fn clipped(time: Interval, within: Interval) -> Option<Interval> {
    let time = Interval {
        begin_min: time.begin_min.max(within.begin_min),
        end_min: time.end_min.min(within.end_min),
    };
    (time.begin_min < time.end_min).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_book_contract::v1::Event;
    use proptest::prelude::*;

    fn time(begin_min: i64, end_min: i64) -> Interval {
        Interval { begin_min, end_min }
    }

    fn book(times: &[(i64, i64)]) -> AddressBook {
        let event = |&(begin, end): &(i64, i64)| Event {
            time: Some(time(begin, end)),
            title: String::new(),
        };
        AddressBook {
            events: times.iter().map(event).collect(),
            ..AddressBook::default()
        }
    }

    #[test]
    fn a_day_with_two_meetings() {
        let day = time(540, 1020);
        let busy = busy(
            &book(&[(600, 660), (630, 700), (1000, 1100), (10, 20)]),
            day,
        );
        assert_eq!(busy, [time(600, 700), time(1000, 1020)]);
        assert_eq!(free(&busy, day, 60), [time(540, 600), time(700, 1000)]);
        assert_eq!(free(&busy, day, 61), [time(700, 1000)]);
        assert_eq!(free(&[], day, 0), [day]);
        assert!(free(&[day], day, 0).is_empty());
        assert!(window(Some(time(5, 5))).is_err() && window(None).is_err());
    }

    proptest! {
        #[test]
        fn every_minute_is_either_busy_or_free(
            times in prop::collection::vec((0i64..200, 1i64..50), 0..12)
        ) {
            let times: Vec<_> = times.iter().map(|&(at, len)| (at, at + len)).collect();
            let within = time(20, 180);
            let busy = busy(&book(&times), within);
            let free = free(&busy, within, 1);
            let has = |set: &[Interval], minute: i64| {
                set.iter().filter(|t| (t.begin_min..t.end_min).contains(&minute)).count()
            };
            for minute in 0..250 {
                let is_busy = times.iter().any(|t| (t.0..t.1).contains(&minute));
                let inside = (20..180).contains(&minute);
                prop_assert_eq!(has(&busy, minute), usize::from(inside && is_busy));
                prop_assert_eq!(has(&free, minute), usize::from(inside && !is_busy));
            }
        }
    }
}
