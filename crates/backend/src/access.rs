//! Who may call the RPC service.
//!
//! | a connection over | is answered if |
//! |---|---|
//! | a Unix socket | the kernel says that its other end is this user's, root's, or a listed user's |
//! | TCP, loopback too | every call shows the server's token |
//!
//! Whoever is not let in gets a reason, and nothing else: the request's body is
//! not even read.

use crate::guests::Guest;
use std::sync::Arc;
use tonic::service::Interceptor;
use tonic::{Request, Status};
use trefoil_cell::{TOKEN_FILE_VARIABLE, Token};
use trefoil_rpc::OWN_USER_ONLY;

/// What decides about the calls of one connection.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// The kernel has vouched for the other end.
    Granted,
    /// The kernel says that it is somebody else's.
    Refused,
    /// Each call has to show this; the first that does introduces the guest.
    Token(Arc<Token>, Arc<Guest>),
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
        }
    }
}
