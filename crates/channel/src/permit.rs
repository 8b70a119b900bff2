//! What a caller may do.

use crate::incoming::Who;
use crate::local;
use crate::security::Security;
use std::time::SystemTime;
use tonic::{Extensions, Status};
use trefoil_socket_owner::Users;
use trefoil_tls::{Caller, Role, Tls};

/// What somebody asks to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right<'a> {
    /// To be one of the servers of a corpus: joins, sends values, keeps leases.
    Serve(&'a str),
    /// To read where the keys of a corpus are, and which of them have changed.
    Follow(&'a str),
    /// To see how the parts of the store are; no keys and no values.
    Look,
    /// To steer the assigner.
    Steer,
}

impl Right<'_> {
    /// The roles of which one is needed, and the corpus, if one is.
    fn needs(&self) -> (&'static [Role], Option<&str>) {
        match self {
            Right::Serve(corpus) => (&[Role::Backend], Some(corpus)),
            Right::Follow(corpus) => (&Role::ALL, Some(corpus)),
            Right::Look => (&Role::ALL, None),
            Right::Steer => (&[Role::Admin], None),
        }
    }

    fn judge(&self, caller: &Caller, now: SystemTime) -> Result<(), String> {
        let name = &caller.name;
        if caller.left(now).is_zero() {
            return Err(format!("the certificate of \"{name}\" has ended"));
        }
        let (roles, corpus) = self.needs();
        if !roles.iter().any(|role| caller.roles.has(*role)) {
            let roles: Vec<&str> = roles.iter().map(|role| role.name()).collect();
            return Err(format!(
                "the certificate of \"{name}\" has the role {}, and this needs {}",
                caller.roles,
                roles.join(" or ")
            ));
        }
        match corpus {
            Some(corpus) if !caller.corpora.has(corpus) => Err(format!(
                "the certificate of \"{name}\" is not for corpus \"{corpus}\" (but for: {}): \
                 issue one with --corpus {corpus}",
                caller.corpora
            )),
            _ => Ok(()),
        }
    }
}

/// Whether the caller of a request with these extensions may do that, by now. With
/// certificates everybody is judged by theirs; without them, on loopback, by the user that
/// the kernel says. Somebody of whom nothing is known, because the service was mounted
/// behind other connections than [`Security::incoming`]'s, may do nothing; without
/// certificates tonic's own TCP listeners do as well, at the price of asking the kernel with
/// each call ([`Who::note`]). A call that goes on for long is judged again with each message.
///
/// # Errors
/// `PERMISSION_DENIED`, with what is missing.
pub fn permit(
    security: &Security,
    extensions: &Extensions,
    right: Right<'_>,
) -> Result<(), Status> {
    let judged = match security {
        Security::Plaintext => Ok(()),
        Security::Loopback => permit_local(&Users::default(), extensions),
        Security::Users(users) => permit_local(users, extensions),
        Security::Certificates(tls) => permit_shown(tls, extensions, right),
    };
    judged.map_err(Status::permission_denied)
}

fn permit_local(users: &Users, extensions: &Extensions) -> Result<(), String> {
    match Who::of(extensions) {
        Some(Who::User(caller)) => local::judge_caller(users, &caller),
        Some(Who::Anybody | Who::Known(_)) => Err(
            "nobody has asked the kernel who calls: serve connections of `Security::incoming` by              the same Security as this service's"
                .to_owned(),
        ),
        None => Err(NOT_KNOWN.to_owned()),
    }
}

fn permit_shown(tls: &Tls, extensions: &Extensions, right: Right<'_>) -> Result<(), String> {
    match extensions.get::<Who>() {
        Some(Who::Known(caller)) if tls.is_revoked(caller) => Err(format!(
            "the certificate of \"{}\" has been revoked",
            caller.name
        )),
        Some(Who::Known(caller)) => right.judge(caller, SystemTime::now()),
        Some(Who::Anybody | Who::User(_)) | None => Err(NOT_KNOWN.to_owned()),
    }
}

const NOT_KNOWN: &str = "nobody knows who calls: serve connections of Security::incoming";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};
    use trefoil_tls::{Corpora, Roles};

    #[test]
    fn who_may_do_what() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let caller = |roles: Roles, corpora: &[&str], ends_s| Caller {
            serial: "01".to_owned(),
            name: "somebody".to_owned(),
            roles,
            corpora: Corpora::of(corpora.iter().map(|corpus| (*corpus).to_owned())),
            ends_s,
        };
        let client = Roles::of(true, false, false);
        let server = Roles::of(false, true, false);
        let admin = Roles::of(false, false, true);
        let (serve, follow) = (Right::Serve("mail"), Right::Follow("mail"));
        for (caller, right, may) in [
            (caller(server, &["mail"], 2_000), serve, true),
            (caller(server, &["*"], 2_000), serve, true),
            (
                caller(server, &["male", "mai", "mail "], 2_000),
                serve,
                false,
            ),
            (caller(server, &[], 2_000), serve, false),
            (caller(server, &["mail"], 1_000), serve, false),
            (caller(client, &["mail"], 2_000), serve, false),
            (caller(admin, &["mail"], 2_000), serve, false),
            (caller(client, &["mail"], 2_000), follow, true),
            (caller(client, &["news"], 2_000), follow, false),
            (caller(Roles::default(), &["mail"], 2_000), follow, false),
            (caller(client, &[], 2_000), Right::Look, true),
            (caller(admin, &[], 2_000), Right::Steer, true),
            (caller(server, &["*"], 2_000), Right::Steer, false),
        ] {
            let judged = right.judge(&caller, now);
            assert_eq!(judged.is_ok(), may, "{caller:?} {right:?} {judged:?}");
        }
    }

    #[test]
    fn without_certificates_the_user_decides() {
        let own = trefoil_socket_owner::own_user();
        let other = own + 1;
        let of = |who: Who| {
            let mut extensions = Extensions::new();
            extensions.insert(who);
            extensions
        };
        let user = |user: u32| of(Who::User(Ok(user)));
        let unknown = of(Who::User(Err("it is gone".to_owned())));
        let named = Security::users([other]);
        for (security, extensions, said) in [
            (&Security::Loopback, user(own), None),
            (&Security::Loopback, user(0), None),
            (&Security::Loopback, user(other), Some("--allow-user")),
            (&named, user(other), None),
            (&named, user(own), None),
            (&named, user(other + 1), Some("--allow-user")),
            (&named, unknown, Some("it is gone")),
            (
                &Security::Loopback,
                of(Who::Anybody),
                Some("the same Security"),
            ),
            (
                &Security::Loopback,
                Extensions::new(),
                Some("nobody knows who calls"),
            ),
            (&Security::Plaintext, user(other), None),
            (&Security::Plaintext, Extensions::new(), None),
        ] {
            let judged = permit(security, &extensions, Right::Look);
            match (said, judged) {
                (None, Ok(())) => {}
                (Some(said), Err(error)) => assert!(error.message().contains(said), "{error}"),
                (said, judged) => panic!("{security:?} {extensions:?}: {said:?} {judged:?}"),
            }
        }
    }
}
