//! A connection that has not shown whose it is: its TLS handshake, and its greeting.

use super::Who;
use super::session::End;
use crate::channel::{Broken, Channel};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use trefoil_softnic_core::wire::{RefusalCode, Welcome};
use trefoil_softnic_core::{Target, TargetError};

/// What became of a guest when something had come.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// It waits for more to come, or for room in its socket.
    Waits,
    /// It was let in.
    Comes(T),
    /// It ends.
    Ends(End),
}

/// See the module.
pub(super) struct Guest {
    pub(super) socket: OwnedFd,
    pub(super) channel: Channel,
    pub(super) target: Target,
    /// What has come and is not the greeting, or not the whole of it: less than one
    /// receipt more than the longest greeting.
    pub(super) input: Vec<u8>,
    /// What its socket has not taken of what it was told.
    pub(super) output: Vec<u8>,
    pub(super) since: Instant,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

impl Guest {
    pub(super) fn new(socket: OwnedFd, channel: Channel, now: Instant) -> Self {
        Guest {
            socket,
            channel,
            target: Target::new(),
            input: Vec::new(),
            output: Vec::new(),
            since: now,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Whether its socket has to take something of the handshake.
    pub(super) fn is_blocked(&self) -> bool {
        self.channel.waits()
    }

    /// Receives, and lets it in once it has shown whose it is and `admit` says so.
    pub(super) fn step<T>(
        &mut self,
        received: &mut [u8],
        admit: impl FnOnce(Who) -> Result<(Welcome, T), RefusalCode>,
    ) -> Step<T> {
        if self.channel.flush(&self.socket).is_err() {
            return Step::Ends(End::Closed);
        }
        let count = match self.channel.receive(&self.socket, received) {
            Ok(Some(count)) => count,
            Ok(None) => return Step::Waits,
            Err(Broken::Closed) => return Step::Ends(End::Closed),
            // Its certificate is not believed, or it speaks without TLS.
            Err(Broken::Tls(error)) => {
                tracing::debug!("a client was not let in: {error}");
                return Step::Ends(End::Handshake);
            }
        };
        self.bytes_in += count as u64;
        self.input.extend_from_slice(&received[..count]);
        let caller = self.channel.caller();
        let (mut admitted, mut out) = (None, Vec::new());
        let greeted = self.target.greet(
            &self.input,
            |token| {
                let who = match caller {
                    Some(caller) => Who::Certificate(Arc::new(caller)),
                    None => Who::Token(token.into()),
                };
                let (welcome, by) = admit(who)?;
                admitted = Some(by);
                Ok(welcome)
            },
            &mut out,
        );
        // Whoever is refused reads why, if there is room in its socket.
        let sent = self.channel.send(&self.socket, &out);
        self.bytes_out += *sent.as_ref().unwrap_or(&0) as u64;
        match (greeted, sent) {
            (Err(TargetError::Refused(_)), _) => Step::Ends(End::Refused),
            (Err(TargetError::Malformed(_)), _) => Step::Ends(End::Malformed),
            (_, Err(_)) => Step::Ends(End::Closed),
            (Ok(done), Ok(sent)) => {
                self.output.extend_from_slice(&out[sent..]);
                self.input.drain(..done);
                admitted.map_or(Step::Waits, Step::Comes)
            }
        }
    }
}
