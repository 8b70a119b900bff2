//! A real server on a free port of the loopback, and a connection to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server process; it is killed with its owner.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts `program` with these arguments, `{port}` in them replaced.
    /// Another process may take the port first; then it is tried with another.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Server {
        for _ in 0..5 {
            let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST).expect("a free port");
            let arguments = arguments
                .iter()
                .map(|argument| argument.replace("{port}", &port.to_string()));
            let child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}; install Debian's package"));
            let mut server = Server { child, port };
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(10) {
                if listens(server.child.id(), port) {
                    return server;
                }
                if !matches!(server.child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("{program} does not answer on any port");
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        stream.set_nodelay(true).expect("no delay");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        Connection { stream }
    }
}

/// Whether this process listens on this port of the loopback. That somebody
/// does is not enough: a test beside this one may have got the same free port.
fn listens(process: u32, port: u16) -> bool {
    const LISTENING: &str = "0A";
    let Ok(sockets) = std::fs::read_to_string("/proc/net/tcp") else {
        return false;
    };
    let address = format!("0100007F:{port:04X}");
    // number, local address, remote address, state, …, inode in place 9
    let inode = sockets.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.get(1) == Some(&address.as_str()) && words.get(3) == Some(&LISTENING);
        found.then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    let (Some(inode), Ok(files)) = (inode, std::fs::read_dir(format!("/proc/{process}/fd"))) else {
        return false;
    };
    files.flatten().any(|file| {
        std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == inode.as_str())
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to a real server.
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Sends these bytes and reads until the answers end with `last`, or the
    /// server closes the connection. Returns the answers without `last`, and
    /// whether the connection has been closed.
    pub(crate) fn ask(&mut self, bytes: &[u8], last: &[u8]) -> (Vec<u8>, bool) {
        // A server that closes early may reset the connection meanwhile.
        let _ = self.stream.write_all(bytes);
        let mut answers = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            if answers.ends_with(last) {
                answers.truncate(answers.len() - last.len());
                return (answers, false);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return (answers, true),
                Ok(len) => answers.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return (answers, true);
                }
                Err(error) => panic!(
                    "the server does not answer: {error}; so far {:?}",
                    String::from_utf8_lossy(&answers)
                ),
            }
        }
    }
}
