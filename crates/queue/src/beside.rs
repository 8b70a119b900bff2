//! A queue as an engine knows it that stands beside its server.

use crate::claims::{self, ANSWER_LEN, path_of};
use crate::client::reach;
use crate::welcome::{self, DESCRIPTORS, Outcome, Welcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_fabric::shm::{UserPolicy, receive_with};
use trefoil_ordered::{Invitation, ProducerClaim, Queue};
use trefoil_softnic::engine::{Admits, Asker, GiveLane};
use trefoil_softnic::{GivenLane, Queues};
use trefoil_softnic_core::wire::{Claim, ClaimStatus};

/// Between two looks whether somebody waits still.
const LOOK: Duration = Duration::from_millis(20);

/// The queues at these sockets, numbered from 0, whose servers run as these users. `admits`
/// decides who may place requests, besides that they are let in; `lanes_max` is what one of
/// them has of each queue at most ([`Queues::lanes_max`]).
pub fn queues(
    sockets: Vec<PathBuf>,
    servers: UserPolicy,
    admits: Admits,
    lanes_max: Option<usize>,
) -> Queues {
    let claims = sockets.into_iter().map(|socket| {
        let servers = servers.clone();
        let give = move |claim: &Claim, asker: &Asker| lane(&socket, &servers, claim, asker);
        Box::new(give) as Box<GiveLane>
    });
    Queues {
        admits,
        claims: claims.collect(),
        lanes_max,
    }
}

/// Whether something has come, within a moment.
fn is_readable(stream: &UnixStream) -> bool {
    let within = Timespec::try_from(LOOK).ok();
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    // An interrupted wait is a short one.
    poll(&mut polled, within.as_ref()).is_ok_and(|count| count > 0)
}

/// A lane of the queue at this socket. Its server may take as long as the asker waits: it may
/// nap, or be amid a checkpoint. Other claims of this queue wait meanwhile.
fn lane(
    socket: &Path,
    servers: &UserPolicy,
    claim: &Claim,
    asker: &Asker,
) -> Result<GivenLane, ClaimStatus> {
    let unreachable = |error: &dyn std::fmt::Display| {
        tracing::debug!("no lane at {}: {error}", socket.display());
        ClaimStatus::Unreachable
    };
    let path = path_of(socket);
    let mut stream = loop {
        match reach(&path, LOOK) {
            Err(error) if error.kind() == ErrorKind::TimedOut && asker.waits() => {}
            reached => break reached.map_err(|error| unreachable(&error))?,
        }
    };
    if !servers.trusts_server(&stream) {
        return Err(unreachable(&"another user serves it, who is not trusted"));
    }
    let question = claims::encode(&ProducerClaim {
        producer: claim.producer,
        attempt: claim.returns.map_or(0, |back| back.attempt),
        owner: asker.owner(),
    });
    let asked = stream.write_all(&question);
    asked.map_err(|error| unreachable(&error))?;
    // Whoever does not wait any more hangs up, and a server that goes on later sees that.
    while !is_readable(&stream) {
        if !asker.waits() {
            return Err(unreachable(&"its server does not answer"));
        }
    }
    let (mut bytes, mut descriptors) = ([0; ANSWER_LEN], Vec::new());
    match receive_with(&stream, &mut bytes, &mut descriptors) {
        Ok(true) => {}
        Ok(false) => return Err(unreachable(&"its server has closed the connection")),
        Err(error) => return Err(unreachable(&error)),
    }
    let (front, placed) = bytes.split_at(welcome::LEN);
    let welcome = front.first_chunk().and_then(Welcome::decode);
    let placed = placed.first_chunk().map(|word| u64::from_le_bytes(*word));
    let (Some(welcome), Some(placed)) = (welcome, placed) else {
        return Err(unreachable(&"it is no queue of this version"));
    };
    match welcome.outcome {
        Outcome::Welcome => {}
        Outcome::Full => return Err(ClaimStatus::Full),
        Outcome::NoMemory => return Err(ClaimStatus::NoMemory),
        Outcome::Ending => return Err(ClaimStatus::Ending),
        Outcome::Draining => return Err(ClaimStatus::Draining),
        Outcome::Forgotten => return Err(ClaimStatus::Forgotten),
        Outcome::Superseded => return Err(ClaimStatus::Superseded),
    }
    let descriptors = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors);
    let [order, lane, bell] = descriptors.map_err(|_| unreachable(&"it has sent no lane"))?;
    let terms = welcome.terms;
    let queue = Queue::join(Invitation {
        order,
        lane,
        bell: bell.into(),
        terms,
    });
    Ok(GivenLane {
        queue: queue.map_err(|error| unreachable(&error))?,
        placed,
        epoch: terms.epoch,
        slot_count: terms.slot_count,
        about: welcome.about(),
        places: welcome.client_count_max,
    })
}
