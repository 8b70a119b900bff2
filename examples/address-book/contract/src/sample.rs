//! Books of a wanted size, the same for the same number everywhere.

use crate::v1::{Address, AddressBook, Contact, Phone, PhoneKind};
use prost::Message as _;

const GIVEN: [&str; 8] = [
    "Ada", "Grace", "Edsger", "Barbara", "Alan", "Frances", "Tony", "Lynn",
];
const FAMILY: [&str; 8] = [
    "Lovelace", "Hopper", "Dijkstra", "Liskov", "Turing", "Allen", "Hoare", "Conway",
];
const STREETS: [&str; 4] = ["Analytical Way", "Compiler Lane", "Semaphore St", "Lisp Rd"];
const CITIES: [&str; 4] = ["London", "Arlington", "Rotterdam", "Boston"];

/// The name of owner `number`: 11 bytes.
pub fn owner(number: u64) -> String {
    format!("u{number:010}")
}

/// A book of owner `number` that takes `len` bytes on the wire, as nearly as
/// contacts allow: exactly from 100 bytes up.
pub fn sample_book(number: u64, len: usize) -> AddressBook {
    let mut book = AddressBook {
        owner: owner(number),
        version: 1,
        ..AddressBook::default()
    };
    let mut book_len = book.encoded_len();
    loop {
        let mut contact = contact(number, book.contacts.len() as u64);
        let left = len.saturating_sub(book_len);
        let framed = framed_len(&contact);
        // The last contact's note fills what is left, so that no rest remains
        // that is too small for a contact.
        let is_last = left < 2 * framed;
        if is_last {
            pad(&mut contact, left);
        }
        book_len += framed_len(&contact);
        book.contacts.push(contact);
        if is_last {
            return book;
        }
    }
}

/// Bytes of a contact in a book: its own, its length and its tag.
fn framed_len(contact: &Contact) -> usize {
    prost::encoding::message::encoded_len(3, contact)
}

fn pad(contact: &mut Contact, framed: usize) {
    // A small book has room for a name and a number only.
    if framed_len(contact) > framed {
        contact.addresses.clear();
    }
    while framed_len(contact) < framed {
        let missing = framed - framed_len(contact);
        // The note's own tag and lengths take some of what is missing.
        let frame = if contact.note.is_empty() { 2 } else { 0 };
        let len = missing.saturating_sub(frame).max(1);
        contact.note.extend(std::iter::repeat_n('.', len));
    }
    while framed_len(contact) > framed && !contact.note.is_empty() {
        contact.note.pop();
    }
}

fn contact(owner: u64, position: u64) -> Contact {
    let mix = owner
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(position.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let pick = |names: &[&str], shift: u32| names[(mix >> shift) as usize % names.len()].to_owned();
    let kinds = [PhoneKind::Mobile, PhoneKind::Home, PhoneKind::Work];
    Contact {
        given_name: pick(&GIVEN, 8),
        family_name: pick(&FAMILY, 16),
        phones: vec![Phone {
            kind: kinds[position as usize % kinds.len()].into(),
            number: format!("+{:012}", mix >> 24),
        }],
        addresses: vec![Address {
            street: format!("{} {}", 1 + (mix >> 32) % 99, pick(&STREETS, 40)),
            postcode: format!("{:05}", (mix >> 44) % 100_000),
            city: pick(&CITIES, 50),
            country: "NL".to_owned(),
        }],
        note: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_have_the_wanted_length_and_are_the_same_everywhere() {
        for len in [100, 130, 256, 257, 1_000, 10_000, 100_000, 1_000_000] {
            for number in [0, 1, 77, 1_000_000] {
                let book = sample_book(number, len);
                let found = book.encoded_len();
                assert!(found.abs_diff(len) <= 1, "{number}: {found} of {len}");
                assert_eq!(book, sample_book(number, len));
            }
        }
        assert_eq!(sample_book(1, 100).contacts.len(), 1);
        assert!((70..160).contains(&sample_book(1, 10_000).contacts.len()));
        assert_ne!(
            sample_book(1, 1_000).contacts,
            sample_book(2, 1_000).contacts
        );
    }
}
