//! To whom nothing is sent in long ones that the kernel would cut up. One route may lead by a
//! device that cannot, while all others do without loss: so it is remembered by receiver, and
//! not for ever, because routes change.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A receiver is tried again after so long.
const FOR: Duration = Duration::from_secs(60);
/// Where so many have been refused at one time, it is the kernel, and nobody is tried so long.
const RECEIVERS_MAX: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    until: HashMap<IpAddr, Instant>,
    all_until: Option<Instant>,
}

impl Refusals {
    /// Whether it was refused lately. `now` is asked for only where anybody was.
    pub(crate) fn is_refused(&mut self, to: IpAddr, now: impl FnOnce() -> Instant) -> bool {
        if self.until.is_empty() && self.all_until.is_none() {
            return false;
        }
        let now = now();
        if self.all_until.is_some_and(|until| now < until) {
            return true;
        }
        self.all_until = None;
        match self.until.get(&to) {
            Some(until) if now < *until => true,
            Some(_) => {
                self.until.remove(&to);
                false
            }
            None => false,
        }
    }

    /// It was refused just now.
    pub(crate) fn note(&mut self, to: IpAddr, now: Instant) {
        self.until.retain(|_, until| now < *until);
        self.until.insert(to, now + FOR);
        if self.until.len() > RECEIVERS_MAX {
            self.until.clear();
            self.all_until = Some(now + FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn who_was_refused_is_tried_again_and_nobody_else_suffers() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        refusals.note(ip(1), begin);
        assert!(refusals.is_refused(ip(1), || begin + FOR / 2));
        assert!(!refusals.is_refused(ip(2), || begin + FOR / 2));
        assert!(!refusals.is_refused(ip(1), || begin + FOR));
        // And nobody asks for the time any more.
        assert!(!refusals.is_refused(ip(1), || unreachable!("nobody is refused")));
    }

    #[test]
    fn where_all_are_refused_nobody_is_tried_for_a_while() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        for number in 0..=RECEIVERS_MAX as u8 {
            refusals.note(ip(number), begin);
        }
        assert!(refusals.is_refused(ip(200), || begin));
        assert!(!refusals.is_refused(ip(200), || begin + FOR));
        assert!(!refusals.is_refused(ip(1), || begin + FOR));
    }
}
