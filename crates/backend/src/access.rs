//! Who may call the RPC service.
//!
//! | a connection over | is answered if |
//! |---|---|
//! | a Unix socket | the kernel says that its other end is this user's, root's, or a listed user's |
//! | TCP, loopback too | every call shows the server's token |
//! | TCP of a server with certificates | it speaks TLS and has shown a certificate of the server's authority; each call needs one of the roles in `permission` |
//!
//! Whoever is not let in gets a reason, and nothing else: the request's body is
//! not even read.

use crate::guests::Guest;
use crate::permission::Permission;
use std::sync::Arc;
use tonic::service::Interceptor;
use tonic::{Request, Status};
use trefoil_cell::{TOKEN_FILE_VARIABLE, Token};
use trefoil_rpc::OWN_USER_ONLY;
use trefoil_tls::{Caller, Tls};

/// What decides about the calls of one connection.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// The kernel has vouched for the other end.
    Granted,
    /// The kernel says that it is somebody else's.
    Refused,
    /// Each call has to show this; the first that does introduces the guest.
    Token(Arc<Token>, Arc<Guest>),
    /// The other end has shown a certificate; its roles decide, unless it is revoked.
    Certificate(Arc<Caller>, Tls),
    /// The other end speaks without TLS, which it should not.
    Plain,
}

impl Interceptor for Access {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        match self {
            Access::Granted => Ok(request),
            Access::Refused => Err(Status::permission_denied(format!(
                "{OWN_USER_ONLY}: it lets others in by --allow-user"
            ))),
            Access::Token(token, guest) => {
                let shown = trefoil_rpc::shown_token(&request);
                if shown.is_some_and(|shown| token.is(shown)) {
                    guest.is_introduced();
                    return Ok(request);
                }
                let what = match shown {
                    None => "no token was shown",
                    Some(_) => "the token is another server's",
                };
                Err(Status::unauthenticated(format!(
                    "{OWN_USER_ONLY}, and {what}: that user's clients on this host find it by \
                     themselves, others name a copy of the server's --token-file in \
                     {TOKEN_FILE_VARIABLE}"
                )))
            }
            Access::Certificate(caller, tls) => {
                if tls.is_revoked(caller) {
                    return Err(Status::permission_denied(format!(
                        "the certificate of \"{}\" has been revoked",
                        caller.name
                    )));
                }
                // Every request comes with what its call needs.
                let permission = request.extensions().get::<Permission>();
                match permission {
                    Some(permission) if permission.roles.meets(caller.roles) => Ok(request),
                    permission => Err(denied(caller, permission)),
                }
            }
            Access::Plain => Err(Status::unauthenticated(
                "this server speaks TLS only: give a directory with certificates of its \
                 authority, by --certs or TREFOIL_CERTS (trefoil cell certs issue makes one)",
            )),
        }
    }
}

fn denied(caller: &Caller, permission: Option<&Permission>) -> Status {
    let call = permission.map_or("this call", |permission| permission.call);
    let needed = permission.map(|permission| permission.roles);
    // The least powerful one that would do.
    let needed = needed.unwrap_or_default().iter().next();
    let needed = needed.map_or("admin", |role| role.name());
    let Caller { name, roles, .. } = caller;
    let has = match roles.is_empty() {
        true => "names no role".to_owned(),
        false => format!("has the role {roles}"),
    };
    Status::permission_denied(format!(
        "{call} needs the role {needed}, and the certificate of \"{name}\" {has}: use one issued \
         by `trefoil cell certs issue --role {needed}`"
    ))
}
