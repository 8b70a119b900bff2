//! Those who share memory with the server: honest clients that may be slow or die, and
//! others.

use super::dice::Dice;
use super::history::{History, Outcome, Property, Sent};
use super::memory::Memory;
use super::stats::Stats;
use std::cell::RefCell;
use std::collections::HashMap;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_ordered::lane::{self, Turn, WORD_SLOTS, WORD_TURN};
use trefoil_ordered::mutants::{self, Mutant};
use trefoil_ordered::order::WORD_TICKET;
use trefoil_ordered::producer::{Producer, Refused, Written};
use trefoil_region::WordBuffer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Honest,
    /// Claims, takes tickets, and never publishes.
    Teaser,
    /// Writes anything anywhere in its lane.
    Nonsense,
    /// Writes anything into the order word.
    Tamperer,
}

/// Where in a request a client is.
#[derive(Clone, Copy)]
enum At {
    Between,
    Written(Written),
    Claimed(Written),
    /// With a ticket, before its claim: a mutant.
    Early(Written, u64),
    Ticketed(Written, u64),
    Published(u64),
}

pub(crate) struct Actor {
    kind: Kind,
    producer: Producer<Memory>,
    order: Memory,
    at: At,
    id: u64,
    began: u64,
    nilext: bool,
    /// Steps for which it has no turn of the processor.
    stalled: u64,
    pub(crate) is_dead: bool,
    /// It begins nothing more.
    is_ending: bool,
    /// Requests with answers to be taken: sequence and id.
    owed: Vec<(u64, u64)>,
}

/// What all actors write down.
pub(crate) struct Notes {
    pub(crate) history: RefCell<History>,
    pub(crate) stats: RefCell<Stats>,
    /// By request id.
    pub(crate) answers: RefCell<HashMap<u64, Vec<u8>>>,
    pub(crate) next_id: std::cell::Cell<u64>,
    pub(crate) step: std::cell::Cell<u64>,
    pub(crate) dice: Dice,
    /// One step in so many is a client's last.
    pub(crate) deaths: u64,
    pub(crate) stalls: u64,
}

/// The payload of a request is made of its id.
pub(crate) fn payload(id: u64) -> Vec<u8> {
    let len = 8 + (id * 37 % 60) as usize;
    id.to_le_bytes().into_iter().cycle().take(len).collect()
}

