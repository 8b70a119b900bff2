//! Processes of the service, and what they are asked.

use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::v1::{ChangeRequest, Event, Interval};
use address_book_contract::{client, endpoint, sample_book};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tonic::transport::Channel;

/// A process that is killed with its value.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// Where it serves.
    pub(crate) address: String,
    pub(crate) frames: Option<String>,
    /// Where it tells how it is.
    pub(crate) metrics: Option<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn address_book(arguments: &[&str]) -> Running {
    start(env!("CARGO_BIN_EXE_address-book").into(), arguments)
}

/// `trefoil`, whose program is beside the service's.
pub(crate) fn trefoil(arguments: &[&str]) -> Running {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_address-book")).with_file_name("trefoil");
    assert!(
        program.exists(),
        "{} is missing: build with -p trefoil --features trefoil/linked --bins",
        program.display()
    );
    start(program, arguments)
}

fn start(program: PathBuf, arguments: &[&str]) -> Running {
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let json = line
        .strip_prefix("ready ")
        .unwrap_or_else(|| panic!("{line:?}"));
    let ready: serde_json::Value = serde_json::from_str(json).unwrap();
    let named = |name: &str| ready[name].as_str().map(str::to_owned);
    Running {
        child,
        // A relay's is where subscribers come in.
        address: named("address").or_else(|| named("listen")).unwrap(),
        frames: named("frames"),
        metrics: named("metrics"),
    }
}

pub(crate) async fn connect(server: &Running) -> AddressBooksClient<Channel> {
    client(endpoint(&server.address).unwrap().connect().await.unwrap())
}

pub(crate) fn whole(owner: &str, contacts: u64) -> ChangeRequest {
    ChangeRequest {
        owner: owner.into(),
        whole: true,
        contacts: sample_book(contacts, 1_000).contacts,
        ..ChangeRequest::default()
    }
}

pub(crate) fn busy(owner: &str, begin_min: i64, end_min: i64) -> ChangeRequest {
    ChangeRequest {
        owner: owner.into(),
        events: vec![Event {
            time: Some(Interval { begin_min, end_min }),
            title: "meeting".into(),
        }],
        ..ChangeRequest::default()
    }
}
