//! The batch on Linux.
//!
//! Soundness: the kernel may read a message's bytes from when it takes the entry until
//! its completion is posted. [`Batch::send`] does not return before it has seen the
//! completion of every entry that was taken. Entries that the kernel did not take stay in
//! the ring: it is broken then, and never entered again. So it is if a caller's iterator
//! panics.

use super::{BATCH_MAX, Message, Sent};
use io_uring::{IoUring, opcode, types};
use rustix::fd::AsRawFd as _;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;

/// Calls in a row that the system puts off, after which it is not asked again.
const PUT_OFF_MAX: u32 = 100;

/// Sends messages together. For one thread: the one that made it.
pub struct Batch {
    ring: IoUring,
    is_broken: bool,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("is_broken", &self.is_broken)
            .finish_non_exhaustive()
    }
}

impl Batch {
    /// Asks the system for what it takes. Errors: it has no io_uring, or does not
    /// allow it.
    pub fn new() -> io::Result<Self> {
        // Each of these makes a call cheaper, and not every kernel knows it.
        let newest = || {
            let mut builder = IoUring::builder();
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_no_sqarray()
                .setup_submit_all();
            builder
        };
        let usual = || {
            let mut builder = IoUring::builder();
            builder.setup_submit_all();
            builder
        };
        let entries = BATCH_MAX as u32;
        let ring = newest()
            .build(entries)
            .or_else(|error| match error.kind() {
                io::ErrorKind::InvalidInput => usual().build(entries),
                _ => Err(error),
            })?;
        // Otherwise the ring's file is counted in and out with every call.
        let _ = ring.submitter().register_ring_fd();
        let mut batch = Batch {
            ring,
            is_broken: false,
        };
        batch.try_out()?;
        Ok(batch)
    }

