//! Once the configuration names the backends of another size, those of the former size go,
//! and nobody else holds what the new ones have copied: whatever is in their way, they wait.

use crate::maintenance::{client, get, pids, set, steps};
use crate::support::Cell;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trefoil_client::Client;
use trefoil_ports::EtcdProcess;

const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: usize = 1_000;
const TWO: [&str; 8] = [
    "--mode",
    "R=1",
    "--backends",
    "2",
    "--memory",
    "64MiB",
    "--restart",
    "always",
];

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fill(client: &mut Client) {
    for number in 0..KEYS {
        set(client, &format!("key-{number}"), &format!("value-{number}"));
    }
}

fn all_is_there(client: &mut Client) {
    for number in 0..KEYS {
        let found = get(client, &format!("key-{number}"));
        assert_eq!(found, Some(format!("value-{number}")));
    }
}

/// Something stands where one of the new ones is to listen.
#[test]
fn who_cannot_listen_yet_keeps_what_it_has_copied() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &TWO);
    let mut keeper = client(&cell);
    fill(&mut keeper);
    let in_the_way = dir.path().join("backend-2.sock");
    std::fs::write(&in_the_way, "no socket").unwrap();
    let waits = ["is not a socket", "until this is mended"];
    std::thread::scope(|scope| {
        let resize = scope.spawn(|| steps(&cell, &["cell", "resize", "--backends", "3"]));
        await_that("it says what it waits for", || {
            cell.log().count(&waits) > 0 || resize.is_finished()
        });
        assert!(cell.log().count(&waits) > 0);
        std::fs::remove_file(&in_the_way).unwrap();
        resize.join().unwrap();
    });
    assert_eq!(cell.log().count(&["has died before it served"]), 0);
    assert_eq!(pids(&cell).len(), 3);
    all_is_there(&mut client(&cell));
    assert_eq!(cell.stop(), 0);
}

/// What is between a cell and its etcd: everything that either says goes on to the other.
/// When the cell has said `word`, `then` happens before anybody hears anything of etcd.
struct Between {
    port: u16,
}

struct Watches {
    word: &'static [u8],
    /// And was passed on.
    is_said: AtomicBool,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Watches {
    /// Goes on with what one side says.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, is_cell: bool) {
        let mut last = Vec::new();
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut bytes) {
            let said = &bytes[..count];
            last.extend_from_slice(said);
            let is_word = is_cell && last.windows(self.word.len()).any(|part| part == self.word);
            let keeps = last.len().min(self.word.len() - 1);
            last.drain(..last.len() - keeps);
            // Others wait here meanwhile.
            if !is_cell && self.is_said.load(Ordering::SeqCst) {
                let mut then = self.then.lock().unwrap();
                if let Some(then) = then.take() {
                    then();
                }
            }
            if count == 0 || to.write_all(said).is_err() {
                break;
            }
            self.is_said.fetch_or(is_word, Ordering::SeqCst);
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Between {
    fn new(etcd: String, word: &'static str, then: impl FnOnce() + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let watches = Arc::new(Watches {
            word: word.as_bytes(),
            is_said: AtomicBool::new(false),
            then: Mutex::new(Some(Box::new(then))),
        });
        std::thread::spawn(move || {
            for cell in listener.incoming().map_while(Result::ok) {
                let Ok(etcd) = TcpStream::connect(&etcd) else {
                    continue;
                };
                let (Ok(cell_too), Ok(etcd_too)) = (cell.try_clone(), etcd.try_clone()) else {
                    continue;
                };
                let (one, other) = (Arc::clone(&watches), Arc::clone(&watches));
                std::thread::spawn(move || one.carry(cell, etcd, true));
                std::thread::spawn(move || other.carry(etcd_too, cell_too, false));
            }
        });
        Between { port }
    }
}

/// etcd has room for the configuration of the other size, and for nothing after it: nobody
/// can register. They serve all the same, and register when there is room again.
#[test]
fn an_etcd_without_room_after_the_change_costs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start(home.path(), None).unwrap();
    let host = etcd.host();
    let etcd = Arc::new(Mutex::new(etcd));
    let full = {
        let etcd = Arc::clone(&etcd);
        move || {
            let mut etcd = etcd.lock().unwrap();
            await_that("etcd has the configuration of the other size", || {
                let held = etcd.ctl(&["get", "--print-value-only", "cells/mail/config"]);
                held.is_ok_and(|held| held.contains("backend-2.sock"))
            });
            etcd.kill();
            etcd.limit_room(Some(1));
            etcd.run().unwrap();
            assert!(etcd.ctl(&["put", "other", "1"]).is_err(), "it has no room");
        }
    };
    let between = Between::new(host, "backend-2.sock", full);
    let address = format!("etcd://127.0.0.1:{}/cells/mail", between.port);
    let mut args = vec!["--store", &address];
    args.extend_from_slice(&TWO);
    let cell = Cell::up(&home.path().join("cell"), &args);
    let mut keeper = client(&cell);
    fill(&mut keeper);
    // Orders go to the `cell up` of the host, which is found by the cell's directory.
    let here = format!("unix:{}/cell", home.path().display());
    let order = ["cell", "resize", "--backends", "3", "--cell", &here];
    let output = crate::support::run(&order);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    assert_eq!(cell.log().count(&["has died before it served"]), 0);
    all_is_there(&mut keeper);
    all_is_there(&mut client(&cell));
    let said = cell.run(&["cell", "flush"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("does nothing for now"), "{said}");
    {
        let mut etcd = etcd.lock().unwrap();
        etcd.kill();
        etcd.limit_room(None);
        etcd.run().unwrap();
        etcd.ctl(&["alarm", "disarm"]).unwrap();
    }
    await_that("they register", || {
        let listed = etcd.lock().unwrap();
        let listed = listed.ctl(&["get", "--prefix", "--keys-only", "cells/mail/backends/"]);
        let listed = listed.unwrap_or_default();
        (0..3).all(|number| listed.contains(&format!("backends/{number}")))
    });
    all_is_there(&mut keeper);
    assert_eq!(cell.stop(), 0);
}

/// etcd can be read, and takes nothing: a process that takes another one's place serves by
/// the lock of the cell's directory, and registers when there is room.
#[test]
fn an_etcd_without_room_stops_no_restart() {
    let home = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(home.path(), None).unwrap();
    let address = format!("etcd://{}/cells/mail", etcd.host());
    let mut args = vec!["--store", &address];
    args.extend_from_slice(&TWO);
    let cell = Cell::up(&home.path().join("cell"), &args);
    let mut keeper = client(&cell);
    fill(&mut keeper);
    let before = pids(&cell);
    etcd.kill();
    etcd.limit_room(Some(1));
    etcd.run().unwrap();
    assert!(etcd.ctl(&["put", "other", "1"]).is_err(), "it has no room");
    let here = format!("unix:{}/cell", home.path().display());
    let output = crate::support::run(&["cell", "restart", "--cell", &here]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let after = pids(&cell);
    assert!(before.iter().all(|pid| !after.contains(pid)), "{after:?}");
    all_is_there(&mut keeper);
    all_is_there(&mut client(&cell));
    etcd.kill();
    etcd.limit_room(None);
    etcd.run().unwrap();
    etcd.ctl(&["alarm", "disarm"]).unwrap();
    await_that("they register", || {
        let listed = etcd.ctl(&["get", "--prefix", "--keys-only", "cells/mail/backends/"]);
        let listed = listed.unwrap_or_default();
        (0..2).all(|number| listed.contains(&format!("backends/{number}")))
    });
    all_is_there(&mut keeper);
    assert_eq!(cell.stop(), 0);
}
