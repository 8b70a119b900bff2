//! The flags of meta commands, and what answers repeat of them.

use super::base64;
use crate::memcache::KEY_LEN_MAX;
use crate::memcache::expiry::{parse_expiration, text_expiry_ms};
use crate::memcache::number::{parse_u32_plain, parse_u64_plain};
use crate::memcache::text::BAD_FORMAT;
use crate::world::Now;

/// Words that a meta command may have, its name included, and one more to see
/// that there are too many.
pub(super) const WORDS_MAX: usize = 20;

/// Longest opaque token, its letter included.
const OPAQUE_LEN_MAX: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format";
const FLAG_INVALID: &[u8] = b"CLIENT_ERROR invalid flag";
const FLAG_TWICE: &[u8] = b"CLIENT_ERROR duplicate flag";
pub(super) const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long";

/// A place for a key that comes in base64.
pub(super) type Decoded = [u8; base64::DECODED_LEN_MAX];

/// Nothing decoded yet.
pub(super) const UNDECODED: Decoded = [0; base64::DECODED_LEN_MAX];

/// A key, which may have come in base64.
#[derive(Clone, Copy)]
pub(super) struct Key<'f> {
    bytes: &'f [u8],
    is_base64: bool,
}

impl<'f> Key<'f> {
    pub(super) fn plain(bytes: &'f [u8]) -> Self {
        Key {
            bytes,
            is_base64: false,
        }
    }

    /// Decodes a key to `decoded`, if it is base64.
    pub(super) fn decode(text: &[u8], decoded: &'f mut Decoded) -> Option<Self> {
        let len = base64::decode(text, decoded)?;
        Some(Key {
            bytes: &decoded[..len],
            is_base64: true,
        })
    }

    #[inline]
    pub(super) fn bytes(&self) -> &'f [u8] {
        self.bytes
    }

    /// Appends it as `k` returns it.
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b" k");
        self.put_text(out);
        if self.is_base64 {
            out.extend_from_slice(b" b");
        }
    }

    /// Appends it as it came, but for what base64 does not need.
    pub(super) fn put_text(&self, out: &mut Vec<u8>) {
        if self.is_base64 {
            base64::encode(self.bytes, out);
        } else {
            out.extend_from_slice(self.bytes);
        }
    }
}

/// What the flags of a command say.
pub(super) struct Flags<'f> {
    pub(super) key: Key<'f>,
    /// The flags as they came, in order: answers keep it.
    pub(super) words: &'f [&'f [u8]],
    /// `q`
    pub(super) quiet: bool,
    /// `v`
    pub(super) value: bool,
    /// `u`
    pub(super) no_bump: bool,
    /// `l`
    pub(super) idle: bool,
    /// `I`
    pub(super) invalidate: bool,
    /// `x`
    pub(super) remove_value: bool,
    /// `M`
    pub(super) mode: Option<u8>,
    /// `F`
    pub(super) client_flags: u32,
    /// `C`
    pub(super) compare: Option<u64>,
    /// `E`
    pub(super) unique: Option<u64>,
    /// `T`, as an expiry
    pub(super) expiry_ms: Option<u64>,
    /// `N`, as an expiry
    pub(super) vivify_expiry_ms: Option<u64>,
    /// `R`, as an expiry
    pub(super) recache_ms: u64,
    /// `D`
    pub(super) delta: u64,
    /// `J`
    pub(super) initial: u64,
}

