//! A way round: frames for a server that is alive, and that this one cannot reach, go
//! through a third one, which can.
//!
//! ```text
//!   A ──╳──► B      A: nothing is confirmed, so it asks C, then D … for B
//!   A ──► C ──► B   B: was asked, and answers by the same way
//! ```
//!
//! Nothing but the way changes: a link ([`link`](crate::link)) takes frames that are lost,
//! repeated, late and out of order, wherever they come from. So who passes one on
//! confirms nothing, keeps nothing and remembers nothing, and may drop it. The sender of a
//! frame hands it to somebody who hands it to its addressee, and to nobody else: there are
//! no longer ways, and no loops.
//!
//! Whether two servers hear each other is found out on both sides, for each direction may
//! fail by itself: beside a way round they send each other, now and then, a frame that says
//! nothing, and say whether they hear any. When both do the way round is over.

use super::Peers;
use crate::codec::FRAME_BYTES_MAX;
use crate::effect::Effect;
use crate::link::{Link, VAIN_MAX};
use crate::message::{Frame, Message, Pass};
use crate::mutants::{self, Mutant};
use crate::outbox::Outbox;
use crate::wire::Wire;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;
use trefoil_sharder::ServerId;

/// A way that its other end has not used for so many times the time after which messages are
/// sent again is forgotten.
const KEPT_FOR: u32 = 240;
/// A frame without a message is no longer than that.
const BARE_BYTES_MAX: usize = 18;
/// What a pass takes besides the frame in it, or less.
const PASS_BYTES: usize = 64;

/// What is known of the ways to one server.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// When a frame of it came that nobody had passed on.
    heard_at: Option<Duration>,
    /// Who passes frames on, and until when that is believed.
    via: Option<(ServerId, Duration)>,
    /// Who was asked last whether it reaches it.
    asked: Option<ServerId>,
    /// It was greeted: whoever gets its first frame hears with it what it speaks.
    greeted: bool,
    /// When the direct way was tried last beside the one round.
    tried_at: Duration,
}

/// How much was passed on lately.
#[derive(Debug, Default)]
pub(super) struct Passed {
    bytes: usize,
    at: Duration,
}

impl Peers {
    /// Sends a frame on its way, directly or round. What was sent `again` after it was not
    /// confirmed in time goes both ways.
    pub(super) fn send_frame(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        to: ServerId,
        frame: Frame,
        again: bool,
    ) {
        let vain = self.links.get(&to).is_some_and(Link::is_in_vain);
        let via = self.via(now, outbox, to).filter(|_| !(again && vain));
        let Some(via) = via else {
            outbox.tell(Effect::Send { to, frame });
            return;
        };
        // Often enough for both to be heard by the other all the time.
        let every = self.lately() / 2;
        let ways = self.ways.entry(to).or_default();
        let tries = now >= ways.tried_at + every;
        if tries {
            ways.tried_at = now;
            self.ask(now, outbox, to, via);
        }
        let passed = self.pass(now, outbox, to, via, &frame, false);
        if again || !passed {
            outbox.tell(Effect::Send { to, frame });
        } else if tries {
            self.say_nothing(outbox, to);
        }
    }

    /// Asks a server by the way through another one. In a frame of its own, without a
    /// message: who has too much to pass on drops any other, and would each time at the same
    /// point of what a sender says again and again.
    fn ask(&mut self, now: Duration, outbox: &mut Outbox, to: ServerId, via: ServerId) {
        let frame = self.links.entry(to).or_default().bare();
        self.pass(now, outbox, to, via, &frame, true);
    }

    /// A frame without a message, directly.
    fn say_nothing(&mut self, outbox: &mut Outbox, to: ServerId) {
        let frame = self.links.entry(to).or_default().bare();
        outbox.tell(Effect::Send { to, frame });
    }

    /// Hands a frame to somebody who is to pass it on; whether it fits.
    fn pass(
        &self,
        now: Duration,
        outbox: &mut Outbox,
        to: ServerId,
        via: ServerId,
        frame: &Frame,
        asks: bool,
    ) -> bool {
        let bytes = frame.encode();
        if bytes.len() + PASS_BYTES > FRAME_BYTES_MAX {
            return false;
        }
        let pass = Pass {
            from: self.me,
            to,
            hears: self.hears(now, to),
            asks,
            frame: bytes,
        };
        let frame = Frame::of_pass(pass);
        outbox.tell(Effect::Send { to: via, frame });
        true
    }

    /// For so long a server that was not heard may have had nothing to say.
    fn lately(&self) -> Duration {
        VAIN_MAX * self.resend_after
    }

    /// Whether a server was heard directly lately.
    fn hears(&self, now: Duration, server: ServerId) -> bool {
        let ways = self.ways.get(&server);
        let heard_at = ways.and_then(|ways| ways.heard_at);
        heard_at.is_some_and(|at| now <= at + self.lately())
    }

    /// Who passes frames on to a server by now.
    fn via(&mut self, now: Duration, outbox: &mut Outbox, to: ServerId) -> Option<ServerId> {
        let (via, until) = self.ways.get(&to)?.via?;
        if now < until && self.alive.contains(&via) {
            return Some(via);
        }
        self.set_via(now, outbox, to, None);
        None
    }