impl Actor {
    pub(crate) fn new(kind: Kind, producer: Producer<Memory>, order: Memory) -> Self {
        Actor {
            kind,
            producer,
            order,
            at: At::Between,
            id: 0,
            began: 0,
            nilext: true,
            stalled: 0,
            is_dead: false,
            is_ending: false,
            owed: Vec::new(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The words of its lane.
    pub(crate) fn lane(&self) -> &Memory {
        self.producer.words()
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.producer.terms().client_id
    }

    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.stalled = 0;
    }

    pub(crate) fn is_between(&self) -> bool {
        matches!(self.at, At::Between)
    }

    pub(crate) fn step(&mut self, notes: &Notes) {
        if self.is_dead {
            return;
        }
        if self.stalled > 0 {
            self.stalled -= 1;
            return;
        }
        let dice = &notes.dice;
        if !self.is_ending && dice.once_in(notes.stalls) {
            self.stalled = dice.below(200);
        }
        match self.kind {
            Kind::Nonsense => self.scribble(dice),
            Kind::Tamperer => self.tamper(dice),
            Kind::Teaser => {
                if self.is_between() || !matches!(self.at, At::Ticketed(..)) {
                    self.advance(notes);
                } else if lane::turn(self.producer.words())
                    != Some(Turn::Claimed(self.producer.sequence()))
                {
                    // Skipped: once more.
                    self.advance(notes);
                }
            }
            Kind::Honest => {
                if dice.once_in(notes.deaths) && !self.is_ending {
                    self.die(notes);
                } else if !self.owed.is_empty() && dice.once_in(3) {
                    self.take_answer(notes);
                } else {
                    self.advance(notes);
                }
            }
        }
    }

    fn die(&mut self, notes: &Notes) {
        self.is_dead = true;
        let mut stats = notes.stats.borrow_mut();
        match self.at {
            At::Claimed(_) | At::Ticketed(..) => stats.died_claimed += 1,
            At::Published(_) => stats.died_unmarked += 1,
            _ => {}
        }
    }

    fn advance(&mut self, notes: &Notes) {
        let late = mutants::is_on(Mutant::ClaimedLate);
        self.at = match self.at {
            At::Between if self.is_ending => At::Between,
            At::Between => self.begin(notes),
            At::Written(written) if late => match self.producer.ticket(&self.order) {
                Ok(position) => At::Early(written, position),
                Err(refused) => self.refused(refused, notes),
            },
            At::Early(written, position) => match self.producer.claim() {
                Ok(()) => At::Ticketed(written, position),
                Err(refused) => self.refused(refused, notes),
            },
            At::Written(written) => {
                if mutants::is_on(Mutant::MarkedEarly) {
                    self.producer.mark(self.producer.sequence());
                }
                match self.producer.claim() {
                    Ok(()) => At::Claimed(written),
                    Err(refused) => self.refused(refused, notes),
                }
            }
            At::Claimed(written) => match self.producer.ticket(&self.order) {
                Ok(position) => At::Ticketed(written, position),
                Err(refused) => self.refused(refused, notes),
            },
            At::Ticketed(written, position) => match self.producer.publish(written, position) {
                Ok(committed) => {
                    let mut history = notes.history.borrow_mut();
                    let sent = history.sent.get_mut(&self.id).expect("it was sent");
                    sent.ended = notes.step.get();
                    sent.outcome = Outcome::Committed {
                        position: committed.position,
                        sequence: committed.sequence,
                    };
                    notes.stats.borrow_mut().committed += 1;
                    if !self.nilext {
                        self.owed.push((committed.sequence, self.id));
                    }
                    At::Published(committed.sequence)
                }
                Err(refused) => self.refused(refused, notes),
            },
            At::Published(sequence) => {
                self.producer.mark(sequence);
                At::Between
            }
        };
    }

    fn begin(&mut self, notes: &Notes) -> At {
        let id = notes.next_id.get();
        self.nilext = !notes.dice.once_in(4);
        match self.producer.write(id, &payload(id), self.nilext) {
            Ok(written) => {
                notes.next_id.set(id + 1);
                self.id = id;
                self.began = notes.step.get();
                let sent = Sent {
                    client_id: self.producer.terms().client_id,
                    began: self.began,
                    ended: u64::MAX,
                    outcome: Outcome::Unpublished,
                };
                notes.history.borrow_mut().sent.insert(id, sent);
                At::Written(written)
            }
            Err(refused) => self.refused(refused, notes),
        }
    }

    fn refused(&mut self, refused: Refused, notes: &Notes) -> At {
        let mut stats = notes.stats.borrow_mut();
        match refused {
            Refused::Full => stats.full += 1,
            Refused::Skipped => stats.skipped += 1,
            Refused::OrderBroken { .. } => stats.order_broken += 1,
            Refused::Closed => {
                stats.closed += 1;
                self.is_ending = true;
            }
            Refused::TooLong { .. } | Refused::OtherProcess => {
                unreachable!("short payloads, and one process")
            }
        }
        At::Between
    }

    pub(crate) fn take_answer(&mut self, notes: &Notes) {
        let Some((sequence, id)) = self.owed.first().copied() else {
            return;
        };
        let mut into = WordBuffer::default();
        if self.producer.take_answer(sequence, &mut into).is_none() {
            return;
        }
        self.owed.remove(0);
        notes.stats.borrow_mut().answers += 1;
        let is_own = notes
            .answers
            .borrow()
            .get(&id)
            .is_some_and(|a| a == into.bytes());
        if !is_own {
            let detail = format!("{id}: {:?}", into.bytes());
            notes.history.borrow_mut().violate(Property::Answer, detail);
        }
    }

    /// Requests whose answers did not come.
    pub(crate) fn unanswered(&self) -> usize {
        self.owed.len()
    }

    fn scribble(&mut self, dice: &Dice) {
        let words = self.producer.words();
        let near = lane::executed(words) + dice.below(4);
        let slot = self.producer.terms().slot(near);
        match dice.below(12) {
            0 => words.store(WORD_TURN, dice.word()),
            1..=4 => {
                let turns = [
                    Turn::Open(near),
                    Turn::Claimed(near),
                    Turn::Published(near),
                    Turn::Skipped(near),
                    Turn::Closed(near),
                ];
                words.store(WORD_TURN, turns[dice.below(5) as usize].encode());
            }
            5 => words.store(slot, near),
            6 => words.store(slot + 6, dice.word()),
            7 => words.store(slot + 6, dice.below(100)),
            8 => words.store(slot + 2, dice.below(40)),
            9 => words.store(
                WORD_SLOTS + dice.below((words.len() - WORD_SLOTS) as u64) as usize,
                dice.word(),
            ),
            _ => {}
        }
    }

    fn tamper(&mut self, dice: &Dice) {
        let now = self.order.load(WORD_TICKET);
        let value = match dice.below(40) {
            0 => dice.word(),
            1 => now.wrapping_sub(dice.below(8)),
            2 => now.wrapping_add(dice.below(1000)),
            3 => 0,
            4 => u64::MAX,
            _ => return,
        };
        self.order.store(WORD_TICKET, value);
    }
}
