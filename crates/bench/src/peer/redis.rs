//! Redis' protocol (RESP 2), by hand.

use std::ops::Range;
use std::time::Duration;

use super::Endpoint;
use super::decimal::{decimal, push_decimal, spell};
use super::stream::{PeerStream, Waiting};
use crate::target::{GetOutcome, Item, SetOutcome, Target, TargetError};

/// Redis' own limit of a string.
const VALUE_LEN_MAX: usize = 512 << 20;

/// One client of one Redis.
#[derive(Debug)]
pub struct Redis {
    stream: PeerStream,
    request: Vec<u8>,
}

impl Redis {
    /// Connects.
    pub fn connect(endpoint: &Endpoint, waiting: Waiting) -> Result<Self, TargetError> {
        Ok(Self {
            stream: PeerStream::connect("redis", endpoint, waiting)?,
            request: Vec::with_capacity(64 << 10),
        })
    }

    /// How many keys it holds.
    pub fn keys_count(&mut self) -> Result<u64, TargetError> {
        self.call(&[b"DBSIZE"])?;
        let line = self.stream.line()?;
        self.number(line).map(|count| count as u64)
    }

    fn call(&mut self, words: &[&[u8]]) -> Result<(), TargetError> {
        self.request.clear();
        push_command(&mut self.request, words.len(), words.iter().copied());
        self.stream.request(&self.request)
    }

    /// Reads `$<len>` and its bytes; nothing for `$-1`.
    fn bulk(&mut self) -> Result<Option<Range<usize>>, TargetError> {
        let line = self.stream.line()?;
        let text = self.stream.inbox.get(line.clone());
        if text == b"$-1" {
            return Ok(None);
        }
        match text.strip_prefix(b"$").and_then(decimal) {
            Some(len) if len <= VALUE_LEN_MAX => Ok(Some(self.stream.block(len)?)),
            _ => Err(self.unexpected(line)),
        }
    }

    /// Reads `:<number>`.
    fn number(&mut self, line: Range<usize>) -> Result<usize, TargetError> {
        let text = self.stream.inbox.get(line.clone());
        match text.strip_prefix(b":").and_then(decimal) {
            Some(number) => Ok(number),
            None => Err(self.unexpected(line)),
        }
    }

    fn ok(&mut self) -> Result<SetOutcome, TargetError> {
        let line = self.stream.line()?;
        match self.stream.inbox.get(line.clone()) {
            b"+OK" => Ok(SetOutcome::Stored),
            _ => Err(self.unexpected(line)),
        }
    }

    fn unexpected(&mut self, line: Range<usize>) -> TargetError {
        if self.stream.inbox.get(line.clone()).first() == Some(&b'-') {
            let error = self.stream.refused(line);
            if !self.stream.inbox.unread().is_empty() {
                self.stream.abandon();
            }
            error
        } else {
            self.stream.protocol_error(line)
        }
    }
}

impl Target for Redis {
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        self.call(&[b"GET", key])?;
        Ok(match self.bulk()? {
            Some(value) => GetOutcome::Hit(self.stream.inbox.get(value)),
            None => GetOutcome::Miss,
        })
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, GetOutcome<'_>),
    ) -> Result<(), TargetError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.request.clear();
        let words = std::iter::once(&b"MGET"[..]).chain(keys.iter().copied());
        push_command(&mut self.request, keys.len() + 1, words);
        self.stream.request(&self.request)?;
        let line = self.stream.line()?;
        let text = self.stream.inbox.get(line.clone());
        if text.strip_prefix(b"*").and_then(decimal) != Some(keys.len()) {
            return Err(self.unexpected(line));
        }
        for index in 0..keys.len() {
            let value = self.bulk()?;
            each(
                index,
                match value {
                    Some(value) => GetOutcome::Hit(self.stream.inbox.get(value)),
                    None => GetOutcome::Miss,
                },
            );
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        match ttl {
            None => self.call(&[b"SET", key, value])?,
            Some(ttl) => {
                let mut ms = [0; 20];
                let ms = spell(&mut ms, ttl.as_millis().clamp(1, 1 << 50) as u64);
                self.call(&[b"SET", key, value, b"PX", ms])?;
            }
        }
        self.ok()
    }

    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        self.request.clear();
        for &(key, value) in items {
            push_command(&mut self.request, 3, [&b"SET"[..], key, value].into_iter());
        }
        self.stream.request(&self.request)?;
        for _ in items {
            self.ok()?;
        }
        Ok(())
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        self.call(&[b"DEL", key])?;
        let line = self.stream.line()?;
        self.number(line).map(|_| SetOutcome::Stored)
    }
}

fn push_command<'a>(to: &mut Vec<u8>, count: usize, words: impl Iterator<Item = &'a [u8]>) {
    to.push(b'*');
    push_decimal(to, count as u64);
    to.extend_from_slice(b"\r\n");
    for word in words {
        to.push(b'$');
        push_decimal(to, word.len() as u64);
        to.extend_from_slice(b"\r\n");
        to.extend_from_slice(word);
        to.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut request = Vec::new();
        push_command(&mut request, 2, [&b"GET"[..], b"k\r\n"].into_iter());
        assert_eq!(request, b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n");
    }
}
