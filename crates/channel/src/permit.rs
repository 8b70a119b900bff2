//! What a caller may do.

use crate::incoming::Who;
use crate::security::Security;
use std::time::SystemTime;
use tonic::{Extensions, Status};
use trefoil_tls::{Caller, Role};

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
/// certificates everybody is judged by theirs; somebody of whom nothing is known,
/// because the service was mounted behind other connections than
/// [`Security::incoming`]'s, may do nothing. A call that goes on for long is judged
/// again with each message.
///
/// # Errors
/// `PERMISSION_DENIED`, with what is missing.
pub fn permit(
    security: &Security,
    extensions: &Extensions,
    right: Right<'_>,
) -> Result<(), Status> {
    let refused = |why: String| Status::permission_denied(why);
    let Security::Certificates(tls) = security else {
        return Ok(());
    };
    match extensions.get::<Who>() {
        Some(Who::Known(caller)) if tls.is_revoked(caller) => Err(refused(format!(
            "the certificate of \"{}\" has been revoked",
            caller.name
        ))),
        Some(Who::Known(caller)) => right.judge(caller, SystemTime::now()).map_err(refused),
        Some(Who::Anybody) | None => Err(refused(
            "nobody knows who calls: serve connections of Security::incoming".to_owned(),
        )),
    }
}

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
    fn without_certificates_nobody_is_asked() {
        let nothing = Extensions::new();
        assert!(permit(&Security::Loopback, &nothing, Right::Steer).is_ok());
    }
}
