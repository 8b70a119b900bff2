//! memcached's text protocol, by hand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Endpoint;
use super::decimal::{decimal, push_decimal};
use super::stream::{PeerStream, Waiting};
use crate::target::{GetOutcome, Item, SetOutcome, Target, TargetError};

/// memcached reads longer times as dates.
const RELATIVE_TTL_S_MAX: u64 = 30 * 86_400;
/// What memcached says when it finds nothing to evict among the first few items of a
/// value's class. It has read the value, so the connection goes on.
const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object";
/// How often a value of a corpus that was refused so is sent again, and after what
/// time: its background threads find room in some milliseconds.
const NO_MEMORY_TRIES: usize = 1000;
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// A length beyond this is not a length.
const VALUE_LEN_MAX: usize = 1 << 30;

/// One client of one memcached.
#[derive(Debug)]
pub struct Memcached {
    stream: PeerStream,
    request: Vec<u8>,
    refused: u64,
}

/// Where a hit lies in the inbox.
struct Found {
    key: Range<usize>,
    value: Range<usize>,
}

impl Memcached {
    /// Connects.
    pub fn connect(endpoint: &Endpoint, waiting: Waiting) -> Result<Self, TargetError> {
        Ok(Self {
            stream: PeerStream::connect("memcached", endpoint, waiting)?,
            request: Vec::with_capacity(64 << 10),
            refused: 0,
        })
    }

    /// How often [`Target::set_many`] was refused a value for want of memory, and sent
    /// it again.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The peer's own counters, such as `curr_items` and `evictions`.
    pub fn stats(&mut self) -> Result<BTreeMap<String, String>, TargetError> {
        self.stream.request(b"stats\r\n")?;
        let mut stats = BTreeMap::new();
        loop {
            let line = self.stream.line()?;
            let text = self.stream.inbox.get(line.clone());
            if text == b"END" {
                return Ok(stats);
            }
            let text = String::from_utf8_lossy(text);
            let mut words = text.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), Some(value)) => {
                    stats.insert(name.to_owned(), value.to_owned());
                }
                _ => return Err(self.unexpected(line)),
            }
        }
    }

    /// Reads `VALUE <key> <flags> <bytes>` and the value, or `END`.
    fn value(&mut self) -> Result<Option<Found>, TargetError> {
        let line = self.stream.line()?;
        let text = self.stream.inbox.get(line.clone());
        if text == b"END" {
            return Ok(None);
        }
        let parsed = text.strip_prefix(b"VALUE ").and_then(|rest| {
            let key_len = rest.iter().position(|&b| b == b' ')?;
            let len = rest.rsplit(|&b| b == b' ').next().and_then(decimal)?;
            Some((line.start + 6..line.start + 6 + key_len, len))
        });
        match parsed {
            Some((key, len)) if len <= VALUE_LEN_MAX => {
                let value = self.stream.block(len)?;
                Ok(Some(Found { key, value }))
            }
            _ => Err(self.unexpected(line)),
        }
    }

    fn unexpected(&mut self, line: Range<usize>) -> TargetError {
        let text = self.stream.inbox.get(line.clone());
        let is_refusal = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
            .iter()
            .any(|word| text.starts_with(word));
        if is_refusal {
            let error = self.stream.refused(line);
            // A refused value's bytes may be answered as if they were commands.
            self.stream.abandon();
            error
        } else {
            self.stream.protocol_error(line)
        }
    }

    fn push_set(&mut self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        let request = &mut self.request;
        request.extend_from_slice(b"set ");
        request.extend_from_slice(key);
        request.extend_from_slice(b" 0 ");
        push_decimal(request, expiry(ttl));
        request.push(b' ');
        push_decimal(request, value.len() as u64);
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }

    fn stored(&mut self) -> Result<SetOutcome, TargetError> {
        let line = self.stream.line()?;
        match self.stream.inbox.get(line.clone()) {
            b"STORED" => Ok(SetOutcome::Stored),
            _ => Err(self.unexpected(line)),
        }
    }
}

