//! Which corpus an immutable cell serves: what the file was that it was read from.

use crate::config::ConfigError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};
use trefoil_layout::Version;
use twox_hash::XxHash3_128;

/// Bytes that are read at once to take a file's digest.
const READ_LEN: usize = 256 * 1024;

/// The corpus of an immutable cell. Two of one cell are the same if all of this is: a
/// file that is loaded again is another corpus, because its items have other versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorpusId {
    /// Of the file.
    pub digest: CorpusDigest,
    /// Bytes of the file.
    pub len: u64,
    /// Of the first item; the others' follow in the order of the file, so that all
    /// replicas give an item the same version, whenever they read it.
    #[serde(with = "crate::config::version_text")]
    pub first: Version,
    /// Where the file was, at whoever loaded it: an absolute path. A backend that has lost
    /// its memory looks there, if no replica has the corpus. Whether it finds the same
    /// file, the digest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl CorpusId {
    /// Refuses what nobody can have loaded.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        match self.first.is_zero() {
            true => Err(ConfigError::CorpusVersion),
            false => Ok(()),
        }
    }
}

impl fmt::Display for CorpusId {
    /// For people: what tells it from others, and where it came from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes", self.digest, self.len)?;
        match &self.path {
            Some(path) => write!(f, ", {path})"),
            None => f.write_str(")"),
        }
    }
}

/// XXH3-128 of a file's bytes: tells files apart that changed by accident or on purpose of
/// their owner, not those of an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CorpusDigest(pub u128);

impl fmt::Display for CorpusDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for CorpusDigest {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CorpusDigest {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Some(&text)
            .filter(|text| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|text| u128::from_str_radix(text, 16).ok())
            .map(CorpusDigest)
            .ok_or_else(|| {
                serde::de::Error::custom("a corpus' digest is exactly 32 hexadecimal digits")
            })
    }
}

/// Takes a digest of bytes as they come by.
pub struct CorpusDigester {
    hasher: XxHash3_128,
    len: u64,
}

impl Default for CorpusDigester {
    fn default() -> Self {
        CorpusDigester {
            hasher: XxHash3_128::new(),
            len: 0,
        }
    }
}

impl CorpusDigester {
    /// The next ones.
    pub fn add(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
        self.len += bytes.len() as u64;
    }

    /// Of all that came by, and how many bytes it were.
    pub fn finish(&self) -> (CorpusDigest, u64) {
        (CorpusDigest(self.hasher.finish_128()), self.len)
    }

    /// Of everything that `source` gives.
    pub fn of(mut source: impl Read) -> io::Result<(CorpusDigest, u64)> {
        let mut digester = CorpusDigester::default();
        let mut bytes = vec![0; READ_LEN];
        loop {
            match source.read(&mut bytes) {
                Ok(0) => return Ok(digester.finish()),
                Ok(len) => digester.add(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for CorpusDigester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CorpusDigester")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_does_not_depend_on_how_the_bytes_come() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7) as u8).collect();
        let whole = CorpusDigester::of(&bytes[..]).unwrap();
        let mut parts = CorpusDigester::default();
        bytes.chunks(1001).for_each(|part| parts.add(part));
        assert_eq!(parts.finish(), whole);
        assert_eq!(whole.1, 1_000_000);
        let mut other = bytes.clone();
        other[500_000] ^= 1;
        assert_ne!(CorpusDigester::of(&other[..]).unwrap().0, whole.0);
        assert_ne!(CorpusDigester::of(&bytes[1..]).unwrap().0, whole.0);
    }

    #[test]
    fn it_comes_back_from_json() {
        let corpus = CorpusId {
            digest: CorpusDigest(0xabc),
            len: 5,
            first: Version::new(7, 1, 0),
            path: Some("/srv/corpus.csv".to_owned()),
        };
        let text = serde_json::to_string(&corpus).unwrap();
        assert!(
            text.contains("\"00000000000000000000000000000abc\""),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<CorpusId>(&text).unwrap(), corpus);
        for bad in ["abc", "", "+0000000000000000000000000000abc"] {
            let text = text.replace("00000000000000000000000000000abc", bad);
            assert!(serde_json::from_str::<CorpusId>(&text).is_err(), "{bad}");
        }
    }
}
