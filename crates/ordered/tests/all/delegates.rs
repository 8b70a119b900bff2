//! A delegate between simulated clients and a simulated queue that commits and executes
//! later, refuses for a while, refuses for good, dies, and loses what it has not committed. It
//! goes on between any two looks of the delegate.

use crate::sim::dice::Dice;
use crate::sim::memory::Memory;
use std::cell::Cell;
use trefoil_ordered::delegate::{Behind, Forwarder};
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::merge::{Merge, PATIENCE_NS};
use trefoil_ordered::mutants::{self, Mutant};
use trefoil_ordered::producer::Producer;
use trefoil_ordered::{Answer, Committed, DelegateError, Refused, order};
use trefoil_region::WordBuffer;

const SEEDS: u64 = 3_000;
const EPOCH: u64 = 5;

/// What does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// Acknowledged, and not committed behind.
    Acknowledged,
    /// Executed for its client, and not behind.
    Executed,
    /// An answer that is another one's, or none.
    Answer,
    /// Not each of a client's requests once and in its order.
    OwnOrder,
    /// A request that was published and never forwarded.
    Forwarded,
    /// Executed for its client, and not acknowledged: it would wait for ever.
    Told,
    /// Done behind before its end, and not told.
    Last,
    /// A delegate that ends while the queue behind is there, or does not with it.
    End,
}

struct Model<'d> {
    dice: &'d Dice,
    /// Client and number.
    requests: Vec<(u64, u64)>,
    committed: usize,
    executed: usize,
    room: usize,
    refusals: u64,
    /// It closes, or dies, at some time.
    is_mortal: bool,
    /// It takes nothing more.
    is_closed: bool,
    /// It does nothing more.
    is_gone: bool,
}

impl Model<'_> {
    fn go_on(&mut self) {
        if self.is_gone {
            return;
        }
        let ahead = (self.requests.len() - self.committed) as u64;
        self.committed += self.dice.below(ahead + 1) as usize;
        let ahead = (self.committed - self.executed) as u64;
        self.executed += self.dice.below(ahead + 1) as usize;
        if self.is_mortal {
            self.is_closed |= self.dice.once_in(100);
            let odds = if self.is_closed { 20 } else { 100 };
            self.is_gone = self.dice.once_in(odds);
        }
    }

    /// It does not stand still between two looks.
    fn go_on_meanwhile(&mut self) {
        if self.dice.once_in(4) {
            self.go_on();
        }
    }

    fn go_to_the_end(&mut self) {
        if !self.is_gone {
            (self.committed, self.executed) = (self.requests.len(), self.requests.len());
        }
    }
}

impl Behind for Model<'_> {
    fn has_room(&mut self) -> bool {
        self.go_on_meanwhile();
        self.requests.len() - self.executed < self.room
    }

    fn submit(&mut self, request: &[u8], _: bool) -> Result<Committed, Refused> {
        self.go_on_meanwhile();
        if self.is_closed {
            return Err(Refused::Closed);
        }
        if self.dice.once_in(6) {
            self.refusals += 1;
            return Err([Refused::Skipped, Refused::Full][self.dice.below(2) as usize]);
        }
        // Into the memory of the dead, too.
        let word = |at: usize| u64::from_le_bytes(request[at..][..8].try_into().expect("eight"));
        self.requests.push((word(0), word(8)));
        let sequence = self.requests.len() as u64;
        Ok(Committed {
            position: sequence,
            sequence,
        })
    }

    fn is_committed(&mut self, request: Committed) -> bool {
        self.go_on_meanwhile();
        request.sequence as usize <= self.committed
    }

    fn is_executed(&mut self, request: Committed) -> bool {
        self.go_on_meanwhile();
        request.sequence as usize <= self.executed
    }

    fn take_answer(&mut self, request: Committed, into: &mut Answer) {
        self.go_on_meanwhile();
        let (client, number) = self.requests[request.sequence as usize - 1];
        if request.sequence as usize <= self.executed {
            let answer = (client << 32 | number).to_le_bytes();
            into.put(&answer).expect("eight bytes");
        }
    }

    fn is_gone(&mut self) -> bool {
        self.go_on_meanwhile();
        self.is_gone
    }
}

