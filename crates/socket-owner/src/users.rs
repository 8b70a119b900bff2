//! Which users are believed.

use std::sync::OnceLock;

/// Users of this host: the process's own, root, and those who are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(Vec<u32>);

impl Users {
    /// These besides the process's own user and root.
    pub fn and(named: impl IntoIterator<Item = u32>) -> Self {
        Users(named.into_iter().collect())
    }

    /// Whether this user is one of them.
    pub fn let_in(&self, user: u32) -> bool {
        self.judge(own_user(), user)
    }

    fn judge(&self, own: u32, user: u32) -> bool {
        user == own || user == 0 || self.0.contains(&user)
    }
}

/// This process's user.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The number by which the kernel shows users that have none in a namespace.
const OVERFLOW_USER: u32 = 65_534;

/// Whether this number may stand for any user of the host: in a user namespace the
/// kernel shows all who are not mapped there by one number, which is `nobody`'s, too.
pub(crate) fn is_unmapped(user: u32) -> bool {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    let overflow = OVERFLOW.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let number = number.and_then(|number| number.trim().parse().ok());
        (!maps_all(&map)).then_some(number.unwrap_or(OVERFLOW_USER))
    });
    *overflow == Some(user)
}

/// Whether every user has a number of its own.
fn maps_all(map: &str) -> bool {
    let fields: Vec<&str> = map.split_ascii_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_user_root_and_those_who_are_named() {
        for (named, own, user, is_in) in [
            (vec![], 1000, 1000, true),
            (vec![], 1000, 0, true),
            (vec![], 1000, 1001, false),
            (vec![], 0, 1000, false),
            (vec![1001], 1000, 1001, true),
            (vec![1001], 1000, 1000, true),
            (vec![1001], 1000, 1002, false),
        ] {
            let users = Users::and(named.clone());
            assert_eq!(users.judge(own, user), is_in, "{named:?} {own} {user}");
        }
    }

    #[test]
    fn a_namespace_of_its_own_knows_not_everybody() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("         0       1000          1\n"));
        assert!(!maps_all("0 1000 1\n1 100000 65536\n"));
        assert!(!maps_all(""));
    }
}
