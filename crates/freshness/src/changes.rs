//! Messages of the stream to events: which keys each transaction concerns.
//! No I/O.
//!
//! Invalidations are told as they arrive, so that a transaction of any size
//! needs no memory. Refreshes wait for the commit, the last one of each key
//! counting: nobody sees what a transaction wrote in between. Beyond a bound
//! they become invalidations.
//!
//! | what happens | what is told |
//! |---|---|
//! | insert | the new row's keys |
//! | update | the new row's keys, and the old row's if they differ |
//! | delete | the old row's keys |
//! | the old row's keys are not told (no replica identity) | gap of the table |
//! | a large unchanged value is not told | a refresh becomes an invalidation; in a key, a gap |
//! | truncate | gap of the tables |
//! | other columns than before | gap of the table |
//! | a table that is not mapped | nothing; counted |

use crate::event::{Event, Gap, GapReason};
use crate::keymap::KeyMap;
use crate::pgoutput::{Message, Old, Relation, Tuple};
use crate::position::{History, Place};
use crate::row::{Row, Unknown};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

/// Bytes of refreshes that a transaction may hold back.
const REFRESH_BYTES_MAX: usize = 4 << 20;

/// A stream that breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A transaction begins inside of another one.
    #[error("the stream begins a transaction inside of another one")]
    Nested,
    /// A change or a commit outside of a transaction.
    #[error("the stream has a change outside of a transaction")]
    Outside,
    /// A change of a table that was not described.
    #[error("the stream has a change of table {0}, which it has not described")]
    Undescribed(u32),
    /// Commit positions that do not grow.
    #[error("the stream goes back from position {from} to {to}")]
    Backwards {
        /// Where it was.
        from: u64,
        /// Where it went.
        to: u64,
    },
}

/// A transaction whose changes have all been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where its commit record ends.
    pub end: u64,
    /// Its number, without the epoch.
    pub xid: u32,
}

/// What was seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Transactions.
    pub transactions: u64,
    /// Rows of mapped tables.
    pub rows: u64,
    /// Rows of tables that are not mapped.
    pub unmapped: u64,
    /// Gaps that changes made.
    pub gaps: u64,
}

/// Turns a stream's messages into events.
pub struct Changes {
    map: KeyMap,
    history: History,
    /// By number, each with its full name.
    relations: HashMap<u32, (String, Relation)>,
    /// As last seen, by name: survives reconnecting, where numbers do not count.
    known: HashMap<String, Vec<(String, u32, i32)>>,
    transaction: Option<Transaction>,
    end: u64,
    counts: ChangeCounts,
}

struct Transaction {
    position: u64,
    xid: u32,
    /// Held back until the commit, in the order of first appearance.
    refreshes: Vec<(Bytes, Option<Bytes>)>,
    at: HashMap<Bytes, usize>,
    refresh_bytes: usize,
    /// Tables of which everything has been declared out of date already.
    gone: HashSet<String>,
}

impl Changes {
    /// Changes of mapped tables.
    pub fn new(map: KeyMap) -> Self {
        Changes {
            map,
            history: History::default(),
            relations: HashMap::new(),
            known: HashMap::new(),
            transaction: None,
            end: 0,
            counts: ChangeCounts::default(),
        }
    }

    /// A stream begins at this place. What was told of an interrupted
    /// transaction will be told again.
    pub fn begin(&mut self, place: &Place) {
        self.history = place.history.clone();
        self.end = place.position;
        self.relations.clear();
        self.transaction = None;
    }

    /// Whether a transaction has begun and not committed.
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// What was seen so far.
    pub fn counts(&self) -> ChangeCounts {
        self.counts
    }

    /// Takes the next message and appends what it means to `events`.
    ///
    /// # Errors
    /// The stream breaks the protocol: reconnect.
    pub fn handle(
        &mut self,
        message: Message,
        events: &mut Vec<Event>,
    ) -> Result<Option<Committed>, StreamError> {
        match message {
            Message::Begin { commit, xid } => self.start(commit, xid)?,
            Message::Commit { end } => return self.commit(end, events).map(Some),
            Message::Relation(relation) => self.describe(relation, events),
            Message::Insert { relation, new } => {
                self.row(relation, None, Some(&new), events)?;
            }
            Message::Update { relation, old, new } => {
                self.row(relation, Some(&old), Some(&new), events)?;
            }
            Message::Delete { relation, old } => self.row(relation, Some(&old), None, events)?,
            Message::Truncate { relations } => self.truncate(&relations, events)?,
            Message::Logical { .. } | Message::Type | Message::Origin => {}
        }
        Ok(None)
    }

