//! Messages of clients in backends' rings. A loop has one place in the rings of each backend,
//! which all of its sessions share: a message goes in under a number of the loop's own, and by
//! that it is known whose the answer is.
//!
//! # What is promised
//! 1. A message is handed on once, or its client is told that it was not and never will be. One
//!    whose answer will not come, and of which nobody knows, is *lost*.
//! 2. Nobody waits. What finds no room in the ring is refused, and its client calls. A backend
//!    that hangs is found out by its lease, as its clients on this host do it: two looks in a
//!    row, so that a pause of the whole machine is none.
//! 3. What is kept is bounded by what each session may have under way
//!    ([`MESSAGE_COUNT_MAX`], [`MESSAGE_WINDOW_LEN`]); the bytes are in the rings.

use super::counters::{Counters, add_own as add};
use super::event_loop::OF_BACKEND;
use rustix::event::epoll;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use trefoil_fabric::port::{Closed, Port as _, SendError, Token};
use trefoil_fabric::shm::Connection;
use trefoil_layout::TopologyId;
use trefoil_layout::message::{Answer, ErrorCode, Request, RequestHead, parse_request};
use trefoil_layout::ring::REQUEST_RING_LEN_DEFAULT;
use trefoil_softnic_core::limits::{MESSAGE_COUNT_MAX, MESSAGE_WINDOW_LEN};
use trefoil_softnic_core::wire::{Message, MessageStatus, Messaged};

/// What a session may have in one ring, in bytes: a quarter.
const PORTION_LEN: u32 = REQUEST_RING_LEN_DEFAULT / 4;

/// How often the lease of a backend that owes answers is looked at.
pub(super) const LEASE_LOOK_NS: u64 = 50_000_000;
/// So long one that has left its place to another may answer what is in its rings.
pub(super) const LEAVING_NS: u64 = 1_000_000_000;

/// What a session has under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnderWay {
    count: usize,
    len: u32,
}

impl UnderWay {
    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Whether a message that takes so much may be added.
    pub(super) fn has_room(&self, cost: u32) -> bool {
        self.count < MESSAGE_COUNT_MAX && self.len.saturating_add(cost) <= MESSAGE_WINDOW_LEN
    }

    pub(super) fn begins(&mut self, cost: u32) {
        self.count += 1;
        self.len += cost;
    }

    pub(super) fn ended(&mut self, cost: u32) {
        self.count -= 1;
        self.len -= cost;
    }
}

/// The session whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender {
    pub(super) session: u64,
    pub(super) may_write: bool,
    pub(super) under_way: UnderWay,
}

impl Sender {
    /// The message, if this session may have it executed.
    pub(super) fn judge<'a>(
        &self,
        message: &Message<'a>,
    ) -> Result<(RequestHead, Request<'a>), MessageStatus> {
        let parsed = parse_request(message.bytes);
        let (head, request) = parsed.map_err(|_| MessageStatus::Malformed)?;
        match request {
            Request::Mutate(_) if !self.may_write => Err(MessageStatus::NotAllowed),
            // These have a frame of their own, and no answer.
            Request::Touch { .. } => Err(MessageStatus::Malformed),
            Request::Mutate(_) | Request::Lookup { .. } | Request::Use { .. } | Request::Ping => {
                Ok((head, request))
            }
        }
    }
}

/// One message in a ring.
struct Outstanding {
    session: u64,
    /// The client's.
    id: u64,
    cost: u32,
    len: u32,
    solicited: u32,
}

/// What is to be told to a session.
pub(super) struct Reply {
    pub(super) session: u64,
    pub(super) cost: u32,
    begin: usize,
    end: usize,
}

/// What has come of messages, and was not told yet.
#[derive(Default)]
pub(super) struct Replies {
    list: Vec<Reply>,
    bytes: Vec<u8>,
    answer: Vec<u8>,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// So many bytes for one session.
    #[cfg(test)]
    pub(super) fn of_len(session: u64, len: usize) -> Self {
        let reply = Reply {
            session,
            cost: 0,
            begin: 0,
            end: len,
        };
        Replies {
            list: vec![reply],
            bytes: vec![0; len],
            answer: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    /// For [`Replies::by_session`].
    pub(super) fn sort(&mut self) {
        self.list.sort_by_key(|reply| reply.session);
    }

    /// Those of one session after the other, each session's in the order in which they came.
    pub(super) fn by_session(&self) -> impl Iterator<Item = &[Reply]> {
        self.list
            .chunk_by(|one, other| one.session == other.session)
    }

    /// Its frame.
    pub(super) fn frame(&self, reply: &Reply) -> &[u8] {
        &self.bytes[reply.begin..reply.end]
    }

    fn answered(&mut self, to: &Outstanding, answer: &Answer<'_>) {
        let answer = match answer.encoded_len() > to.solicited as usize {
            true => &Answer::Error(ErrorCode::TooLarge),
            false => answer,
        };
        let mut bytes = std::mem::take(&mut self.answer);
        bytes.resize(answer.encoded_len(), 0);
        answer.encode(to.id, &mut bytes);
        self.push(to, Ok(&bytes));
        self.answer = bytes;
    }

    fn push(&mut self, to: &Outstanding, result: Result<&[u8], MessageStatus>) {
        let begin = self.bytes.len();
        Messaged { id: to.id, result }.encode(&mut self.bytes);
        self.list.push(Reply {
            session: to.session,
            cost: to.cost,
            begin,
            end: self.bytes.len(),
        });
    }
}

/// Whether a backend's rings are heard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hearing {
    /// Nothing was sent yet.
    NotYet,
    Yes,
    /// There are none, or none any more.
    Never,
}

/// What each session has in one ring.
#[derive(Default)]
struct Portions(HashMap<u64, u32>);

impl Portions {
    /// Whether a session may add so much: others, and the reports of what was read, need the ring
    /// as well. One message always goes, or the longest never would.
    fn has_room(&self, session: u64, len: u32) -> bool {
        let has = self.0.get(&session).copied().unwrap_or(0);
        has == 0 || has.saturating_add(len) <= PORTION_LEN
    }

