//! What the build script made of the contract.

/// Messages and client of `addressbook.v1`; documented in the contract.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("addressbook.v1");
}

/// The server's side, answering with [`EncodedAnswer`](crate::EncodedAnswer).
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod server {
    include!(concat!(env!("OUT_DIR"), "/server/addressbook.v1.rs"));
    pub use address_books_server::{AddressBooks, AddressBooksServer};
}
