//! The first frame of each side.
//!
//! | offset | bytes | HELLO (288) | why |
//! |---|---|---|---|
//! | 0 | 8 | magic | this and the next field stand here in every version |
//! | 8 | 2 | protocol version | |
//! | 10 | 1 | layout version | of the memory that the client understands |
//! | 11 | 1 | reserved, zero | |
//! | 12 | 2 | token length | 0 if the client has none |
//! | 14 | 2 | reserved, zero | |
//! | 16 | 4 | window | most solicited bytes that the client is going to have under way |
//! | 20 | 12 | reserved, zero | |
//! | 32 | 256 | token, then zeros | as long for everybody, and longer than any answer to it |
//!
//! | offset | bytes | WELCOME (40) | why |
//! |---|---|---|---|
//! | 0 | 8 | magic | |
//! | 8 | 2 | protocol version | |
//! | 10 | 1 | layout version | |
//! | 11 | 1 | reserved, zero | |
//! | 12 | 4 | window | most solicited bytes under way; at most what the client named |
//! | 16 | 8 | engine | drawn when it started: a restart is another one |
//! | 24 | 8 | session | names it in the engine's log |
//! | 32 | 8 | reserved, zero | |
//!
//! | offset | bytes | REFUSED (16) | why |
//! |---|---|---|---|
//! | 0 | 8 | magic | |
//! | 8 | 2 | protocol version | the engine's |
//! | 10 | 1 | layout version | the engine's |
//! | 11 | 1 | code | see [`RefusalCode`] |
//! | 12 | 4 | reserved, zero | |

use super::{
    HEAD_LEN, Head, Kind, Malformed, PROTOCOL_VERSION, is_zero, put, u16_at, u32_at, u64_at,
};
use crate::limits::TOKEN_LEN_MAX;
use trefoil_layout::limits::LAYOUT_VERSION;

const MAGIC: [u8; 8] = *b"TREFSNIC";

const AT_PROTOCOL: usize = 8;
const AT_LAYOUT: usize = 10;
const AT_CODE: usize = 11;
const AT_TOKEN_LEN: usize = 12;
const AT_HELLO_WINDOW: usize = 16;
const AT_HELLO_RESERVED: usize = 20;
const AT_TOKEN: usize = 32;
const AT_WINDOW: usize = 12;
const AT_ENGINE: usize = 16;
const AT_SESSION: usize = 24;
const AT_WELCOME_RESERVED: usize = 32;
const AT_REFUSED_RESERVED: usize = 12;

/// Bytes of a HELLO behind its head.
pub const HELLO_LEN: usize = 288;
/// Bytes of a WELCOME behind its head.
pub const WELCOME_LEN: usize = 40;
/// Bytes of a REFUSED behind its head.
pub const REFUSED_LEN: usize = 16;
/// So much of a HELLO says which version it is of.
pub const VERSIONED_LEN: usize = HEAD_LEN + AT_LAYOUT;
/// Longest HELLO of any version, with its head: more is not waited for.
pub const ANY_HELLO_LEN_MAX: usize = 1024;

const _: () = {
    assert!(AT_PROTOCOL == MAGIC.len() && AT_LAYOUT == AT_PROTOCOL + 2);
    assert!(AT_CODE == AT_LAYOUT + 1 && AT_TOKEN_LEN == AT_CODE + 1);
    assert!(AT_HELLO_WINDOW == AT_TOKEN_LEN + 4 && AT_HELLO_RESERVED == AT_HELLO_WINDOW + 4);
    assert!(AT_TOKEN == AT_HELLO_RESERVED + 12 && AT_TOKEN + TOKEN_LEN_MAX == HELLO_LEN);
    assert!(AT_WINDOW == AT_CODE + 1 && AT_ENGINE == AT_WINDOW + 4);
    assert!(AT_SESSION == AT_ENGINE + 8 && AT_WELCOME_RESERVED == AT_SESSION + 8);
    assert!(AT_WELCOME_RESERVED + 8 == WELCOME_LEN);
    assert!(AT_REFUSED_RESERVED == AT_CODE + 1 && AT_REFUSED_RESERVED + 4 == REFUSED_LEN);
    // Nobody gets more than it has sent.
    assert!(WELCOME_LEN < HELLO_LEN && REFUSED_LEN < HELLO_LEN);
    assert!(HEAD_LEN + REFUSED_LEN > VERSIONED_LEN && HEAD_LEN + HELLO_LEN <= ANY_HELLO_LEN_MAX);
};

/// A client's first words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Its protocol.
    pub protocol: u16,
    /// Of the memory that it understands.
    pub layout: u8,
    /// Most solicited bytes that it is going to have under way.
    pub window: u32,
    /// What shows who it is; may be empty.
    pub token: &'a [u8],
}

