//! A contacts and calendar service, in the forms that a service with hot state
//! can have:
//!
//! ```text
//!  (a) stateless + cache        (b) stateful                (c) domain-specific store
//!
//!      callers                      callers                     callers
//!         │ any server                 │ the key's server          │ any server
//!    app servers                  app servers                 app servers
//!         │ get/set bytes           (objects linked in)            │ lookup, find_busy
//!  memcached or redis                  │                       stores (objects)
//!         │                            │                           │
//!      Postgres                     Postgres                    Postgres
//! ```
//!
//! All forms answer the same requests (the contract is in
//! `address-book-contract`) with the same domain code (`domain`, `calendar`).
//! They differ in one thing: where an `AddressBook` lives, which is what the
//! trait [`Books`](books::Books) hides.
//!
//! | module | what it does |
//! |---|---|
//! | `domain`, `calendar` | what a lookup, a change, a search for free time mean; pure |
//! | `books` | the forms: `linked` (b), `cached` (a), `remote` and `local` (c) |
//! | `cache` | memcached and redis, as `cached` uses them |
//! | `database` | Postgres behind all of them |
//! | `service`, `frames`, `serve` | requests in, answers out, by gRPC or without it; a server's life |
//! | `demo` | the stateful form at work, with a kill, a hot key and a view |

pub mod books;
pub mod cache;
pub mod calendar;
pub mod database;
pub mod demo;
pub mod domain;
pub mod frames;
pub mod serve;
pub mod service;
