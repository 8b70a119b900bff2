//! A blocking connection to the front door: whole requests out, whole answers in.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::gateway::Dialect;

/// A neighbour's patience with a single answer: longer than any that is sound.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const BUFFER_LEN: usize = 256 << 10;

/// What an answer came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Lines of text, or elements within arrays.
    pub(super) items: u64,
    /// Of those, errors.
    pub(super) errors: u64,
    /// The first of them.
    pub(super) first_error: Option<String>,
    /// The last line, or the last scalar: a cursor, a number.
    pub(super) last: Vec<u8>,
    /// The first scalar of an array.
    pub(super) first: Vec<u8>,
}

impl Said {
    fn error(&mut self, line: &[u8]) {
        self.errors += 1;
        let text = || String::from_utf8_lossy(line).trim_end().to_owned();
        self.first_error.get_or_insert_with(text);
    }

    /// Adds what another answer came to.
    pub(super) fn add(&mut self, other: Said) {
        self.items += other.items;
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error = other.first_error;
        }
        (self.first, self.last) = (other.first, other.last);
    }
}

/// See the module.
pub(super) struct Wire {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    dialect: Dialect,
    line: Vec<u8>,
}

impl Wire {
    pub(super) fn connect(address: SocketAddr, dialect: Dialect) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Wire {
            input: BufReader::with_capacity(BUFFER_LEN, stream.try_clone()?),
            stream,
            dialect,
            line: Vec::new(),
        })
    }

    /// One request, one answer.
    pub(super) fn ask(&mut self, request: &[u8]) -> io::Result<Said> {
        self.ask_many(request, 1)
    }

    /// Requests in one write, and all their answers.
    pub(super) fn ask_many(&mut self, requests: &[u8], answers: usize) -> io::Result<Said> {
        self.stream.write_all(requests)?;
        let mut all = Said::default();
        for _ in 0..answers {
            all.add(match self.dialect {
                Dialect::Memcached => self.text()?,
                Dialect::Redis => self.resp()?,
            });
        }
        Ok(all)
    }

    /// Reads one more line.
    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        match self.input.read_until(b'\n', &mut self.line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Lines up to one that ends an answer. Values have to be without line ends, and
    /// unlike such a line.
    fn text(&mut self) -> io::Result<Said> {
        let mut said = Said::default();
        loop {
            self.read_line()?;
            let line = self.line.trim_ascii_end();
            let is_error = line == b"ERROR"
                || line.starts_with(b"CLIENT_ERROR")
                || line.starts_with(b"SERVER_ERROR");
            if is_error {
                said.error(line);
            }
            let is_number = !line.is_empty() && line.iter().all(u8::is_ascii_digit);
            const ENDS: [&[u8]; 8] = [
                b"END",
                b"EN",
                b"OK",
                b"STORED",
                b"DELETED",
                b"NOT_FOUND",
                b"RESET",
                b"TOUCHED",
            ];
            if is_error || is_number || ENDS.contains(&line) {
                said.last = line.to_vec();
                return Ok(said);
            }
            said.items += 1;
        }
    }

    /// One answer of RESP, whatever it holds.
    fn resp(&mut self) -> io::Result<Said> {
        let mut said = Said::default();
        let mut left = 1_u64;
        let mut is_within = false;
        while left > 0 {
            left -= 1;
            self.read_line()?;
            let line = self.line.trim_ascii_end();
            let (kind, rest) = line.split_first().ok_or(io::ErrorKind::InvalidData)?;
            let number = || {
                let text = std::str::from_utf8(rest).ok();
                let number = text.and_then(|text| text.parse::<i64>().ok());
                number.ok_or(io::ErrorKind::InvalidData)
            };
            match kind {
                b'*' | b'~' | b'>' => {
                    left += number()?.max(0) as u64;
                    is_within = true;
                    continue;
                }
                b'%' => {
                    left += 2 * number()?.max(0) as u64;
                    is_within = true;
                    continue;
                }
                b'$' | b'=' => {
                    let len = number()?;
                    if len >= 0 {
                        let len = len as usize + 2;
                        self.line.resize(len, 0);
                        self.input.read_exact(&mut self.line)?;
                    }
                    let value = self.line.trim_ascii_end();
                    said.last.clear();
                    said.last.extend_from_slice(&value[..value.len().min(32)]);
                }
                b'-' => {
                    let line = rest.to_vec();
                    said.error(&line);
                }
                b'+' | b':' | b'_' | b'#' | b',' | b'(' => said.last = rest.to_vec(),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            if said.items == 0 && is_within {
                said.first = said.last.clone();
            }
            said.items += 1;
        }
        Ok(said)
    }
}

/// A command of Redis as bytes.
pub(super) fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a client makes of these answers.
    fn heard(dialect: Dialect, answers: &[u8], count: usize) -> Said {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut wire = Wire::connect(listener.local_addr().unwrap(), dialect).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(answers).unwrap();
        wire.ask_many(b"", count).unwrap()
    }

    #[test]
    fn answers_end_where_the_protocols_say() {
        let text = b"VALUE a 0 1\r\nx\r\nEND\r\nSERVER_ERROR no quorum\r\n12\r\n";
        let said = heard(Dialect::Memcached, text, 3);
        assert_eq!((said.items, said.errors), (2, 1));
        assert_eq!(said.first_error.as_deref(), Some("SERVER_ERROR no quorum"));
        assert_eq!(said.last, b"12");
        let resp = b"*2\r\n$2\r\n17\r\n*2\r\n$1\r\na\r\n$-1\r\n-ERR no\r\n%1\r\n+a\r\n:1\r\n";
        let said = heard(Dialect::Redis, &resp[..resp.len() - 16], 1);
        assert_eq!((said.items, said.first.as_slice()), (3, &b"17"[..]));
        let said = heard(Dialect::Redis, resp, 3);
        assert_eq!((said.items, said.errors), (6, 1));
        assert_eq!(said.last, b"1");
    }
}
