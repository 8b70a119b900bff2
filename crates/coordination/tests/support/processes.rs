//! Assigners as processes of their own, which can be killed. The test's own
//! program is the assigner: it begins as one where it finds an order to.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_coordination::{AssignerClient, AssignerServer};

const ORDER: &str = "TREFOIL_TEST_ASSIGNER";

/// One assigner process; killed when it is dropped.
pub(crate) struct AssignerProcess {
    pub(crate) address: SocketAddr,
    process: Child,
}

impl AssignerProcess {
    /// `entry` is the test that calls [`serve_if_ordered`].
    pub(crate) fn start(entry: &str, store: &str) -> Self {
        let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST).expect("a free port");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", entry, "--nocapture"])
            .env(ORDER, format!("{address} {store}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let since = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(since.elapsed() < super::PATIENCE, "it did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        AssignerProcess { address, process }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ran");
    }
}

impl Drop for AssignerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Is an assigner until it is killed, where that was ordered.
pub(crate) fn serve_if_ordered() -> bool {
    let Ok(order) = std::env::var(ORDER) else {
        return false;
    };
    let (address, store) = order.split_once(' ').expect("an address and a store");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = store.parse().expect("a store");
        let _server =
            AssignerServer::start(address.parse().expect("an address"), &store, super::fast())
                .await
                .expect("it serves");
        std::future::pending::<()>().await;
    });
    true
}

/// What the assigner at this address says of a corpus.
pub(crate) async fn status(address: SocketAddr, corpus: &str) -> Option<serde_json::Value> {
    let client = AssignerClient::new(address.to_string().parse().expect("an address"));
    let (_, document) = client.status().await.pop().expect("one address");
    let document: serde_json::Value =
        serde_json::from_str(&document.ok()?).expect("a JSON document");
    document["corpora"]
        .as_array()?
        .iter()
        .find(|found| found["corpus"] == corpus)
        .cloned()
}

/// Which of them leads; waits until one does.
pub(crate) async fn leader(addresses: &[SocketAddr], corpus: &str) -> usize {
    let since = Instant::now();
    loop {
        for (place, &address) in addresses.iter().enumerate() {
            if status(address, corpus)
                .await
                .is_some_and(|status| status["leads"] == true)
            {
                return place;
            }
        }
        assert!(since.elapsed() < super::PATIENCE, "nobody leads");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
