//! A queue as an engine knows it that stands beside its server.

use crate::claims::{ANSWER_LEN, Question, path_of};
use crate::client::reach;
use crate::welcome::{self, DESCRIPTORS, Outcome, Welcome};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_fabric::shm::{UserPolicy, receive_with};
use trefoil_ordered::{Invitation, Queue};
use trefoil_softnic::engine::{Admits, Asker, GiveLane};
use trefoil_softnic::{GivenLane, Queues};
use trefoil_softnic_core::wire::{Claim, ClaimStatus};

/// The queues at these sockets, numbered from 0, whose servers run as these users. `admits`
/// decides who may place requests, besides that they are let in.
pub fn queues(sockets: Vec<PathBuf>, servers: UserPolicy, admits: Admits) -> Queues {
    let claims = sockets.into_iter().map(|socket| {
        let servers = servers.clone();
        let give = move |claim: &Claim, asker: &Asker| lane(&socket, &servers, claim, asker);
        Box::new(give) as Box<GiveLane>
    });
    Queues {
        admits,
        claims: claims.collect(),
    }
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
    let mut stream = reach(&path_of(socket), asker.left()).map_err(|error| unreachable(&error))?;
    if !servers.trusts_server(&stream) {
        return Err(unreachable(&"another user serves it, who is not trusted"));
    }
    let question = Question {
        producer: claim.producer,
        returns: claim.returns_to.is_some(),
    };
    // No time at all would be for ever.
    let within = asker.left().max(Duration::from_millis(1));
    let asked = stream.set_read_timeout(Some(within));
    let asked = asked.and_then(|()| stream.write_all(&question.encode()));
    asked.map_err(|error| unreachable(&error))?;
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
    })
}
