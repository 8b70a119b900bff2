//! `linked drain`: has a process give everything away, and waits for it.

use crate::args::LinkedDrainArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// For one answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &LinkedDrainArgs) -> Outcome {
    let at = args.at;
    let began = Instant::now();
    let mut said = None;
    loop {
        let (status, text) = ask(at, "POST").map_err(|error| match &said {
            None => Failure::Failed(format!(
                "nothing answers at {at}: {error}. A process says where with --metrics, or by \
                 Linklet::serve_metrics"
            )),
            Some(left) => Failure::Failed(format!(
                "the process at {at} does not answer any more ({error}), and said last: {left}"
            )),
        })?;
        match status {
            200 => {
                print_line("drained")?;
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
        if said.as_ref() != Some(&text) {
            eprintln!("trefoil: {text}");
            said = Some(text);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Status and text of an answer.
fn ask(at: SocketAddr, method: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "{method} /drain HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let nonsense = || std::io::Error::other("it does not speak HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or_else(nonsense)?, body.trim_end().to_owned()))
}
