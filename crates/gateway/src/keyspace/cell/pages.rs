//! Pages of listings, fetched ahead: while a client is told of one, the next is on
//! its way.
//!
//! A listing that has asked for a second page most likely asks for a third. That one
//! is fetched by a worker as soon as the second has come, and waits here for a moment.
//! A page that was not asked for within that is forgotten: items may have changed.

use std::time::{Duration, Instant};
use trefoil_gateway_core::deferred::{Outcome, Ticket};

/// Pages that wait or are on their way, of all listings of an event loop.
const COUNT_MAX: usize = 8;
/// How long one waits: what it tells is so old at most.
const AGE_MAX: Duration = Duration::from_millis(500);
/// Tickets of pages that nobody has asked for yet.
const OWN_TICKETS: Ticket = 1 << 63;

/// A part of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) cursor: u64,
    pub(super) count: usize,
}

#[derive(Debug)]
enum State {
    UnderWay,
    /// Somebody waits for it.
    AskedFor(Ticket),
    Here(Outcome),
}

#[derive(Debug)]
struct Page {
    ticket: Ticket,
    part: Part,
    begun: Instant,
    state: State,
}

/// What is known of a page that somebody asks for.
#[derive(Debug)]
pub(super) enum Found {
    /// This is it.
    Page(Outcome),
    /// It is on its way, and its outcome will be this ticket's.
    UnderWay,
    /// Nothing.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<Page>,
    /// Parts that clients have asked for themselves.
    asked: Vec<(Ticket, Part)>,
    next: Ticket,
}

impl Pages {
    /// Somebody asks for a part.
    pub(super) fn ask(&mut self, ticket: Ticket, part: Part) -> Found {
        self.forget_old();
        let at = self
            .pages
            .iter()
            .position(|page| page.part == part && !matches!(page.state, State::AskedFor(_)));
        match at {
            None => {
                self.asked.push((ticket, part));
                Found::Nothing
            }
            Some(at) if matches!(self.pages[at].state, State::UnderWay) => {
                self.pages[at].state = State::AskedFor(ticket);
                Found::UnderWay
            }
            Some(at) => match self.pages.swap_remove(at).state {
                State::Here(outcome) => Found::Page(outcome),
                _ => Found::Nothing,
            },
        }
    }

    /// An outcome has come. Whose it is: nobody's yet, if it was fetched ahead.
    pub(super) fn arrived(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Option<(Ticket, Outcome)> {
        if ticket & OWN_TICKETS == 0 {
            return Some((ticket, outcome));
        }
        let at = self.pages.iter().position(|page| page.ticket == ticket)?;
        match (&self.pages[at].state, &outcome) {
            (State::AskedFor(asker), _) => {
                let asker = *asker;
                let part = self.pages.swap_remove(at).part;
                self.asked.push((asker, part));
                Some((asker, outcome))
            }
            (_, Outcome::Listed(Err(_))) => {
                // Whoever asks for it hears of it himself.
                self.pages.swap_remove(at);
                None
            }
            _ => {
                self.pages[at].begun = Instant::now();
                self.pages[at].state = State::Here(outcome);
                None
            }
        }
    }

    /// This page goes to who has asked for it; the part to be fetched ahead, if any.
    pub(super) fn handed_out(
        &mut self,
        ticket: Ticket,
        outcome: &Outcome,
    ) -> Option<(Ticket, Part)> {
        let at = self.asked.iter().position(|(asker, _)| *asker == ticket)?;
        let (_, part) = self.asked.swap_remove(at);
        self.ahead(part, outcome)
    }

    /// The part behind this one, if it is to be fetched ahead.
    pub(super) fn ahead(&mut self, part: Part, outcome: &Outcome) -> Option<(Ticket, Part)> {
        let Outcome::Listed(Ok((_, next))) = outcome else {
            return None;
        };
        self.forget_old();
        let ahead = Part {
            cursor: *next,
            ..part
        };
        let is_known = self.pages.iter().any(|page| page.part == ahead);
        // Nobody is known to go on behind a first page.
        if part.cursor == 0 || *next == 0 || is_known || self.pages.len() >= COUNT_MAX {
            return None;
        }
        self.next += 1;
        let ticket = OWN_TICKETS | self.next;
        self.pages.push(Page {
            ticket,
            part: ahead,
            begun: Instant::now(),
            state: State::UnderWay,
        });
        Some((ticket, ahead))
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.asked.retain(|(asker, _)| *asker != ticket);
        for page in &mut self.pages {
            if matches!(page.state, State::AskedFor(asker) if asker == ticket) {
                page.state = State::UnderWay;
            }
        }
    }

    /// Something in the whole cell has been changed: what was seen before is old.
    pub(super) fn clear(&mut self) {
        self.pages
            .retain(|page| matches!(page.state, State::AskedFor(_)));
    }

    fn forget_old(&mut self) {
        self.pages.retain(|page| match page.state {
            State::Here(_) => page.begun.elapsed() < AGE_MAX,
            _ => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_gateway_core::keyspace::Fault;

    fn part(cursor: u64) -> Part {
        Part { cursor, count: 10 }
    }

    fn page(next: u64) -> Outcome {
        Outcome::Listed(Ok((Vec::new(), next)))
    }

    #[test]
    fn the_page_behind_a_second_one_is_fetched_ahead() {
        let mut pages = Pages::default();
        assert!(matches!(pages.ask(1, part(0)), Found::Nothing));
        assert_eq!(pages.handed_out(1, &page(5)), None, "a first page");
        assert!(matches!(pages.ask(2, part(5)), Found::Nothing));
        let (ticket, ahead) = pages.handed_out(2, &page(9)).expect("fetched ahead");
        assert_eq!(ahead, part(9));
        // It comes before it is asked for.
        assert!(pages.arrived(ticket, page(12)).is_none());
        assert!(matches!(pages.ask(3, part(9)), Found::Page(_)));
        assert!(matches!(pages.ask(4, part(9)), Found::Nothing), "once");
        // Or after that.
        let (ticket, _) = pages.ahead(part(9), &page(12)).expect("fetched ahead");
        assert!(matches!(pages.ask(5, part(12)), Found::UnderWay));
        let (asker, outcome) = pages.arrived(ticket, page(0)).expect("asked for");
        assert_eq!(asker, 5);
        assert_eq!(pages.handed_out(5, &outcome), None, "the last one");
    }

    #[test]
    fn what_nobody_waits_for_goes_on_and_what_failed_is_asked_for_again() {
        let mut pages = Pages::default();
        let (ticket, _) = pages.ahead(part(5), &page(9)).expect("fetched ahead");
        assert!(matches!(pages.ask(7, part(9)), Found::UnderWay));
        pages.cancel(7);
        let failed = Outcome::Listed(Err(Fault::Inquorate));
        assert!(pages.arrived(ticket, failed).is_none());
        assert!(matches!(pages.ask(8, part(9)), Found::Nothing));
        // No more than there is room for.
        let begun = (10..30).filter_map(|at| pages.ahead(part(at), &page(at + 100)));
        assert_eq!(begun.count(), COUNT_MAX);
    }
}