    fn set_via(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        to: ServerId,
        via: Option<(ServerId, Duration)>,
    ) {
        let ways = self.ways.entry(to).or_default();
        let through = |way: Option<(ServerId, Duration)>| way.map(|(via, _)| via);
        let before = through(ways.via);
        ways.via = via;
        let via = through(via);
        if before != via {
            ways.tried_at = now;
            outbox.tell(Effect::Detour { to, via });
        }
    }

    /// Nothing of what is said to a server is confirmed: asks somebody whether he reaches it,
    /// each time another one. A way round that there was is none.
    pub(super) fn ask_for_way(&mut self, now: Duration, outbox: &mut Outbox, to: ServerId) {
        if mutants::is(Mutant::NoWayRound) || !self.alive.contains(&to) {
            return;
        }
        self.set_via(now, outbox, to, None);
        for server in self.alive.clone() {
            if !self.has_met(server) {
                self.greet(outbox, server);
            }
        }
        let reaches = |&&server: &&ServerId| {
            let vain = self.links.get(&server).is_some_and(Link::is_in_vain);
            server != to && self.knows(server, Wire::PASSES) && !vain
        };
        let asked = self.ways.get(&to).and_then(|ways| ways.asked);
        let behind = self
            .alive
            .range((asked.map_or(Unbounded, Excluded), Unbounded));
        let next = behind.chain(&self.alive).find(reaches).copied();
        let Some(via) = next else { return };
        self.ways.entry(to).or_default().asked = Some(via);
        self.ask(now, outbox, to, via);
    }

    /// A frame came directly.
    pub(crate) fn note_heard(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        from: ServerId,
        says_nothing: bool,
    ) {
        self.ways.entry(from).or_default().heard_at = Some(now);
        // It confirms nothing, for nothing was said to it: it wants to be greeted.
        if says_nothing && self.links.get(&from).is_none_or(Link::is_unused) {
            self.greet(outbox, from);
        }
    }

    /// Has a server say what it speaks, if that is not known: two that never had anything to
    /// do with each other have not met. Once, and each greets the other.
    fn greet(&mut self, outbox: &mut Outbox, server: ServerId) {
        let ways = self.ways.entry(server).or_default();
        if !std::mem::replace(&mut ways.greeted, true) {
            self.say_nothing(outbox, server);
        }
    }

    /// Passes a frame on, or unpacks one that was passed on to this server: then it is
    /// returned with its sender.
    pub(crate) fn hear_pass(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        by: ServerId,
        pass: Pass,
    ) -> Option<(ServerId, Frame)> {
        if !self.alive.contains(&by) {
            return None;
        }
        let (from, to) = (pass.from, pass.to);
        if to != self.me {
            let is_for_other = from == by && to != by && self.alive.contains(&to);
            if is_for_other && !self.has_met(to) {
                self.greet(outbox, to);
            }
            if is_for_other && self.knows(to, Wire::PASSES) && self.may_pass(now, &pass) {
                let frame = Frame::of_pass(pass);
                outbox.tell(Effect::Send { to, frame });
            }
            return None;
        }
        if from == by || !self.alive.contains(&from) {
            return None;
        }
        let frame = Frame::decode(pass.frame).ok()?;
        if matches!(frame.message, Some(Message::Pass(_))) {
            return None;
        }
        self.note_way(now, outbox, from, by, pass.hears, pass.asks);
        Some((from, frame))
    }

    /// A server is reached, or reaches this one, through another one.
    fn note_way(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        from: ServerId,
        by: ServerId,
        hears: bool,
        asks: bool,
    ) {
        let before = self.via(now, outbox, from);
        if hears && self.hears(now, from) {
            self.set_via(now, outbox, from, None);
        } else if !asks || before.is_none_or(|via| via == by) {
            // An answer has shown that it leads there as well.
            let until = now + KEPT_FOR * self.resend_after;
            self.set_via(now, outbox, from, Some((by, until)));
            if before != Some(by)
                && let Some(link) = self.links.get_mut(&from)
            {
                link.try_anew(now);
            }
        }
        if asks {
            let frame = self.links.entry(from).or_default().bare();
            self.pass(now, outbox, from, by, &frame, false);
            self.say_nothing(outbox, from);
        }
    }

    /// Counts what is passed on: a window in the time after which messages are sent again, at
    /// most. The rest its sender sends again. Questions and answers about the way get through
    /// even then: without them it would not end.
    fn may_pass(&mut self, now: Duration, pass: &Pass) -> bool {
        let (window, every) = (self.window_bytes, self.resend_after);
        let passed = &mut self.passed;
        let part = now.saturating_sub(passed.at).as_secs_f64() / every.as_secs_f64();
        let drained = (window as f64 * part.min(1.0)) as usize;
        passed.bytes = passed.bytes.saturating_sub(drained);
        passed.at = now;
        let is_bare = pass.frame.len() <= BARE_BYTES_MAX;
        let gets_through = is_bare && !mutants::is(Mutant::QuestionsDropped);
        let fits = passed.bytes < window || gets_through;
        if fits {
            passed.bytes = passed.bytes.saturating_add(PASS_BYTES + pass.frame.len());
        }
        fits
    }

    /// Servers that are reached through others only.
    pub(crate) fn detours(&self, now: Duration) -> usize {
        let round = self.ways.values().filter_map(|ways| ways.via);
        round.filter(|(_, until)| now < *until).count()
    }
}
