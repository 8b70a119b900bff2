//! The corpus of an immutable cell, as files hold it: items one after the
//! other, read as a stream, every mistake with its line number.
//!
//! | format | an item |
//! |---|---|
//! | JSON lines | `{"key":"…","value":"…"}`, or `key_base64`, `value_base64` for binary; empty lines are passed over |
//! | CSV | a header that names `key` and `value` (or `key_base64`, `value_base64`), then a row; other columns are ignored |
//!
//! Where a key occurs twice, the later item counts.
//!
//! | module | what it does |
//! |---|---|
//! | `csv_rows`, `json_lines` | the two formats |
//! | `load` | items into a member's store |
//! | `file` | a whole file, and whether it is the one that is meant |
//! | `staged` | a second corpus beside the one that is served |
//! | `turn` | who may load one |
//! | `standing` | which corpus a backend has |
//! | `fetch` | how it gets the one that is in force, if it has lost its own |

mod csv_rows;
mod fetch;
mod file;
mod json_lines;
mod load;
mod staged;
mod standing;
mod turn;

pub(crate) use fetch::run;
pub(crate) use file::{Digested, load_file};
pub(crate) use load::{Loaded, check, load};
pub(crate) use staged::Staged;
pub(crate) use standing::Standing;
pub(crate) use turn::Turn;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Read;
use std::path::Path;
use trefoil_layout::limits::KEY_LEN_MAX;

/// How a corpus is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorpusFormat {
    /// A JSON object a line.
    JsonLines,
    /// Rows under a header.
    Csv,
}

impl CorpusFormat {
    /// By the file's ending: `.csv` is CSV, everything else JSON lines.
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(ending) if ending.eq_ignore_ascii_case("csv") => CorpusFormat::Csv,
            _ => CorpusFormat::JsonLines,
        }
    }
}

/// A key and its value, and where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// 1 to 65,536 bytes.
    pub key: Vec<u8>,
    /// Any bytes, at most as many as the reader was told.
    pub value: Vec<u8>,
    /// Line of the file, from 1.
    pub line: u64,
}

/// Why a corpus cannot be read or loaded.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// An item that is not one.
    #[error("line {line}: {reason}")]
    Line {
        /// Line of the file, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file's beginning.
    #[error("the header names no column \"{0}\" (nor \"{0}_base64\")")]
    Header(&'static str),
    /// It cannot be read.
    #[error("cannot read behind line {line}: {source}")]
    Read {
        /// Last line that was read.
        line: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It cannot be opened.
    #[error("cannot open it: {0}")]
    Open(std::io::Error),
    /// More than the memory limit holds.
    #[error(
        "the corpus does not fit into the {limit} bytes that the memory limit leaves for it (line {line}): raise the limit"
    )]
    TooLarge {
        /// Line at which that was clear.
        line: u64,
        /// Bytes that there are.
        limit: u64,
    },
    /// It was told which corpus to expect.
    #[error(
        "it is not the file that was loaded: it has changed since, or another one stands there"
    )]
    OtherFile,
    /// The store cannot take it.
    #[error(transparent)]
    Reload(#[from] trefoil_store::ReloadError),
}

impl CorpusError {
    /// The same for a log, and for statistics: what is wrong with an item may quote it, and
    /// the corpus is nothing for those who may read these.
    pub(crate) fn unquoted(&self) -> String {
        match self {
            CorpusError::Line { line, .. } => format!(
                "line {line} is no item (`trefoil cell reload` of the file tells you what is wrong with it)"
            ),
            other => other.to_string(),
        }
    }
}

/// Reads a corpus item by item.
pub struct CorpusReader<R: Read> {
    format: Format<R>,
    value_len_max: usize,
}

enum Format<R: Read> {
    JsonLines(json_lines::JsonLines<R>),
    Csv(Box<csv_rows::CsvRows<R>>),
}

impl<R: Read> CorpusReader<R> {
    /// Reads from `source`; values longer than `value_len_max` are refused. Of
    /// a CSV, reads the header.
    pub fn new(source: R, format: CorpusFormat, value_len_max: usize) -> Result<Self, CorpusError> {
        // Escapes make text up to six times as long as what it stands for.
        let record_len_max = 6 * (KEY_LEN_MAX + value_len_max) + 65_536;
        let format = match format {
            CorpusFormat::JsonLines => {
                Format::JsonLines(json_lines::JsonLines::new(source, record_len_max))
            }
            CorpusFormat::Csv => {
                Format::Csv(Box::new(csv_rows::CsvRows::new(source, record_len_max)?))
            }
        };
        Ok(CorpusReader {
            format,
            value_len_max,
        })
    }

    /// The next item, put into `item`; `false` at the end.
    pub fn next(&mut self, item: &mut Item) -> Result<bool, CorpusError> {
        item.key.clear();
        item.value.clear();
        let some = match &mut self.format {
            Format::JsonLines(lines) => lines.next(item)?,
            Format::Csv(rows) => rows.next(item)?,
        };
        if some {
            let value_len_max = self.value_len_max;
            check_item(item, value_len_max).map_err(|reason| CorpusError::Line {
                line: item.line,
                reason,
            })?;
        }
        Ok(some)
    }

    /// What it reads from.
    pub(crate) fn source(&self) -> &R {
        match &self.format {
            Format::JsonLines(lines) => lines.source(),
            Format::Csv(rows) => rows.source(),
        }
    }
}

fn check_item(item: &Item, value_len_max: usize) -> Result<(), String> {
    match item.key.len() {
        0 => return Err("the key is empty".to_owned()),
        len if len > KEY_LEN_MAX => {
            return Err(format!(
                "the key has {len} bytes, at most {KEY_LEN_MAX} are possible"
            ));
        }
        _ => {}
    }
    match item.value.len() {
        len if len > value_len_max => Err(format!(
            "the value has {len} bytes, the cell allows {value_len_max}"
        )),
        _ => Ok(()),
    }
}

/// A file without line ends, or with a quote that is never closed, must not
/// fill the memory.
fn endless(line: u64, record_len_max: usize) -> CorpusError {
    CorpusError::Line {
        line,
        reason: format!(
            "the item takes more than {record_len_max} bytes: is a quote or a line end missing?"
        ),
    }
}

/// Appends what `text` stands for.
fn decode_base64(field: &str, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    STANDARD
        .decode_vec(text, out)
        .map_err(|error| format!("\"{field}\" is not base64: {error}"))
}

#[cfg(test)]
mod tests;
