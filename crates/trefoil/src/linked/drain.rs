//! `linked drain`: has a process give everything away, and waits for it.

use crate::args::LinkedDrainArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// For one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long a process that has answered may be silent: its machine pauses, or
/// has more to do than it can.
const SILENCE_MAX: Duration = Duration::from_secs(30);

pub(super) fn run(args: &LinkedDrainArgs) -> Outcome {
    let at = args.at;
    let began = Instant::now();
    let where_it_is = "A process says where with --metrics, or by Linklet::serve_metrics";
    let nobody = |error| format!("nothing answers at {at}: {error}. {where_it_is}");
    let stream = connect(at).map_err(|error| Failure::Failed(nobody(error)))?;
    let other = |error| format!("{at} is no port for metrics: {error}. {where_it_is}");
    let (mut status, mut text) =
        exchange(stream, "POST").map_err(|error| Failure::Failed(other(error)))?;
    let mut said = String::new();
    loop {
        match status {
            200 => {
                print_line(&text)?;
                return Ok(ExitCode::SUCCESS);
            }
            202 => {}
            404 => {
                return Err(Failure::Failed(format!(
                    "{at} answers, and has nothing to drain: it is the address of no server of a \
                     linked store"
                )));
            }
            _ => return Err(Failure::Failed(format!("{at} refuses: {text}"))),
        }
        if args.timeout.is_some_and(|limit| began.elapsed() >= limit) {
            return Err(Failure::Failed(format!(
                "not drained in time, it goes on: {text}. `trefoil linked status` says what is in \
                 the way"
            )));
        }
        if said != text {
            eprintln!("trefoil: {text}");
            said.clone_from(&text);
        }
        std::thread::sleep(LOOK_EVERY);
        (status, text) = look(at, &said)?;
    }
}

/// The next answer of a process that has said something before.
fn look(at: SocketAddr, said: &str) -> Result<(u16, String), Failure> {
    let silent_since = Instant::now();
    loop {
        match connect(at).and_then(|stream| exchange(stream, "GET")) {
            Ok(answer) => return Ok(answer),
            Err(error) if silent_since.elapsed() >= SILENCE_MAX => {
                return Err(Failure::Failed(format!(
                    "the process at {at} does not answer any more ({error}), and said last: {said}"
                )));
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Status and text of an answer.
fn exchange(mut stream: TcpStream, method: &str) -> io::Result<(u16, String)> {
    let at = stream.peer_addr()?;
    let request = format!(
        "{method} /drain HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let nonsense = || io::Error::other("it does not speak HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or_else(nonsense)?, body.trim_end().to_owned()))
}