impl Memcached {
    /// Whether a value was stored; `false` where there was no memory.
    fn stored_or_no_memory(&mut self) -> Result<bool, TargetError> {
        let line = self.stream.line()?;
        match self.stream.inbox.get(line.clone()) {
            b"STORED" => Ok(true),
            NO_MEMORY => {
                self.refused += 1;
                Ok(false)
            }
            _ => Err(self.unexpected(line)),
        }
    }

    /// Sends a value until there is memory for it.
    fn insist(&mut self, (key, value): Item<'_>) -> Result<(), TargetError> {
        for _ in 0..NO_MEMORY_TRIES {
            std::thread::sleep(NO_MEMORY_PAUSE);
            self.request.clear();
            self.push_set(key, value, None);
            self.stream.request(&self.request)?;
            if self.stored_or_no_memory()? {
                return Ok(());
            }
        }
        Err(TargetError::Refused {
            system: "memcached",
            message: String::from_utf8_lossy(NO_MEMORY).into_owned(),
        })
    }
}

impl Target for Memcached {
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        self.request.clear();
        self.request.extend_from_slice(b"get ");
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(b"\r\n");
        self.stream.request(&self.request)?;
        let Some(Found { key: found, value }) = self.value()? else {
            return Ok(GetOutcome::Miss);
        };
        if self.stream.inbox.get(found.clone()) != key {
            return Err(self.stream.protocol_error(found));
        }
        let end = self.stream.line()?;
        if self.stream.inbox.get(end.clone()) != b"END" {
            return Err(self.stream.protocol_error(end));
        }
        Ok(GetOutcome::Hit(self.stream.inbox.get(value)))
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
        self.request.extend_from_slice(b"get");
        for key in keys {
            self.request.push(b' ');
            self.request.extend_from_slice(key);
        }
        self.request.extend_from_slice(b"\r\n");
        self.stream.request(&self.request)?;
        // Hits come in the order of the request; what is skipped is a miss.
        let mut next = 0;
        while let Some(Found { key: found, value }) = self.value()? {
            let inbox = &self.stream.inbox;
            let name = inbox.get(found.clone());
            let Some(skipped) = keys[next..].iter().position(|key| *key == name) else {
                return Err(self.stream.protocol_error(found));
            };
            for index in next..next + skipped {
                each(index, GetOutcome::Miss);
            }
            next += skipped + 1;
            each(next - 1, GetOutcome::Hit(inbox.get(value)));
        }
        for index in next..keys.len() {
            each(index, GetOutcome::Miss);
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        self.request.clear();
        self.push_set(key, value, ttl);
        self.stream.request(&self.request)?;
        self.stored()
    }

    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        self.request.clear();
        for (key, value) in items {
            self.push_set(key, value, None);
        }
        self.stream.request(&self.request)?;
        let mut again = Vec::new();
        for item in items {
            if !self.stored_or_no_memory()? {
                again.push(*item);
            }
        }
        again.into_iter().try_for_each(|item| self.insist(item))
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        self.request.clear();
        self.request.extend_from_slice(b"delete ");
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(b"\r\n");
        self.stream.request(&self.request)?;
        let line = self.stream.line()?;
        match self.stream.inbox.get(line.clone()) {
            b"DELETED" | b"NOT_FOUND" => Ok(SetOutcome::Stored),
            _ => Err(self.unexpected(line)),
        }
    }
}

/// Seconds as memcached takes them: whole ones, and long ones as a date.
fn expiry(ttl: Option<Duration>) -> u64 {
    let Some(ttl) = ttl else { return 0 };
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    if seconds <= RELATIVE_TTL_S_MAX {
        return seconds.max(1);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    seconds + now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lives_become_dates() {
        assert_eq!(expiry(None), 0);
        assert_eq!(expiry(Some(Duration::from_millis(1))), 1);
        assert_eq!(expiry(Some(Duration::ZERO)), 1);
        assert_eq!(expiry(Some(Duration::from_secs(60))), 60);
        assert!(expiry(Some(Duration::from_secs(31 * 86_400))) > 1_700_000_000);
    }
}
