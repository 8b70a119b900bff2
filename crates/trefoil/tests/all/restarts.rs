//! Clients that outlive their cell follow it: whatever it comes back as, at the
//! same address, what they store is found, and nothing of a former life is.

use crate::support::{Cell, PROGRAM, free_port};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};

/// How long after a cell's `ready` a client may still be at a loss. A second on
/// a machine with nothing else to do; tests share theirs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys of one life.
const KEYS: usize = 64;

/// Somebody who stores and reads, whatever carries it.
trait Caller {
    /// Why it did not work out, if so.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String>;
    /// The value, if there is one; `Err` if that is not known.
    fn get(&mut self, key: &str) -> Result<Option<String>, String>;
}

impl Caller for Client {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let stored = Client::set(
            self,
            key.as_bytes(),
            value.as_bytes(),
            SetOptions::default(),
        );
        match stored {
            Ok(Mutated::Stored { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn get(&mut self, key: &str) -> Result<Option<String>, String> {
        match Client::get(self, key.as_bytes()) {
            Ok(Lookup::Hit(hit)) => Ok(Some(String::from_utf8(hit.value.to_vec()).unwrap())),
            Ok(Lookup::Miss(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// memcached's protocol over one connection that stays.
struct Memcached(BufReader<TcpStream>);

impl Memcached {
    fn say(&mut self, request: &str) {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "it hung up");
        line.trim_end().to_owned()
    }
}

impl Caller for Memcached {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let len = value.len();
        self.say(&format!("set {key} 0 0 {len}\r\n{value}\r\n"));
        match self.line() {
            stored if stored == "STORED" => Ok(()),
            line => Err(line),
        }
    }

    fn get(&mut self, key: &str) -> Result<Option<String>, String> {
        self.say(&format!("get {key}\r\n"));
        let line = self.line();
        if line == "END" {
            return Ok(None);
        }
        if !line.starts_with("VALUE ") {
            return Err(line);
        }
        let value = self.line();
        assert_eq!(self.line(), "END");
        Ok(Some(value))
    }
}

/// What must hold once the cell of life `round` is ready.
fn follows(who: &str, caller: &mut dyn Caller, round: usize) {
    let begin = Instant::now();
    let mut trouble;
    loop {
        let value = format!("{who}-{round}-{}", begin.elapsed().as_nanos());
        let key = format!("{who}-first");
        match caller.set(&key, &value) {
            Ok(()) => match caller.get(&key) {
                Ok(Some(found)) if found == value => break,
                other => trouble = format!("stored, and then {other:?}"),
            },
            Err(why) => trouble = why,
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{who} does not follow into life {round}: {trouble}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!(
        "{who} follows into life {round} after {:?}",
        begin.elapsed()
    );
    // Another key is another backend's, which may be found a moment later.
    for number in 0..KEYS {
        let former = format!("{who}-{}-{number}", round.wrapping_sub(1));
        let found = at_last(begin, || caller.get(&former));
        assert_eq!(found, None, "a value of a former life");
        let key = format!("{who}-{round}-{number}");
        at_last(begin, || caller.set(&key, &key));
        let found = at_last(begin, || caller.get(&key));
        assert_eq!(found.as_deref(), Some(&*key), "{key}");
    }
}

/// What an operation comes to once it can be carried out.
fn at_last<T>(begin: Instant, mut operation: impl FnMut() -> Result<T, String>) -> T {
    loop {
        match operation() {
            Ok(done) => return done,
            Err(why) => assert!(begin.elapsed() < PATIENCE, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gateway that stays, and a connection to it.
fn gateway(cell: &Cell) -> (Ends, Memcached) {
    let port = free_port();
    let child = Command::new(PROGRAM)
        .args(["gateway", "--cell", &cell.address, "--metrics", "off"])
        .args(["--memcached", &format!("127.0.0.1:{port}")])
        .env_remove("TREFOIL_CELL")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ends = Ends(child);
    let mut line = String::new();
    let out = ends.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready "), "{line}");
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    (ends, Memcached(BufReader::new(stream)))
}

/// Starts a cell once for each of `lives`; a client and a gateway of the first
/// must get along with all of them. Every other cell is killed, not stopped.
fn stay(lives: &[&[&str]], mut start: impl FnMut(&[&str]) -> Cell) {
    let mut cell = start(lives[0]);
    let mut client = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .client(Options::default());
    let (_gateway, mut memcached) = gateway(&cell);
    for (round, options) in lives.iter().enumerate() {
        if round > 0 {
            if round % 2 == 0 {
                cell.crash();
            } else {
                cell.stop();
            }
            cell = start(options);
        }
        follows("client", &mut client, round);
        follows("gateway", &mut memcached, round);
    }
}

#[test]
fn a_client_follows_serve_through_its_lives() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    stay(
        &[
            &["--mode", "R=1"],
            &["--mode", "R=1"],
            &["--mode", "R=3.2"],
            &["--mode", "R=3.2", "--hash", "sip13"],
            &["--mode", "R=1", "--hash", "sip13"],
        ],
        |options| {
            let args = [&["--listen", &listen], options].concat();
            Cell::serve(dir.path(), &args)
        },
    );
}

#[test]
fn a_client_follows_a_cell_of_other_backends_in_the_same_directory() {
    let dir = tempfile::tempdir().unwrap();
    stay(
        &[
            &["--mode", "R=1"],
            &["--mode", "R=3.2"],
            &["--mode", "R=3.2", "--backends", "5"],
            &["--mode", "R=1", "--backends", "2", "--hash", "sip13"],
            &["--mode", "R=1"],
        ],
        |options| {
            let mut args = vec!["--memory", "64MiB"];
            args.extend_from_slice(options);
            Cell::up(dir.path(), &args)
        },
    );
}

/// Killed, a server keeps its port and its sockets until the kernel has taken all of
/// its memory down: a successor that is started at once waits for that.
#[test]
fn serve_outlives_a_killed_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let door = format!("127.0.0.1:{}", free_port());
    let options = [
        "--listen",
        &listen,
        "--memcached",
        &door,
        "--memory",
        "256MiB",
    ];
    let cell = Cell::serve(dir.path(), &options);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(Options::default());
    let value = vec![7; 1 << 20];
    for key in 0..100 {
        let key = format!("{key}");
        client
            .set(key.as_bytes(), &value, SetOptions::default())
            .unwrap();
    }
    drop(client);
    drop(connected);
    // Not waited for.
    cell.kill(0);
    let next = Cell::serve(dir.path(), &options);
    assert!(next.run(&["set", "k", "v"]).status.success());

    let second = crate::support::run(&["serve", "--listen", &listen, "--memcached", "off"]);
    let message = crate::support::text(&second.stderr);
    assert!(
        message.contains("choose another address with --listen"),
        "{message}"
    );
}
