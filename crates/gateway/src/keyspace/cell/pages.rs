//! Pages of listings, fetched ahead: while a client is told of one, the next is on
//! its way.
//!
//! A page is what a worker asks the cell for: many items, because each is a call to
//! every backend of a shard. It is handed out in slices, because each is a piece of work
//! on the event loop. What is left of it waits here for a moment.
//!
//! A listing that has asked for a second page most likely asks for a third. That one
//! is fetched as soon as the second is being handed out. What was not asked for within a
//! moment is forgotten: items may have changed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use trefoil_gateway_core::deferred::{Outcome, OwnedListed, Ticket};
use trefoil_gateway_core::keyspace::Fault;

/// Items of a page. Of a first one no more are fetched than are asked for: nobody is
/// known to go on behind it.
const FETCHED_COUNT: usize = 4096;
/// Pages that wait or are on their way, of all listings of an event loop, beyond which
/// none is fetched ahead.
const COUNT_MAX: usize = 8;
/// How long one waits: what it tells is so old at most.
const AGE_MAX: Duration = Duration::from_millis(500);
/// Tickets of pages, apart from those of operations.
const OWN_TICKETS: Ticket = 1 << 63;

/// A page to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) ticket: Ticket,
    pub(super) cursor: u64,
    pub(super) count: usize,
}

/// A page that has come: items, each with the cursor at which a listing goes on with it.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) items: VecDeque<(u64, OwnedListed)>,
    /// Where the next page begins; 0 at the end.
    pub(super) next: u64,
}

impl Fetched {
    /// Takes about `count` items; where to go on behind them.
    fn take(&mut self, count: usize) -> (Vec<OwnedListed>, u64) {
        let mut len = count.max(1).min(self.items.len());
        // Items at the same place stay together, or the cursor would name none of them.
        while len > 0 && len < self.items.len() && self.items[len].0 == self.items[len - 1].0 {
            len += 1;
        }
        let slice = self.items.drain(..len).map(|(_, item)| item).collect();
        (slice, self.begin())
    }

    /// The cursor of what is left.
    fn begin(&self) -> u64 {
        self.items.front().map_or(self.next, |(cursor, _)| *cursor)
    }
}

#[derive(Debug)]
enum State {
    /// On its way, and who waits for how many items of it.
    UnderWay(Part, Option<(Ticket, usize)>),
    Here(Fetched),
}

#[derive(Debug)]
struct Page {
    begun: Instant,
    /// It is the first one of a listing.
    is_first: bool,
    state: State,
}

/// What is known of a slice that somebody asks for.
#[derive(Debug)]
pub(super) enum Found {
    /// This is it.
    Slice(Outcome),
    /// It is on its way.
    UnderWay,
    /// It is to be fetched.
    Nothing(Part),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<Page>,
    next: Ticket,
}

impl Pages {
    /// Somebody asks for about `count` items. Besides, a page may have to be fetched
    /// ahead.
    pub(super) fn ask(
        &mut self,
        asker: Ticket,
        cursor: u64,
        count: usize,
    ) -> (Found, Option<Part>) {
        self.forget_old();
        let is_it = |page: &Page| match &page.state {
            State::UnderWay(part, asker) => part.cursor == cursor && asker.is_none(),
            // A listing that begins sees what is there now.
            State::Here(fetched) => cursor != 0 && fetched.begin() == cursor,
        };
        let Some(at) = self.pages.iter().position(is_it) else {
            let count_max = match cursor {
                0 => count,
                _ => FETCHED_COUNT.max(count),
            };
            let part = self.fetch(cursor, count_max, Some((asker, count)));
            return (Found::Nothing(part), None);
        };
        match &mut self.pages[at].state {
            State::UnderWay(_, waits) => {
                *waits = Some((asker, count));
                (Found::UnderWay, None)
            }
            State::Here(_) => {
                let (outcome, ahead) = self.hand_out(at, count);
                (Found::Slice(outcome), ahead)
            }
        }
    }

    /// A page has come, or will not. Who waits for a slice of it, with that; and the page
    /// to be fetched ahead.
    pub(super) fn arrived(
        &mut self,
        ticket: Ticket,
        page: Result<Fetched, Fault>,
    ) -> (Option<(Ticket, Outcome)>, Option<Part>) {
        let is_it =
            |page: &Page| matches!(page.state, State::UnderWay(part, _) if part.ticket == ticket);
        let Some(at) = self.pages.iter().position(is_it) else {
            return (None, None);
        };
        let waits = match self.pages[at].state {
            State::UnderWay(_, waits) => waits,
            State::Here(_) => None,
        };
        match page {
            Err(fault) => {
                // If nobody waits: whoever asks for it hears of it himself.
                self.pages.swap_remove(at);
                let failed = waits.map(|(asker, _)| (asker, Outcome::Listed(Err(fault))));
                (failed, None)
            }
            Ok(fetched) => {
                self.pages[at].begun = Instant::now();
                self.pages[at].state = State::Here(fetched);
                let Some((asker, count)) = waits else {
                    return (None, None);
                };
                let (outcome, ahead) = self.hand_out(at, count);
                (Some((asker, outcome)), ahead)
            }
        }
    }

    /// A slice of a page that is here, and what is to be fetched ahead.
    fn hand_out(&mut self, at: usize, count: usize) -> (Outcome, Option<Part>) {
        let page = &mut self.pages[at];
        let is_first = page.is_first;
        let State::Here(fetched) = &mut page.state else {
            let reason = "a page that has not come".to_owned();
            return (Outcome::Listed(Err(Fault::Unavailable(reason))), None);
        };
        let slice = fetched.take(count);
        let next = fetched.next;
        if fetched.items.is_empty() {
            self.pages.swap_remove(at);
        }
        let is_known =
            self.pages.iter().any(
                |page| matches!(page.state, State::UnderWay(part, None) if part.cursor == next),
            ) || self
                .pages
                .iter()
                .any(|page| matches!(&page.state, State::Here(fetched) if fetched.begin() == next));
        let is_wanted = !is_first && next != 0 && !is_known && self.pages.len() < COUNT_MAX;
        let ahead = is_wanted.then(|| self.fetch(next, FETCHED_COUNT, None));
        (Outcome::Listed(Ok(slice)), ahead)
    }

