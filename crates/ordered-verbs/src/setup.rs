//! Set-up over TCP: strangers are heard by threads of their own, few at a time and not for
//! long, and who may come in is handed to the worker. These threads also make the server's
//! side of a connection: the kernel may look for the other side's address for a second, and
//! for no stranger may the worker stand still.

use crate::wire::{HELLO_LEN, Hello, PACKET_LEN_MIN, Status, refusal};
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
use trefoil_verbs::{Connection, Region};

/// Strangers at a time that are heard, or wait for the worker to look at them.
const STRANGERS_MAX: usize = 32;
/// How long one has to say who it is.
const HEARING: Duration = Duration::from_secs(5);

/// How long nobody is let in when no more sockets can be had.
const PAUSE: Duration = Duration::from_millis(20);

/// The server's side of a connection, with memory for answers. The connection ends first.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) answers: Region,
}

/// Makes one for whoever has said this; `None`: the device cannot.
pub(crate) type MakeSide = dyn Fn(&Hello) -> Option<Side> + Send + Sync;

/// Who may come in, and by which connection it is told.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    pub(crate) control: TcpStream,
    /// `None`: no connection to it can be made.
    pub(crate) side: Option<Side>,
    /// It is one of the strangers until the worker looks at it.
    place: Option<Place>,
}

/// One of the strangers that may be there at a time.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Place(Arc::clone(taken));
        // Whether there was one is decided by the count before; it is given back by `drop`.
        (place.0.fetch_add(1, Ordering::Relaxed) < STRANGERS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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
        make_side: Box<MakeSide>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (to, guests) = mpsc::channel();
        let hears = Arc::new(Hears {
            token,
            make_side,
            to,
            wake,
        });
        let thread = std::thread::Builder::new()
            .name("trefoil-verbs".to_owned())
            .spawn(move || listen(&listener, &stopped, &hears))?;
        Ok(SetUp {
            guests,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The next one, if there is one.
    pub(crate) fn guest(&self) -> Option<Guest> {
        let mut guest = self.guests.try_recv().ok()?;
        drop(guest.place.take());
        Some(guest)
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

/// What a stranger is heard with.
struct Hears {
    token: Vec<u8>,
    make_side: Box<MakeSide>,
    to: Sender<Guest>,
    wake: UnixStream,
}

fn listen(listener: &TcpListener, stopped: &UnixStream, hears: &Arc<Hears>) {
    let taken = Arc::new(AtomicUsize::new(0));
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
        let stranger = match listener.accept() {
            Ok((stranger, _)) => stranger,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // It waits on, and the listener says so without end.
                    std::thread::sleep(PAUSE);
                }
                continue;
            }
        };
        let Some(place) = Place::take(&taken) else {
            continue;
        };
        let hears = Arc::clone(hears);
        // Without a further thread it is hung up on.
        let _ = std::thread::Builder::new()
            .name("trefoil-hears".to_owned())
            .spawn(move || {
                if let Ok(Some(guest)) = hears.hear(stranger, place)
                    && hears.to.send(guest).is_ok()
                {
                    // A worker that has not heard former rings is awake all the same.
                    let _ = (&hears.wake).write(&[1]);
                }
            });
    }
}

impl Hears {
    /// Who it is, if it may come in.
    fn hear(&self, mut stranger: TcpStream, place: Place) -> io::Result<Option<Guest>> {
        let until = Instant::now() + HEARING;
        stranger.set_nonblocking(false)?;
        stranger.set_nodelay(true)?;
        crate::vanished::watch(&stranger)?;
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
        if !bool::from(shown.ct_eq(&self.token)) {
            stranger.write_all(&refusal(Status::NotAdmitted))?;
            return Ok(None);
        }
        // Shorter packets would let a message have several, which share a buffer (invariant 1).
        let is_possible = hello.peer.mtu.payload_len() >= PACKET_LEN_MIN;
        let side = is_possible.then(|| (self.make_side)(&hello)).flatten();
        stranger.set_nonblocking(true)?;
        Ok(Some(Guest {
            hello,
            control: stranger,
            side,
            place: Some(place),
        }))
    }
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