impl<'f> Flags<'f> {
    /// Reads the flags; the answer to what is wrong otherwise.
    pub(super) fn parse(
        key: &'f [u8],
        words: &'f [&'f [u8]],
        decoded: &'f mut Decoded,
        now: Now,
        is_newer: bool,
    ) -> Result<Self, &'static [u8]> {
        debug_assert!(key.len() <= KEY_LEN_MAX);
        if is_newer && has_strange_letter(words) {
            return Err(BAD_FORMAT);
        }
        let mut flags = Flags {
            key: Key::plain(key),
            words,
            quiet: false,
            value: false,
            no_bump: false,
            idle: false,
            invalidate: false,
            remove_value: false,
            mode: None,
            client_flags: 0,
            compare: None,
            unique: None,
            expiry_ms: None,
            vivify_expiry_ms: None,
            recache_ms: 0,
            delta: 1,
            initial: 0,
        };
        let mut seen = 0u128;
        let mut decoded = Some(decoded);
        // As memcached, which goes on after a bad token and tells of the last;
        // of a long opaque only if nothing else is wrong, and of `F` without
        // words of its own.
        let mut error = None;
        let mut opaque_is_long = false;
        let expiry =
            |token| parse_expiration(token, is_newer).map(|seconds| text_expiry_ms(seconds, now));
        let number = |token| parse_u64_plain(token, is_newer);
        for word in words {
            let (letter, token) = (word[0], &word[1..]);
            if letter >= 127 || seen >> letter & 1 != 0 {
                return Err(FLAG_TWICE);
            }
            seen |= 1 << letter;
            let failed = match letter {
                b'b' => match decoded.take().and_then(|decoded| Key::decode(key, decoded)) {
                    Some(key) => {
                        flags.key = key;
                        None
                    }
                    None => Some(b"CLIENT_ERROR error decoding key".as_slice()),
                },
                b'N' => set(&mut flags.vivify_expiry_ms, expiry(token), BAD_TOKEN),
                b'T' => set(&mut flags.expiry_ms, expiry(token), BAD_TOKEN),
                b'R' => put(&mut flags.recache_ms, expiry(token), BAD_TOKEN),
                b'C' => set(&mut flags.compare, number(token), BAD_TOKEN),
                b'E' => set(&mut flags.unique, number(token), BAD_TOKEN),
                b'F' => put(
                    &mut flags.client_flags,
                    parse_u32_plain(token, is_newer),
                    error.unwrap_or(BAD_FORMAT),
                ),
                b'M' if is_newer => {
                    // Whatever stands behind the first letter; without one it is the blank
                    // or the end of the line, which is no mode.
                    flags.mode = Some(token.first().copied().unwrap_or(b' '));
                    None
                }
                b'M' => match token {
                    &[mode] => {
                        flags.mode = Some(mode);
                        None
                    }
                    _ => Some(b"CLIENT_ERROR incorrect length for M token".as_slice()),
                },
                b'J' => put(
                    &mut flags.initial,
                    number(token),
                    b"CLIENT_ERROR invalid numeric initial value",
                ),
                b'D' => put(
                    &mut flags.delta,
                    number(token),
                    b"CLIENT_ERROR invalid numeric delta value",
                ),
                b'O' if word.len() > OPAQUE_LEN_MAX => on(&mut opaque_is_long),
                b'q' => on(&mut flags.quiet),
                b'v' => on(&mut flags.value),
                b'u' => on(&mut flags.no_bump),
                b'l' => on(&mut flags.idle),
                b'I' => on(&mut flags.invalidate),
                b'x' => on(&mut flags.remove_value),
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' => None,
                _ => return Err(FLAG_INVALID),
            };
            error = failed.or(error);
        }
        match error {
            Some(error) => Err(error),
            None if opaque_is_long => Err(OPAQUE_TOO_LONG),
            None => Ok(flags),
        }
    }

    /// Appends what answers repeat whatever came of the command: opaque and
    /// key.
    pub(super) fn put_repeated(&self, out: &mut Vec<u8>) {
        for word in self.words {
            self.put_if_repeated(word, out);
        }
    }

    /// Appends this flag if it is one of those.
    pub(super) fn put_if_repeated(&self, word: &[u8], out: &mut Vec<u8>) {
        match word[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => self.key.put(out),
            _ => {}
        }
    }
}

/// Whether a flag is no letter at all: to the newer memcached that is no line of a meta
/// command.
pub(super) fn has_strange_letter(words: &[&[u8]]) -> bool {
    let is_known = |letter: u8| matches!(letter, b'A'..=b'z' | b'0'..=b'9');
    words.iter().any(|word| !is_known(word[0]))
}

fn on(flag: &mut bool) -> Option<&'static [u8]> {
    *flag = true;
    None
}

fn put<T>(place: &mut T, token: Option<T>, error: &'static [u8]) -> Option<&'static [u8]> {
    match token {
        Some(token) => {
            *place = token;
            None
        }
        None => Some(error),
    }
}

fn set<T>(place: &mut Option<T>, token: Option<T>, error: &'static [u8]) -> Option<&'static [u8]> {
    *place = token;
    place.is_none().then_some(error)
}