    fn fetch(&mut self, cursor: u64, count: usize, waits: Option<(Ticket, usize)>) -> Part {
        self.next += 1;
        let part = Part {
            ticket: OWN_TICKETS | self.next,
            cursor,
            count,
        };
        self.pages.push(Page {
            begun: Instant::now(),
            is_first: cursor == 0,
            state: State::UnderWay(part, waits),
        });
        part
    }

    /// Nobody waits for it any more; the page comes all the same.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        for page in &mut self.pages {
            if let State::UnderWay(_, waits) = &mut page.state
                && waits.is_some_and(|(asker, _)| asker == ticket)
            {
                *waits = None;
            }
        }
    }

    /// Something in the whole cell has been changed: what was seen before is old.
    pub(super) fn clear(&mut self) {
        self.pages
            .retain(|page| matches!(page.state, State::UnderWay(_, Some(_))));
    }

    /// Gives up what has waited for long.
    pub(super) fn forget_old(&mut self) {
        self.pages.retain(|page| match page.state {
            State::Here(_) => page.begun.elapsed() < AGE_MAX,
            State::UnderWay(..) => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_gateway_core::keyspace::{ListedItem, Seen};
    use trefoil_layout::Version;

    fn item(number: u64) -> OwnedListed {
        OwnedListed::of(&ListedItem {
            key: &number.to_le_bytes(),
            value_len: number as usize,
            entry_len: 64,
            version: Version::ZERO,
            unique: None,
            client_flags: 0,
            expiry_ms: 0,
            seen: Seen::default(),
        })
    }

    /// A page of items at these places.
    fn page(places: impl IntoIterator<Item = u64>, next: u64) -> Result<Fetched, Fault> {
        Ok(Fetched {
            items: places.into_iter().map(|at| (at, item(at))).collect(),
            next,
        })
    }

    /// The items of a slice, and where it goes on.
    fn told(outcome: Outcome) -> (Vec<usize>, u64) {
        match outcome {
            Outcome::Listed(Ok((items, next))) => {
                (items.iter().map(|of| of.item().value_len).collect(), next)
            }
            other => panic!("{other:?}"),
        }
    }

    /// What is fetched for somebody who asks.
    fn fetched(asked: (Found, Option<Part>)) -> Part {
        match asked {
            (Found::Nothing(part), None) => part,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_are_handed_out_in_slices_and_the_one_behind_a_second_is_fetched_ahead() {
        let mut pages = Pages::default();
        let first = fetched(pages.ask(1, 0, 10));
        assert_eq!(
            (first.cursor, first.count),
            (0, 10),
            "no more than asked for"
        );
        let (asker, ahead) = pages.arrived(first.ticket, page([1, 2], 5));
        let (asker, outcome) = asker.unwrap();
        assert_eq!((asker, told(outcome)), (1, (vec![1, 2], 5)));
        assert_eq!(ahead, None, "a first page");
        let second = fetched(pages.ask(2, 5, 2));
        assert_eq!((second.cursor, second.count), (5, FETCHED_COUNT));
        let (asker, ahead) = pages.arrived(second.ticket, page([5, 6, 6, 6, 7], 9));
        assert_eq!(told(asker.unwrap().1), (vec![5, 6, 6, 6], 7), "one place");
        let third = ahead.expect("fetched ahead");
        assert_eq!(third.cursor, 9);
        let (Found::Slice(rest), None) = pages.ask(3, 7, 2) else {
            panic!("it is here, and the next one is on its way");
        };
        assert_eq!(told(rest), (vec![7], 9));
        assert!(matches!(pages.ask(4, 9, 2), (Found::UnderWay, None)));
        let (asker, ahead) = pages.arrived(third.ticket, page([9], 0));
        let (asker, outcome) = asker.unwrap();
        assert_eq!((asker, told(outcome)), (4, (vec![9], 0)));
        assert_eq!(ahead, None, "the last one");
        assert!(pages.pages.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_goes_on_and_what_failed_is_asked_for_again() {
        let mut pages = Pages::default();
        let part = fetched(pages.ask(7, 9, 1));
        pages.cancel(7);
        // Another one takes it over.
        assert!(matches!(pages.ask(8, 9, 1), (Found::UnderWay, None)));
        let (failed, ahead) = pages.arrived(part.ticket, Err(Fault::Inquorate));
        assert!(matches!(failed, Some((8, Outcome::Listed(Err(_))))));
        assert_eq!(ahead, None);
        let part = fetched(pages.ask(9, 9, 1));
        pages.cancel(9);
        let (nobody, ahead) = pages.arrived(part.ticket, page([9, 10], 12));
        assert!(nobody.is_none() && ahead.is_none());
        // A flush is not outlived.
        pages.clear();
        fetched(pages.ask(10, 9, 1));
        // No more than there is room for.
        for cursor in (100..).step_by(10).take(3 * COUNT_MAX) {
            let part = fetched(pages.ask(cursor, cursor, 1));
            pages.arrived(part.ticket, page([cursor, cursor + 1], cursor + 5));
        }
        let ahead = |page: &&Page| matches!(page.state, State::UnderWay(_, None));
        assert!(pages.pages.iter().filter(ahead).count() <= COUNT_MAX);
    }
}
