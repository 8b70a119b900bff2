//! Assigners as processes of their own, which can be killed. The test's own
//! program is the assigner: it begins as one where it finds an order to.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_coordination::{AssignerClient, AssignerServer};
use trefoil_ports::ServerProcess;

const ORDER: &str = "TREFOIL_TEST_ASSIGNER";

/// One assigner process; killed when it is dropped.
pub(crate) struct AssignerProcess(ServerProcess);

impl AssignerProcess {
    /// `entry` is the test that calls [`serve_if_ordered`].
    pub(crate) fn start(entry: &str, store: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let server = ServerProcess::start(|port| {
            let mut command = Command::new(&program);
            command
                .args(["--exact", entry, "--nocapture"])
                .env(ORDER, format!("127.0.0.1:{port} {store}"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        });
        AssignerProcess(server.expect("it starts"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// SIGKILL.
    pub(crate) fn kill(self) {}
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