    fn start(&mut self, commit: u64, xid: u32) -> Result<(), StreamError> {
        if self.transaction.is_some() {
            return Err(StreamError::Nested);
        }
        if commit < self.end {
            let from = self.end;
            return Err(StreamError::Backwards { from, to: commit });
        }
        self.transaction = Some(Transaction {
            position: commit.saturating_add(1),
            xid,
            refreshes: Vec::new(),
            at: HashMap::new(),
            refresh_bytes: 0,
            gone: HashSet::new(),
        });
        Ok(())
    }

    fn commit(&mut self, end: u64, events: &mut Vec<Event>) -> Result<Committed, StreamError> {
        let transaction = self.transaction.take().ok_or(StreamError::Outside)?;
        let (position, xid) = (transaction.position, transaction.xid);
        if end < position {
            return Err(StreamError::Backwards {
                from: position,
                to: end,
            });
        }
        for (key, value) in transaction.refreshes {
            if let Some(value) = value {
                events.push(Event::Refresh {
                    key,
                    value,
                    position,
                });
            }
        }
        self.end = end;
        self.counts.transactions += 1;
        Ok(Committed { end, xid })
    }

    fn describe(&mut self, relation: Relation, events: &mut Vec<Event>) {
        let name = relation.full_name();
        if self.map.of(&name).is_some() {
            let columns = relation.columns.iter();
            let columns: Vec<_> = columns
                .map(|c| (c.name.clone(), c.type_id, c.type_modifier))
                .collect();
            let before = self.known.insert(name.clone(), columns);
            if before.is_some_and(|before| before != self.known[&name]) {
                tracing::warn!(table = name, "columns changed: all its keys are dropped");
                self.gap(GapReason::SchemaChanged, vec![name.clone()], events);
            }
        }
        self.relations.insert(relation.id, (name, relation));
    }

    fn row(
        &mut self,
        relation: u32,
        old: Option<&Old>,
        new: Option<&Tuple>,
        events: &mut Vec<Event>,
    ) -> Result<(), StreamError> {
        let transaction = self.transaction.as_mut().ok_or(StreamError::Outside)?;
        let (table, relation) = self
            .relations
            .get(&relation)
            .ok_or(StreamError::Undescribed(relation))?;
        let Some(maps) = self.map.of(table) else {
            self.counts.unmapped += 1;
            return Ok(());
        };
        self.counts.rows += 1;
        let before = old.map(|old| Row::old(relation, old, new));
        let after = new.map(|new| Row::new(relation, new, old));
        let mut unknown = None;
        for map in maps {
            let keys = |row: &Option<Row<'_>>| match row {
                Some(row) => map.keys(row),
                None => Ok(Vec::new()),
            };
            match (keys(&before), keys(&after)) {
                (Ok(gone), Ok(there)) => {
                    let value = after.as_ref().and_then(|row| map.value(row));
                    for key in gone.into_iter().filter(|key| !there.contains(key)) {
                        transaction.tell(key, None, events);
                    }
                    for key in there {
                        transaction.tell(key, value.clone(), events);
                    }
                }
                (Err(error), _) | (_, Err(error)) => unknown = Some(error),
            }
        }
        if let Some(error) = unknown {
            let table = table.clone();
            self.unknown(table, &error, events);
        }
        Ok(())
    }

    fn unknown(&mut self, table: String, error: &Unknown, events: &mut Vec<Event>) {
        tracing::warn!(table, %error, "a row changed whose keys are not known: all the table's keys are dropped");
        self.gap(GapReason::KeyUnknown, vec![table], events);
    }

    fn truncate(&mut self, relations: &[u32], events: &mut Vec<Event>) -> Result<(), StreamError> {
        if self.transaction.is_none() {
            return Err(StreamError::Outside);
        }
        let mut tables = Vec::new();
        for id in relations {
            let relation = self.relations.get(id);
            let (table, _) = relation.ok_or(StreamError::Undescribed(*id))?;
            if self.map.of(table).is_some() {
                tables.push(table.clone());
            }
        }
        if !tables.is_empty() {
            self.gap(GapReason::Truncated, tables, events);
        }
        Ok(())
    }

    /// Declares everything of these tables out of date.
    fn gap(&mut self, reason: GapReason, tables: Vec<String>, events: &mut Vec<Event>) {
        let scope = self.map.scope(tables.iter().map(String::as_str));
        let position = match &mut self.transaction {
            Some(transaction) => {
                // What the transaction wrote before is covered as well.
                let held = transaction.refreshes.iter_mut();
                for (_, value) in held.filter(|(key, _)| scope.covers(key)) {
                    *value = None;
                }
                let told = transaction.gone.len();
                transaction.gone.extend(tables.iter().cloned());
                if transaction.gone.len() == told {
                    // Once for each table is enough: until the commit, nothing
                    // of it is stored.
                    return;
                }
                transaction.position
            }
            None => self.end,
        };
        self.counts.gaps += 1;
        events.push(Event::Gap(Gap {
            from: 0,
            to: Place {
                history: self.history.clone(),
                position,
            },
            reason,
            tables,
            scope,
        }));
    }
}

