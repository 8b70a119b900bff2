//! JSON lines.

use super::{CorpusError, Item, decode_base64};
use serde::Deserialize;
use std::borrow::Cow;
use std::io::{BufRead as _, BufReader, Read};

/// What a line may hold. Unknown names are mistakes: a misspelt `value` must
/// not load as an empty one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key_base64: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value_base64: Option<Cow<'a, str>>,
}

pub(super) struct JsonLines<R: Read> {
    source: BufReader<R>,
    record_len_max: usize,
    text: Vec<u8>,
    line: u64,
}

impl<R: Read> JsonLines<R> {
    pub(super) fn new(source: R, record_len_max: usize) -> Self {
        JsonLines {
            record_len_max,
            source: BufReader::with_capacity(64 << 10, source),
            text: Vec::new(),
            line: 0,
        }
    }

    pub(super) fn source(&self) -> &R {
        self.source.get_ref()
    }

    pub(super) fn next(&mut self, item: &mut Item) -> Result<bool, CorpusError> {
        loop {
            self.text.clear();
            let len_max = self.record_len_max;
            let mut source = self.source.by_ref().take(len_max as u64);
            let count = source.read_until(b'\n', &mut self.text);
            let line = self.line;
            match count.map_err(|source| CorpusError::Read { line, source })? {
                0 => return Ok(false),
                count if count == len_max => return Err(super::endless(line + 1, len_max)),
                _ => self.line += 1,
            }
            if self.text.trim_ascii().is_empty() {
                continue;
            }
            item.line = self.line;
            return match parse(self.text.trim_ascii(), item) {
                Ok(()) => Ok(true),
                Err(reason) => Err(CorpusError::Line {
                    line: self.line,
                    reason,
                }),
            };
        }
    }
}

fn parse(text: &[u8], item: &mut Item) -> Result<(), String> {
    let line: Line<'_> = serde_json::from_slice(text).map_err(|error| {
        // The parser sees one line only: its line number would mislead.
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or(&reason);
        format!("{reason} (column {})", error.column())
    })?;
    take("key", line.key, line.key_base64, &mut item.key)?;
    take("value", line.value, line.value_base64, &mut item.value)
}

fn take(
    name: &str,
    plain: Option<Cow<'_, str>>,
    coded: Option<Cow<'_, str>>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    match (plain, coded) {
        (Some(text), None) => {
            out.extend_from_slice(text.as_bytes());
            Ok(())
        }
        (None, Some(text)) => decode_base64(&format!("{name}_base64"), text.as_bytes(), out),
        (None, None) => Err(format!("neither \"{name}\" nor \"{name}_base64\" is given")),
        (Some(_), Some(_)) => Err(format!("both \"{name}\" and \"{name}_base64\" are given")),
    }
}