    fn begins(&mut self, session: u64, len: u32) {
        *self.0.entry(session).or_default() += len;
    }

    fn ended(&mut self, session: u64, len: u32) {
        if let Some(has) = self.0.get_mut(&session) {
            *has = has.saturating_sub(len);
            if *has == 0 {
                self.0.remove(&session);
            }
        }
    }
}

/// What one backend owes.
pub(super) struct Rings {
    hearing: Hearing,
    outstanding: HashMap<u64, Outstanding>,
    portions: Portions,
    /// Its bell has been heard, or the backend has hung up.
    is_rung: bool,
    /// It was asked to ring.
    is_armed: bool,
    looked_at_ns: u64,
    was_lapsed: bool,
    /// When it was seen to have moved.
    moved_at_ns: Option<u64>,
}

impl Rings {
    /// Of a backend that has just been mapped.
    pub(super) fn of(connection: &Connection) -> Self {
        Rings {
            hearing: match connection.has_messages() {
                true => Hearing::NotYet,
                false => Hearing::Never,
            },
            outstanding: HashMap::new(),
            portions: Portions::default(),
            is_rung: false,
            is_armed: false,
            looked_at_ns: 0,
            was_lapsed: false,
            moved_at_ns: None,
        }
    }

    /// Whether it owes something, or has something to tell.
    pub(super) fn is_awaited(&self) -> bool {
        !self.outstanding.is_empty() || self.is_rung
    }

    /// Puts a message into the ring.
    pub(super) fn send(
        &mut self,
        (connection, epoll, number): (&mut Connection, &OwnedFd, u32),
        (token, sender): (u64, &Sender),
        message: &Message<'_>,
        now_ns: u64,
    ) -> Result<(), MessageStatus> {
        let (head, request) = sender.judge(message)?;
        // A view whose lease has ended is of a backend that is dead, hangs or has moved.
        if !connection.lease_alive(now_ns) {
            return Err(MessageStatus::Gone);
        }
        if self.hearing == Hearing::NotYet {
            self.hearing = hear(connection, epoll, number);
        }
        if self.hearing == Hearing::Never {
            return Err(MessageStatus::NoRing);
        }
        // At most `MESSAGE_LEN_MAX`.
        let len = message.bytes.len() as u32;
        if !self.portions.has_room(sender.session, len) {
            return Err(MessageStatus::Full);
        }
        let under = TopologyId {
            life: connection.agreement().topology.life,
            config_id: head.config_id,
        };
        match connection.send(Token(token), under, &request) {
            Ok(()) => {}
            Err(SendError::Full) => return Err(MessageStatus::Full),
            Err(SendError::TooLarge) => return Err(MessageStatus::Malformed),
            Err(SendError::Closed | SendError::NoMessages) => {
                // What it owes is seen to by the next look.
                self.is_rung = true;
                return Err(MessageStatus::NoRing);
            }
        }
        if self.outstanding.is_empty() {
            (self.looked_at_ns, self.was_lapsed) = (now_ns, false);
        }
        let outstanding = Outstanding {
            session: sender.session,
            id: message.id,
            cost: message.cost(),
            len,
            solicited: message.solicited,
        };
        self.outstanding.insert(token, outstanding);
        self.portions.begins(sender.session, len);
        Ok(())
    }

    /// The bell was rung, or the backend has hung up.
    pub(super) fn is_heard(&mut self, connection: &Connection) {
        if let Some(channel) = connection.channel() {
            channel.silence();
        }
        self.is_rung = true;
    }

    /// Before a sleep, and after it. Whoever was asked to ring is told that it need not any more,
    /// also where it owes nothing by now: it rings once for each time that it is asked.
    pub(super) fn set_waits(&mut self, waits: bool, connection: &Connection) {
        let Some(channel) = connection.channel() else {
            return;
        };
        if waits && self.is_awaited() {
            channel.arm();
            self.is_armed = true;
        } else if !waits && std::mem::take(&mut self.is_armed) {
            channel.disarm();
        }
    }

