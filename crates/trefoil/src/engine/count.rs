//! How many threads an engine reads by.

use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;

/// So many, or by load between two numbers: `2`, `1..4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineCount {
    pub(crate) least: usize,
    pub(crate) most: usize,
}

impl From<usize> for EngineCount {
    fn from(count: usize) -> Self {
        EngineCount {
            least: count,
            most: count,
        }
    }
}

impl fmt::Display for EngineCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.least),
            false => write!(f, "{}..{}", self.least, self.most),
        }
    }
}

impl FromStr for EngineCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.parse::<usize>();
            number.map_err(|_| "give a number of threads, or the fewest and the most: 1..4")
        };
        Ok(match text.split_once("..") {
            None => number(text)?.into(),
            Some((least, most)) => EngineCount {
                least: number(least)?,
                most: number(most)?,
            },
        })
    }
}

/// In a file a number, or a text as on the command line.
impl<'de> Deserialize<'de> for EngineCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number of threads, or \"1..4\"")]
        enum Count {
            Number(usize),
            Text(String),
        }
        match Count::deserialize(from)? {
            Count::Number(count) => Ok(count.into()),
            Count::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in ["1", "2", "1..4"] {
            assert_eq!(text.parse::<EngineCount>().unwrap().to_string(), text);
        }
        for wrong in ["", "..", "1..", "..4", "1...4", "-1", "1-4", "many"] {
            let said = wrong.parse::<EngineCount>().unwrap_err();
            assert!(said.contains("1..4"), "{wrong}: {said}");
        }
        #[derive(Deserialize)]
        struct File {
            engines: EngineCount,
        }
        for (text, least, most) in [("engines = 3", 3, 3), ("engines = '1..4'", 1, 4)] {
            let file: File = toml::from_str(text).unwrap();
            assert_eq!(file.engines, EngineCount { least, most });
        }
        assert!(toml::from_str::<File>("engines = 'many'").is_err());
    }
}
