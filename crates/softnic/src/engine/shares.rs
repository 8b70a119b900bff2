//! Who holds the lanes of a queue: a server has places for few clients, and no identity is to
//! take them all.

use super::Who;
use super::strangers::Origin;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Weak};

/// Whose lanes and sessions are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Token(Box<[u8]>),
    /// A certificate's name: it stays when the certificate is renewed.
    Name(String),
}

impl From<&Who> for Owner {
    fn from(who: &Who) -> Self {
        match who {
            Who::Token(token) => Owner::Token(token.clone()),
            Who::Certificate(caller) => Owner::Name(caller.name.clone()),
        }
    }
}

/// Names an identity, and where somebody of it comes from. Hashes, because the secrets that
/// are shown are not told to others; the same in every process.
pub(super) fn names(who: &Who, origin: Option<Origin>) -> [u64; 2] {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    [hasher.hash_one(Owner::from(who)), hasher.hash_one(origin)]
}

#[derive(Debug)]
struct Holder {
    owner: Owner,
    producer: [u64; 2],
    /// As long as the lane.
    place: Weak<Place>,
}

/// Goes with a lane.
#[derive(Debug)]
pub(super) struct Place(());

/// The lanes of one queue.
#[derive(Debug, Default)]
pub(super) struct Shares {
    holders: Vec<Holder>,
    /// Most lanes of one owner, if that was chosen.
    chosen: Option<usize>,
    /// Clients that the server takes; not known before it has given a lane.
    places: Option<u64>,
}

impl Shares {
    pub(super) fn new(chosen: Option<usize>) -> Self {
        Shares {
            chosen,
            ..Shares::default()
        }
    }

    /// Most lanes of one owner: half of them all, unless chosen otherwise.
    fn most(&self) -> usize {
        let half = || self.places.map(|places| places.div_ceil(2) as usize);
        self.chosen.or_else(half).unwrap_or(usize::MAX)
    }

    /// Whether a lane may be asked for. One that this producer has is closed by that, and
    /// does not count.
    pub(super) fn has_room(&mut self, who: &Who, producer: [u64; 2]) -> bool {
        self.holders
            .retain(|holder| holder.place.strong_count() > 0);
        let owner = Owner::from(who);
        let is_other = |holder: &&Holder| holder.owner == owner && holder.producer != producer;
        self.holders.iter().filter(is_other).count() < self.most()
    }

    /// A lane was given, by a server that takes so many clients.
    pub(super) fn take(&mut self, who: &Who, producer: [u64; 2], places: u64) -> Arc<Place> {
        let place = Arc::new(Place(()));
        self.places = Some(places);
        self.holders.push(Holder {
            owner: who.into(),
            producer,
            place: Arc::downgrade(&place),
        });
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use trefoil_tls::{Caller, Corpora, Roles};

    #[test]
    fn each_owner_has_its_share() {
        let mut shares = Shares::new(None);
        let [one, other] = [b"one", b"two"].map(|token| Who::Token(token[..].into()));
        assert!(shares.has_room(&one, [1, 0]));
        let first = shares.take(&one, [1, 0], 3);
        let _second = shares.take(&one, [2, 0], 3);
        assert!(!shares.has_room(&one, [3, 0]), "half of three, and a half");
        assert!(shares.has_room(&one, [2, 0]), "it has that lane's place");
        assert!(shares.has_room(&other, [3, 0]));
        drop(first);
        assert!(shares.has_room(&one, [3, 0]));
        let mut shares = Shares::new(Some(1));
        let _only = shares.take(&one, [1, 0], 64);
        assert!(!shares.has_room(&one, [2, 0]));
    }

    #[test]
    fn identities_and_hosts_have_names_of_their_own() {
        let token = |token: &[u8]| Who::Token(token.into());
        let host = |last| Some(Origin::from(IpAddr::from([192, 0, 2, last])));
        let first = names(&token(b"one"), host(1));
        assert_eq!(first, names(&token(b"one"), host(1)));
        let [identity, origin] = names(&token(b"two"), host(1));
        assert!(identity != first[0] && origin == first[1]);
        let [identity, origin] = names(&token(b"one"), host(2));
        assert!(identity == first[0] && origin != first[1]);
    }

    #[test]
    fn a_renewed_certificate_is_the_same_owner() {
        let [old, new, other] = [("1", "a"), ("2", "a"), ("3", "b")].map(|(serial, name)| {
            let caller = Caller {
                serial: serial.into(),
                name: name.into(),
                roles: Roles::default(),
                corpora: Corpora::default(),
                ends_s: 0,
            };
            Owner::from(&Who::Certificate(Arc::new(caller)))
        });
        assert_eq!(old, new);
        assert_ne!(old, other);
    }
}
