//! A replica that its owner cannot reach, while a third server reaches both.
//!
//! ```text
//!  linklet ──► proxy of another ──► its service
//!              knows from the first bytes of a stream whose it is, and holds up what is cut
//! ```

use crate::cluster::{self, CORPUS};
use crate::metrics::value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{Error, Linklet, PlainMarshal, Replication};
use trefoil_sharder::{Freeze, ServerId};

/// From whom to whom nothing comes through.
type Cut = Vec<(ServerId, ServerId)>;

/// Longer than a stream takes to say whose it is.
const HEAD_BYTES_MAX: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

struct Fleet {
    linklets: BTreeMap<ServerId, Linklet<String>>,
    cut: watch::Sender<Cut>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Fleet {
    async fn of(count: usize, coordinator: &LocalCoordinator) -> Self {
        cluster::log();
        let mut fleet = Fleet {
            linklets: BTreeMap::new(),
            cut: watch::Sender::default(),
            tasks: Vec::new(),
        };
        for _ in 0..count {
            let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, behind) = (proxy.local_addr(), service.local_addr());
            let linklet = Linklet::builder(CORPUS, PlainMarshal)
                .replication(Replication::Strong)
                .join(coordinator.clone(), address.unwrap().to_string())
                .await
                .unwrap();
            let peers = Server::builder().add_service(linklet.service().into_server());
            let serve = peers.serve_with_incoming(TcpIncoming::from(service));
            let accept = accept(proxy, behind.unwrap(), fleet.cut.subscribe());
            fleet.tasks.push(tokio::spawn(serve).abort_handle());
            fleet.tasks.push(tokio::spawn(accept).abort_handle());
            let id = linklet.server_id().unwrap();
            fleet.linklets.insert(id, linklet);
        }
        fleet
    }

    /// A key that is where the map has it, with its owner and the other server.
    async fn key(&self) -> (Vec<u8>, ServerId, ServerId) {
        for _ in 0..3_000 {
            for key in (0..200).map(cluster::name) {
                let any = self.linklets.values().next().unwrap();
                let view = Arc::clone(&any.view().unwrap().borrow());
                let servers = &view.assignment.slice_of(any.point(&key)).servers;
                let [owner, copy] = servers[..] else { continue };
                let owned = self.linklets[&owner].owned();
                if owned.iter().any(|slice| slice.contains(any.point(&key))) {
                    return (key, owner, copy);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nothing is copied");
    }
}

async fn accept(proxy: TcpListener, behind: SocketAddr, cut: watch::Receiver<Cut>) {
    while let Ok((stream, _)) = proxy.accept().await {
        let cut = cut.clone();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(behind).await else {
                return;
            };
            let (read, write) = stream.into_split();
            let (server_read, server_write) = server.into_split();
            tokio::select! {
                () = there(read, server_write, cut) => {}
                () = back(server_read, write) => {}
            }
        });
    }
}

/// What a server sends. While that is cut it stays on its way.
async fn there(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<Cut>) {
    let (mut head, mut pair) = (Vec::new(), None);
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if pair.is_none() {
            head.extend_from_slice(&buffer[..count]);
            assert!(head.len() < HEAD_BYTES_MAX, "whose stream is it?");
            pair = said(&head);
        }
        if let Some(pair) = pair {
            let open = cut.wait_for(|cut| !cut.contains(&pair)).await;
            if open.is_err() {
                return;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

/// Who sends, and to whom: `Hello` of `proto/linklet.proto`, as it goes over the wire.
fn said(head: &[u8]) -> Option<(ServerId, ServerId)> {
    let corpus = [&[0x0a, CORPUS.len() as u8], CORPUS.as_bytes()].concat();
    let at = head.windows(corpus.len()).position(|part| part == corpus)?;
    let ids = head.get(at + corpus.len()..)?.first_chunk::<18>()?;
    assert_eq!((ids[0], ids[9]), (0x11, 0x19), "the fields `from` and `to`");
    let id = |bytes: &[u8]| ServerId(u64::from_le_bytes(bytes.try_into().unwrap()));
    Some((id(&ids[1..9]), id(&ids[10..18])))
}

/// Both directions, and each of them: commits of the owner's count, the replica has them, and
/// when the link is whole again nothing goes through the third server.
#[tokio::test(flavor = "multi_thread")]
async fn commits_go_round_a_link_that_is_cut() {
    let coordinator = cluster::coordinator(2);
    let fleet = Fleet::of(3, &coordinator).await;
    fleet.key().await;
    let frozen = coordinator.set_freeze(CORPUS, Freeze::OnlyDead).await;
    frozen.unwrap();
    let (key, owner, copy) = fleet.key().await;
    let (linklet, replica) = (
        fleet.linklets[&owner].patient(PATIENCE),
        &fleet.linklets[&copy],
    );
    let third = fleet
        .linklets
        .iter()
        .find(|(id, _)| ![owner, copy].contains(id));
    let third = third.unwrap().1;
    linklet.insert(&key, "0".to_owned()).await.unwrap();
    let (there, back) = ((owner, copy), (copy, owner));
    for (number, cut) in [vec![there, back], vec![there], vec![back]]
        .into_iter()
        .enumerate()
    {
        let passed = third.stats().frames_passed;
        fleet.cut.send_replace(cut.clone());
        for n in 0..20 {
            let text = format!("{number} {n}");
            let done = linklet.insert(&key, text.clone()).await;
            assert!(done.is_ok(), "{cut:?}: {done:?}");
            // It has it, and serves it once it has heard that it is settled.
            let seen = loop {
                match replica.read(&key, String::clone).await {
                    Err(Error::NotMine(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                    seen => break seen.unwrap(),
                }
            };
            assert_eq!(seen, Some(text), "{cut:?}");
        }
        assert!(third.stats().frames_passed > passed, "{cut:?}");
        assert_eq!(value(&linklet, "detours"), Some(1.0), "{cut:?}");
        fleet.cut.send_replace(Cut::new());
        for n in 0.. {
            linklet
                .insert(&key, format!("{number}, mended: {n}"))
                .await
                .unwrap();
            let detours = [&linklet, replica].map(|linklet| value(linklet, "detours"));
            if detours == [Some(0.0); 2] {
                break;
            }
            assert!(n < 600, "{cut:?}: {detours:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
