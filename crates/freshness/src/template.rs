//! Keys written as templates: `contact/{id}`.

use crate::row::{Row, Unknown};
use bytes::Bytes;
use std::str::FromStr;

/// How a row's key is put together from its columns. Braces around a column's
/// name stand for its value in text form; doubled braces for themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Column(String),
}

/// A text that is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace has no partner.
    #[error("{0:?} has a brace without its partner: write a column as {{name}}, a brace twice")]
    Brace(String),
    /// A pair of braces names nothing.
    #[error("{0:?} has braces without a column's name")]
    Empty(String),
    /// All rows would have one key.
    #[error("{0:?} names no column: every row would have the same key")]
    Constant(String),
}

impl FromStr for KeyTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '{' | '}' if rest.peek() == Some(&c) => {
                    rest.next();
                    literal.push(c);
                }
                '{' => {
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    let mut name = String::new();
                    loop {
                        match rest.next() {
                            Some('}') => break,
                            Some('{') | None => return Err(TemplateError::Brace(text.into())),
                            Some(c) => name.push(c),
                        }
                    }
                    if name.is_empty() {
                        return Err(TemplateError::Empty(text.into()));
                    }
                    parts.push(Part::Column(name));
                }
                '}' => return Err(TemplateError::Brace(text.into())),
                c => literal.push(c),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        if !parts.iter().any(|part| matches!(part, Part::Column(_))) {
            return Err(TemplateError::Constant(text.into()));
        }
        Ok(KeyTemplate { parts })
    }
}

impl KeyTemplate {
    /// The columns that it names.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// What every key begins with; possibly nothing.
    pub fn prefix(&self) -> Bytes {
        match self.parts.first() {
            Some(Part::Literal(text)) => Bytes::copy_from_slice(text.as_bytes()),
            _ => Bytes::new(),
        }
    }

    /// The row's key; none if one of the columns is NULL.
    ///
    /// # Errors
    /// A column is not told.
    pub fn key(&self, row: &Row<'_>) -> Result<Option<Bytes>, Unknown> {
        let mut key = Vec::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => key.extend_from_slice(text.as_bytes()),
                Part::Column(name) => match row.get(name)? {
                    Some(value) => key.extend_from_slice(value),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(key.into()))
    }

    /// The key as an SQL expression over a row variable of a trigger; NULL if
    /// a column is. Values are in the text form that the stream has where the server
    /// sets nothing else, if the settings are those of [`notify_sql`](crate::notify_sql).
    pub(crate) fn sql(&self, row: &str) -> String {
        let column = |name: &str| format!("{row}.{}", quote_name(name));
        let nulls: Vec<String> = self
            .columns()
            .map(|name| format!("{} IS NULL", column(name)))
            .collect();
        let parts: Vec<String> = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Literal(text) => quote_literal(text),
                Part::Column(name) => format!("pg_catalog.format('%s', {})", column(name)),
            })
            .collect();
        let (nulls, parts) = (nulls.join(" OR "), parts.join(" || "));
        format!("CASE WHEN {nulls} THEN NULL ELSE {parts} END")
    }
}

/// A text as an SQL literal, whatever the server's setting for backslashes.
pub(crate) fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''").replace('\\', "\\\\");
    let escape = if text.contains('\\') { " E" } else { "" };
    format!("{escape}'{doubled}'")
}

/// A name as an SQL identifier.
pub(crate) fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cases() {
        let columns = |text: &str| {
            let template: KeyTemplate = text.parse().expect(text);
            let names: Vec<String> = template.columns().map(Into::into).collect();
            (template.prefix(), names)
        };
        assert_eq!(
            columns("contact/{id}"),
            ("contact/".into(), vec!["id".into()])
        );
        assert_eq!(columns("{a}{b}x").1, ["a", "b"]);
        assert_eq!(columns("{{{a}}}").0, Bytes::from_static(b"{"));
        let errors = ["{a", "a}{b}", "{a{b}}"];
        for text in errors {
            let expected = TemplateError::Brace(text.into());
            assert_eq!(text.parse::<KeyTemplate>(), Err(expected));
        }
        assert_eq!(
            "{}".parse::<KeyTemplate>(),
            Err(TemplateError::Empty("{}".into()))
        );
        assert_eq!(
            "x".parse::<KeyTemplate>(),
            Err(TemplateError::Constant("x".into()))
        );
    }

    #[test]
    fn sql_is_quoted() {
        let template: KeyTemplate = "o'x/{a\"b}".parse().expect("a template");
        let sql = "CASE WHEN NEW.\"a\"\"b\" IS NULL THEN NULL \
                   ELSE 'o''x/' || pg_catalog.format('%s', NEW.\"a\"\"b\") END";
        assert_eq!(template.sql("NEW"), sql);
        assert_eq!(quote_literal("a\\b"), " E'a\\\\b'");
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<KeyTemplate>();
        }
    }
}
