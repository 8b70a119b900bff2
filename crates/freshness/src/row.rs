//! A row as a change tells it: some columns may be missing.

use crate::pgoutput::{Old, Relation, Tuple, Value};
use bytes::Bytes;

/// A row of a table, before or after a change.
pub struct Row<'a> {
    relation: &'a Relation,
    which: Which<'a>,
}

enum Which<'a> {
    New {
        new: &'a Tuple,
        old: Option<&'a Old>,
    },
    /// `new` is there where the change has one: its identity is the old row's,
    /// unless the change tells another.
    Old {
        old: &'a Old,
        new: Option<&'a Tuple>,
    },
}

/// A column's value that the change does not tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// There is no such column.
    #[error("there is no column {0}")]
    Missing(String),
    /// It is not part of the replica identity, or too large to be told again.
    #[error("column {0} is not told by the change; REPLICA IDENTITY FULL would tell it")]
    Untold(String),
}

impl<'a> Row<'a> {
    /// The row after an insert or update.
    pub(crate) fn new(relation: &'a Relation, new: &'a Tuple, old: Option<&'a Old>) -> Self {
        let which = Which::New { new, old };
        Row { relation, which }
    }

    /// The row before an update or delete.
    pub(crate) fn old(relation: &'a Relation, old: &'a Old, new: Option<&'a Tuple>) -> Self {
        let which = Which::Old { old, new };
        Row { relation, which }
    }

    /// The table, as `schema.table`.
    pub fn table(&self) -> String {
        self.relation.full_name()
    }

    /// The names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.relation
            .columns
            .iter()
            .map(|column| column.name.as_str())
    }

    /// A column's value in the server's text form; none is NULL.
    ///
    /// # Errors
    /// There is no such column, or the change does not tell its value. Return
    /// this error from a function that makes keys: the relay then declares a
    /// gap instead of missing the change.
    pub fn get(&self, column: &str) -> Result<Option<&'a Bytes>, Unknown> {
        let at = self.relation.columns.iter().position(|c| c.name == column);
        let at = at.ok_or_else(|| Unknown::Missing(column.into()))?;
        let identity = self.relation.columns[at].identity;
        let value = match self.which {
            Which::New { new, old } => told(new, at).or_else(|| before(old?, at, identity)),
            Which::Old { old, new } => {
                before(old, at, identity).or_else(|| match old {
                    // The identity did not change: the new row has it too.
                    Old::Same if identity => told(new?, at),
                    _ => None,
                })
            }
        };
        match value {
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(None),
            Some(Value::Unchanged) | None => Err(Unknown::Untold(column.into())),
        }
    }
}

fn told(tuple: &Tuple, at: usize) -> Option<&Value> {
    tuple.get(at).filter(|value| **value != Value::Unchanged)
}

fn before(old: &Old, at: usize, identity: bool) -> Option<&Value> {
    match old {
        Old::Same => None,
        // What is outside of the identity looks like NULL, but is not told.
        Old::Identity(tuple) => told(tuple, at).filter(|_| identity),
        Old::Full(tuple) => told(tuple, at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::Column;

    fn relation() -> Relation {
        let column = |name: &str, identity| Column {
            name: name.into(),
            identity,
            type_id: 25,
            type_modifier: -1,
        };
        Relation {
            id: 1,
            schema: "s".into(),
            name: "t".into(),
            columns: vec![column("id", true), column("body", false)],
        }
    }

    fn text(value: &'static str) -> Value {
        Value::Text(Bytes::from_static(value.as_bytes()))
    }

    /// What is told of both columns: a value, NULL, or nothing.
    fn shown(row: &Row<'_>) -> String {
        let cell = |name| match row.get(name) {
            Ok(Some(value)) => String::from_utf8_lossy(value).into_owned(),
            Ok(None) => "NULL".into(),
            Err(_) => "?".into(),
        };
        format!("{} {}", cell("id"), cell("body"))
    }

    #[test]
    fn what_changes_tell() {
        let relation = relation();
        let new = |new: Tuple, old: Old| shown(&Row::new(&relation, &new, Some(&old)));
        let old = |new: Tuple, old: Old| shown(&Row::old(&relation, &old, Some(&new)));
        let row = || vec![text("2"), text("b")];
        let toast = || vec![text("2"), Value::Unchanged];
        let key = || Old::Identity(vec![text("1"), Value::Null]);
        let full = || Old::Full(vec![text("1"), text("a")]);

        assert_eq!(new(row(), Old::Same), "2 b");
        assert_eq!(new(toast(), Old::Same), "2 ?");
        assert_eq!(new(toast(), key()), "2 ?");
        assert_eq!(new(toast(), full()), "2 a");
        assert_eq!(new(vec![Value::Null, text("b")], full()), "NULL b");

        assert_eq!(old(row(), Old::Same), "2 ?");
        assert_eq!(old(row(), key()), "1 ?");
        assert_eq!(old(row(), full()), "1 a");
        let large = vec![Value::Unchanged, text("b")];
        assert_eq!(old(large.clone(), Old::Same), "? ?");
        assert_eq!(new(large, key()), "1 b");
    }

    #[test]
    fn missing_columns_and_short_tuples_are_errors() {
        let relation = relation();
        let short = vec![text("1")];
        let row = Row::new(&relation, &short, None);
        assert_eq!(row.get("body"), Err(Unknown::Untold("body".into())));
        assert_eq!(row.get("none"), Err(Unknown::Missing("none".into())));
    }
}