impl std::fmt::Debug for Hello<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello")
            .field("protocol", &self.protocol)
            .field("layout", &self.layout)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl<'a> Hello<'a> {
    /// Of this release.
    pub fn new(window: u32, token: &'a [u8]) -> Self {
        Hello {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            window,
            token,
        }
    }

    /// Appends the frame. A token that is too long is left out: it is none of ours.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let token = match self.token.len() <= TOKEN_LEN_MAX {
            true => self.token,
            false => &[],
        };
        let mut body = [0; HELLO_LEN];
        put(&mut body, 0, MAGIC);
        put(&mut body, AT_PROTOCOL, self.protocol.to_le_bytes());
        body[AT_LAYOUT] = self.layout;
        put(&mut body, AT_TOKEN_LEN, (token.len() as u16).to_le_bytes());
        put(&mut body, AT_HELLO_WINDOW, self.window.to_le_bytes());
        body[AT_TOKEN..AT_TOKEN + token.len()].copy_from_slice(token);
        append(out, Kind::Hello, &body);
    }

    /// The version that the beginning of a stream names, as soon as it does. Anything
    /// but a HELLO is refused.
    pub fn version(bytes: &[u8]) -> Result<Option<u16>, Malformed> {
        let Some(head) = Head::decode(bytes, ANY_HELLO_LEN_MAX)? else {
            return Ok(None);
        };
        if head.kind != Kind::Hello || head.len < AT_LAYOUT {
            return Err(Malformed("a session begins with HELLO"));
        }
        let Some(front) = bytes.get(HEAD_LEN..VERSIONED_LEN) else {
            return Ok(None);
        };
        if front[..MAGIC.len()] != MAGIC {
            return Err(Malformed("not Trefoil's"));
        }
        Ok(Some(u16_at(front, AT_PROTOCOL)))
    }

    /// Judges a HELLO of this protocol's version.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        if body.len() != HELLO_LEN || body[..MAGIC.len()] != MAGIC {
            return Err(Malformed("not a HELLO"));
        }
        let token_len = usize::from(u16_at(body, AT_TOKEN_LEN));
        let token = body[AT_TOKEN..]
            .get(..token_len)
            .ok_or(Malformed("a token of this length does not exist"))?;
        let is_rest_zero = body[AT_CODE] == 0
            && is_zero(&body[AT_TOKEN_LEN + 2..AT_HELLO_WINDOW])
            && is_zero(&body[AT_HELLO_RESERVED..AT_TOKEN])
            && is_zero(&body[AT_TOKEN + token_len..]);
        if !is_rest_zero {
            return Err(Malformed("reserved bytes of HELLO are in use"));
        }
        Ok(Hello {
            protocol: u16_at(body, AT_PROTOCOL),
            layout: body[AT_LAYOUT],
            window: u32_at(body, AT_HELLO_WINDOW),
            token,
        })
    }
}

/// The engine lets a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Most solicited bytes under way.
    pub window: u32,
    /// One existence of the engine.
    pub engine: u64,
    /// Names the session.
    pub session: u64,
}

impl Welcome {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; WELCOME_LEN];
        put_front(&mut body);
        put(&mut body, AT_WINDOW, self.window.to_le_bytes());
        put(&mut body, AT_ENGINE, self.engine.to_le_bytes());
        put(&mut body, AT_SESSION, self.session.to_le_bytes());
        append(out, Kind::Welcome, &body);
    }

    /// Judges one.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let is_ours = body.len() == WELCOME_LEN
            && body[..MAGIC.len()] == MAGIC
            && u16_at(body, AT_PROTOCOL) == PROTOCOL_VERSION
            && body[AT_LAYOUT] == LAYOUT_VERSION
            && body[AT_CODE] == 0
            && is_zero(&body[AT_WELCOME_RESERVED..]);
        if !is_ours {
            return Err(Malformed("not a WELCOME"));
        }
        Ok(Welcome {
            window: u32_at(body, AT_WINDOW),
            engine: u64_at(body, AT_ENGINE),
            session: u64_at(body, AT_SESSION),
        })
    }
}

/// Why an engine ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum RefusalCode {
    /// Another protocol version.
    #[error("it speaks another version of the protocol: run the same release on both sides")]
    Protocol = 1,
    /// Memory of another layout.
    #[error("its memory has another layout: run the same release on both sides")]
    Layout = 2,
    /// No token, or not the right one.
    #[error("it does not let this user in")]
    Token = 3,
    /// It has as many sessions as it takes.
    #[error("it has no room for another session")]
    Full = 4,
    /// Clients of the same identity have as many of its sessions as they may.
    #[error(
        "clients of this identity have as many of its sessions as one identity may: end some, \
         come with a certificate of another name, or start the engine with a larger \
         --engine-share"
    )]
    Share = 5,
}

impl RefusalCode {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => RefusalCode::Protocol,
            2 => RefusalCode::Layout,
            3 => RefusalCode::Token,
            4 => RefusalCode::Full,
            5 => RefusalCode::Share,
            _ => return None,
        })
    }
}

/// The engine does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The engine's protocol.
    pub protocol: u16,
    /// The layout that it understands.
    pub layout: u8,
    /// Why.
    pub code: RefusalCode,
}

impl Refusal {
    /// Of this release.
    pub fn new(code: RefusalCode) -> Self {
        Refusal {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            code,
        }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; REFUSED_LEN];
        put_front(&mut body);
        put(&mut body, AT_PROTOCOL, self.protocol.to_le_bytes());
        body[AT_LAYOUT] = self.layout;
        body[AT_CODE] = self.code as u8;
        append(out, Kind::Refused, &body);
    }

    /// Judges one, of whatever version.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let code = match body.len() == REFUSED_LEN && body[..MAGIC.len()] == MAGIC {
            true => RefusalCode::from_number(body[AT_CODE]),
            false => None,
        };
        Ok(Refusal {
            code: code.ok_or(Malformed("not a REFUSED"))?,
            protocol: u16_at(body, AT_PROTOCOL),
            layout: body[AT_LAYOUT],
        })
    }
}

fn put_front(body: &mut [u8]) {
    put(body, 0, MAGIC);
    put(body, AT_PROTOCOL, PROTOCOL_VERSION.to_le_bytes());
    body[AT_LAYOUT] = LAYOUT_VERSION;
}

pub(super) fn append(out: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    let head = Head {
        len: body.len(),
        kind,
        count: 1,
    };
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(body);
}
