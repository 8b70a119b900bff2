//! Which users may talk to each other over shared memory.

use rustix::net::sockopt::socket_peercred;
use std::os::fd::AsFd;

/// Whom one side accepts on the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UserPolicy {
    /// The own user, and root, who can read everything anyway.
    #[default]
    SameUser,
    /// These users as well.
    Listed(Vec<u32>),
}

impl UserPolicy {
    /// Decides about user `peer`, on behalf of user `own`.
    pub fn allows(&self, own: u32, peer: u32) -> bool {
        let listed = match self {
            UserPolicy::SameUser => false,
            UserPolicy::Listed(users) => users.contains(&peer),
        };
        peer == own || peer == 0 || listed
    }

    /// Decides about the other side of a connected Unix socket, by what the
    /// kernel says about it.
    pub(super) fn allows_peer(&self, socket: impl AsFd) -> bool {
        let own = rustix::process::geteuid().as_raw();
        socket_peercred(socket).is_ok_and(|peer| self.allows(own, peer.uid.as_raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_refused_unless_listed() {
        let cases = [
            // policy, own, peer, allowed
            (UserPolicy::SameUser, 1000, 1000, true),
            (UserPolicy::SameUser, 1000, 1001, false),
            (UserPolicy::SameUser, 1000, 0, true),
            (UserPolicy::SameUser, 0, 1000, false),
            (UserPolicy::Listed(vec![1001]), 1000, 1001, true),
            (UserPolicy::Listed(vec![1001]), 1000, 1000, true),
            (UserPolicy::Listed(vec![1001]), 1000, 1002, false),
            (UserPolicy::Listed(vec![]), 1000, 1002, false),
        ];
        for (policy, own, peer, allowed) in cases {
            assert_eq!(policy.allows(own, peer), allowed, "{policy:?} {own} {peer}");
        }
    }
}
