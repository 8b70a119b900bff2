//! The port at which a process says how it is: to Prometheus, to an
//! orchestrator, and to whoever is about to stop it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /metrics` | 200, in the format that the scraper asks for |
//! | `GET /livez` | 200, or 503 with the reason: it has to be started anew |
//! | `GET /readyz` | 200, or 503 with the reason: not yet, or not any more |
//! | `POST /drain` | begins to give everything away; then like `GET`. Only from this host, and only for some users of it |
//! | `GET /drain` | 200 when nothing is left (with the reason if it was lost, not given away), 202 while something is, 409 before it was asked for |
//!
//! An answer other than metrics is one line of text. What there is nothing to
//! be told of is 404.
//!
//! **Who comes in.** Whoever reaches the port may look; names of keys are in
//! none of the answers. Off loopback that has to be allowed by name ([`Reach`]).
//! To drain is for this host alone, wherever the port is: for the process's own
//! user, root, and users who were named ([`Users`]), as the kernel says who has
//! opened the connection. A POST that a browser or a proxy of
//! this host passes on (`Origin`, `Forwarded`, `X-Forwarded-For`) is refused.
//!
//! **Threads.** One accepts, one answers each request, a few at a time. So a
//! process whose own threads all stand still is found out. When all places are
//! taken, the oldest connection that has not asked yet goes for a new one, so
//! whoever says nothing keeps nobody waiting; a few places are for this host.
//! Whoever is slow to read has a place for two seconds.
//!
//! | module | what it does |
//! |---|---|
//! | `process` | what a process tells |
//! | `samples` | metrics of several parts of a process, as one page |
//! | `exposition` | Prometheus' two formats |
//! | `server` | the port |
//! | `visitors` | who has a place at it |

mod exposition;
mod process;
mod samples;
mod server;
mod visitors;

pub use exposition::exposition;
pub use process::{Drain, Process};
pub use samples::{Kind, MetricInfo, Samples};
pub use server::{Endpoint, EndpointError, Reach, Text};
pub use trefoil_socket_owner::Users;
