//! A delegate between simulated clients and a simulated queue that commits and executes
//! later, refuses for a while, and loses what it has not committed.

use crate::sim::dice::Dice;
use crate::sim::memory::Memory;
use std::cell::Cell;
use trefoil_ordered::delegate::{Behind, Forwarder};
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::merge::{Merge, PATIENCE_NS};
use trefoil_ordered::mutants::{self, Mutant};
use trefoil_ordered::producer::Producer;
use trefoil_ordered::{Answer, Committed, Refused, order};
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
}

struct Model<'d> {
    dice: &'d Dice,
    /// Client and number.
    requests: Vec<(u64, u64)>,
    committed: usize,
    executed: usize,
    room: usize,
    refusals: u64,
}

impl Model<'_> {
    fn go_on(&mut self) {
        let ahead = (self.requests.len() - self.committed) as u64;
        self.committed += self.dice.below(ahead + 1) as usize;
        let ahead = (self.committed - self.executed) as u64;
        self.executed += self.dice.below(ahead + 1) as usize;
    }
}

impl Behind for Model<'_> {
    fn has_room(&mut self) -> bool {
        self.requests.len() - self.executed < self.room
    }

    fn submit(&mut self, request: &[u8], _: bool) -> Result<Committed, Refused> {
        if self.dice.once_in(6) {
            self.refusals += 1;
            return Err([Refused::Skipped, Refused::Full][self.dice.below(2) as usize]);
        }
        let word = |at: usize| u64::from_le_bytes(request[at..][..8].try_into().expect("eight"));
        self.requests.push((word(0), word(8)));
        let sequence = self.requests.len() as u64;
        Ok(Committed {
            position: sequence,
            sequence,
        })
    }

    fn is_committed(&mut self, request: Committed) -> bool {
        request.sequence as usize <= self.committed
    }

    fn is_executed(&mut self, request: Committed) -> bool {
        // It does not stand still between two looks.
        if self.dice.once_in(4) {
            self.go_on();
        }
        request.sequence as usize <= self.executed
    }

    fn take_answer(&mut self, request: Committed, into: &mut Answer) {
        let (client, number) = self.requests[request.sequence as usize - 1];
        if request.sequence as usize <= self.executed {
            let answer = (client << 32 | number).to_le_bytes();
            into.put(&answer).expect("eight bytes");
        }
    }
}

struct Client {
    producer: Producer<Memory>,
    sent: u64,
    /// Sequence and number of requests that want an answer.
    owed: Vec<(u64, u64)>,
}

/// One run: what was refused behind and acknowledged to clients, and what does not hold.
fn run(seed: u64) -> ((u64, u64), Option<(Property, String)>) {
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
    };
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
            let forwarded = forwarder.forward(&mut merge, || now_ns.get(), &mut model);
            forwarded.expect("a queue that is there");
        }
        if dice.once_in(2) {
            model.go_on();
        }
        forwarder.look_behind(&mut merge, &mut model);
        if let Some(found) = judge(&mut clients, &model) {
            return ((model.refusals, 0), Some(found));
        }
        if is_ending {
            (model.committed, model.executed) = (model.requests.len(), model.requests.len());
        }
    }
    let sent: u64 = clients.iter().map(|client| client.sent).sum();
    let forwarded = model.requests.len() as u64;
    let left = clients.iter().any(|client| !client.owed.is_empty());
    let found = match (forwarded == sent, left) {
        (false, _) => Some((Property::Forwarded, format!("{forwarded} of {sent}"))),
        (true, true) => Some((Property::Answer, "answers did not come".into())),
        (true, false) => None,
    };
    ((model.refusals, sent), found)
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
    let (mut refusals, mut sent) = (0, 0);
    for seed in 0..SEEDS {
        let (counts, found) = run(seed);
        assert!(found.is_none(), "seed {seed}: {found:?}");
        refusals += counts.0;
        sent += counts.1;
    }
    println!("{sent} sent, {refusals} refused for a while");
    assert!(sent > 20 * SEEDS && refusals > SEEDS);
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
