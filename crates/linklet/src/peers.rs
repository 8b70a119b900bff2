//! The way out: a stream of frames to each other server, opened when there is
//! something to send and opened anew when it breaks.
//!
//! ```text
//!   Life ── frame ──► queue of the peer (bounded) ── parcels ──► gRPC stream
//! ```

use crate::generated::peer_client::PeerClient;
use crate::generated::{Hello, Parcel};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use trefoil_channel::{Security, failure_text};
use trefoil_coordination::{Session, View};
use trefoil_linklet_core::{FRAME_BYTES_MAX, Wire};
use trefoil_sharder::ServerId;

/// Frames that wait for one peer. The protocol's window bounds their bytes; a
/// frame beyond it is dropped, and sent again by the protocol.
const QUEUE_COUNT: usize = 4096;
/// A parcel is closed when it has this many bytes.
const PARCEL_BYTES: usize = 256 << 10;
/// Parcels on their way into the stream.
const PARCELS_AHEAD: usize = 4;
/// Largest message either side takes: a parcel with the longest frame that there is.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 << 20;
const _: () = assert!(FRAME_BYTES_MAX + 2 * PARCEL_BYTES <= MESSAGE_BYTES_MAX);
/// HTTP/2 windows: a window of the protocol fits.
pub(crate) const STREAM_WINDOW: u32 = 8 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// A stream that lived for so long was taken. The other side answers when it ends, and not
/// before: one that refuses ends it at once.
const STREAM_TAKEN: Duration = Duration::from_secs(1);

/// The pauses before a stream is opened anew.
#[derive(Debug)]
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(BACKOFF_MIN)
    }
}

impl Backoff {
    /// The next one, after a stream that has lived for so long.
    fn after(&mut self, lived: Duration) -> Duration {
        if lived >= STREAM_TAKEN {
            *self = Backoff::default();
        }
        let pause = self.0;
        self.0 = (2 * self.0).min(BACKOFF_MAX);
        pause
    }
}

pub(crate) struct Peers {
    corpus: String,
    me: ServerId,
    security: Security,
    view: watch::Receiver<Arc<View>>,
    links: HashMap<ServerId, Link>,
    /// Where the streams' tasks run: not where a frame happens to be answered,
    /// which may be a runtime of the application's that ends before this one.
    runtime: Handle,
}

struct Link {
    queue: mpsc::Sender<Bytes>,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peers {
    /// `security` is that of the other servers' connections: the assigner's may be another.
    pub(crate) fn new(session: &Session, security: Security) -> Self {
        Peers {
            corpus: session.corpus().to_owned(),
            me: session.server_id(),
            security,
            view: session.view(),
            links: HashMap::new(),
            runtime: Handle::current(),
        }
    }

    /// Hands a frame on; `false` if it was dropped.
    pub(crate) fn send(&mut self, to: ServerId, frame: Bytes) -> bool {
        let link = self.links.entry(to).or_insert_with(|| {
            let (queue, frames) = mpsc::channel(QUEUE_COUNT);
            let hello = Hello {
                corpus: self.corpus.clone(),
                from: self.me.0,
                to: to.0,
                wire_major: Wire::OWN.major.into(),
                wire_minor: Wire::OWN.minor.into(),
            };
            let task = self.runtime.spawn(deliver(
                hello,
                self.security.clone(),
                self.view.clone(),
                frames,
            ));
            Link {
                queue,
                task: task.abort_handle(),
            }
        });
        link.queue.try_send(frame).is_ok()
    }

    /// Ends the streams to servers that are gone.
    pub(crate) fn meet(&mut self, view: &View) {
        self.links.retain(|&to, _| !view.is_gone(to));
    }
}

/// Keeps a stream open for as long as there is something to send.
async fn deliver(
    hello: Hello,
    security: Security,
    mut view: watch::Receiver<Arc<View>>,
    mut frames: mpsc::Receiver<Bytes>,
) {
    let to = ServerId(hello.to);
    let mut backoff = Backoff::default();
    // The first frame of the next stream.
    let mut next: Option<Bytes> = None;
    loop {
        if next.is_none() {
            next = frames.recv().await;
        }
        let Some(first) = next.take() else { return };
        let known = view
            .wait_for(|view| view.servers.contains_key(&to))
            .await
            .map(|view| view.servers[&to].address.clone());
        let Ok(address) = known else { return };
        let mut opened = None;
        let ended = stream(&hello, &security, &address, first, &mut frames, &mut opened);
        match ended.await {
            Ok(()) => return,
            Err(error) => {
                let lived = opened.map_or(Duration::ZERO, |at: Instant| at.elapsed());
                let pause = backoff.after(lived);
                tracing::debug!(%to, address, error, ?lived, ?pause, "the stream to a peer broke");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// One stream, until it breaks or nobody sends any more; when it was opened.
async fn stream(
    hello: &Hello,
    security: &Security,
    address: &str,
    first: Bytes,
    frames: &mut mpsc::Receiver<Bytes>,
    opened: &mut Option<Instant>,
) -> Result<(), String> {
    let endpoint = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW)
    };
    let channel = security
        .connect(address, Some(&hello.corpus), endpoint)
        .await?;
    *opened = Some(Instant::now());
    let mut client = PeerClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
    let (parcels, outgoing) = mpsc::channel(PARCELS_AHEAD);
    let call = client.deliver(ReceiverStream::new(outgoing));
    tokio::pin!(call);
    let mut parcel = Parcel {
        hello: Some(hello.clone()),
        frames: vec![first],
    };
    loop {
        let mut bytes: usize = parcel.frames.iter().map(Bytes::len).sum();
        while bytes < PARCEL_BYTES {
            match frames.try_recv() {
                Ok(frame) => {
                    bytes += frame.len();
                    parcel.frames.push(frame);
                }
                Err(_) => break,
            }
        }
        tokio::select! {
            ended = &mut call => return Err(reason(ended)),
            sent = parcels.send(parcel) => {
                if sent.is_err() {
                    return Err(reason((&mut call).await));
                }
            }
        }
        tokio::select! {
            ended = &mut call => return Err(reason(ended)),
            frame = frames.recv() => match frame {
                Some(frame) => parcel = Parcel { hello: None, frames: vec![frame] },
                None => return Ok(()),
            },
        }
    }
}

fn reason<T>(ended: Result<T, tonic::Status>) -> String {
    match ended {
        Ok(_) => "the other side ended the stream".to_owned(),
        Err(status) => failure_text(&status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that refuses, or ends each stream at once, is not dialled in a tight loop; one
    /// whose stream was good is dialled at once.
    #[test]
    fn pauses_get_longer_until_a_stream_was_taken() {
        let mut backoff = Backoff::default();
        let refused = Duration::from_millis(3);
        let pauses = [20, 40, 80, 160, 320, 500, 500].map(Duration::from_millis);
        for pause in pauses {
            assert_eq!(backoff.after(refused), pause);
        }
        assert_eq!(backoff.after(STREAM_TAKEN), BACKOFF_MIN);
        assert_eq!(backoff.after(refused), 2 * BACKOFF_MIN);
    }
}
