//! The session of a connection, by the protocol of its door.

use super::options::Protocol;
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{Driven, Session};
use trefoil_gateway_core::world::{Settings, World};

/// A session of either protocol. The larger one is boxed, so that idle
/// connections of the other do not pay for it.
pub(super) enum Speaker {
    Memcached(Box<MemcacheSession>),
    Redis(Box<RespSession>),
}

impl Speaker {
    pub(super) fn open(protocol: Protocol, _settings: &Settings) -> Self {
        match protocol {
            Protocol::Memcached => Speaker::Memcached(Box::default()),
            Protocol::Redis => Speaker::Redis(Box::default()),
        }
    }
}

impl Session for Speaker {
    #[inline]
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        match self {
            Speaker::Memcached(session) => session.drive(input, out, out_len_max, world),
            Speaker::Redis(session) => session.drive(input, out, out_len_max, world),
        }
    }

    #[inline]
    fn key_ahead<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Speaker::Memcached(session) => session.key_ahead(input),
            Speaker::Redis(session) => session.key_ahead(input),
        }
    }

    fn is_bound(&self) -> bool {
        match self {
            Speaker::Memcached(session) => session.is_bound(),
            Speaker::Redis(session) => session.is_bound(),
        }
    }

    fn is_holding(&self) -> bool {
        match self {
            Speaker::Memcached(session) => session.is_holding(),
            Speaker::Redis(session) => session.is_holding(),
        }
    }

    fn refuse_unfinished(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Speaker::Memcached(session) => session.refuse_unfinished(input, out),
            Speaker::Redis(session) => session.refuse_unfinished(input, out),
        }
    }

    fn is_authenticated(&self) -> bool {
        match self {
            Speaker::Memcached(session) => session.is_authenticated(),
            Speaker::Redis(session) => session.is_authenticated(),
        }
    }

    fn kept(&self) -> usize {
        match self {
            Speaker::Memcached(session) => session.kept(),
            Speaker::Redis(session) => session.kept(),
        }
    }
}
