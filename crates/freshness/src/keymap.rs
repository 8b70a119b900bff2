//! Which keys a changed row concerns, and what becomes of them.

use crate::event::Scope;
use crate::row::{Row, Unknown};
use crate::template::{KeyTemplate, TemplateError};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Makes a row's keys.
pub type KeysOf = dyn Fn(&Row<'_>) -> Result<Vec<Bytes>, Unknown> + Send + Sync;

/// Makes a row's value; none: the key is invalidated instead.
pub type ValueOf = dyn Fn(&Row<'_>) -> Result<Option<Bytes>, Unknown> + Send + Sync;

/// What changes of a table mean for keys.
#[derive(Clone)]
pub struct TableMap {
    keys: Keys,
    value: Option<Arc<ValueOf>>,
}

#[derive(Clone)]
enum Keys {
    Template(KeyTemplate),
    Function { keys: Arc<KeysOf>, scope: Scope },
}

impl TableMap {
    /// Keys by a template like `contact/{id}`; changes invalidate them.
    ///
    /// # Errors
    /// The text is no template.
    pub fn template(text: &str) -> Result<Self, TemplateError> {
        Ok(TableMap {
            keys: Keys::Template(text.parse()?),
            value: None,
        })
    }

    /// Keys by a function; changes invalidate them. `scope` covers every key
    /// that it can give: what has to go when the table is emptied.
    pub fn function(
        scope: Scope,
        keys: impl Fn(&Row<'_>) -> Result<Vec<Bytes>, Unknown> + Send + Sync + 'static,
    ) -> Self {
        let keys = Arc::new(keys);
        TableMap {
            keys: Keys::Function { keys, scope },
            value: None,
        }
    }

    /// Inserts and updates refresh the keys with a value made of the row,
    /// where the change tells all of it.
    #[must_use]
    pub fn refreshing(
        mut self,
        value: impl Fn(&Row<'_>) -> Result<Option<Bytes>, Unknown> + Send + Sync + 'static,
    ) -> Self {
        self.value = Some(Arc::new(value));
        self
    }

    /// Inserts and updates refresh the keys with these columns, which
    /// [`read_columns`] takes apart again.
    #[must_use]
    pub fn refreshing_columns(self, columns: Vec<String>) -> Self {
        self.refreshing(move |row| write_columns(row, &columns).map(Some))
    }

    /// The template, if keys are made by one.
    pub fn key_template(&self) -> Option<&KeyTemplate> {
        match &self.keys {
            Keys::Template(template) => Some(template),
            Keys::Function { .. } => None,
        }
    }

    /// Covers every key of the table.
    pub fn scope(&self) -> Scope {
        match &self.keys {
            Keys::Function { scope, .. } => scope.clone(),
            Keys::Template(template) => match template.prefix() {
                prefix if prefix.is_empty() => Scope::All,
                prefix => Scope::Prefixes(vec![prefix]),
            },
        }
    }

    /// The row's keys.
    pub(crate) fn keys(&self, row: &Row<'_>) -> Result<Vec<Bytes>, Unknown> {
        match &self.keys {
            Keys::Template(template) => Ok(template.key(row)?.into_iter().collect()),
            Keys::Function { keys, .. } => keys(row),
        }
    }

    /// The row's value, if keys are to be refreshed and it is told.
    pub(crate) fn value(&self, row: &Row<'_>) -> Option<Bytes> {
        let value = self.value.as_ref()?;
        value(row).ok().flatten()
    }
}

impl fmt::Debug for TableMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TableMap");
        match &self.keys {
            Keys::Template(template) => shown.field("template", template),
            Keys::Function { scope, .. } => shown.field("scope", scope),
        };
        shown.field("refreshes", &self.value.is_some()).finish()
    }
}

/// What changes of all tables mean.
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    tables: BTreeMap<String, Vec<TableMap>>,
}

impl KeyMap {
    /// A map of no table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a meaning of a table's changes; a table may have several. A name
    /// without a schema is taken to be in `public`.
    #[must_use]
    pub fn table(mut self, name: &str, map: TableMap) -> Self {
        let name = match name.contains('.') {
            true => name.into(),
            false => format!("public.{name}"),
        };
        self.tables.entry(name).or_default().push(map);
        self
    }

    /// All tables, as `schema.table`, with what their changes mean.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &[TableMap])> {
        let tables = self.tables.iter();
        tables.map(|(name, maps)| (name.as_str(), maps.as_slice()))
    }

    /// What changes of a table mean, if anything.
    pub(crate) fn of(&self, table: &str) -> Option<&[TableMap]> {
        self.tables.get(table).map(Vec::as_slice)
    }

    /// Covers every key of these tables.
    pub(crate) fn scope<'a>(&self, tables: impl Iterator<Item = &'a str>) -> Scope {
        let mut prefixes = Vec::new();
        for map in tables.filter_map(|table| self.of(table)).flatten() {
            match map.scope() {
                Scope::All => return Scope::All,
                Scope::Prefixes(more) => prefixes.extend(more),
            }
        }
        prefixes.sort();
        prefixes.dedup();
        Scope::Prefixes(prefixes)
    }
}

/// The length that stands for NULL.
const NULL: u32 = u32::MAX;

/// Columns one after the other, each with its length before it.
fn write_columns(row: &Row<'_>, columns: &[String]) -> Result<Bytes, Unknown> {
    let mut bytes = BytesMut::new();
    for column in columns {
        match row.get(column)? {
            None => bytes.put_u32(NULL),
            Some(value) => {
                bytes.put_u32(value.len() as u32);
                bytes.put_slice(value);
            }
        }
    }
    Ok(bytes.freeze())
}

/// A value that [`TableMap::refreshing_columns`] did not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of a refresh ends inside of a column")]
pub struct ColumnsError;

/// The columns of a refresh, in the order in which they were asked for; none
/// is NULL.
///
/// # Errors
/// The value was not written by [`TableMap::refreshing_columns`].
pub fn read_columns(mut value: &[u8]) -> Result<Vec<Option<&[u8]>>, ColumnsError> {
    let mut columns = Vec::new();
    while !value.is_empty() {
        let (length, rest) = value.split_first_chunk().ok_or(ColumnsError)?;
        value = rest;
        let length = u32::from_be_bytes(*length);
        if length == NULL {
            columns.push(None);
            continue;
        }
        let column = value
            .split_at_checked(length as usize)
            .ok_or(ColumnsError)?;
        columns.push(Some(column.0));
        value = column.1;
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scopes_of_tables() {
        let map = |text: &str| TableMap::template(text).expect(text);
        let keys = KeyMap::new()
            .table("a", map("a/{id}"))
            .table("public.a", map("list/{owner}"))
            .table("s.b", map("{id}"));
        let prefixes = vec![Bytes::from_static(b"a/"), Bytes::from_static(b"list/")];
        assert_eq!(
            keys.scope(["public.a"].into_iter()),
            Scope::Prefixes(prefixes)
        );
        assert_eq!(keys.scope(["public.a", "s.b"].into_iter()), Scope::All);
        assert_eq!(
            keys.scope(["public.c"].into_iter()),
            Scope::Prefixes(vec![])
        );
    }

    proptest! {
        #[test]
        fn no_value_panics(value: Vec<u8>) {
            let _ = read_columns(&value);
        }
    }
}