struct Client {
    producer: Producer<Memory>,
    sent: u64,
    /// Sequence and number of requests that want an answer.
    owed: Vec<(u64, u64)>,
}

/// What happened, so that a run in which nothing happens is noticed.
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    sent: u64,
    refusals: u64,
    /// Ends of the queue behind that the delegate has told.
    gone: u64,
    refused: u64,
}

/// One run: what happened, and what does not hold.
fn run(seed: u64) -> (Stats, Option<(Property, String)>) {
    let dice = Dice::new(seed);
    let order = Memory::new(order::OBJECT_LEN);
    order::initialise(&order);
    let mut merge = Merge::new(PATIENCE_NS);
    let mut clients = Vec::new();
    let slot_count = 2 << dice.below(3);
    for client_id in 1..=1 + dice.below(4) {
        let terms = Terms {
            epoch: EPOCH,
            client_id,
            slot_count,
        };
        let memory = Memory::new(terms.object_len());
        lane::initialise(&memory, terms);
        merge.admit(memory.clone(), terms);
        clients.push(Client {
            producer: Producer::new(memory, terms),
            sent: 0,
            owed: Vec::new(),
        });
    }
    let mut model = Model {
        dice: &dice,
        requests: Vec::new(),
        committed: 0,
        executed: 0,
        room: 1 + dice.below(12) as usize,
        refusals: 0,
        is_mortal: dice.once_in(3),
        is_closed: false,
        is_gone: false,
    };
    let mut ended = None;
    let mut forwarder = Forwarder::default();
    let now_ns = Cell::new(0u64);
    let rounds = 30 + dice.below(100);
    for round in 0..rounds + 200 {
        let is_ending = round >= rounds;
        for client in &mut clients {
            if is_ending || dice.once_in(3) {
                continue;
            }
            let id = client.producer.terms().client_id;
            let number = client.sent + 1;
            let nilext = !dice.once_in(3);
            let bytes = [id.to_le_bytes(), number.to_le_bytes()].concat();
            if let Ok(sent) = client.producer.submit(&order, number, &bytes, nilext) {
                client.sent = number;
                if !nilext {
                    client.owed.push((sent.sequence, number));
                }
            }
        }
        if is_ending || !dice.once_in(4) {
            now_ns.set(now_ns.get() + 1_000);
            let is_look_due = dice.once_in(3);
            let clock = || now_ns.get();
            let turned = forwarder.turn(&mut merge, clock, &mut model, is_look_due);
            ended = turned.err();
        } else {
            forwarder.look_behind(&mut merge, &mut model);
        }
        let found = judge(&mut clients, &model);
        if found.is_some() {
            return (Stats::default(), found);
        }
        if ended.is_some() {
            break;
        }
        model.go_on_meanwhile();
        if is_ending {
            model.go_to_the_end();
        }
    }
    let sent = clients.iter().map(|client| client.sent).sum();
    let mut stats = Stats {
        sent,
        refusals: model.refusals,
        ..Stats::default()
    };
    let forwarded = model.requests.len() as u64;
    let is_left = clients.iter().any(|client| !client.owed.is_empty());
    let found = match ended {
        Some(error) => {
            match error {
                DelegateError::ServerGone => stats.gone += 1,
                DelegateError::Refused(_) => stats.refused += 1,
            }
            let is_told = match error {
                DelegateError::ServerGone => model.is_gone,
                DelegateError::Refused(refused) => refused == Refused::Closed && model.is_closed,
            };
            match is_told {
                true => untold(&mut clients, &model),
                false => Some((Property::End, format!("{error}, and it is there"))),
            }
        }
        None if model.is_gone => Some((Property::End, "it goes on without a queue".into())),
        None if forwarded != sent => Some((Property::Forwarded, format!("{forwarded} of {sent}"))),
        None if is_left => Some((Property::Answer, "answers did not come".into())),
        None => None,
    };
    (stats, found)
}

