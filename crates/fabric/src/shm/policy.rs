//! Which users may talk to each other over shared memory.

use super::socket_file::{MODE_BY_CREDENTIALS, MODE_PRIVATE};
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

    /// Decides whether a client that runs as `own` believes a server that runs
    /// as `peer`. Root may inspect everybody's cells.
    pub fn trusts(&self, own: u32, peer: u32) -> bool {
        own == 0 || self.allows(own, peer)
    }

    /// Mode of a socket file whose clients are judged by this policy.
    pub fn socket_mode(&self) -> u32 {
        match self {
            UserPolicy::SameUser => MODE_PRIVATE,
            // Who may connect is then decided by credentials alone.
            UserPolicy::Listed(_) => MODE_BY_CREDENTIALS,
        }
    }

    /// Decides about the client on a connected socket, by what the kernel says.
    pub fn allows_client(&self, socket: impl AsFd) -> bool {
        users(socket).is_some_and(|(own, peer)| self.allows(own, peer))
    }

    /// Decides about the server on a connected socket, by what the kernel says.
    pub fn trusts_server(&self, socket: impl AsFd) -> bool {
        users(socket).is_some_and(|(own, peer)| self.trusts(own, peer))
    }
}

/// Users of this process and of the one on the other side.
fn users(socket: impl AsFd) -> Option<(u32, u32)> {
    let peer = socket_peercred(socket).ok()?;
    Some((rustix::process::geteuid().as_raw(), peer.uid.as_raw()))
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
            let trusted = allowed || own == 0;
            assert_eq!(policy.trusts(own, peer), trusted, "{policy:?} {own} {peer}");
        }
    }
}
