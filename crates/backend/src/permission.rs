//! Which role may make which call, where callers are known by their certificates.
//!
//! Over Unix sockets, and over TCP with a token, a caller is this user's own (or one
//! whom the operator has listed) and may make every call.

use trefoil_tls::Roles;

/// A call of the contract, and who may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permission {
    /// The call's name in the contract.
    pub(crate) call: &'static str,
    /// Roles of which one is enough.
    pub(crate) roles: Roles,
}

const ALL: Roles = Roles::of(true, true, true);
const BACKENDS: Roles = Roles::of(false, true, true);
const ADMINS: Roles = Roles::of(false, false, true);

/// Every call of the contract.
const TABLE: [Permission; 20] = [
    of("Ping", ALL),
    of("Hello", ALL),
    of("Config", ALL),
    of("Mutate", ALL),
    of("Lookup", ALL),
    of("Use", ALL),
    of("Touch", ALL),
    of("Stats", ALL),
    of("TopKeys", ALL),
    of("List", ALL),
    of("RaiseEpoch", BACKENDS),
    of("CopyItems", BACKENDS),
    of("HandOver", BACKENDS),
    of("Resize", BACKENDS),
    of("Scan", BACKENDS),
    of("Peek", ALL),
    of("Suspect", ALL),
    of("SetMemoryLimit", ADMINS),
    of("Flush", ADMINS),
    of("Reload", ADMINS),
];

/// What the contract does not have: nobody gets further than to be told so.
const UNKNOWN: Permission = of("a call that this release does not have", ADMINS);

const fn of(call: &'static str, roles: Roles) -> Permission {
    Permission { call, roles }
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
        }
        assert_eq!(of_path("/trefoil.v1.Trefoil/Ping"), of("Ping", ALL));
        assert_eq!(of_path(trefoil_rpc::RELOAD_PATH), of("Reload", ADMINS));
        assert_eq!(of_path(trefoil_rpc::MUTATE_PATH), of("Mutate", ALL));
        // Admins may do everything.
        assert!(TABLE.iter().all(|row| row.roles.has(Role::Admin)));
    }
}
