//! The sessions of one client: all backends that one engine reads are asked by the same
//! session. What a lookup asks of several replicas on one host goes in one message then,
//! and so do the answers.

use crate::dial::{DatagramUse, EngineAddress};
use crate::port::{EnginePort, Session};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// See the module.
#[derive(Debug, Default)]
pub struct Sessions {
    known: Mutex<Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    address: SocketAddr,
    datagrams: DatagramUse,
    session: Weak<Session>,
}

impl Known {
    fn is_of(&self, engine: &EngineAddress) -> bool {
        (self.address, self.datagrams) == (engine.address, engine.datagrams)
    }
}

impl Sessions {
    /// A port that has just been connected asks by the session that another one has with the
    /// same engine, if there is one, and its own session ends; else others may use that.
    /// All of them belong to one client.
    pub fn join(&self, engine: &EngineAddress, port: EnginePort) -> EnginePort {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.session.strong_count() > 0);
        let same = known.iter().filter(|known| known.is_of(engine));
        let sessions: Vec<Arc<Session>> =
            same.filter_map(|known| known.session.upgrade()).collect();
        for session in &sessions {
            if let Some(at) = session.admit(&port) {
                return port.moved_to(Arc::clone(session), at);
            }
        }
        known.push(Known {
            address: engine.address,
            datagrams: engine.datagrams,
            session: Arc::downgrade(port.session()),
        });
        port
    }
}
