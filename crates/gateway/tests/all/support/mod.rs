//! A front door over a keyspace in memory, with a protocol so small that what
//! is tested is the door.
//!
//! | request | answer |
//! |---|---|
//! | `set KEY LEN\n` and LEN bytes | `ok\n` |
//! | `get KEY\n` | `LEN\n` and the bytes; `none\n` |
//! | `fill LEN\n` | LEN bytes, in pieces of at most the output's limit |
//! | `login NAME PASSWORD\n` | `yes\n` or `no\n` |
//! | `watch\n` | `ok\n`, then log lines |
//! | `shutdown\n` | `ok\n` |
//! | `panic\n` | the end of the event loop |
//! | `quit\n` | the end |
//! | anything else | `error\n` and the end |
#![allow(dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use trefoil_gateway::server::{
    Door, DoorAddress, Doors, Gateway, GatewayOptions, LoopObserver, Protocol,
};
use trefoil_gateway_core::keyspace::{Access, Keyspace, NewItem};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::session::{Driven, Session, Wants};
use trefoil_gateway_core::world::{
    Command, Done, Ending, Observer, ServerRequest, Settings, WATCH_FETCHERS, World,
};

/// Longest value that the protocol takes.
pub const VALUE_LEN_MAX: usize = 4 << 20;

#[derive(Default)]
pub struct LineSession {
    /// Bytes of a `fill` that have yet to be sent.
    filling: usize,
    is_known: bool,
}

impl LineSession {
    pub fn open(_protocol: Protocol, _settings: &Settings) -> Self {
        LineSession::default()
    }

    fn line<K: Keyspace>(
        &mut self,
        line: &str,
        rest: &[u8],
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<usize, Wants> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["set", key, len] => {
                let Ok(len) = len.parse::<usize>() else {
                    out.extend_from_slice(b"error\n");
                    return Err(Wants::Close);
                };
                if len > VALUE_LEN_MAX {
                    out.extend_from_slice(b"error\n");
                    return Err(Wants::Close);
                }
                if rest.len() < len {
                    return Err(Wants::Input(line.len() + 1 + len));
                }
                let item = NewItem {
                    value: &rest[..len],
                    ..NewItem::default()
                };
                world.keyspace.set(key.as_bytes(), &item).unwrap();
                out.extend_from_slice(b"ok\n");
                Ok(len)
            }
            ["get", key] => {
                let mut len = None;
                let with = &mut |item: Option<&trefoil_gateway_core::keyspace::Item<'_>>| {
                    if let Some(item) = item {
                        len = Some(item.value.len());
                        out.extend_from_slice(format!("{}\n", item.value.len()).as_bytes());
                        item.value.append_to(out);
                    }
                };
                world
                    .keyspace
                    .get(key.as_bytes(), Access::Use, with)
                    .unwrap();
                if len.is_none() {
                    out.extend_from_slice(b"none\n");
                }
                world.observer.done(&Done {
                    command: Command::Get,
                    ending: len.map_or(Ending::Miss, |_| Ending::Hit),
                    key: key.as_bytes(),
                    value_len: len.unwrap_or(0),
                });
                Ok(0)
            }
            ["fill", len] => {
                self.filling = len.parse().unwrap_or(0);
                Ok(0)
            }
            ["login", name, password] => {
                let known = world
                    .observer
                    .authenticate(name.as_bytes(), password.as_bytes());
                self.is_known |= known.is_some();
                out.extend_from_slice(match known {
                    Some(_) => b"yes\n",
                    None => b"no\n",
                });
                Ok(0)
            }
            ["watch"] => {
                world.observer.watch(world.connection, WATCH_FETCHERS);
                out.extend_from_slice(b"ok\n");
                Ok(0)
            }
            ["shutdown"] => {
                world.observer.request(ServerRequest::Shutdown);
                out.extend_from_slice(b"ok\n");
                Ok(0)
            }
            ["panic"] => panic!("as the test wished"),
            ["quit"] => Err(Wants::Close),
            _ => {
                out.extend_from_slice(b"error\n");
                Err(Wants::Close)
            }
        }
    }
}

impl Session for LineSession {
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        let mut consumed = 0;
        let wants = loop {
            if self.filling > 0 {
                let len = self.filling.min(out_len_max.saturating_sub(out.len()));
                out.resize(out.len() + len, b'x');
                self.filling -= len;
            }
            if out.len() >= out_len_max {
                break Wants::Output;
            }
            let rest = &input[consumed..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                if rest.len() > 1000 {
                    out.extend_from_slice(b"error\n");
                    break Wants::Close;
                }
                break Wants::Input(0);
            };
            let Ok(line) = std::str::from_utf8(&rest[..end]) else {
                out.extend_from_slice(b"error\n");
                break Wants::Close;
            };
            match self.line(line, &rest[end + 1..], out, world) {
                Ok(more) => consumed += end + 1 + more,
                Err(wants) => break wants,
            }
        };
        Driven { consumed, wants }
    }

    fn is_authenticated(&self) -> bool {
        self.is_known
    }
}

/// Counts what the tests look at.
#[derive(Default)]
pub struct Nobody;

impl Observer for Nobody {
    fn done(&mut self, _done: &Done<'_>) {}
}

impl LoopObserver for Nobody {}

/// Options with one door on a free port.
pub fn options() -> GatewayOptions {
    let door = Door {
        protocol: Protocol::Memcached,
        address: "127.0.0.1:0".parse().unwrap(),
        tls: None,
    };
    let mut options = GatewayOptions::new(vec![door]);
    options.thread_count = 1;
    options
}

/// Opens a front door.
pub fn start(options: GatewayOptions) -> Gateway {
    let doors = Doors::open(&options).unwrap();
    Gateway::start_with(
        options,
        doors,
        |_| MemoryKeyspace::new(0),
        |_| Nobody,
        LineSession::open,
    )
    .unwrap()
}

/// Its first address.
pub fn port(gateway: &Gateway) -> SocketAddr {
    match gateway.addresses()[0].1 {
        DoorAddress::Tcp(address) => address,
        DoorAddress::Unix(_) => panic!("a TCP door was expected"),
    }
}

/// A client that says one thing at a time.
pub struct Client<S> {
    pub stream: BufReader<S>,
}

pub fn connect(gateway: &Gateway) -> Client<TcpStream> {
    let stream = TcpStream::connect(port(gateway)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    Client::new(stream)
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Client {
            stream: BufReader::new(stream),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// A line of the answer, without its end; empty at the end of all.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    pub fn ask(&mut self, request: &str) -> String {
        self.send(format!("{request}\n"));
        self.line()
    }

    pub fn set(&mut self, key: &str, value: &[u8]) -> String {
        let mut request = format!("set {key} {}\n", value.len()).into_bytes();
        request.extend_from_slice(value);
        self.send(request);
        self.line()
    }

    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let len = self.ask(&format!("get {key}")).parse().ok()?;
        Some(self.bytes(len))
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }
}
