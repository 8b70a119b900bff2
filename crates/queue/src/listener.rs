//! Where clients ask for their lanes. Who asks is known from the kernel; nothing that a
//! client sends is read, so none can hold up the server.

use crate::welcome::{Outcome, ServiceKind, Welcome};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;
use trefoil_fabric::shm::{ListenError, SocketFile, UserPolicy, send_with};
use trefoil_ordered::lane::Terms;
use trefoil_ordered::{Invitation, SetUpError};

/// Connections accepted in a look.
const ACCEPTS_MAX: usize = 16;

/// The server's socket.
#[derive(Debug)]
pub struct Listener {
    // The file goes before its socket is closed.
    _file: SocketFile,
    socket: UnixListener,
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
        Ok(Listener {
            _file: file,
            socket,
            users,
            service,
            is_durable,
            client_count_max,
        })
    }

    /// Sleeps until somebody asks, at most so long.
    pub fn wait(&self, timeout: Duration) {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
    }

    /// Gives lanes to those who ask, by `admit`. Does not wait.
    pub fn look(&self, mut admit: impl FnMut() -> Result<Invitation, SetUpError>) {
        for _ in 0..ACCEPTS_MAX {
            // Nobody, or somebody who has gone again, or no descriptor: it is looked again.
            let Ok((stream, _)) = self.socket.accept() else {
                return;
            };
            if self.users.allows_client(&stream) {
                self.answer(&stream, admit());
            }
        }
    }

    fn answer(&self, stream: &UnixStream, admitted: Result<Invitation, SetUpError>) {
        let outcome = match &admitted {
            Ok(_) => Outcome::Welcome,
            Err(SetUpError::TooManyClients(_)) => Outcome::Full,
            Err(SetUpError::Ended) => Outcome::Ending,
            Err(_) => Outcome::NoMemory,
        };
        let nothing = Terms {
            epoch: 0,
            client_id: 0,
            slot_count: 0,
        };
        let welcome = Welcome {
            outcome,
            terms: admitted.as_ref().map_or(nothing, |of| of.terms),
            service: self.service,
            is_durable: self.is_durable,
            client_count_max: self.client_count_max as u64,
        };
        let bytes = welcome.encode();
        // Who has gone meanwhile has no lane; its bell tells the worker.
        let _ = match &admitted {
            Ok(invitation) => {
                let descriptors = [
                    invitation.order.as_fd(),
                    invitation.lane.as_fd(),
                    invitation.bell.as_fd(),
                ];
                send_with(stream, &bytes, &descriptors)
            }
            Err(_) => send_with(stream, &bytes, &[]),
        };
    }
}
