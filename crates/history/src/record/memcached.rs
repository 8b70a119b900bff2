//! memcached's text protocol, as its clients speak it to the gateway.
//!
//! What cannot be sent was not done; what was sent and not answered may have
//! been. After either, the connection is made anew, at the address that the
//! gateway has by then.

use super::worker::{Counted, Expected, Found, Key, Path, Told};
use crate::event::Outcome;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;
use trefoil_client::FillTicket;
use trefoil_layout::Version;

/// No answer takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Memcached {
    /// Where its address is written.
    address: PathBuf,
    stream: Option<BufReader<TcpStream>>,
}

/// Nothing was sent, or nothing came back.
enum Broken {
    Unsent,
    Unanswered,
}

impl Memcached {
    pub(super) fn new(address: PathBuf) -> Self {
        Memcached {
            address,
            stream: None,
        }
    }

    fn connect(&mut self) -> Option<&mut BufReader<TcpStream>> {
        if self.stream.is_none() {
            let address = std::fs::read_to_string(&self.address).ok()?;
            let stream = TcpStream::connect(address.trim()).ok()?;
            stream.set_nodelay(true).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            self.stream = Some(BufReader::with_capacity(1 << 16, stream));
        }
        self.stream.as_mut()
    }

    /// Sends a request and reads what `read` makes of its answer.
    fn ask<T>(
        &mut self,
        request: &[u8],
        read: impl FnOnce(&mut BufReader<TcpStream>) -> std::io::Result<T>,
    ) -> Result<T, Broken> {
        let stream = self.connect().ok_or(Broken::Unsent)?;
        // A part of it may have arrived.
        let sent = stream.get_mut().write_all(request);
        let answer = sent.and_then(|()| read(stream));
        answer.map_err(|_| {
            self.stream = None;
            Broken::Unanswered
        })
    }

    fn line(&mut self, request: &[u8]) -> Result<String, Broken> {
        self.ask(request, read_line)
    }

    /// A mutation: its answer's word, and what it means.
    fn mutate(
        &mut self,
        sent: Sent,
        request: &[u8],
        denied: &[&str],
        stored: &str,
    ) -> Option<Told> {
        match self.line(request) {
            Ok(line) if line == stored => Some(Told::of(Outcome::Stored)),
            Ok(line) if denied.contains(&line.as_str()) => Some(Told::of(Outcome::Denied)),
            Ok(line) if was_not_done(&line, sent) => {
                eprintln!("a gateway has not done a mutation: {line}");
                Some(Told::of(Outcome::Denied))
            }
            Ok(line) => {
                eprintln!("a gateway does not know what became of a mutation: {line}");
                Some(Told::of(Outcome::Unknown))
            }
            Err(Broken::Unanswered) => Some(Told::of(Outcome::Unknown)),
            Err(Broken::Unsent) => None,
        }
    }
}

/// What a mutation is to the gateway.
#[derive(Clone, Copy)]
enum Sent {
    /// A SET.
    Store,
    /// Looks first, and goes on by a CAS of what it has found.
    Swap,
    /// The same, of something that is to go.
    Erase,
}

/// The errors of a gateway after which a mutation has certainly changed nothing, and never
/// will.
const NOT_DONE: [&str; 4] = [
    "no backend of the cell can be reached",
    "no replica answered",
    "the deadline passed",
    "the retry budget is spent",
];
/// The same of what looks first.
const NOT_SWAPPED: [&str; 2] = [
    "no quorum of replicas agrees on this key",
    "too many writers of this key",
];

