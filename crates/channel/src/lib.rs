//! Connections between the parts of a linked store: assigner, servers, callers, relay.
//!
//! ```text
//!   dial ──► Security::channel ── plain, loopback, users by the kernel ───► Security::incoming ──► permit
//!                              ├─ plain, anywhere, nobody is asked ──────┤      (who it is)
//!                              └─ mutual TLS, certificates with corpora ─┘
//! ```
//!
//! 1. Without certificates nothing leaves the host: to listen or to dial elsewhere
//!    is refused, unless [`Security::Plaintext`] was chosen by name. Nor does anything
//!    leave the user: on loopback both sides ask the kernel once, when a connection
//!    begins, which user the other end is, and believe their own, root and those who
//!    were named. Who is not let in is told why; no service hears of the call.
//! 2. With certificates both sides show one, and no connection is made or taken in
//!    the clear. A certificate names the corpora that its owner has to do with;
//!    servers are dialled only if theirs names the corpus that is meant.
//! 3. Every call is judged by [`permit`] before anything is done: role and corpus.
//!    A service that was mounted where nobody can say who calls refuses everybody.
//! 4. A connection lasts no longer than the certificate that was shown on it: when that
//!    ends, or is revoked, it breaks, on either side.
//!
//! | module | what it does |
//! |---|---|
//! | `local` | which user is at the other end, within the host |
//! | `security` | what is chosen; what may be listened at and dialled |
//! | `dial` | connections out |
//! | `incoming` | connections in, and who is at their other end |
//! | `permit` | what a caller may do |
//! | `standing` | connections whose other end is not believed any more end |

mod dial;
mod incoming;
mod local;
mod permit;
mod security;
mod standing;
#[cfg(test)]
mod tests;
mod wire;

pub use dial::failure_text;
pub use incoming::{Incoming, Stream, Who};
pub use permit::{Right, permit};
pub use security::{ExposedError, Security};
pub use trefoil_socket_owner::Users;
pub use trefoil_tls::{CertError, Role};
