//! Who may call the RPC service.
//!
//! | a connection over | is answered if |
//! |---|---|
//! | a Unix socket | the kernel says that its other end is this user's, root's, or a listed user's |
//! | TCP, loopback too | every call shows the server's token, or one that stands beside it in the list of rights with the right that `permission` names |
//! | TCP of a server with certificates | it speaks TLS and has shown a certificate of the server's authority; each call needs one of the roles in `permission`, or of who is listed the right |
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
use trefoil_tls::{Caller, Right, Tls, TokenRights};

/// What decides about the calls of one connection.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// The kernel has vouched for the other end.
    Granted,
    /// The kernel says that it is somebody else's.
    Refused,
    /// Each call has to show this, or one that is listed; the first that does introduces
    /// the guest.
    Token(Tokens, Arc<Guest>),
    /// The other end has shown a certificate; the list of rights decides or else its roles,
    /// unless it is revoked.
    Certificate(Arc<Caller>, Tls),
    /// The other end speaks without TLS, which it should not.
    Plain,
}

/// What is shown to a server without certificates.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    /// The server's own: every call is answered.
    pub(crate) own: Arc<Token>,
    /// Others', if the operator has chosen the server's own.
    pub(crate) listed: Option<TokenRights>,
}

impl Interceptor for Access {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        match self {
            Access::Granted => Ok(request),
            Access::Refused => Err(Status::permission_denied(format!(
                "{OWN_USER_ONLY}: it lets others in by --allow-user"
            ))),
            Access::Token(tokens, guest) => {
                let shown = trefoil_rpc::shown_token(&request);
                if shown.is_some_and(|shown| tokens.own.is(shown)) {
                    guest.is_introduced();
                    return Ok(request);
                }
                let listed = shown.zip(tokens.listed.as_ref());
                if let Some((name, right)) = listed.and_then(|(shown, list)| list.of(shown)) {
                    guest.is_introduced();
                    allowed(&request, &name, right)?;
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
                // No role at all is an authority's certificate for something else.
                let right = match caller.roles.is_empty() {
                    true => None,
                    false => tls.right_of(caller),
                };
                if let Some(right) = right {
                    allowed(&request, &caller.name, right)?;
                    return Ok(request);
                }
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

/// Whether the call of this request may be made with that right. Every request comes with
/// what its call needs.
fn allowed(request: &Request<()>, name: &str, right: Right) -> Result<(), Status> {
    let permission = request.extensions().get::<Permission>();
    let (call, needed) = permission.map_or(("this call", Right::Admin), |permission| {
        (permission.call, permission.right)
    });
    if right >= needed {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "{call} needs the right {needed}, and \"{name}\" has the right {right}: who runs the \
         server can change that line of its list of rights"
    )))
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