impl Transaction {
    /// A key's value is out of date; `value` is the new one, if it is told.
    fn tell(&mut self, key: Bytes, value: Option<Bytes>, events: &mut Vec<Event>) {
        let size = value.as_ref().map_or(0, |value| key.len() + value.len());
        let fits = self.refresh_bytes + size <= REFRESH_BYTES_MAX;
        let value = value.filter(|_| fits);
        if let Some(&at) = self.at.get(&key) {
            self.refreshes[at].1 = None;
        }
        match value {
            None => events.push(Event::Invalidate {
                key,
                position: self.position,
            }),
            Some(value) => {
                self.refresh_bytes += size;
                match self.at.get(&key) {
                    Some(&at) => self.refreshes[at].1 = Some(value),
                    None => {
                        self.at.insert(key.clone(), self.refreshes.len());
                        self.refreshes.push((key, Some(value)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::TableMap;
    use crate::pgoutput::{Column, Value};

    const ITEM: u32 = 7;

    fn changes() -> Changes {
        let map = TableMap::template("item/{id}").expect("a template");
        let body = |row: &Row<'_>| Ok(row.get("body")?.cloned());
        let mut changes = Changes::new(KeyMap::new().table("item", map.refreshing(body)));
        changes.begin(&Place {
            history: History("h".into()),
            position: 100,
        });
        changes
    }

    fn item() -> Message {
        let column = |name: &str, identity| Column {
            name: name.into(),
            identity,
            type_id: 25,
            type_modifier: -1,
        };
        Message::Relation(Relation {
            id: ITEM,
            schema: "public".into(),
            name: "item".into(),
            columns: vec![column("id", true), column("body", false)],
        })
    }

    fn begin(commit: u64) -> Message {
        Message::Begin { commit, xid: 5 }
    }

    fn insert(body: Vec<u8>) -> Message {
        let id = Value::Text(Bytes::from_static(b"1"));
        Message::Insert {
            relation: ITEM,
            new: vec![id, Value::Text(body.into())],
        }
    }

    fn run(messages: Vec<Message>) -> Result<Vec<Event>, StreamError> {
        let (mut changes, mut events) = (changes(), Vec::new());
        for message in messages {
            changes.handle(message, &mut events)?;
        }
        Ok(events)
    }

    #[test]
    fn what_breaks_the_protocol() {
        use StreamError::{Backwards, Nested, Outside, Undescribed};
        let commit = |end| Message::Commit { end };
        let truncate = || Message::Truncate {
            relations: vec![ITEM],
        };
        let cases = [
            (vec![begin(100), begin(101)], Nested),
            (vec![commit(101)], Outside),
            (vec![item(), insert(vec![])], Outside),
            (vec![item(), truncate()], Outside),
            (vec![begin(100), insert(vec![])], Undescribed(ITEM)),
            (vec![begin(100), truncate()], Undescribed(ITEM)),
            (vec![begin(99)], Backwards { from: 100, to: 99 }),
            (
                vec![begin(100), commit(100)],
                Backwards { from: 101, to: 100 },
            ),
        ];
        for (messages, expected) in cases {
            let shown = format!("{messages:?}");
            assert_eq!(run(messages), Err(expected), "{shown}");
        }
    }

    #[test]
    fn refreshes_wait_for_the_commit_and_their_memory_is_bounded() {
        let large = vec![b'x'; REFRESH_BYTES_MAX - 100];
        let held = vec![
            item(),
            begin(100),
            insert(b"a".to_vec()),
            insert(b"b".to_vec()),
        ];
        assert_eq!(run(held.clone()), Ok(vec![]));
        let ended = run([held, vec![Message::Commit { end: 110 }]].concat());
        let refresh = Event::Refresh {
            key: Bytes::from_static(b"item/1"),
            value: Bytes::from_static(b"b"),
            position: 101,
        };
        assert_eq!(ended, Ok(vec![refresh]));
        let too_much = run(vec![
            item(),
            begin(100),
            insert(large.clone()),
            insert(large),
            Message::Commit { end: 110 },
        ]);
        let invalidate = Event::Invalidate {
            key: Bytes::from_static(b"item/1"),
            position: 101,
        };
        assert_eq!(too_much, Ok(vec![invalidate]));
    }
}
