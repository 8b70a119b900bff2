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
    /// What the server says is swallowed for good.
    Questions,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    There,
    Back,
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
                tokio::spawn(hand_on(Way::There, near_in, far_out, gate.clone()));
                tokio::spawn(hand_on(Way::Back, far_in, near_out, gate));
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

    /// From now on the server hears what is said to it, and is not heard.
    pub(crate) fn lose_answers(&self) {
        self.passes.send_replace(Passes::Questions);
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
    way: Way,
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    (mut passes, ages, born): (watch::Receiver<Passes>, watch::Receiver<u64>, u64),
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let open = passes.wait_for(|passes| *passes != Passes::Nothing).await;
        let Ok(passes) = open.map(|passes| *passes) else {
            return;
        };
        let is_lost = way == Way::Back && passes == Passes::Questions;
        if is_lost || *ages.borrow() != born {
            continue;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
