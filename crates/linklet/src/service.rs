//! The way in: the gRPC service that the other servers send their frames to.
//! It may share the application's port, and several corpora may share it.

use crate::Linklet;
use crate::generated::peer_server::{Peer, PeerServer};
use crate::generated::{Hello, Parcel, Receipt};
use crate::linklet::Inner;
use crate::peers::MESSAGE_BYTES_MAX;
use crate::stats::Counters;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status, Streaming};
use trefoil_channel::{Right, Security, Who, permit};
use trefoil_linklet_core::{Frame, Wire};
use trefoil_sharder::ServerId;

/// How long who opens a stream may take to say who it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long a server that is not known here may be a new one, of which the assigner has told
/// others first.
const MEMBER_PATIENCE: Duration = Duration::from_secs(1);
/// And how often it is looked whether it is known by now.
const MEMBER_LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether frames of a server are taken.
enum Met {
    Member,
    /// Not known here (yet).
    Stranger,
}

/// Where frames of one corpus go.
trait Receive: Send + Sync {
    /// Hears what a server speaks that is about to send frames; `Err` ends the stream.
    fn meet(&self, from: ServerId, to: ServerId, wire: Wire) -> Result<Met, Status>;

    /// Frames of a server are refused that is no member.
    fn refuse(&self, from: ServerId) -> Status;

    /// Takes a frame; `Err` ends the stream.
    fn receive(&self, from: ServerId, to: ServerId, frame: Bytes) -> Result<(), Status>;
}

/// The receiving side of one or several linklets of a process, to be mounted
/// in a tonic server: `Server::builder().add_service(peers.into_server())`.
#[derive(Clone, Default)]
pub struct PeerService {
    corpora: HashMap<String, (Arc<dyn Receive>, Security)>,
}

impl std::fmt::Debug for PeerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.corpora.keys()).finish()
    }
}

impl PeerService {
    /// Without any linklet yet.
    pub fn new() -> Self {
        PeerService::default()
    }

    /// Receives for this linklet, too.
    #[must_use]
    pub fn with<V: Send + Sync + 'static>(mut self, linklet: &Linklet<V>) -> Self {
        let receive: Weak<Inner<V>> = Arc::downgrade(linklet.inner());
        let security = linklet.inner().security.clone();
        self.corpora
            .insert(linklet.corpus().to_owned(), (Arc::new(receive), security));
        self
    }

    /// As a tonic service.
    pub fn into_server(self) -> PeerServer<impl Peer> {
        PeerServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

/// What a server says that it speaks.
fn wire_of(hello: &Hello) -> Wire {
    let part = |part: u32| u8::try_from(part).unwrap_or(u8::MAX);
    match (hello.wire_major, hello.wire_minor) {
        (0, 0) => Wire::UNSAID,
        (major, minor) => Wire {
            major: part(major),
            minor: part(minor),
        },
    }
}

fn former_life(to: ServerId) -> Status {
    Status::failed_precondition(format!("{to} is a former life of this server"))
}

impl<V: Send + Sync + 'static> Receive for Weak<Inner<V>> {
    fn meet(&self, from: ServerId, to: ServerId, wire: Wire) -> Result<Met, Status> {
        let inner = self
            .upgrade()
            .ok_or_else(|| Status::unavailable("the linklet has ended"))?;
        let mut life = inner.life();
        let present = life.as_mut().filter(|life| life.session.server_id() == to);
        let life = present.ok_or_else(|| former_life(to))?;
        if from == to {
            Counters::one(&inner.store.counters.streams_refused);
            return Err(Status::invalid_argument(format!(
                "{from} is this server itself: its frames come from nobody else"
            )));
        }
        let view = life.session.view();
        if !view.borrow().servers.contains_key(&from) {
            return Ok(Met::Stranger);
        }
        life.meet(from, wire)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Met::Member)
    }

    fn refuse(&self, from: ServerId) -> Status {
        if let Some(inner) = self.upgrade() {
            Counters::one(&inner.store.counters.streams_refused);
        }
        Status::permission_denied(format!(
            "{from} is no member of this corpus (any more): its frames are not taken. \
             `trefoil linked status` names the members"
        ))
    }

    fn receive(&self, from: ServerId, to: ServerId, frame: Bytes) -> Result<(), Status> {
        let inner = self
            .upgrade()
            .ok_or_else(|| Status::unavailable("the linklet has ended"))?;
        let frame = Frame::decode(frame)
            .map_err(|error| Status::invalid_argument(format!("no frame: {error}")))?;
        let mut life = inner.life();
        let present = life.as_mut().filter(|life| life.session.server_id() == to);
        match present {
            Some(life) => {
                let before = life.next_tick();
                life.drive(|core, now, values| core.receive(now, values, from, frame));
                if life.next_tick() != before || life.is_due() || life.news() {
                    inner.store.errand.notify_one();
                }
                Ok(())
            }
            None => Err(former_life(to)),
        }
    }
}

/// Meets a server that is a member, or becomes one soon.
async fn meet(
    corpus: &dyn Receive,
    from: ServerId,
    to: ServerId,
    wire: Wire,
) -> Result<(), Status> {
    let deadline = Instant::now() + MEMBER_PATIENCE;
    loop {
        match corpus.meet(from, to, wire)? {
            Met::Member => return Ok(()),
            Met::Stranger if Instant::now() >= deadline => return Err(corpus.refuse(from)),
            Met::Stranger => sleep(MEMBER_LOOK_EVERY).await,
        }
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn deliver(
        &self,
        request: Request<Streaming<Parcel>>,
    ) -> Result<Response<Receipt>, Status> {
        let (_, mut extensions, mut parcels) = request.into_parts();
        Who::note(&mut extensions);
        // Nothing is kept in memory for whoever may serve no corpus of these.
        let may_serve = |(corpus, (_, security)): (&String, &(Arc<dyn Receive>, Security))| {
            permit(security, &extensions, Right::Serve(corpus))
        };
        let permitted = self.corpora.iter().map(may_serve);
        permitted.reduce(Result::or).unwrap_or(Ok(()))?;
        let mut opened = None;
        loop {
            let next = parcels.message();
            let parcel = match &opened {
                Some(_) => next.await?,
                // Nor for long for whoever does not begin.
                None => timeout(HELLO_PATIENCE, next)
                    .await
                    .map_err(|_| Status::deadline_exceeded("a stream begins with a hello"))??,
            };
            let Some(parcel) = parcel else { break };
            if let Some(hello) = parcel.hello {
                let (corpus, security) = self.corpora.get(&hello.corpus).ok_or_else(|| {
                    Status::not_found(format!(
                        "corpus \"{}\" is not served here; there are: {}",
                        hello.corpus,
                        self.corpora.keys().cloned().collect::<Vec<_>>().join(", ")
                    ))
                })?;
                permit(security, &extensions, Right::Serve(&hello.corpus))?;
                let (from, to) = (ServerId(hello.from), ServerId(hello.to));
                meet(&**corpus, from, to, wire_of(&hello)).await?;
                opened = Some((corpus, security, hello));
            }
            let Some((corpus, security, hello)) = &opened else {
                return Err(Status::invalid_argument("a stream begins with a hello"));
            };
            // Each time: a certificate may have ended, or been revoked, since.
            permit(security, &extensions, Right::Serve(&hello.corpus))?;
            for frame in parcel.frames {
                corpus.receive(ServerId(hello.from), ServerId(hello.to), frame)?;
            }
        }
        Ok(Response::new(Receipt {}))
    }
}
