//! CSV with a header.
//!
//! On the parser's core, not its comfortable reader: that one counts a line
//! too few for files with CR LF, and would read a quote that is never closed
//! into memory whole.

use super::{CorpusError, Item, decode_base64};
use csv_core::{ReadRecordResult, Reader};
use std::io::{BufRead as _, BufReader, Read};

pub(super) struct CsvRows<R: Read> {
    source: BufReader<R>,
    parser: Reader,
    row: Row,
    record_len_max: usize,
    /// Line of the next byte, from 1.
    line: u64,
    field_count: usize,
    key: Column,
    value: Column,
}

/// The fields of one row, one after the other.
struct Row {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
    line: u64,
}

impl Row {
    fn field(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }

    fn position(&self, name: &str) -> Option<usize> {
        (0..self.count).find(|&index| self.field(index) == name.as_bytes())
    }
}

#[derive(Clone, Copy)]
struct Column {
    index: usize,
    coded: bool,
    name: &'static str,
}

impl Column {
    fn find(header: &Row, name: &'static str) -> Result<Self, CorpusError> {
        let coded = header.position(&format!("{name}_base64"));
        let (index, coded) = match (header.position(name), coded) {
            (Some(index), None) => (index, false),
            (None, Some(index)) => (index, true),
            (None, None) => return Err(CorpusError::Header(name)),
            (Some(_), Some(_)) => {
                return Err(CorpusError::Line {
                    line: header.line,
                    reason: format!("the header names both \"{name}\" and \"{name}_base64\""),
                });
            }
        };
        Ok(Column { index, coded, name })
    }

    fn take(self, row: &Row, out: &mut Vec<u8>) -> Result<(), String> {
        let field = row.field(self.index);
        if self.coded {
            return decode_base64(&format!("{}_base64", self.name), field, out);
        }
        out.extend_from_slice(field);
        Ok(())
    }
}

impl<R: Read> CsvRows<R> {
    pub(super) fn source(&self) -> &R {
        self.source.get_ref()
    }

    pub(super) fn new(source: R, record_len_max: usize) -> Result<Self, CorpusError> {
        let nowhere = Column {
            index: 0,
            coded: false,
            name: "",
        };
        let mut rows = CsvRows {
            source: BufReader::with_capacity(64 << 10, source),
            parser: Reader::new(),
            row: Row {
                bytes: vec![0; 4096],
                ends: vec![0; 16],
                count: 0,
                line: 1,
            },
            record_len_max,
            line: 1,
            field_count: 0,
            key: nowhere,
            value: nowhere,
        };
        rows.read_row()?;
        rows.field_count = rows.row.count;
        rows.key = Column::find(&rows.row, "key")?;
        rows.value = Column::find(&rows.row, "value")?;
        Ok(rows)
    }

    pub(super) fn next(&mut self, item: &mut Item) -> Result<bool, CorpusError> {
        if !self.read_row()? {
            return Ok(false);
        }
        item.line = self.row.line;
        let (row, expected) = (&self.row, self.field_count);
        let taken = match row.count == expected {
            true => self
                .key
                .take(row, &mut item.key)
                .and_then(|()| self.value.take(row, &mut item.value)),
            false => Err(format!(
                "the row has {} fields, the header {expected}",
                row.count
            )),
        };
        taken.map_err(|reason| CorpusError::Line {
            line: item.line,
            reason,
        })?;
        Ok(true)
    }

    /// Reads the next row; `false` at the end of the file.
    fn read_row(&mut self) -> Result<bool, CorpusError> {
        self.skip_line_ends()?;
        self.row.line = self.line;
        let (mut byte_count, mut end_count, mut read) = (0, 0, 0);
        loop {
            let line = self.line;
            let input = self.source.fill_buf();
            let input = input.map_err(|source| CorpusError::Read { line, source })?;
            let row = &mut self.row;
            let (result, consumed, bytes, ends) = self.parser.read_record(
                input,
                &mut row.bytes[byte_count..],
                &mut row.ends[end_count..],
            );
            self.line += input[..consumed].iter().filter(|b| **b == b'\n').count() as u64;
            self.source.consume(consumed);
            byte_count += bytes;
            end_count += ends;
            read += consumed;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => row.bytes.resize(row.bytes.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => row.ends.resize(row.ends.len() * 2, 0),
                ReadRecordResult::Record => {
                    row.count = end_count;
                    return Ok(true);
                }
                ReadRecordResult::End => {
                    row.count = 0;
                    return Ok(false);
                }
            }
            if read > self.record_len_max {
                return Err(super::endless(row.line, self.record_len_max));
            }
        }
    }

    /// Passes over blank lines, and over what a row's end has left.
    fn skip_line_ends(&mut self) -> Result<(), CorpusError> {
        loop {
            let line = self.line;
            let input = self.source.fill_buf();
            let input = input.map_err(|source| CorpusError::Read { line, source })?;
            let blank = input.iter().take_while(|b| matches!(**b, b'\r' | b'\n'));
            let (mut count, mut lines) = (0, 0);
            for byte in blank {
                count += 1;
                lines += u64::from(*byte == b'\n');
            }
            self.line += lines;
            self.source.consume(count);
            if count == 0 {
                return Ok(());
            }
        }
    }
}
