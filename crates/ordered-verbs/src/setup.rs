//! Set-up over TCP: strangers are heard by threads of their own, few at a time and not for
//! long, and who may come in is handed to the worker.

use crate::wire::{HELLO_LEN, Hello, Status, refusal};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// Strangers heard at a time.
const STRANGERS_MAX: usize = 32;
/// How long one has to say who it is.
const HEARING: Duration = Duration::from_secs(5);

/// Who may come in, and by which connection it is told.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    pub(crate) control: TcpStream,
}

/// The listener; its end is that of the set-up.
#[derive(Debug)]
pub(crate) struct SetUp {
    guests: Receiver<Guest>,
    /// Its end ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl SetUp {
    /// Listens; `wake` is rung for each guest.
    pub(crate) fn start(
        listener: TcpListener,
        token: Vec<u8>,
        wake: UnixStream,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (to, guests) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("trefoil-verbs".to_owned())
            .spawn(move || listen(&listener, &stopped, &Arc::new(token), &to, &Arc::new(wake)))?;
        Ok(SetUp {
            guests,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The next one, if there is one.
    pub(crate) fn guest(&self) -> Option<Guest> {
        self.guests.try_recv().ok()
    }

    /// Lets nobody in any more, and tells those who wait.
    pub(crate) fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for mut guest in self.guests.try_iter() {
            let _ = guest.control.write_all(&refusal(Status::Ended));
        }
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(
    listener: &TcpListener,
    stopped: &UnixStream,
    token: &Arc<Vec<u8>>,
    to: &Sender<Guest>,
    wake: &Arc<UnixStream>,
) {
    let strangers = Arc::new(AtomicUsize::new(0));
    loop {
        let mut sockets = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        // An interrupted wait is a short one.
        let _ = poll(&mut sockets, None);
        if !sockets[1].revents().is_empty() {
            return;
        }
        let Ok((stranger, _)) = listener.accept() else {
            continue;
        };
        if strangers.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX {
            strangers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (token, to, wake) = (Arc::clone(token), to.clone(), Arc::clone(wake));
        let heard = Arc::clone(&strangers);
        let thread = std::thread::Builder::new().spawn(move || {
            if let Ok(Some(guest)) = hear(stranger, &token)
                && to.send(guest).is_ok()
            {
                // A worker that has not heard former rings is awake all the same.
                let _ = (&*wake).write(&[1]);
            }
            heard.fetch_sub(1, Ordering::Relaxed);
        });
        if thread.is_err() {
            strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Who it is, if it may come in.
fn hear(mut stranger: TcpStream, token: &[u8]) -> io::Result<Option<Guest>> {
    let until = Instant::now() + HEARING;
    stranger.set_nonblocking(false)?;
    stranger.set_nodelay(true)?;
    let mut head = [0; HELLO_LEN];
    read_until(&mut stranger, &mut head, until)?;
    let (hello, token_len) = match Hello::decode(&head) {
        Ok(heard) => heard,
        Err(status) => {
            if let Some(status) = status {
                stranger.write_all(&refusal(status))?;
            }
            return Ok(None);
        }
    };
    let mut shown = vec![0; token_len];
    read_until(&mut stranger, &mut shown, until)?;
    if !bool::from(shown.ct_eq(token)) {
        stranger.write_all(&refusal(Status::NotAdmitted))?;
        return Ok(None);
    }
    stranger.set_nonblocking(true)?;
    Ok(Some(Guest {
        hello,
        control: stranger,
    }))
}

/// Reads that many bytes by then.
pub(crate) fn read_until(
    stream: &mut TcpStream,
    mut into: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
