//! A command line and its words.
//!
//! Words are parted by blanks (0x20) and by nothing else. A zero byte ends a
//! line's words, though not the line: memcached treats lines as C's strings.

use memchr::{memchr, memchr2};

/// A line at the front of the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// Its text, without what ends it.
    pub(crate) text: &'a [u8],
    /// Its length with what ends it.
    pub(crate) len: usize,
}

impl<'a> Line<'a> {
    /// The first line of the input, if its end has come.
    #[inline]
    pub(crate) fn first(input: &'a [u8]) -> Option<Self> {
        let at = memchr2(b'\n', 0, input)?;
        if input[at] == 0 {
            let end = at + memchr(b'\n', &input[at..])?;
            return Some(Line {
                text: &input[..at],
                len: end + 1,
            });
        }
        let end = if at > 1 && input[at - 1] == b'\r' {
            at - 1
        } else {
            at
        };
        Some(Line {
            text: &input[..end],
            len: at + 1,
        })
    }
}

/// The words of a text, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    pub(crate) fn of(text: &'a [u8]) -> Self {
        Words { rest: text }
    }

    /// Whether the last one asks for no reply.
    pub(crate) fn noreply(self) -> bool {
        self.last() == Some(b"noreply")
    }

    /// What has not been taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut start = 0;
        while *self.rest.get(start)? == b' ' {
            start += 1;
        }
        let from = &self.rest[start..];
        let len = memchr(b' ', from).unwrap_or(from.len());
        let (word, rest) = from.split_at(len);
        self.rest = rest;
        Some(word)
    }
}

/// The first words of a text, at most `MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a, const MAX: usize> {
    words: [&'a [u8]; MAX],
    count: usize,
}

impl<'a, const MAX: usize> Args<'a, MAX> {
    #[inline]
    pub(crate) fn of(words: Words<'a>) -> Self {
        let mut args = Args {
            words: [b""; MAX],
            count: 0,
        };
        for word in words.take(MAX) {
            args.words[args.count] = word;
            args.count += 1;
        }
        args
    }

    /// Whether the last one asks for no reply.
    pub(crate) fn noreply(&self) -> bool {
        self.last() == Some(&b"noreply".as_slice())
    }
}

impl<'a, const MAX: usize> std::ops::Deref for Args<'a, MAX> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let cases = [
            ("get a\r\nx", "get a", 7),
            ("get a\nx", "get a", 6),
            ("\r\n", "\r", 2),
            ("\n", "", 1),
            ("a\rb\r\n", "a\rb", 5),
            ("get a\0b\r\nx", "get a", 9),
        ];
        for (input, text, len) in cases {
            let line = Line::first(input.as_bytes()).expect("has ended");
            assert_eq!((line.text, line.len), (text.as_bytes(), len), "{input:?}");
        }
        for input in ["", "get a", "get a\0b"] {
            assert!(Line::first(input.as_bytes()).is_none(), "{input:?}");
        }
    }

    #[test]
    fn words() {
        let all: Vec<_> = Words::of(b"  set k\t1  2 ").collect();
        assert_eq!(all, [b"set".as_slice(), b"k\t1", b"2"]);
        assert_eq!(Words::of(b"   ").next(), None);
        let args = Args::<2>::of(Words::of(b"a b c"));
        assert_eq!(args.len(), 2);
    }
}
