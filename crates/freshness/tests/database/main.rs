//! Against real servers of its own: Postgres, relays, subscribers.

mod hub;
mod notify;
mod relay;
mod setup;
mod support;
mod visible;
