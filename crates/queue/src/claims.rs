//! Where engines ask for lanes for the producers whose requests they place: a socket of its
//! own, beside that of clients on this host, because here something is read before it is
//! known what is wanted.
//!
//! | word | field of the question | why |
//! |---|---|---|
//! | 0 | magic | |
//! | 1, 2 | producer | |
//! | 3 | attempt | 0: it comes for the first time. Else it returns, with a higher number each time: a queue that does not know it refuses, and so does one that has heard of a higher number |
//! | 4, 5 | owner | whose the producer is, as the engine knows it: an identity and a host. No owner's producers make those of others forgotten |
//! | 6, 7 | reserved, zero | |
//!
//! The answer is a [`crate::welcome`] with its descriptors, and one word more: the number of
//! the producer's last request, which is executed.
//!
//! Who asks is known from the kernel, and what they send is as long for everybody. Who is
//! slow loses their place when others come, and nobody waits for them. Who has hung up since
//! they asked gets no lane.

use crate::welcome;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trefoil_fabric::shm::{ListenError, SocketFile, UserPolicy};
use trefoil_ordered::ProducerClaim;

/// "TFQCLAM1", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"TFQCLAM1");
const WORDS: usize = 8;
/// Bytes of the question.
pub(crate) const LEN: usize = WORDS * 8;
/// Bytes of the answer.
pub(crate) const ANSWER_LEN: usize = welcome::LEN + 8;
/// Who has not said what they want and is kept.
const ASKING_MAX: usize = 16;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an engine asks.
pub(crate) fn encode(claim: &ProducerClaim) -> [u8; LEN] {
    let ([one, two], [identity, host]) = (claim.producer, claim.owner);
    let mut bytes = [0; LEN];
    let words = [MAGIC, one, two, claim.attempt, identity, host];
    for (at, word) in words.into_iter().enumerate() {
        bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// `None`: it is none of this version.
fn decode(bytes: &[u8; LEN]) -> Option<ProducerClaim> {
    let (words, _) = bytes.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mut next = || words.next();
    let magic = next()?;
    let claim = ProducerClaim {
        producer: [next()?, next()?],
        attempt: next()?,
        owner: [next()?, next()?],
    };
    let is_sound = magic == MAGIC && words.all(|word| word == 0);
    is_sound.then_some(claim)
}

/// Where it is, of the queue at this socket.
pub(crate) fn path_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".claims");
    path.into()
}

/// Somebody who has not said what they want.
#[derive(Debug)]
struct Asking {
    stream: UnixStream,
    since: Instant,
    bytes: [u8; LEN],
    came: usize,
}

impl Asking {
    /// What is wanted, once that is known; an error: it never will be.
    fn look(&mut self) -> io::Result<Option<ProducerClaim>> {
        while self.came < LEN {
            match self.stream.read(&mut self.bytes[self.came..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.came += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return match self.since.elapsed() < PATIENCE {
                        true => Ok(None),
                        false => Err(ErrorKind::TimedOut.into()),
                    };
                }
                Err(error) => return Err(error),
            }
        }
        let claim = decode(&self.bytes).ok_or(ErrorKind::InvalidData)?;
        // The server may have stood still for long: who does not wait any more may have asked
        // elsewhere since.
        match self.stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(claim)),
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        }
    }
}

/// The server's socket for engines.
#[derive(Debug)]
pub(crate) struct Claims {
    // The file goes before its socket is closed.
    _file: SocketFile,
    socket: UnixListener,
    asking: Vec<Asking>,
}

impl Claims {
    /// Beside this socket.
    pub(crate) fn bind(socket: &Path, users: &UserPolicy) -> Result<Self, ListenError> {
        let (socket, file) = SocketFile::bind(&path_of(socket), users.socket_mode())?;
        Ok(Claims {
            _file: file,
            socket,
            asking: Vec::new(),
        })
    }

    /// What may have something to read.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asking = self.asking.iter().map(|asking| asking.stream.as_fd());
        std::iter::once(self.socket.as_fd()).chain(asking)
    }

    /// Answers those who have said what they want, by `answer`. Does not wait.
    pub(crate) fn look(
        &mut self,
        users: &UserPolicy,
        mut answer: impl FnMut(&UnixStream, ProducerClaim),
    ) {
        for _ in 0..ASKING_MAX {
            // Nobody, or somebody who has gone again, or no descriptor: it is looked again.
            let Ok((stream, _)) = self.socket.accept() else {
                break;
            };
            if !users.allows_client(&stream) || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.asking.len() >= ASKING_MAX {
                self.asking.remove(0);
            }
            self.asking.push(Asking {
                stream,
                since: Instant::now(),
                bytes: [0; LEN],
                came: 0,
            });
        }
        self.asking.retain_mut(|asking| match asking.look() {
            Ok(None) => true,
            Ok(Some(claim)) => {
                answer(&asking.stream, claim);
                false
            }
            Err(_) => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_question_is_read_as_it_was_spelled_and_nothing_else_is() {
        let claim = ProducerClaim {
            producer: [3, u64::MAX],
            attempt: 7,
            owner: [8, 9],
        };
        let bytes = encode(&claim);
        assert_eq!(decode(&bytes), Some(claim));
        for at in [0, 48, LEN - 1] {
            let mut other = bytes;
            other[at] ^= 0x40;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn who_says_nothing_keeps_nobody_from_asking() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let users = UserPolicy::SameUser;
        let mut claims = Claims::bind(&socket, &users).expect("a socket");
        let connect = || UnixStream::connect(path_of(&socket)).expect("a server");
        let mut silent = Vec::new();
        for _ in 0..3 * ASKING_MAX {
            silent.push(connect());
            claims.look(&users, |_, _| panic!("nothing was asked"));
        }
        assert_eq!(claims.asking.len(), ASKING_MAX);
        let mut nonsense = connect();
        nonsense.write_all(&[7; LEN]).expect("a server");
        let question = ProducerClaim {
            producer: [1, 2],
            attempt: 0,
            owner: [3, 4],
        };
        let mut asks = connect();
        let (first, rest) = (&encode(&question)[..9], &encode(&question)[9..]);
        asks.write_all(first).expect("a server");
        claims.look(&users, |_, _| panic!("nothing was asked"));
        asks.write_all(rest).expect("a server");
        let mut asked = Vec::new();
        claims.look(&users, |_, question| asked.push(question));
        assert_eq!(asked, [question]);
    }

    #[test]
    fn who_has_hung_up_since_they_asked_gets_no_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let users = UserPolicy::SameUser;
        let mut claims = Claims::bind(&socket, &users).expect("a socket");
        let question = ProducerClaim {
            producer: [1, 2],
            attempt: 1,
            owner: [3, 4],
        };
        let mut gone = UnixStream::connect(path_of(&socket)).expect("a server");
        gone.write_all(&encode(&question)).expect("a server");
        drop(gone);
        claims.look(&users, |_, _| panic!("nobody waits"));
        assert!(claims.asking.is_empty());
    }
}
