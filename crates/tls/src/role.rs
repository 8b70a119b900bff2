//! What a certificate's owner is to a cell.

use std::fmt;
use std::str::FromStr;

/// What a certificate's owner may be taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads and writes items.
    Client,
    /// Serves items, and asks other backends for theirs.
    Backend,
    /// Steers the cell, too: flushes, limits, corpora.
    Admin,
}

/// Stands before a role's name among a certificate's alternative names (URI).
const URN: &str = "urn:trefoil:role:";

/// A text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no role: choose client, backend or admin")]
pub struct UnknownRole(String);

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Client, Role::Backend, Role::Admin];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Backend => "backend",
            Role::Admin => "admin",
        }
    }

    /// As a certificate carries it: a URI among its alternative names.
    pub fn urn(self) -> String {
        format!("{URN}{}", self.name())
    }

    /// The role that an alternative name stands for, if it is one's.
    pub fn of_urn(uri: &str) -> Option<Role> {
        uri.strip_prefix(URN)?.parse().ok()
    }

    fn bit(self) -> u8 {
        match self {
            Role::Client => 1,
            Role::Backend => 2,
            Role::Admin => 4,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let role = Role::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// These.
    pub const fn of(client: bool, backend: bool, admin: bool) -> Self {
        Roles(client as u8 | (backend as u8) << 1 | (admin as u8) << 2)
    }

    /// With one more.
    pub fn insert(&mut self, role: Role) {
        self.0 |= role.bit();
    }

    /// Whether it is among them.
    pub fn has(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// Whether there is a role in both.
    pub fn meets(self, other: Roles) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them, the least powerful first.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.has(*role))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, role) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{role}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_survives_its_urn() {
        for role in Role::ALL {
            assert_eq!(Role::of_urn(&role.urn()), Some(role));
            assert_eq!(role.name().parse(), Ok(role));
        }
        for other in ["", "admin", "urn:trefoil:role:", "urn:trefoil:role:root"] {
            assert_eq!(Role::of_urn(other), None, "{other}");
        }
    }

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let mut roles = Roles::default();
        assert_eq!(roles.to_string(), "none");
        roles.insert(Role::Admin);
        roles.insert(Role::Client);
        assert_eq!(roles.to_string(), "client, admin");
        assert_eq!(roles, Roles::of(true, false, true));
        assert!(roles.has(Role::Admin) && !roles.has(Role::Backend));
        assert!(roles.meets(Roles::of(false, true, true)));
        assert!(!roles.meets(Roles::of(false, true, false)));
    }
}