/// Whether the answer says that nothing was changed, as far as the gateway is certain of it.
fn was_not_done(line: &str, sent: Sent) -> bool {
    let Some(why) = line.strip_prefix("SERVER_ERROR ") else {
        return false;
    };
    let begins = |with: &&str| why.starts_with(with);
    match sent {
        Sent::Store => NOT_DONE.iter().any(begins),
        Sent::Swap => NOT_DONE.iter().chain(&NOT_SWAPPED).any(begins),
        // An attempt that it does not know the end of is followed by another one.
        Sent::Erase => false,
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// `VALUE key flags length unique` and the value, until `END`. `None`: the
/// server said that it failed.
type Values = Option<Vec<(String, Vec<u8>, u64)>>;

fn read_values(stream: &mut BufReader<TcpStream>) -> std::io::Result<Values> {
    let mut values = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line == "END" {
            return Ok(Some(values));
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["VALUE", key, _, len, unique] = words[..] else {
            return Ok(None);
        };
        let bad = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
        let mut value = vec![0; len.parse::<usize>().map_err(bad)? + 2];
        stream.read_exact(&mut value)?;
        value.truncate(value.len() - 2);
        let unique = unique.parse().map_err(bad)?;
        values.push((key.to_owned(), value, unique));
    }
}

fn store(command: &str, key: Key, value: &[u8], unique: Option<u64>) -> Vec<u8> {
    let mut request = format!("{command} {} 0 0 {}", key.name(), value.len()).into_bytes();
    if let Some(unique) = unique {
        request.extend_from_slice(format!(" {unique}").as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}

impl Path for Memcached {
    fn get(&mut self, key: Key) -> Option<Found> {
        self.get_many(&[key]).and_then(|mut found| found.pop())
    }

    fn get_many(&mut self, keys: &[Key]) -> Option<Vec<Found>> {
        let names: Vec<String> = keys.iter().map(|key| key.name()).collect();
        let request = format!("gets {}\r\n", names.join(" "));
        let values = self.ask(request.as_bytes(), read_values).ok()??;
        let mut values = values.into_iter().peekable();
        // Values come in the order of the keys; what is left out is a miss.
        let found = keys.iter().zip(&names).map(|(key, name)| {
            match values.next_if(|(found, _, _)| found == name) {
                Some((_, value, unique)) => Found::value(*key, &value, Version::ZERO, unique),
                None => Found::nothing(Outcome::Absent),
            }
        });
        let found = found.collect();
        Some(found)
    }

    fn set(&mut self, key: Key, value: &[u8]) -> Option<Told> {
        self.mutate(Sent::Store, &store("set", key, value, None), &[], "STORED")
    }

    fn erase(&mut self, key: Key) -> Option<Told> {
        let request = format!("delete {}\r\n", key.name());
        self.mutate(Sent::Erase, request.as_bytes(), &["NOT_FOUND"], "DELETED")
    }

    fn cas(&mut self, key: Key, expected: Option<&Expected>, value: &[u8]) -> Option<Told> {
        let request = match expected {
            Some(expected) => store("cas", key, value, Some(expected.unique)),
            None => store("add", key, value, None),
        };
        let denied = ["EXISTS", "NOT_FOUND", "NOT_STORED"];
        self.mutate(Sent::Swap, &request, &denied, "STORED")
    }

    fn fill(&mut self, _: Key, _: FillTicket, _: &[u8]) -> Option<Told> {
        None
    }

    fn increment(&mut self, key: Key) -> Option<Counted> {
        let request = format!("incr {} 1\r\n", key.name());
        match self.line(request.as_bytes()) {
            Ok(line) if line == "NOT_FOUND" => Some(Counted::Absent),
            Ok(line) if was_not_done(&line, Sent::Swap) => Some(Counted::NotDone),
            Ok(line) => Some(match line.parse() {
                Ok(number) => Counted::To(number),
                Err(_) => Counted::Unknown,
            }),
            Err(Broken::Unanswered) => Some(Counted::Unknown),
            Err(Broken::Unsent) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gateway_is_certain_of_was_not_done() {
        let unreachable = "SERVER_ERROR no backend of the cell can be reached";
        let late = "SERVER_ERROR the deadline passed; the last retry's cause: recovering: it ends";
        let spent = "SERVER_ERROR the retry budget is spent; the last retry's cause: connection";
        let unread = "SERVER_ERROR no replica answered: the deadline passed";
        let inquorate = "SERVER_ERROR no quorum of replicas agrees on this key";
        let contended = "SERVER_ERROR too many writers of this key";
        let unknown = "SERVER_ERROR the outcome is unknown: a replica did not answer in time";
        for line in [unreachable, late, spent, unread] {
            assert!(was_not_done(line, Sent::Store), "{line}");
            assert!(was_not_done(line, Sent::Swap), "{line}");
        }
        // What is only said of what has looked before.
        for line in [inquorate, contended] {
            assert!(was_not_done(line, Sent::Swap), "{line}");
            // A SET that others were faster than may have been seen in between.
            assert!(!was_not_done(line, Sent::Store), "{line}");
        }
        for line in [
            unknown,
            "SERVER_ERROR out of memory storing object",
            "ERROR",
            "5",
        ] {
            assert!(!was_not_done(line, Sent::Store), "{line}");
            assert!(!was_not_done(line, Sent::Swap), "{line}");
        }
        // An attempt before the one that the answer is of may still remove something.
        for line in [unreachable, late, spent, unread, inquorate, contended] {
            assert!(!was_not_done(line, Sent::Erase), "{line}");
        }
    }
}
