//! Users as people write them.

use crate::failure::Failure;
use trefoil_backend::UserPolicy;

/// Who may come in besides this process's own user: names of this host's password
/// file, or numbers.
pub(crate) fn policy(users: &[String]) -> Result<UserPolicy, Failure> {
    match users {
        [] => Ok(UserPolicy::SameUser),
        users => numbers(users).map(UserPolicy::Listed),
    }
}

/// The numbers of users.
pub(crate) fn numbers(users: &[String]) -> Result<Vec<u32>, Failure> {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = |user: &String| {
        user.parse().ok().or_else(|| number_of(&known, user)).ok_or_else(|| {
            Failure::Usage(format!(
                "--allow-user {user}: no such user on this host; give a name of /etc/passwd or a number"
            ))
        })
    };
    users.iter().map(number).collect()
}

fn number_of(passwd: &str, user: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_user = fields.next() == Some(user);
        is_user.then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_users() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
        assert_eq!(number_of(passwd, "nobody"), Some(65534));
        assert_eq!(number_of(passwd, "body"), None);
        assert_eq!(number_of("broken", "broken"), None);
        let listed = policy(&["7".into(), "8".into()]).unwrap();
        assert_eq!(listed, UserPolicy::Listed(vec![7, 8]));
        assert!(policy(&["no such user".into()]).is_err());
    }
}
