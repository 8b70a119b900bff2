//! A session store without a database: sessions are objects in the servers that
//! use them, and each is in two servers before anybody is told that it is there.
//!
//! This file is all of it; `main.rs` is the process around it, `caller.rs` who calls it.

mod caller;

pub use caller::Caller;

#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    //! Generated from `proto/sessions.proto`.
    tonic::include_proto!("sessions.v1");
}

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::{Request, Response, Status};
use trefoil_linklet::{Linklet, ProstMarshal, Replication, Security, StartError};
use v1::{BeginRequest, Done, EndRequest, GetRequest, PutRequest, Session};

/// The name under which the servers find each other.
pub const CORPUS: &str = "sessions";

/// How long sessions last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// From the beginning.
    pub whole: Duration,
    /// Without a request.
    pub idle: Duration,
}

/// How much a server keeps.
#[derive(Clone, Debug)]
pub struct Room {
    /// Bytes in memory.
    pub memory: u64,
    /// A directory for the sessions that were not used for longest, once there is no memory
    /// for them, and bytes of files there.
    pub spill: Option<(PathBuf, u64)>,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            memory: 256 << 20,
            spill: None,
        }
    }
}

/// Joins the servers that have the sessions; `address` is where this one serves.
pub async fn join(
    assigner: &str,
    address: String,
    lifetime: Lifetime,
    room: Room,
    security: Security,
) -> Result<Linklet<Session>, StartError> {
    let mut builder = Linklet::builder(CORPUS, ProstMarshal).memory(room.memory);
    if let Some((directory, bytes)) = room.spill {
        // Instead of refusing new sessions when memory is full.
        builder = builder.spill(directory, bytes);
    }
    builder
        .security(security)
        // A session is acknowledged when a second server has it.
        .replication(Replication::Strong)
        .expires(move |_, session: &Session| {
            // Beyond all times: never.
            let begun = UNIX_EPOCH.checked_add(Duration::from_millis(session.begun_ms))?;
            begun.checked_add(lifetime.whole)
        })
        .idle(lifetime.idle)
        .join(assigner, address)
        .await
}

/// Answers requests. A server that is asked for another one's session answers
/// with a redirect (`?` makes one of the linked store's error), which the callers'
/// router follows.
#[derive(Debug)]
pub struct Service(pub Linklet<Session>);

#[tonic::async_trait]
impl v1::sessions_server::Sessions for Service {
    async fn begin(&self, request: Request<BeginRequest>) -> Result<Response<Done>, Status> {
        let sessions = self.0.routed(request.metadata());
        let BeginRequest { id, user } = request.into_inner();
        let begun = SystemTime::now().duration_since(UNIX_EPOCH);
        let begun_ms = begun.unwrap_or_default().as_millis() as u64;
        let new = || Session {
            user,
            begun_ms,
            ..Session::default()
        };
        // One that is there already stays: the request may be a repetition.
        sessions.upsert(id.as_bytes(), new, |_| ()).await?;
        Ok(Response::new(Done {}))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<Done>, Status> {
        let sessions = self.0.routed(request.metadata());
        let PutRequest { id, name, value } = request.into_inner();
        let put = |session: &mut Session| {
            session.values.insert(name, value);
        };
        let found = sessions.update(id.as_bytes(), put).await?;
        found.map(|()| Response::new(Done {})).ok_or_else(absent)
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Session>, Status> {
        let sessions = self.0.routed(request.metadata());
        let id = request.into_inner().id;
        let found = sessions.read(id.as_bytes(), Session::clone).await?;
        found.map(Response::new).ok_or_else(absent)
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<Done>, Status> {
        let sessions = self.0.routed(request.metadata());
        sessions.remove(request.into_inner().id.as_bytes()).await?;
        Ok(Response::new(Done {}))
    }
}

fn absent() -> Status {
    Status::not_found("there is no such session")
}
