//! What clients did and were told, what was executed, and whether both agree.

use std::collections::HashMap;

/// A promise of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// What was reported as committed is executed.
    Committed,
    /// What was not reported as committed is not executed.
    Refused,
    /// Nothing is executed twice.
    Once,
    /// What is executed is what was sent, at the position that was told.
    Whole,
    /// Requests are executed in the order of their positions, and so of real time.
    Order,
    /// One client's requests are executed in the order in which it sent them.
    OwnOrder,
    /// The answer is that of the request's execution.
    Answer,
    /// Nothing that is published waits for a claim longer than the server's patience.
    Patience,
    /// What was committed is acknowledged in the end.
    Acknowledged,
    /// Nonsense breaks the lane that it stands in, and is not executed.
    Nonsense,
}

#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) property: Property,
    pub(crate) detail: String,
}

/// What a client knows of one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not published, whatever has become of its client.
    Unpublished,
    Committed {
        position: u64,
        sequence: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) client_id: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) id: u64,
    pub(crate) client_id: u64,
    pub(crate) position: u64,
    pub(crate) is_whole: bool,
}

#[derive(Default)]
pub(crate) struct History {
    /// By request id. Each attempt has its own.
    pub(crate) sent: HashMap<u64, Sent>,
    pub(crate) executed: Vec<Executed>,
    /// Found out while it happened.
    pub(crate) violations: Vec<Violation>,
}

impl History {
    pub(crate) fn violate(&mut self, property: Property, detail: String) {
        self.violations.push(Violation { property, detail });
    }

    /// The highest sequence that this client was told is committed.
    pub(crate) fn last_committed(&self, client_id: u64) -> u64 {
        let of_client = self
            .sent
            .values()
            .filter(|sent| sent.client_id == client_id);
        let sequences = of_client.map(|sent| match sent.outcome {
            Outcome::Committed { sequence, .. } => sequence,
            Outcome::Unpublished => 0,
        });
        sequences.max().unwrap_or(0)
    }

    /// `is_ordered`: nobody has written nonsense into the order word.
    pub(crate) fn check(mut self, is_ordered: bool) -> Vec<Violation> {
        let mut times: HashMap<u64, u32> = HashMap::new();
        let mut last_position = 0;
        let mut began_max = 0;
        let mut last_sequences: HashMap<u64, u64> = HashMap::new();
        for executed in std::mem::take(&mut self.executed) {
            let id = executed.id;
            let Some(sent) = self.sent.get(&id).cloned() else {
                self.violate(Property::Nonsense, format!("{executed:?}"));
                continue;
            };
            *times.entry(id).or_default() += 1;
            let Outcome::Committed { position, sequence } = sent.outcome else {
                self.violate(Property::Refused, format!("{id}: {sent:?}"));
                continue;
            };
            if times[&id] > 1 {
                self.violate(Property::Once, format!("{id}: {sent:?}"));
                continue;
            }
            let is_same = position == executed.position && sent.client_id == executed.client_id;
            if !is_same || !executed.is_whole {
                self.violate(Property::Whole, format!("{sent:?} {executed:?}"));
            }
            let last = last_sequences.entry(sent.client_id).or_default();
            if sequence <= *last {
                self.violate(Property::OwnOrder, format!("{id}: {sent:?}"));
            } else {
                *last = sequence;
            }
            if is_ordered && (position <= last_position || sent.ended < began_max) {
                self.violate(
                    Property::Order,
                    format!("{id} after {last_position}: {sent:?}"),
                );
            }
            last_position = last_position.max(position);
            began_max = began_max.max(sent.began);
        }
        for (id, sent) in std::mem::take(&mut self.sent) {
            let is_committed = matches!(sent.outcome, Outcome::Committed { .. });
            if is_committed && !times.contains_key(&id) {
                self.violate(Property::Committed, format!("{id}: {sent:?}"));
            }
        }
        self.violations
    }
}
