//! A way to a server that can be cut without anybody being told.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Everything,
    /// Bytes wait until they may go on.
    Nothing,
}

/// Takes connections at an address of its own, and hands their bytes on.
pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    passes: watch::Sender<Passes>,
    /// Connections of an earlier count are never heard again.
    age: watch::Sender<u64>,
}

impl Path {
    pub(crate) async fn to(target: SocketAddr) -> Path {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (passes, passing) = watch::channel(Passes::Everything);
        let (age, ages) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else {
                    continue;
                };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let born = *ages.borrow();
                let gate = (passing.clone(), ages.clone(), born);
                tokio::spawn(hand_on(near_in, far_out, gate.clone()));
                tokio::spawn(hand_on(far_in, near_out, gate));
            }
        });
        Path {
            address,
            passes,
            age,
        }
    }

    /// From now on nothing passes, and nobody is told.
    pub(crate) fn cut(&self) {
        self.passes.send_replace(Passes::Nothing);
    }

    /// What has waited goes on.
    pub(crate) fn mend(&self) {
        self.passes.send_replace(Passes::Everything);
    }

    /// What passes over connections of before is swallowed for good; new ones work.
    pub(crate) fn forget(&self) {
        self.age.send_modify(|age| *age += 1);
    }
}

async fn hand_on(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    (mut passes, ages, born): (watch::Receiver<Passes>, watch::Receiver<u64>, u64),
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let open = |passes: &Passes| *passes == Passes::Everything;
        if passes.wait_for(open).await.is_err() {
            return;
        }
        if *ages.borrow() != born {
            continue;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