    /// Takes what has been answered, and gives up what will not be. `true`: the backend has to be
    /// looked for.
    pub(super) fn look(
        &mut self,
        (connection, epoll): (&mut Connection, &OwnedFd),
        replies: &mut Replies,
        counters: &Counters,
        now_ns: u64,
    ) -> bool {
        self.is_rung = false;
        if connection.is_ready() {
            let (outstanding, portions) = (&mut self.outstanding, &mut self.portions);
            let polled = connection.poll(|token, answer| {
                // Of one that was given up: it is late.
                if let Some(to) = outstanding.remove(&token.0) {
                    portions.ended(to.session, to.len);
                    replies.answered(&to, &answer);
                }
            });
            if let Err(closed) = polled {
                if let (Hearing::Yes, Some(channel)) = (self.hearing, connection.channel()) {
                    let _ = epoll::delete(epoll, channel.descriptor());
                }
                self.hearing = Hearing::Never;
                self.give_up(closed, replies, counters);
                return true;
            }
        }
        if self.outstanding.is_empty() || now_ns < self.looked_at_ns + LEASE_LOOK_NS {
            return false;
        }
        // One that has moved has no lease, and answers what is in its rings for a moment.
        let is_lapsed = match connection.view().has_moved() {
            true => now_ns >= *self.moved_at_ns.get_or_insert(now_ns) + LEAVING_NS,
            false => !connection.lease_alive(now_ns),
        };
        let is_over = is_lapsed && self.was_lapsed;
        (self.looked_at_ns, self.was_lapsed) = (now_ns, is_lapsed);
        if is_over {
            self.give_up(Closed::LOST, replies, counters);
        }
        is_over
    }

    /// Another process takes this one's place, or none. `true`: it has moved, and may answer yet.
    pub(super) fn leaves(
        &mut self,
        (connection, epoll): (&mut Connection, &OwnedFd),
        replies: &mut Replies,
        counters: &Counters,
        now_ns: u64,
    ) -> bool {
        if !connection.view().has_moved() {
            self.end((connection, epoll), replies, counters);
            return false;
        }
        self.look((connection, epoll), replies, counters, now_ns);
        !self.outstanding.is_empty()
    }

    /// Nobody waits for this one any more: what it has answered is told, and what
    /// it has not is given up.
    pub(super) fn end(
        &mut self,
        connection: (&mut Connection, &OwnedFd),
        replies: &mut Replies,
        counters: &Counters,
    ) {
        self.look(connection, replies, counters, 0);
        self.give_up(Closed::LOST, replies, counters);
    }

    fn give_up(&mut self, closed: Closed, replies: &mut Replies, counters: &Counters) {
        let status = match closed.is_settled {
            true => MessageStatus::Gone,
            false => MessageStatus::Lost,
        };
        self.portions = Portions::default();
        for (_, to) in self.outstanding.drain() {
            let counter = match status {
                MessageStatus::Lost => &counters.messages_lost,
                _ => &counters.messages_refused,
            };
            add(counter, 1);
            replies.push(&to, Err(status));
        }
    }
}

/// From now on the loop is woken by the backend's bell. One that has hung up meanwhile, because
/// others wanted the rings, is found out before anything is put into them.
fn hear(connection: &Connection, epoll: &OwnedFd, number: u32) -> Hearing {
    let Some(channel) = connection.channel() else {
        return Hearing::Never;
    };
    channel.silence();
    if channel.is_closed() {
        return Hearing::Never;
    }
    let data = epoll::EventData::new_u64(OF_BACKEND | u64::from(number));
    match epoll::add(epoll, channel.descriptor(), data, epoll::EventFlags::IN) {
        Ok(()) => Hearing::Yes,
        Err(_) => Hearing::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::message::MESSAGE_LEN_MAX;

    #[test]
    fn a_session_has_a_quarter_of_a_ring_or_one_message() {
        let mut portions = Portions::default();
        let longest = MESSAGE_LEN_MAX as u32;
        assert!(portions.has_room(1, longest));
        portions.begins(1, longest);
        assert!(!portions.has_room(1, 8));
        // Others are not touched by it.
        for _ in 0..4 {
            assert!(portions.has_room(2, PORTION_LEN / 4));
            portions.begins(2, PORTION_LEN / 4);
        }
        assert!(!portions.has_room(2, 8));
        portions.ended(2, PORTION_LEN / 4);
        assert!(portions.has_room(2, PORTION_LEN / 4) && !portions.has_room(2, PORTION_LEN / 2));
        portions.ended(1, longest);
        assert!(portions.has_room(1, longest));
        (0..3).for_each(|_| portions.ended(2, PORTION_LEN / 4));
        assert!(portions.0.is_empty());
    }
}
