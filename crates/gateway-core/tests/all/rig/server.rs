//! A real server on a free port of the loopback, and a connection to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use trefoil_ports::ServerProcess;

/// A server process; it is killed with its owner.
pub(crate) struct Server(ServerProcess);

impl Server {
    /// Starts `program` with these arguments, `{port}` in them replaced.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Server {
        let server = ServerProcess::start(|port| {
            let arguments = arguments
                .iter()
                .map(|argument| argument.replace("{port}", &port.to_string()));
            let mut command = Command::new(program);
            command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        });
        Server(server.expect("Debian's package is installed"))
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.0.address()).expect("connects");
        stream.set_nodelay(true).expect("no delay");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        Connection { stream }
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
                // The machine stood still.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!(
                    "the server does not answer: {error}; so far {:?}",
                    String::from_utf8_lossy(&answers)
                ),
            }
        }
    }
}
