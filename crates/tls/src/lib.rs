//! Certificates and keys from files, and mutual TLS between the parts of a cell.
//!
//! ```text
//! DIR/ca.pem  cert.pem  key.pem ──read, judged──► Tls ──a handshake──► accept, connect
//!        ▲                                         │
//!        └── looked at again, at most once in LOOK_PERIOD, while it runs
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `file` | PEM files, and who may have access to them |
//! | `certificate` | what is read out of a certificate: names, roles, validity |
//! | `role` | client, backend, admin, and how a certificate names them |
//! | `corpora` | the linked store's corpora that it is for |
//! | `identity` | a directory's files, judged as a whole |
//! | `watched` | the same while a process runs: files that change are taken anew |
//! | `listed` | small files of the operator's that are looked at while a process runs |
//! | `revoked` | such a one: serial numbers of certificates that are not believed any more |
//! | `rights` | another: what single identities may do, by a certificate's name or a token |
//! | `accept`, `connect` | the two sides of a handshake |
//! | `session` | the same for those who drive their sockets themselves: engines |
//!
//! Both sides speak TLS 1.3 only, show a certificate, and resume no session: each
//! connection is judged by the files as they are.
//!
//! Which call takes which role or right is no matter of this crate: `trefoil-backend` has
//! the table.

mod accept;
mod certificate;
mod connect;
mod corpora;
mod error;
mod file;
mod identity;
mod listed;
mod revoked;
mod rights;
mod role;
mod session;
mod watched;

pub use accept::{AcceptError, Accepted, Caller, ServerStream, accept};
pub use certificate::{Certificate, time_text};
pub use connect::{Connected, HandshakeError, connect};
pub use corpora::{Corpora, urn as corpus_urn};
pub use error::CertError;
pub use file::{FileError, check_private, read_certificates, read_key, read_roots};
pub use identity::{AUTHORITY_FILE, CERTIFICATE_FILE, CertFiles, Identity, KEY_FILE};
pub use listed::LIST_LOOK_PERIOD;
pub use revoked::REVOKED_FILE;
pub use rights::{RIGHTS_FILE, Right, TokenRights};
pub use role::{Role, Roles, UnknownRole};
pub use watched::{CertStatus, CertUse, LOOK_PERIOD, Tls};