    /// Some sandboxes allow a ring and forbid to use it; some old kernels know no sends.
    fn try_out(&mut self) -> io::Result<()> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (own, _peer) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let message = Message {
            socket: rustix::fd::AsFd::as_fd(&own),
            bytes: b"?",
        };
        match self.send(std::iter::once(Some(message)))[0] {
            Some(Ok(1)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether it can be used no more: everything is answered `None`.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Sends each message, as far as its socket takes it without waiting. What became of
    /// them is said in their order. At most [`BATCH_MAX`] are looked at. Where there is no
    /// message, or one of no bytes, nothing is sent.
    pub fn send<'a>(
        &mut self,
        messages: impl Iterator<Item = Option<Message<'a>>>,
    ) -> [Sent; BATCH_MAX] {
        let mut sent = [None; BATCH_MAX];
        if self.is_broken {
            return sent;
        }
        let mut pushed = 0;
        self.is_broken = true;
        {
            let mut queue = self.ring.submission();
            for (place, message) in messages.take(BATCH_MAX).enumerate() {
                let Some(message) = message.filter(|message| !message.bytes.is_empty()) else {
                    continue;
                };
                let socket = types::Fd(message.socket.as_raw_fd());
                // What the socket does not take of a longer one is sent later, too.
                let len = u32::try_from(message.bytes.len()).unwrap_or(u32::MAX);
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let entry = opcode::Send::new(socket, message.bytes.as_ptr(), len)
                    .flags(flags.bits() as i32)
                    .build()
                    .user_data(place as u64);
                // SAFETY: the socket and the bytes are borrowed for `'a`, which outlives
                // this call, and the kernel is through with them before it is over.
                if unsafe { queue.push(&entry) }.is_err() {
                    break;
                }
                pushed += 1;
            }
        }
        self.is_broken = false;
        self.wait(pushed, &mut sent);
        sent
    }

    /// Hands over what was pushed, until each of it that was taken is completed.
    fn wait(&mut self, pushed: usize, sent: &mut [Sent; BATCH_MAX]) {
        let (mut taken, mut completed, mut put_off) = (0, 0, 0);
        while completed < pushed {
            if !self.is_broken {
                match self.ring.submit_and_wait(pushed - completed) {
                    Ok(count) => taken += count,
                    Err(error) if is_passing(&error) && put_off < PUT_OFF_MAX => put_off += 1,
                    Err(_) => self.is_broken = true,
                }
            }
            for entry in self.ring.completion() {
                completed += 1;
                if let Some(sent) = sent.get_mut(entry.user_data() as usize) {
                    *sent = Some(match entry.result() {
                        len @ 0.. => Ok(len as usize),
                        error => match Errno::from_raw_os_error(-error) {
                            Errno::AGAIN | Errno::INTR => Ok(0),
                            error => Err(error),
                        },
                    });
                }
            }
            if self.is_broken {
                if completed >= taken {
                    return;
                }
                // Cannot be: a socket that does not wait is through with it at once.
                std::thread::yield_now();
            }
        }
    }
}

/// Whether the same call may succeed next time.
fn is_passing(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd as _, OwnedFd};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    /// `None` where the system has no io_uring, or forbids it.
    fn batch() -> Option<Batch> {
        match Batch::new() {
            Ok(batch) => Some(batch),
            Err(error) => {
                println!("skipped: no io_uring here: {error}");
                None
            }
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    fn message<'a>(socket: &'a OwnedFd, bytes: &'a [u8]) -> Option<Message<'a>> {
        let socket = socket.as_fd();
        Some(Message { socket, bytes })
    }

    fn received(socket: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let len = recv(socket, &mut *bytes, RecvFlags::empty()).map_or(0, |(len, _)| len);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn each_socket_gets_its_own() {
        let Some(mut batch) = batch() else { return };
        let pairs: Vec<_> = (0..BATCH_MAX).map(|_| pair()).collect();
        for round in 0..1_000 {
            let count = 1 + round % BATCH_MAX;
            let texts: Vec<_> = (0..count).map(|n| format!("{round} to {n}")).collect();
            let messages = pairs.iter().zip(&texts);
            let sent = batch.send(messages.map(|((own, _), text)| message(own, text.as_bytes())));
            for (place, sent) in sent.into_iter().enumerate() {
                let text = texts.get(place).map_or("", String::as_str);
                assert_eq!(sent, (place < count).then_some(Ok(text.len())));
                assert_eq!(received(&pairs[place].1), text.as_bytes());
            }
        }
        assert!(!batch.is_broken());
    }

    #[test]
    fn a_full_socket_and_one_that_is_gone_are_told_apart() {
        let Some(mut batch) = batch() else { return };
        let (full, its_peer) = pair();
        let (gone, gone_peer) = pair();
        let (fine, fine_peer) = pair();
        drop(gone_peer);
        let long = vec![b'x'; 4 << 20];
        let all = || {
            [
                message(&full, &long),
                message(&gone, b"?"),
                message(&fine, b"yes"),
            ]
        };
        let sent = batch.send(all().into_iter());
        let Some(Ok(first_len)) = sent[0] else {
            panic!("{sent:?}");
        };
        assert!((1..long.len()).contains(&first_len), "{first_len}");
        assert_eq!(sent[1..3], [Some(Err(Errno::PIPE)), Some(Ok(3))]);
        let sent = batch.send(all().into_iter());
        assert_eq!(
            sent[..3],
            [Some(Ok(0)), Some(Err(Errno::PIPE)), Some(Ok(3))]
        );
        assert_eq!(received(&fine_peer), b"yesyes");
        let mut taken = 0;
        loop {
            match received(&its_peer).len() {
                0 => break,
                len => taken += len,
            }
        }
        assert_eq!(taken, first_len, "no byte twice, and none later");
    }

    #[test]
    fn nothing_and_too_many_are_left_alone() {
        let Some(mut batch) = batch() else { return };
        assert_eq!(batch.send(std::iter::empty()), [None; BATCH_MAX]);
        let (own, peer) = pair();
        let gaps = [message(&own, b""), message(&own, b"x"), None];
        let sent = batch.send(gaps.into_iter());
        assert_eq!(sent[..3], [None, Some(Ok(1)), None]);
        let many = std::iter::repeat_n(message(&own, b"x"), BATCH_MAX + 1);
        assert_eq!(batch.send(many), [Some(Ok(1)); BATCH_MAX]);
        assert_eq!(received(&peer).len(), 1 + BATCH_MAX);
    }

    /// What it has pushed would be read by the next call, when it is long gone.
    #[test]
    fn a_panic_amid_the_messages_ends_it() {
        let Some(mut batch) = batch() else { return };
        let (own, peer) = pair();
        let one_then_panic = (0..2).map(|n| match n {
            0 => message(&own, b"lost"),
            _ => panic!("as it should"),
        });
        let panics = std::panic::AssertUnwindSafe(|| batch.send(one_then_panic));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(batch.is_broken());
        let sent = batch.send(std::iter::once(message(&own, b"not tried")));
        assert_eq!(sent, [None; BATCH_MAX]);
        assert_eq!(received(&peer), b"");
    }
}
