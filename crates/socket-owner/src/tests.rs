//! Connections of this process: both ways to ask say the same.

use super::*;
use std::net::{TcpListener, TcpStream};

fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    (stream.local_addr().unwrap(), stream.peer_addr().unwrap())
}

#[test]
fn both_ends_of_a_connection_are_known() {
    for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
        let listener = match TcpListener::bind(address) {
            Ok(listener) => listener,
            Err(error) => {
                eprintln!("skipped: {address}: {error}");
                continue;
            }
        };
        let port = listener.local_addr().unwrap().port();
        let host = if address.starts_with("[::1]") {
            "::1"
        } else {
            "127.0.0.1"
        };
        let client = TcpStream::connect((host, port)).unwrap();
        let (local, remote) = ends(&client);
        // Nobody has accepted it.
        assert!(diag::find(remote, local).unwrap().unwrap().is_waiting());
        assert_eq!(server_of(local, remote).unwrap(), own_user(), "{address}");
        let by_table = table::find_listener(remote).unwrap().unwrap();
        assert_eq!(diag::find_listener(remote).unwrap(), Some(by_table));

        let (server, _) = listener.accept().unwrap();
        drop(listener);
        assert_eq!(server_of(local, remote).unwrap(), own_user(), "{address}");
        let (here, there) = ends(&server);
        assert_eq!(client_of(here, there).unwrap(), own_user(), "{address}");
        let by_table = table::find(local, remote).unwrap().unwrap();
        assert!(by_table.is_held);
        assert_eq!(diag::find(local, remote).unwrap(), Some(by_table));
    }
}

/// The kernel shows what it leaves behind as root's.
#[test]
fn who_hangs_up_is_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let (here, there) = ends(&server);
    drop(client);
    let found = diag::find(there, here).unwrap();
    assert!(found.is_none_or(|found| !found.is_held), "{found:?}");
    let error = client_of(here, there).unwrap_err();
    assert!(error.to_string().contains(&there.to_string()), "{error}");
    // Nor does a connection lead anywhere that was accepted and closed at the other side.
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener.accept().unwrap());
    let (local, remote) = ends(&client);
    assert!(server_of(local, remote).is_err());
}
