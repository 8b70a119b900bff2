//! Relays in front of every server and of the assigner, in the trial's own process: the
//! links that can be cut.
//!
//! ```text
//!  server 0 ──┐  (0 → 2) open · hole · cut
//!  server 1 ──┼───────────────────────────► relay of 2 ──► server 2, the present process
//!  callers  ──┘  always open
//! ```
//!
//! Who has opened a connection is found out by its port: Linux names the socket, and the
//! process that has it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// For a server that is just being started.
const BACKEND_PATIENCE: Duration = Duration::from_secs(2);
const BUFFER_LEN: usize = 64 << 10;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    Server(usize),
    Assigner,
}

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    /// Nothing comes through, either way, and nobody is told.
    Hole,
    /// Connections are reset, and new ones, too.
    Cut,
}

/// All links of a fleet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    links: HashMap<(End, End), watch::Sender<Link>>,
    /// Which processes are at which end.
    processes: HashMap<u32, End>,
    /// Connections that a cut has reset.
    resets: u64,
}

impl Links {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the link between these, whoever opened it, is so.
    pub(crate) fn set(&self, one: End, other: End, link: Link) {
        let mut inner = self.inner();
        for pair in [(one, other), (other, one)] {
            inner.link(pair).send_replace(link);
        }
    }

    pub(crate) fn open_all(&self) {
        for link in self.inner().links.values() {
            link.send_replace(Link::Open);
        }
    }

    /// Connections that a cut has reset: a fault that hits nobody shows nothing.
    pub(crate) fn resets(&self) -> u64 {
        self.inner().resets
    }

    /// A process has begun at this end, or has ended.
    pub(crate) fn process(&self, pid: u32, end: Option<End>) {
        let mut inner = self.inner();
        match end {
            Some(end) => inner.processes.insert(pid, end),
            None => inner.processes.remove(&pid),
        };
    }

    /// A relay in front of this end.
    pub(crate) async fn relay(&self, to: End) -> std::io::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let backend = watch::Sender::new(None);
        let task = tokio::spawn(accept(listener, self.clone(), to, backend.subscribe()));
        Ok(Relay {
            address,
            backend,
            task: task.abort_handle(),
        })
    }

    /// The link by which a connection came.
    fn of(&self, from: SocketAddr, to: End) -> Option<watch::Receiver<Link>> {
        let inode = inode_of(from.port())?;
        let pids: Vec<u32> = self.inner().processes.keys().copied().collect();
        let pid = pids.into_iter().find(|pid| has_socket(*pid, &inode))?;
        let mut inner = self.inner();
        let from = *inner.processes.get(&pid)?;
        Some(inner.link((from, to)).subscribe())
    }
}

impl Inner {
    fn link(&mut self, pair: (End, End)) -> &watch::Sender<Link> {
        let link = self.links.entry(pair);
        link.or_insert_with(|| watch::Sender::new(Link::Open))
    }
}

/// Takes connections at an address of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    backend: watch::Sender<Option<SocketAddr>>,
    task: AbortHandle,
}

impl Relay {
    /// Where it hands them on; nowhere while a server is being started.
    pub(crate) fn lead_to(&self, backend: Option<SocketAddr>) {
        self.backend.send_replace(backend);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    links: Links,
    to: End,
    backend: watch::Receiver<Option<SocketAddr>>,
) {
    // A caller's link.
    let open = watch::Sender::new(Link::Open);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let link = links.of(from, to).unwrap_or_else(|| open.subscribe());
        tokio::spawn(hand_on(stream, link, backend.clone(), links.clone()));
    }
}

/// One connection, until either side ends it or its link is cut.
async fn hand_on(
    stream: TcpStream,
    mut link: watch::Receiver<Link>,
    mut backend: watch::Receiver<Option<SocketAddr>>,
    links: Links,
) {
    let _ = stream.set_nodelay(true);
    let through = async {
        if link
            .clone()
            .wait_for(|link| *link != Link::Hole)
            .await
            .is_err()
        {
            return;
        }
        let known = tokio::time::timeout(BACKEND_PATIENCE, backend.wait_for(Option::is_some));
        let address = match known.await {
            Ok(Ok(address)) => *address,
            _ => return,
        };
        let Some(address) = address else { return };
        let Ok(server) = TcpStream::connect(address).await else {
            return;
        };
        let _ = server.set_nodelay(true);
        let (read, write) = stream.into_split();
        let (server_read, server_write) = server.into_split();
        // An end of either way is one of both: gRPC leaves no half open.
        tokio::select! {
            () = pass(read, server_write, link.clone()) => {}
            () = pass(server_read, write, link.clone()) => {}
        }
    };
    let mut is_cut = link.clone();
    let cut = async {
        let _ = is_cut.wait_for(|link| *link == Link::Cut).await;
        // Before the other side sees it.
        links.inner().resets += 1;
    };
    // The sockets are dropped with what is in them.
    tokio::select! {
        () = through => {}
        () = cut => {}
    }
    link.mark_unchanged();
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<Link>) {
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let Ok(length) = from.read(&mut buffer).await else {
            return;
        };
        if length == 0 {
            return;
        }
        // What is on its way while nothing comes through is on its way still afterwards:
        // the network sends it again.
        if link.wait_for(|link| *link == Link::Open).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}

/// The socket at this end of a connection on the loopback.
fn inode_of(port: u16) -> Option<String> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{port:04X}");
    let words = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.get(1) == Some(&local.as_str()))?;
    Some(format!("socket:[{}]", words.get(9)?))
}

fn has_socket(pid: u32, inode: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut links = files.flatten().map(|file| std::fs::read_link(file.path()));
    links.any(|link| link.is_ok_and(|link| link.as_os_str() == inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_link_is_known_by_its_process_and_can_be_a_hole_or_cut() {
        let links = Links::default();
        links.process(std::process::id(), Some(End::Server(0)));
        let relay = links.relay(End::Server(1)).await.unwrap();
        relay.lead_to(Some(echo().await));
        let mut stream = TcpStream::connect(relay.address).await.unwrap();
        let mut byte = [0];
        stream.write_all(b"a").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"a");

        links.set(End::Server(1), End::Server(0), Link::Hole);
        stream.write_all(b"b").await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut byte));
        assert!(late.await.is_err(), "nothing comes through");
        links.open_all();
        stream.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b");

        links.set(End::Server(0), End::Server(1), Link::Cut);
        let ended = stream.read(&mut byte).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        assert_eq!(links.resets(), 1);
        // Another process's link is another one.
        links.process(std::process::id(), Some(End::Server(2)));
        let mut other = TcpStream::connect(relay.address).await.unwrap();
        other.write_all(b"c").await.unwrap();
        other.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"c");
    }
}