/// After the delegate's end: what the queue behind has done, and a client was not told of.
fn untold(clients: &mut [Client], model: &Model<'_>) -> Option<(Property, String)> {
    clients.iter_mut().find_map(|client| {
        let id = client.producer.terms().client_id;
        let count = |requests: &[(u64, u64)]| {
            let own = requests.iter().filter(|(client, _)| *client == id);
            own.count() as u64
        };
        let committed = count(&model.requests[..model.committed]);
        let executed = count(&model.requests[..model.executed]);
        let words = client.producer.words();
        let told = (lane::acknowledged(words), lane::executed(words));
        (told != (committed, executed)).then(|| {
            let detail = format!("{told:?} of {committed} and {executed}");
            (Property::Last, detail)
        })
    })
}

fn judge(clients: &mut [Client], model: &Model<'_>) -> Option<(Property, String)> {
    for client in clients {
        let id = client.producer.terms().client_id;
        let of_client = |requests: &[(u64, u64)]| {
            let own = requests.iter().filter(|(client, _)| *client == id);
            own.map(|(_, number)| *number).collect::<Vec<_>>()
        };
        let forwarded = of_client(&model.requests);
        if !forwarded.iter().copied().eq(1..=forwarded.len() as u64) {
            return Some((Property::OwnOrder, format!("{forwarded:?}")));
        }
        // Nothing is skipped here: sequences are numbers.
        let acknowledged = lane::acknowledged(client.producer.words());
        let committed = of_client(&model.requests[..model.committed]).len() as u64;
        if acknowledged > committed {
            let detail = format!("{acknowledged} of {committed}");
            return Some((Property::Acknowledged, detail));
        }
        let told = lane::executed(client.producer.words());
        if acknowledged < told {
            let detail = format!("{acknowledged} of {told}");
            return Some((Property::Told, detail));
        }
        let executed = of_client(&model.requests[..model.executed]).len() as u64;
        if told > executed {
            return Some((Property::Executed, format!("{told} of {executed}")));
        }
        while let Some(&(sequence, number)) = client.owed.first() {
            if !client.producer.is_executed(sequence) {
                break;
            }
            let mut answer = WordBuffer::default();
            let found = client.producer.take_answer(sequence, &mut answer);
            if found.is_none() || answer.bytes() != (id << 32 | number).to_le_bytes() {
                return Some((Property::Answer, format!("{number}: {:?}", answer.bytes())));
            }
            client.owed.remove(0);
        }
    }
    None
}

#[test]
fn what_a_delegate_acknowledges_the_queue_behind_has() {
    let mut stats = Stats::default();
    for seed in 0..SEEDS {
        let (of_run, found) = run(seed);
        assert!(found.is_none(), "seed {seed}: {found:?}");
        stats.sent += of_run.sent;
        stats.refusals += of_run.refusals;
        stats.gone += of_run.gone;
        stats.refused += of_run.refused;
    }
    println!("{stats:?}");
    assert!(stats.sent > 20 * SEEDS && stats.refusals > SEEDS);
    assert!(stats.gone > SEEDS / 50 && stats.refused > SEEDS / 50);
}

#[track_caller]
fn shows(mutant: Mutant, properties: &[Property]) {
    mutants::set(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| {
        let (property, detail) = run(seed).1?;
        properties
            .contains(&property)
            .then_some((seed, property, detail))
    });
    mutants::set(None);
    let found = found.unwrap_or_else(|| panic!("{mutant:?} was not noticed in {SEEDS} seeds"));
    println!("{mutant:?}: {found:?}");
}

#[test]
fn rule_1_acknowledged_is_committed_behind() {
    shows(Mutant::DelegateAcknowledgesEarly, &[Property::Acknowledged]);
}

#[test]
fn rule_2_executed_is_executed_behind() {
    shows(Mutant::DelegateCompletesEarly, &[Property::Executed]);
}

#[test]
fn rule_3_what_is_refused_for_now_is_offered_again() {
    shows(
        Mutant::DelegateForgets,
        &[Property::OwnOrder, Property::Forwarded],
    );
}

#[test]
fn rule_4_what_is_completed_is_acknowledged() {
    shows(Mutant::DelegateCompletesUntold, &[Property::Told]);
}

#[test]
fn rule_5_what_was_done_before_the_end_is_passed_on() {
    shows(Mutant::DelegateEndsEarly, &[Property::Last]);
}
