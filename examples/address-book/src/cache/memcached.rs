//! memcached by its meta commands, over a pool of connections: each request has
//! one for itself, so that a small value never waits behind a large one and a
//! request that is given up leaves no half-read answer to others.

use super::{Cache, CacheError, Cached, Stored};
use bytes::{Buf as _, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use trefoil_layout::hash::KeyHasher;

/// Connections kept idle for each server; a burst opens more.
const IDLE_COUNT_MAX: usize = 64;
const LINE_LEN_MAX: usize = 2048;
/// Far above the longest item that a server takes by default.
const VALUE_LEN_MAX: usize = 64 << 20;

/// Servers of one cache; keys are spread by their hash.
#[derive(Debug)]
pub struct Memcached {
    servers: Vec<Pool>,
    hasher: KeyHasher,
}

#[derive(Debug)]
struct Pool {
    address: String,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    inbox: BytesMut,
}

impl Memcached {
    /// A cache of these servers, `host:port` each. Connects when it is used.
    pub fn new(addresses: &[String]) -> Self {
        let pool = |address: &String| Pool {
            address: address.clone(),
            idle: Mutex::new(Vec::new()),
        };
        Memcached {
            servers: addresses.iter().map(pool).collect(),
            hasher: KeyHasher::default(),
        }
    }

    fn index(&self, key: &str) -> usize {
        crate::books::spread(&self.hasher, key, self.servers.len())
    }
}

impl Cache for Memcached {
    async fn get(&self, key: &str) -> Result<Option<Cached>, CacheError> {
        let pool = &self.servers[self.index(key)];
        let mut connection = pool.take().await?;
        let request = format!("mg {key} v c\r\n");
        let sent = connection.stream.write_all(request.as_bytes()).await;
        pool.io(sent)?;
        let value = pool.value(&mut connection).await?;
        pool.give_back(connection);
        Ok(value)
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, CacheError> {
        let mut by_server: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (position, key) in keys.iter().enumerate() {
            by_server.entry(self.index(key)).or_default().push(position);
        }
        let mut values = vec![None; keys.len()];
        // All servers are asked before any is waited for.
        let mut asked = Vec::with_capacity(by_server.len());
        for (server, positions) in by_server {
            let pool = &self.servers[server];
            let mut connection = pool.take().await?;
            let request: String = positions
                .iter()
                .map(|&position| format!("mg {} v c\r\n", keys[position]))
                .collect();
            pool.io(connection.stream.write_all(request.as_bytes()).await)?;
            asked.push((pool, connection, positions));
        }
        for (pool, mut connection, positions) in asked {
            for position in positions {
                let value = pool.value(&mut connection).await?;
                values[position] = value.map(|value| value.bytes);
            }
            pool.give_back(connection);
        }
        Ok(values)
    }

    async fn set(&self, key: &str, value: Bytes, over: Option<u64>) -> Result<Stored, CacheError> {
        let pool = &self.servers[self.index(key)];
        let mut connection = pool.take().await?;
        let condition = over.map_or(String::new(), |token| format!(" C{token}"));
        let head = format!("ms {key} {}{condition}\r\n", value.len());
        // One system call for all three, without a copy of the value.
        let mut message = Bytes::from(head).chain(value).chain(&b"\r\n"[..]);
        pool.io(connection.stream.write_all_buf(&mut message).await)?;
        let line = pool.line(&mut connection).await?;
        pool.give_back(connection);
        match line.get(..2) {
            Some(b"HD") => Ok(Stored::Yes),
            // Written or removed in between.
            Some(b"EX" | b"NF") => Ok(Stored::Conflict),
            _ => Err(pool.unexpected(&line)),
        }
    }
}

impl Pool {
    async fn take(&self) -> Result<Connection, CacheError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let stream = self.io(TcpStream::connect(&self.address).await)?;
        self.io(stream.set_nodelay(true))?;
        Ok(Connection {
            stream,
            inbox: BytesMut::new(),
        })
    }

    /// Only connections whose answers have been read come back.
    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
    }

    /// `VA <length> c<token>` and the value, or `EN`.
    async fn value(&self, connection: &mut Connection) -> Result<Option<Cached>, CacheError> {
        let line = self.line(connection).await?;
        if line.starts_with(b"EN") {
            return Ok(None);
        }
        let Some((len, token)) = parse_value(&line) else {
            return Err(self.unexpected(&line));
        };
        self.fill(connection, len + 2).await?;
        let bytes = connection.inbox.split_to(len).freeze();
        connection.inbox.advance(2);
        Ok(Some(Cached { bytes, token }))
    }

    async fn line(&self, connection: &mut Connection) -> Result<BytesMut, CacheError> {
        loop {
            let inbox = &mut connection.inbox;
            if let Some(end) = inbox.windows(2).position(|pair| pair == b"\r\n") {
                let line = inbox.split_to(end);
                inbox.advance(2);
                return Ok(line);
            }
            if inbox.len() > LINE_LEN_MAX {
                return Err(self.unexpected(inbox));
            }
            self.fill(connection, connection.inbox.len() + 1).await?;
        }
    }

    /// Reads until at least `len` bytes are there.
    async fn fill(&self, connection: &mut Connection, len: usize) -> Result<(), CacheError> {
        let inbox = &mut connection.inbox;
        inbox.reserve(len.saturating_sub(inbox.len()).max(4096));
        while inbox.len() < len {
            if self.io(connection.stream.read_buf(inbox).await)? == 0 {
                return self.io(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    fn io<T>(&self, result: io::Result<T>) -> Result<T, CacheError> {
        result.map_err(|source| CacheError::Io {
            address: self.address.clone(),
            source,
        })
    }

    fn unexpected(&self, answer: &[u8]) -> CacheError {
        let shown = &answer[..answer.len().min(100)];
        CacheError::Unexpected {
            address: self.address.clone(),
            answer: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}

fn parse_value(line: &[u8]) -> Option<(usize, u64)> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    if words.next()? != "VA" {
        return None;
    }
    let len = words.next()?.parse().ok()?;
    let token = words.next()?.strip_prefix('c')?.parse().ok()?;
    (len <= VALUE_LEN_MAX).then_some((len, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_values() {
        assert_eq!(parse_value(b"VA 12 c7"), Some((12, 7)));
        for wrong in ["VA 12", "VA x c7", "VA 12 7", "HD", "", "VA 99999999999 c1"] {
            assert_eq!(parse_value(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
