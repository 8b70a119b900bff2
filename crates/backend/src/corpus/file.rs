//! A corpus' file, read again: only the very bytes that were loaded are taken.

use super::load::{Loaded, load};
use super::{CorpusError, CorpusFormat, CorpusReader};
use crate::member::Member;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use trefoil_cell::{CorpusDigester, CorpusId};
use trefoil_layout::Version;

/// Passes bytes on and takes their digest.
pub(crate) struct Digested<R> {
    source: R,
    digester: CorpusDigester,
}

impl<R: Read> Digested<R> {
    pub(crate) fn new(source: R) -> Self {
        Digested {
            source,
            digester: CorpusDigester::default(),
        }
    }

    /// Whether all that has come by, to the end, is the corpus' file.
    pub(crate) fn check(&self, corpus: &CorpusId) -> Result<(), CorpusError> {
        match self.digester.finish() == (corpus.digest, corpus.len) {
            true => Ok(()),
            false => Err(CorpusError::OtherFile),
        }
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(into)?;
        self.digester.add(&into[..len]);
        Ok(len)
    }
}

/// Ends with an error when it is told to, and why.
struct Until<'u, R> {
    source: R,
    is_over: &'u dyn Fn() -> Option<String>,
}

impl<R: Read> Read for Until<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match (self.is_over)() {
            Some(why) => Err(io::Error::other(why)),
            None => self.source.read(into),
        }
    }
}

/// Loads the items of `path` that belong to `member`. If it is said which corpus that has
/// to be, another file is refused, at its end at the latest.
pub(crate) fn load_file(
    member: &Member,
    path: &Path,
    corpus: Option<&CorpusId>,
    (first, value_len_max): (Version, usize),
    is_over: &dyn Fn() -> Option<String>,
) -> Result<Loaded, CorpusError> {
    let metadata = std::fs::metadata(path).map_err(CorpusError::Open)?;
    // Nobody waits for what comes out of a pipe.
    if !metadata.is_file() {
        let source = io::Error::other("it is no file");
        return Err(CorpusError::Open(source));
    }
    if corpus.is_some_and(|corpus| corpus.len != metadata.len()) {
        return Err(CorpusError::OtherFile);
    }
    let source = File::open(path).map_err(CorpusError::Open)?;
    let source = Digested::new(Until { source, is_over });
    let mut reader = CorpusReader::new(source, CorpusFormat::of(path), value_len_max)?;
    let loaded = load(member, &mut reader, first);
    match (loaded, corpus) {
        (Ok(loaded), Some(corpus)) => {
            reader.source().check(corpus)?;
            Ok(loaded)
        }
        (loaded, _) => loaded,
    }
}
