//! Connections that are open at the port, a few at a time.
//!
//! One that has not asked anything yet has its place until somebody newer needs it:
//! then the oldest of them is hung up on. So connections that say nothing keep
//! nobody away, however many come. One that has asked stays until it has its answer.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections at a time.
const COUNT_MAX: usize = 32;
/// Of these for this host alone: who is about to stop the process asks from there.
const LOCAL_COUNT: usize = 4;
const _: () = assert!(LOCAL_COUNT < COUNT_MAX);

/// All of a port, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Visitors(Mutex<Vec<Visitor>>);

#[derive(Debug)]
struct Visitor {
    stream: Arc<TcpStream>,
    is_local: bool,
    has_asked: bool,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    visitors: Arc<Visitors>,
    stream: Arc<TcpStream>,
    /// It comes from this host.
    pub(crate) is_local: bool,
}

impl Visitors {
    /// A new connection; nothing if all that are there have asked something.
    pub(crate) fn come_in(self: &Arc<Self>, stream: TcpStream, is_local: bool) -> Option<Place> {
        let stream = Arc::new(stream);
        self.with(|visitors| {
            // Whoever comes from elsewhere takes no place from this host's own.
            let competes = |visitor: &Visitor| is_local || !visitor.is_local;
            let limit = COUNT_MAX - if is_local { 0 } else { LOCAL_COUNT };
            if visitors.iter().filter(|visitor| competes(visitor)).count() >= limit {
                let is_idle = |visitor: &Visitor| competes(visitor) && !visitor.has_asked;
                let oldest = visitors.iter().position(is_idle)?;
                // Its thread finds the end of the stream.
                let _ = visitors.remove(oldest).stream.shutdown(Shutdown::Both);
            }
            visitors.push(Visitor {
                stream: Arc::clone(&stream),
                is_local,
                has_asked: false,
            });
            Some(())
        })?;
        Some(Place {
            visitors: Arc::clone(self),
            stream,
            is_local,
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<Visitor>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Place {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Its request is there: from now on it keeps the place.
    pub(crate) fn has_asked(&self) {
        self.visitors.with(|visitors| {
            let mut all = visitors.iter_mut();
            if let Some(visitor) = all.find(|visitor| Arc::ptr_eq(&visitor.stream, &self.stream)) {
                visitor.has_asked = true;
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.visitors
            .with(|visitors| visitors.retain(|v| !Arc::ptr_eq(&v.stream, &self.stream)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_oldest_that_has_not_asked_goes_and_this_host_has_places_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let visitors = Arc::<Visitors>::default();
        let mut peers = Vec::new();
        let mut come_in = |is_local| {
            peers.push(TcpStream::connect(at).unwrap());
            visitors.come_in(listener.accept().unwrap().0, is_local)
        };
        let open = || visitors.with(|visitors| visitors.len());
        let is_in = |place: &Place| {
            let is = |visitor: &Visitor| Arc::ptr_eq(&visitor.stream, &place.stream);
            visitors.with(|visitors| visitors.iter().any(is))
        };
        let beyond = COUNT_MAX - LOCAL_COUNT;
        let mut others: Vec<Place> = (0..beyond).map(|_| come_in(false).unwrap()).collect();
        others[0].has_asked();
        others.push(come_in(false).unwrap());
        assert_eq!(open(), beyond);
        assert!(is_in(&others[0]) && !is_in(&others[1]) && is_in(&others[2]));
        // This host's own are not hung up on for them.
        let own: Vec<Place> = (0..LOCAL_COUNT).map(|_| come_in(true).unwrap()).collect();
        assert_eq!(open(), COUNT_MAX);
        others.push(come_in(false).unwrap());
        assert!(own.iter().all(is_in) && !is_in(&others[2]));
        // All have asked: there is no room, until one has its answer.
        others.iter().chain(&own).for_each(Place::has_asked);
        assert!(come_in(false).is_none() && come_in(true).is_none());
        drop(others.pop());
        assert!(come_in(true).is_some());
    }
}
