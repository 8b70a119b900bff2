//! Where clients ask for their lanes. Who asks is known from the kernel; nothing that a
//! client sends is read, so none can hold up the server. Engines ask elsewhere
//! ([`crate::claims`]).

use crate::claims::Claims;
use crate::welcome::{Outcome, ServiceKind, Welcome};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;
use trefoil_fabric::shm::{ListenError, SocketFile, UserPolicy, send_with};
use trefoil_ordered::lane::Terms;
use trefoil_ordered::{Invitation, ProducerClaim, SetUpError};

/// Connections accepted in a look.
const ACCEPTS_MAX: usize = 16;

/// The server's socket.
#[derive(Debug)]
pub struct Listener {
    // The file goes before its socket is closed.
    _file: SocketFile,
    socket: UnixListener,
    claims: Claims,
    users: UserPolicy,
    service: ServiceKind,
    is_durable: bool,
    client_count_max: usize,
}

impl Listener {
    /// Listens at this path.
    pub fn bind(
        path: &Path,
        users: UserPolicy,
        (service, is_durable): (ServiceKind, bool),
        client_count_max: usize,
    ) -> Result<Self, ListenError> {
        let (socket, file) = SocketFile::bind(path, users.socket_mode())?;
        let claims = Claims::bind(path, &users)?;
        Ok(Listener {
            _file: file,
            socket,
            claims,
            users,
            service,
            is_durable,
            client_count_max,
        })
    }

    /// Sleeps until somebody asks, at most so long.
    pub fn wait(&self, timeout: Duration) {
        let own = std::iter::once(self.socket.as_fd());
        let mut polled: Vec<PollFd<'_>> = own
            .chain(self.claims.descriptors())
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
    }

    /// Gives lanes to those who ask, by `admit`: to a client, or to an engine for a producer,
    /// with the number of that one's last request. Does not wait.
    pub fn look(
        &mut self,
        mut admit: impl FnMut(Option<ProducerClaim>) -> Result<(Invitation, u64), SetUpError>,
    ) {
        for _ in 0..ACCEPTS_MAX {
            // Nobody, or somebody who has gone again, or no descriptor: it is looked again.
            let Ok((stream, _)) = self.socket.accept() else {
                break;
            };
            if self.users.allows_client(&stream) {
                let admitted = admit(None);
                let bytes = self.welcome(&admitted).encode();
                send(&stream, &bytes, &admitted);
            }
        }
        let mut asked = Vec::new();
        self.claims.look(&self.users, |stream, claim| {
            asked.extend(stream.try_clone().map(|stream| (stream, claim)));
        });
        for (stream, claim) in asked {
            let admitted = admit(Some(claim));
            let placed = admitted.as_ref().map_or(0, |(_, placed)| *placed);
            let mut bytes = self.welcome(&admitted).encode().to_vec();
            bytes.extend_from_slice(&placed.to_le_bytes());
            send(&stream, &bytes, &admitted);
        }
    }

    fn welcome(&self, admitted: &Result<(Invitation, u64), SetUpError>) -> Welcome {
        let outcome = match admitted {
            Ok(_) => Outcome::Welcome,
            Err(SetUpError::TooManyClients(_)) => Outcome::Full,
            Err(SetUpError::Ended) => Outcome::Ending,
            Err(SetUpError::Draining) => Outcome::Draining,
            Err(SetUpError::Forgotten) => Outcome::Forgotten,
            Err(SetUpError::Superseded) => Outcome::Superseded,
            Err(_) => Outcome::NoMemory,
        };
        let nothing = Terms {
            epoch: 0,
            client_id: 0,
            slot_count: 0,
        };
        Welcome {
            outcome,
            terms: admitted.as_ref().map_or(nothing, |(of, _)| of.terms),
            service: self.service,
            is_durable: self.is_durable,
            client_count_max: self.client_count_max as u64,
        }
    }
}

/// Who has gone meanwhile has no lane; its bell tells the worker.
fn send(stream: &UnixStream, bytes: &[u8], admitted: &Result<(Invitation, u64), SetUpError>) {
    let _ = match admitted {
        Ok((invitation, _)) => {
            let descriptors = [
                invitation.order.as_fd(),
                invitation.lane.as_fd(),
                invitation.bell.as_fd(),
            ];
            send_with(stream, bytes, &descriptors)
        }
        Err(_) => send_with(stream, bytes, &[]),
    };
}
