//! Which role may make which call, where callers are known by their certificates; and which
//! right a call takes of who stands in the server's list of rights.
//!
//! Over Unix sockets, and over TCP with the server's token, a caller is this user's own (or
//! one whom the operator has listed) and may make every call.

use trefoil_tls::{Right, Roles};

/// A call of the contract, and who may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permission {
    /// The call's name in the contract.
    pub(crate) call: &'static str,
    /// Roles of which one is enough.
    pub(crate) roles: Roles,
    /// What the list has to say of who is listed.
    pub(crate) right: Right,
}

const ALL: Roles = Roles::of(true, true, true);
const BACKENDS: Roles = Roles::of(false, true, true);
const ADMINS: Roles = Roles::of(false, false, true);

/// Every call of the contract.
const TABLE: [Permission; 20] = [
    of("Ping", ALL, Right::Read),
    of("Hello", ALL, Right::Read),
    of("Config", ALL, Right::Read),
    of("Mutate", ALL, Right::Write),
    of("Lookup", ALL, Right::Read),
    of("Use", ALL, Right::Read),
    of("Touch", ALL, Right::Read),
    of("Stats", ALL, Right::Read),
    of("TopKeys", ALL, Right::Read),
    of("List", ALL, Right::Read),
    of("RaiseEpoch", BACKENDS, Right::Admin),
    of("CopyItems", BACKENDS, Right::Admin),
    of("HandOver", BACKENDS, Right::Admin),
    of("Resize", BACKENDS, Right::Admin),
    of("Scan", BACKENDS, Right::Admin),
    of("Peek", ALL, Right::Read),
    of("Suspect", ALL, Right::Read),
    of("SetMemoryLimit", ADMINS, Right::Admin),
    of("Flush", ADMINS, Right::Admin),
    of("Reload", ADMINS, Right::Admin),
];

/// What the contract does not have: nobody gets further than to be told so.
const UNKNOWN: Permission = of(
    "a call that this release does not have",
    ADMINS,
    Right::Admin,
);

const fn of(call: &'static str, roles: Roles, right: Right) -> Permission {
    Permission { call, roles, right }
}

/// Stands before a call's name in the path of its request.
const SERVICE: &str = "/trefoil.v1.Trefoil/";

/// Who may make the call at this path.
pub(crate) fn of_path(path: &str) -> Permission {
    let call = path.strip_prefix(SERVICE);
    let row = call.and_then(|call| TABLE.iter().find(|row| row.call == call));
    row.copied().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_tls::Role;

    /// A call that is added to the contract needs a row, so that somebody decides.
    #[test]
    fn every_call_of_the_contract_has_a_row() {
        let contract = include_str!("../../rpc/proto/trefoil.proto");
        let calls = contract.lines().filter_map(|line| {
            let call = line.trim_start().strip_prefix("rpc ")?;
            call.split_once('(').map(|(call, _)| call)
        });
        let mut calls: Vec<&str> = calls.collect();
        let mut rows: Vec<&str> = TABLE.iter().map(|row| row.call).collect();
        calls.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, calls);
    }

    #[test]
    fn what_is_not_known_is_for_admins_alone() {
        for path in [
            "",
            "/",
            "/trefoil.v1.Trefoil/",
            "/trefoil.v1.Trefoil/Format",
            "/Ping",
        ] {
            assert_eq!(of_path(path).roles, ADMINS, "{path}");
            assert_eq!(of_path(path).right, Right::Admin, "{path}");
        }
        let named = |path: &str| {
            let Permission { call, roles, right } = of_path(path);
            (call, roles, right)
        };
        assert_eq!(
            named("/trefoil.v1.Trefoil/Ping"),
            ("Ping", ALL, Right::Read)
        );
        let (reload, mutate) = (trefoil_rpc::RELOAD_PATH, trefoil_rpc::MUTATE_PATH);
        assert_eq!(named(reload), ("Reload", ADMINS, Right::Admin));
        assert_eq!(named(mutate), ("Mutate", ALL, Right::Write));
        // Admins may do everything.
        assert!(TABLE.iter().all(|row| row.roles.has(Role::Admin)));
        // What clients may not call takes every right.
        let is_high = |row: &Permission| row.right == Right::Admin;
        assert!(
            TABLE
                .iter()
                .all(|row| is_high(row) != row.roles.has(Role::Client))
        );
    }
}
