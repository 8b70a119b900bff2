//! What requests mean for one book. Pure; every form of the service calls these.

use address_book_contract::EncodedAnswer;
use address_book_contract::v1::{AddressBook, ChangeRequest, LookupRequest};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest name of an owner, in bytes: memcached's keys are no longer.
pub const OWNER_LEN_MAX: usize = 250;
/// Most people in one search for free time.
pub const PEOPLE_COUNT_MAX: usize = 100;

/// Why a request makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A name that no user can have.
    #[error("an owner is 1 to {OWNER_LEN_MAX} bytes without spaces or control characters")]
    Owner,
    /// Too many people, or none.
    #[error("a search is for 1 to {PEOPLE_COUNT_MAX} people, not {0}")]
    PeopleCount(usize),
    /// A time that ends before it begins, or is missing.
    #[error("a time is missing or does not end after it begins")]
    Interval,
}

/// Checks an owner's name.
pub fn check_owner(owner: &str) -> Result<(), RequestError> {
    let is_plain = |byte: u8| byte > b' ' && byte != 0x7f;
    if owner.is_empty() || owner.len() > OWNER_LEN_MAX || !owner.bytes().all(is_plain) {
        return Err(RequestError::Owner);
    }
    Ok(())
}

/// Checks the names of several.
pub fn check_owners(owners: &[String]) -> Result<(), RequestError> {
    if !(1..=PEOPLE_COUNT_MAX).contains(&owners.len()) {
        return Err(RequestError::PeopleCount(owners.len()));
    }
    owners.iter().try_for_each(|owner| check_owner(owner))
}

/// Checks a change before anything is read for it.
pub fn check_change(change: &ChangeRequest) -> Result<(), RequestError> {
    check_owner(&change.owner)?;
    let mut times = change.events.iter().map(|event| event.time.as_ref());
    let is_time = times.all(|time| time.is_some_and(|time| time.begin_min < time.end_min));
    is_time.then_some(()).ok_or(RequestError::Interval)
}

/// The positions that a lookup asks for.
pub fn part(request: &LookupRequest) -> Range<usize> {
    let first = request.first as usize;
    first..first.saturating_add(request.count as usize)
}

/// The answer to a lookup: what lies beyond the book's end is left out.
pub fn answer(book: &AddressBook, part: Range<usize>) -> EncodedAnswer {
    let end = part.end.min(book.contacts.len());
    let contacts = &book.contacts[part.start.min(end)..end];
    EncodedAnswer::new(book.version, contacts)
}

/// A book that nobody has written yet.
pub fn empty(owner: &str) -> AddressBook {
    AddressBook {
        owner: owner.to_owned(),
        ..AddressBook::default()
    }
}

/// Makes a change. Contacts beyond the book's end are appended.
pub fn apply(book: &mut AddressBook, change: ChangeRequest, now_us: u64) {
    book.version = now_us.max(book.version.saturating_add(1));
    if change.whole {
        book.contacts = change.contacts;
        book.events = change.events;
        return;
    }
    let first = (change.first as usize).min(book.contacts.len());
    let replaced = (book.contacts.len() - first).min(change.contacts.len());
    let mut contacts = change.contacts.into_iter();
    for (old, new) in book.contacts[first..first + replaced]
        .iter_mut()
        .zip(contacts.by_ref())
    {
        *old = new;
    }
    book.contacts.extend(contacts);
    book.events.extend(change.events);
}

/// The book that a whole replacement makes; its predecessor need not be read.
pub fn replacement(change: ChangeRequest, now_us: u64) -> AddressBook {
    AddressBook {
        owner: change.owner,
        version: now_us,
        contacts: change.contacts,
        events: change.events,
    }
}

/// Microseconds since 1970: where versions come from.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_book_contract::sample_book;
    use address_book_contract::v1::{Contact, Event, LookupAnswer};
    use prost::Message as _;

    fn contacts_of(answer: &EncodedAnswer) -> Vec<Contact> {
        let bytes = answer.encode_to_vec();
        LookupAnswer::decode(&bytes[..]).unwrap().contacts
    }

    #[test]
    fn a_part_is_what_lies_inside() {
        let book = sample_book(1, 1_000);
        let count = book.contacts.len();
        for (first, asked, expected) in [
            (0, count, 0..count),
            (1, 2, 1..3),
            (count - 1, 5, count - 1..count),
            (count, 1, 0..0),
            (u32::MAX as usize, u32::MAX as usize, 0..0),
        ] {
            let request = LookupRequest {
                owner: book.owner.clone(),
                first: first as u32,
                count: asked as u32,
            };
            let found = contacts_of(&answer(&book, part(&request)));
            assert_eq!(found, book.contacts[expected], "{first}, {asked}");
        }
    }

    #[test]
    fn changes_replace_append_and_raise_the_version() {
        let new = sample_book(2, 1_000).contacts;
        let change = |whole, first, contacts: &[Contact]| ChangeRequest {
            owner: "ada".into(),
            whole,
            first,
            contacts: contacts.to_vec(),
            events: vec![Event::default()],
        };
        let mut book = sample_book(1, 1_000);
        let old = book.clone();
        apply(&mut book, change(false, 1, &new[..1]), 0);
        assert_eq!(book.version, old.version + 1);
        assert_eq!(book.contacts[1], new[0]);
        assert_eq!(book.contacts[0], old.contacts[0]);
        assert_eq!(book.contacts[2..], old.contacts[2..]);
        let last = old.contacts.len() - 1;
        apply(&mut book, change(false, last as u32, &new[..3]), 500);
        assert_eq!((book.version, book.events.len()), (500, 2));
        assert_eq!(book.contacts[last..], new[..3]);
        apply(&mut book, change(false, u32::MAX, &new[..1]), 500);
        assert_eq!((book.version, book.contacts.len()), (501, last + 4));
        apply(&mut book, change(true, 9, &new), 0);
        assert_eq!((&book.contacts, book.events.len()), (&new, 1));
        assert_eq!(
            replacement(change(true, 0, &new), 502).contacts,
            book.contacts
        );
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        for owner in ["", "a b", "a\r\nb", &"x".repeat(251)] {
            assert_eq!(check_owner(owner), Err(RequestError::Owner));
        }
        assert_eq!(check_owner("ada@example.org"), Ok(()));
        assert_eq!(check_owners(&[]), Err(RequestError::PeopleCount(0)));
        let event = |begin_min, end_min| ChangeRequest {
            owner: "ada".into(),
            events: vec![Event {
                time: Some(address_book_contract::v1::Interval { begin_min, end_min }),
                title: String::new(),
            }],
            ..ChangeRequest::default()
        };
        assert_eq!(check_change(&event(1, 2)), Ok(()));
        assert_eq!(check_change(&event(2, 2)), Err(RequestError::Interval));
    }
}
