//! The text format of the ARC paper's traces: `start count ignore id` per line,
//! meaning `count` blocks from `start` on. Read as a stream, whether compressed
//! with zstd or not.

use super::zstd::{self, ZstdReader};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// The trace OLTP, as the repository carries it.
pub const OLTP: &[u8] = include_bytes!("../../data/OLTP.lis.zst");

/// Longer lines are not of this format; a binary file may have no line end at all.
const LINE_LEN_MAX: u64 = 256;
/// More blocks in one request than any disk moves at once.
const COUNT_MAX: u64 = 1 << 24;
const SHOWN_LEN_MAX: usize = 60;

/// Why a trace cannot be read. Ends the trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// No such file, or not ours to read.
    #[error("cannot open trace {path}: {source}")]
    Open {
        /// The file.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Reading or decompressing stopped.
    #[error("trace, after line {line}: {source}")]
    Read {
        /// The last line that was read.
        line: u64,
        /// What went wrong.
        source: io::Error,
    },
    /// A line of another format.
    #[error(
        "trace, line {line}: {problem}, in {text:?} (expected `start count ignore id`, four numbers)"
    )]
    Malformed {
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: &'static str,
        /// The beginning of it.
        text: String,
    },
    /// More distinct blocks than can be numbered.
    #[error("trace has more than {max} distinct blocks")]
    TooManyObjects {
        /// The limit.
        max: u64,
    },
}

/// Iterates over the block references of a trace.
pub struct TraceReader {
    input: Box<dyn BufRead + Send>,
    line: u64,
    buffer: Vec<u8>,
    next: u64,
    left: u64,
    is_done: bool,
}

impl std::fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceReader")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl TraceReader {
    /// Opens a trace file.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let fail = |source| TraceError::Open {
            path: path.display().to_string(),
            source,
        };
        let file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        Self::new(file)
    }

    /// Reads a trace from anything; what it starts with tells whether it is
    /// compressed.
    pub fn new(mut input: impl Read + Send + 'static) -> Result<Self, TraceError> {
        let fail = |source| TraceError::Read { line: 0, source };
        let mut head = Vec::with_capacity(4);
        input
            .by_ref()
            .take(4)
            .read_to_end(&mut head)
            .map_err(fail)?;
        let is_compressed = head == zstd::MAGIC;
        let whole = Cursor::new(head).chain(input);
        let input: Box<dyn BufRead + Send> = if is_compressed {
            let packed = BufReader::with_capacity(1 << 16, whole);
            Box::new(BufReader::with_capacity(1 << 16, ZstdReader::new(packed)))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, whole))
        };
        Ok(Self {
            input,
            line: 0,
            buffer: Vec::with_capacity(64),
            next: 0,
            left: 0,
            is_done: false,
        })
    }

    /// The next line's first block and number of blocks; nothing at the end.
    fn next_line(&mut self) -> Result<Option<(u64, u64)>, TraceError> {
        loop {
            self.buffer.clear();
            let line = self.line;
            let len = self
                .input
                .by_ref()
                .take(LINE_LEN_MAX)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| TraceError::Read { line, source })?;
            if len == 0 {
                return Ok(None);
            }
            self.line += 1;
            if len as u64 == LINE_LEN_MAX && self.buffer.last() != Some(&b'\n') {
                return Err(self.malformed("the line is too long"));
            }
            if !self.buffer.trim_ascii().is_empty() {
                return match parse(&self.buffer) {
                    Ok(blocks) => Ok(Some(blocks)),
                    Err(problem) => Err(self.malformed(problem)),
                };
            }
        }
    }

    fn malformed(&self, problem: &'static str) -> TraceError {
        let shown = self.buffer.trim_ascii();
        TraceError::Malformed {
            line: self.line,
            problem,
            text: String::from_utf8_lossy(&shown[..shown.len().min(SHOWN_LEN_MAX)]).into_owned(),
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<u64, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left == 0 {
            if self.is_done {
                return None;
            }
            match self.next_line() {
                Ok(Some((start, count))) => (self.next, self.left) = (start, count),
                Ok(None) => self.is_done = true,
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
        }
        let block = self.next;
        // Checked when the line was parsed: only the block after the last wraps.
        self.next = block.wrapping_add(1);
        self.left -= 1;
        Some(Ok(block))
    }
}

fn parse(line: &[u8]) -> Result<(u64, u64), &'static str> {
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .map(|field| {
            std::str::from_utf8(field)
                .ok()
                .and_then(|digits| digits.parse::<u64>().ok())
                .ok_or("a field is not a number")
        });
    let mut field = || fields.next().unwrap_or(Err("fields are missing"));
    let (start, count) = (field()?, field()?);
    field()?;
    field()?;
    if fields.next().is_some() {
        return Err("there are more than four fields");
    }
    if count > COUNT_MAX {
        return Err("the number of blocks is beyond reason");
    }
    if count > 0 && start.checked_add(count - 1).is_none() {
        return Err("the blocks end beyond 64 bits");
    }
    Ok((start, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn read(text: &'static [u8]) -> Result<Vec<u64>, TraceError> {
        TraceReader::new(text)?.collect()
    }

    #[test]
    fn lines_expand_into_blocks() {
        assert_eq!(
            read(b"10 3 0 1\n\n  7\t1 0 2\r\n5 0 0 3\n18446744073709551615 1 0 4").unwrap(),
            [10, 11, 12, 7, u64::MAX]
        );
        assert!(read(b"").unwrap().is_empty());
    }

    #[test]
    fn compressed_reads_like_plain() {
        let plain = b"10 3 0 1\n20 2 0 2\n";
        let packed = compress_to_vec(&plain[..], CompressionLevel::Fastest);
        let blocks: Result<Vec<u64>, _> = TraceReader::new(Cursor::new(packed)).unwrap().collect();
        assert_eq!(blocks.unwrap(), [10, 11, 12, 20, 21]);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, line, problem) in [
            (&b"1 1 0 1\n1 1 0\n"[..], 2, "missing"),
            (b"1 1 0 1\n\n1 x 0 1\n", 3, "not a number"),
            (b"-1 1 0 1\n", 1, "not a number"),
            (b"1 1 0 1 9\n", 1, "more than four"),
            (b"1 99999999 0 1\n", 1, "beyond reason"),
            (b"18446744073709551615 2 0 1\n", 1, "64 bits"),
            (b"1 99999999999999999999 0 1\n", 1, "not a number"),
            (&[b'x'; 1000], 1, "too long"),
            (&[0xff, 0xfe, 0x00, b'\n'], 1, "not a number"),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(&format!("line {line}:")), "{message}");
            assert!(message.contains(problem), "{message}");
        }
    }

    #[test]
    fn an_error_ends_the_trace() {
        let mut reader = TraceReader::new(&b"1 1 0 1\nx\n2 1 0 1\n"[..]).unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), 1);
        assert!(reader.next().unwrap().is_err());
        assert!(reader.next().is_none());
    }

    #[test]
    fn truncated_compression_is_an_error() {
        let mut blocks = TraceReader::new(&OLTP[..100_000]).unwrap();
        let error = blocks.find_map(Result::err).unwrap().to_string();
        assert!(error.contains("after line"), "{error}");
        assert!(TraceReader::open(Path::new("/")).is_err());
        assert!(TraceReader::open(Path::new("/nowhere")).is_err());
    }
}
