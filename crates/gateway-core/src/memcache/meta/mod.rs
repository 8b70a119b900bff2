//! The meta commands: a key, and one-letter flags that say what to do and what
//! to answer.
//!
//! Stale items and the right to recompute them, which is given to one client
//! at a time, are marks of the item (`layout::data::ITEM_STALE`,
//! `ITEM_WIN_GIVEN`): giving the right writes the item again, on condition that
//! nobody else did, so that one client of the whole cell has it.

pub(super) mod base64;
mod count;
mod flags;
mod read;
mod store;

pub(super) use count::arithmetic;
pub(super) use read::{debug, get};
pub(super) use store::{delete, set};

use super::KEY_LEN_MAX;
use super::text::line::Args;
use super::text::{BAD_FORMAT, Desk, ERROR};
use crate::keyspace::Keyspace;
use flags::WORDS_MAX;

/// The words of a meta command behind its name.
type MetaArgs<'a> = Args<'a, WORDS_MAX>;

/// Whether there is a key that can be one and there are not too many words;
/// answers otherwise.
fn check<K: Keyspace>(args: &MetaArgs<'_>, too_many: &[u8], desk: &mut Desk<'_, '_, K>) -> bool {
    let is_newer = desk.is_newer();
    let error = match args.first() {
        None if is_newer => BAD_FORMAT,
        None => ERROR,
        Some(key) if key.len() > KEY_LEN_MAX => BAD_FORMAT,
        // The name counts, and so does memcached's word behind the last.
        Some(_) if args.len() + 2 > WORDS_MAX && is_newer => TOO_MANY,
        Some(_) if args.len() + 2 > WORDS_MAX => too_many,
        Some(_) => return true,
    };
    desk.answer(false, error);
    false
}

/// Of `mg`, and of the newer memcached's other commands.
const TOO_MANY: &[u8] = b"CLIENT_ERROR options flags are too long";
