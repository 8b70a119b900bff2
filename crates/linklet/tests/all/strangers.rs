//! Another user of this host, without certificates: is let in nowhere unless named, and is
//! sent nothing. The other user is a copy of this test program, which needs root to become
//! somebody else; says so where it is not.

use crate::cluster::CORPUS;
use crate::security::{any, assigner, joins, linklet, peer_of, send};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use trefoil_coordination::{AssignerClient, Watcher};
use trefoil_linklet::endpoint::Reach;
use trefoil_linklet::{Linklet, PlainMarshal, Security};
use trefoil_sharder::Freeze;

/// An account that is on every Linux system and owns nothing.
const NOBODY: u32 = 65_534;
const PATIENCE: Duration = Duration::from_secs(10);
const LET_IN: &str = "--allow-user 65534";

/// A copy of this program that another user may run; `None` if this one cannot become
/// somebody else.
fn common() -> Option<TempDir> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: only root, with setpriv, can try another account");
        return None;
    }
    // In a user namespace `nobody` stands for everybody who has no number there.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    if !map.split_ascii_whitespace().eq(["0", "0", "4294967295"]) {
        eprintln!("skipped: the user namespace does not map all users");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), dir.path().join("tests")).unwrap();
    Some(dir)
}

/// Runs a part of this file as nobody, with something said to it in the environment.
fn as_nobody(dir: &TempDir, part: &str, said: &[(&str, &str)]) -> Child {
    Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg("--")
        .arg(dir.path().join("tests"))
        .args(["--ignored", "--nocapture", "--exact"])
        .arg(format!("strangers::{part}"))
        .envs(said.iter().copied())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn ends_well(nobody: Child) {
    let output = tokio::task::spawn_blocking(|| nobody.wait_with_output());
    let output = output.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn said(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Mounted in a server of the application, behind tonic's own listener.
async fn mounted(assigner: &str) -> Linklet<String> {
    let listener = tokio::net::TcpListener::bind(any()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let linklet = Linklet::builder(CORPUS, PlainMarshal).join(assigner, address);
    let linklet = linklet.await.unwrap();
    let server = Server::builder().add_service(linklet.service().into_server());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    linklet
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_joins_nothing_and_reads_nothing() {
    let Some(common) = common() else { return };
    let (_assigner, address) = assigner(Security::Loopback).await;
    let listens = linklet(&address, Security::Loopback).await.unwrap();
    let mounted = mounted(&address).await;
    let watched = listens.serve_metrics(any(), Reach::Loopback).unwrap();
    let (id, peer) = peer_of(&listens).await;
    let (other_id, other_peer) = peer_of(&mounted).await;
    // Both are heard by each other, and by a third one of their own user.
    for (id, peer) in [(id, &peer), (other_id, &other_peer)] {
        let third = joins(&address, Security::Loopback).await.unwrap();
        let heard = send(peer, third.server_id().0, id, &Security::Loopback).await;
        assert_eq!(heard.unwrap_err().code(), Code::InvalidArgument, "no frame");
    }
    let nobody = as_nobody(
        &common,
        "as_nobody_every_door_is_closed",
        &[
            ("ASSIGNER", &address),
            ("LISTENS", &peer),
            ("MOUNTED", &other_peer),
            ("WATCHED", &watched.address().to_string()),
            ("ID", &id.to_string()),
            ("OTHER_ID", &other_id.to_string()),
        ],
    );
    ends_well(nobody).await;
    // Its own user may.
    let client = AssignerClient::with(address.parse().unwrap(), Security::Loopback);
    client.set_freeze(CORPUS, Freeze::All).await.unwrap();
    assert!(post_drain(watched.address()).starts_with("HTTP/1.1 202"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of another test, run as another user"]
async fn as_nobody_every_door_is_closed() {
    let address = said("ASSIGNER");
    let error = joins(&address, Security::Loopback).await.unwrap_err();
    assert!(error.to_string().contains(LET_IN), "{error}");
    // Whatever it says of itself.
    let error = joins(&address, Security::Plaintext).await.unwrap_err();
    assert!(error.to_string().contains(LET_IN), "{error}");
    let followed = Watcher::open_with(&address, CORPUS, Security::Loopback);
    let followed = tokio::time::timeout(Duration::from_secs(2), followed).await;
    assert!(!matches!(followed, Ok(Ok(_))), "it reads the map");
    let client = AssignerClient::with(address.parse().unwrap(), Security::Loopback);
    let error = client.set_freeze(CORPUS, Freeze::All).await.unwrap_err();
    assert!(error.to_string().contains(LET_IN), "{error}");
    let error = client.begin_incarnation(CORPUS).await.unwrap_err();
    assert!(error.to_string().contains(LET_IN), "{error}");
    for (_, status) in client.status().await {
        let error = status.unwrap_err();
        assert!(error.to_string().contains(LET_IN), "{error}");
    }
    for (peer, id) in [("LISTENS", "ID"), ("MOUNTED", "OTHER_ID")] {
        let (peer, id) = (said(peer), said(id).parse().unwrap());
        let error = send(&peer, 1, id, &Security::Loopback).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
        assert!(error.message().contains(LET_IN), "{error}");
    }
    let refused = post_drain(said("WATCHED").parse().unwrap());
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(refused.contains("user 65534 may not drain"), "{refused}");
}

fn post_drain(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"POST /drain HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_is_named_comes_in() {
    let Some(common) = common() else { return };
    let (_assigner, address) = assigner(Security::users([NOBODY])).await;
    let nobody = as_nobody(&common, "as_nobody_it_joins", &[("ASSIGNER", &address)]);
    ends_well(nobody).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of another test, run as another user"]
async fn as_nobody_it_joins() {
    // The assigner is root's.
    let session = joins(&said("ASSIGNER"), Security::Loopback).await;
    session.unwrap();
}

/// Who has taken a port before its owner did gets nothing of what is meant for that one.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_to_another_users_port() {
    let Some(common) = common() else { return };
    for accepts in ["yes", "no"] {
        let part = "as_nobody_it_listens";
        let mut nobody = as_nobody(&common, part, &[("ACCEPTS", accepts)]);
        let mut lines = BufReader::new(nobody.stdout.take().unwrap()).lines();
        let address = lines
            .find_map(|line| Some(line.unwrap().strip_prefix("listens at ")?.to_owned()))
            .unwrap();
        let why = format!("the server at {address} is user {NOBODY}'s");
        let error = joins(&address, Security::Loopback).await.unwrap_err();
        assert!(error.to_string().contains(&why), "{accepts}: {error}");
        let error = send(&address, 1, 2, &Security::Loopback).await.unwrap_err();
        assert!(error.message().contains(&why), "{accepts}: {error}");
        // It ends with what is said to it.
        drop(nobody.stdin.take());
        let heard = lines.find_map(|line| Some(line.unwrap().strip_prefix("heard ")?.to_owned()));
        assert_eq!(heard.as_deref(), Some("nothing"), "{accepts}");
        assert!(nobody.wait().unwrap().success());
        // What was named is believed; nobody listens there any more.
        let error = joins(&address, Security::users([NOBODY]))
            .await
            .unwrap_err();
        assert!(!error.to_string().contains(&why), "{error}");
    }
}

#[test]
#[ignore = "a part of another test, run as another user"]
fn as_nobody_it_listens() {
    let listener = TcpListener::bind(any()).unwrap();
    println!("\nlistens at {}", listener.local_addr().unwrap());
    let accepts = said("ACCEPTS") == "yes";
    let accepting = listener.try_clone().unwrap();
    // One after the other, as they come.
    let heard = move || -> usize {
        let connections = accepting.incoming().map_while(Result::ok);
        let read = |mut stream: TcpStream| stream.read(&mut [0; 64]).unwrap_or(0);
        connections.map(read).sum()
    };
    let hearing = accepts.then(|| std::thread::spawn(heard));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    // Those who wait still, or the thread, find the end.
    listener.set_nonblocking(true).unwrap();
    let waiting = listener.incoming().map_while(Result::ok);
    let late: usize = waiting
        .map(|mut stream| {
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut [0; 64]).unwrap_or(0)
        })
        .sum();
    if let Some(hearing) = hearing {
        let wake = TcpStream::connect(listener.local_addr().unwrap());
        drop(wake);
        assert!(late == 0 && hearing.join().unwrap() == 0);
    }
    println!("heard {}", if late == 0 { "nothing" } else { "something" });
}
