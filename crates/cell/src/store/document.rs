//! What a store outside of one process holds of a cell, as JSON.
//!
//! Two releases may serve one cell. What a newer one has added and this one does not know is
//! kept when this one writes ([`Unknown`]). What this one cannot understand is refused: the
//! newer one says so by a higher `format`.

use super::ConfigStoreError;
use crate::config::CellConfig;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Incarnations of each backend, by its number, in the life of the configuration
/// beside which they stand. There and not in a place of their own: if that were
/// lost, a backend that has lost its memory would take itself for one that has
/// nothing to forget, and its votes would count.
pub type Incarnations = BTreeMap<u32, u32>;

/// The newest format of a record that this release knows. The first had no number. The second
/// names the processes of a cell whose backends are on several hosts: a release that does not
/// know these would give a place away, and leave the former process's name there.
const FORMAT: u64 = 2;
const FORMAT_SPREAD: u64 = 2;
/// Where a record says which format it has.
const FORMAT_FIELD: &str = "format";
/// What this release knows of a record and of a backend in it.
const FIELDS: [&str; 13] = [
    "life",
    "config_id",
    "cell",
    "mode",
    "backends",
    "hash",
    "value_len_max",
    "eviction",
    "flush_floor",
    "corpus",
    "incarnations",
    "change",
    FORMAT_FIELD,
];
const BACKEND_FIELDS: [&str; 4] = ["number", "addresses", "fabric_socket", "place"];

/// Fields of a record that a newer release has written and this one does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unknown {
    fields: Map<String, Value>,
    /// By number.
    of_backends: BTreeMap<u64, Map<String, Value>>,
}

impl Unknown {
    fn of(record: &Value) -> Self {
        let unknown = |value: &Value, known: &[&str]| -> Map<String, Value> {
            let fields = value.as_object().into_iter().flatten();
            fields
                .filter(|(name, _)| !known.contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let backends = record["backends"].as_array().into_iter().flatten();
        let of_backends = backends
            .filter_map(|one| Some((one["number"].as_u64()?, unknown(one, &BACKEND_FIELDS))))
            .filter(|(_, fields)| !fields.is_empty());
        Unknown {
            fields: unknown(record, &FIELDS),
            of_backends: of_backends.collect(),
        }
    }

    /// Puts them into a record that this release has made.
    fn add_to(&self, record: &mut Value) {
        let add = |into: &mut Value, fields: &Map<String, Value>| {
            for (name, value) in fields {
                // What this release writes is newer.
                if into.get(name).is_none() {
                    into[name] = value.clone();
                }
            }
        };
        add(record, &self.fields);
        let backends = record["backends"].as_array_mut();
        for backend in backends.into_iter().flatten() {
            let number = backend["number"].as_u64();
            if let Some(fields) = number.and_then(|number| self.of_backends.get(&number)) {
                add(backend, fields);
            }
        }
    }
}

/// A configuration and what stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) config: CellConfig,
    pub(super) incarnations: Incarnations,
    /// A name of the write that this came with, where its writer may have to find out
    /// whether it has written.
    pub(super) change: Option<String>,
    /// What a newer release has written.
    pub(super) unknown: Unknown,
}

/// What the JSON says beside the configuration.
#[derive(Deserialize)]
struct Beside {
    #[serde(default)]
    incarnations: Incarnations,
    #[serde(default)]
    change: Option<String>,
}

impl Document {
    /// Why not, if it is none.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let record: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        check_format(&record)?;
        // From the text: it says where it is wrong.
        let config: CellConfig = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        config.validate().map_err(|e| e.to_string())?;
        let beside: Beside = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Ok(Document {
            config,
            incarnations: beside.incarnations,
            change: beside.change,
            unknown: Unknown::of(&record),
        })
    }

    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut value = serde_json::to_value(&self.config)?;
        if !self.incarnations.is_empty() {
            value["incarnations"] = serde_json::to_value(&self.incarnations)?;
        }
        if let Some(change) = &self.change {
            value["change"] = change.as_str().into();
        }
        if self.config.is_spread() {
            value[FORMAT_FIELD] = FORMAT_SPREAD.into();
        }
        self.unknown.add_to(&mut value);
        let mut bytes = serde_json::to_vec_pretty(&value)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// What follows `current` when `next` takes its place.
    pub(super) fn after(current: Option<&Document>, next: &CellConfig) -> Self {
        // In another life nobody has anything to forget.
        let same_life = current.filter(|current| current.config.life == next.life);
        let mut incarnations = same_life.map_or_else(Incarnations::new, |d| d.incarnations.clone());
        if let Some(current) = same_life {
            // A backend that a resize adds begins with what it was given: it has something
            // to forget from now on.
            let count = |config: &CellConfig| config.backends.len() as u32;
            for number in count(&current.config)..count(next) {
                incarnations.entry(number).or_insert(1);
            }
        }
        Document {
            config: next.clone(),
            incarnations,
            change: None,
            unknown: same_life.map_or_else(Unknown::default, |d| d.unknown.clone()),
        }
    }

    /// Counts one more incarnation of backend `number` in `life`.
    pub(super) fn begin_incarnation(
        &mut self,
        number: u32,
        life: u64,
    ) -> Result<u32, ConfigStoreError> {
        if self.config.life != life {
            return Err(ConfigStoreError::StartedAnew { number });
        }
        let count = self.incarnations.entry(number).or_default();
        *count = count.saturating_add(1);
        Ok(*count)
    }
}

/// Refuses a record of a format that a newer release has made.
fn check_format(record: &Value) -> Result<(), String> {
    let found = match &record[FORMAT_FIELD] {
        Value::Null => return Ok(()),
        format => format,
    };
    match found.as_u64() {
        Some(format) if format <= FORMAT => Ok(()),
        _ => Err(format!(
            "the record has format {found}, and this release ({}) knows none above {FORMAT}: a newer release has written it; run that one here, or downgrade the cell with it first",
            env!("CARGO_PKG_VERSION")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::{BackendConfig, RpcAddress};
    use trefoil_layout::Version;

    fn config() -> CellConfig {
        let backend = |number| BackendConfig {
            number,
            addresses: vec![RpcAddress::Unix("/run/a.sock".into())],
            fabric_socket: Some("/run/a.fabric".into()),
            place: None,
        };
        CellConfig {
            life: 7,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R32,
            backends: (0..3).map(backend).collect(),
            hash: Default::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::new(5, 6, 7),
            corpus: None,
        }
    }

    fn full() -> Document {
        Document {
            config: config(),
            incarnations: Incarnations::from([(1, 2)]),
            change: Some("a change".to_owned()),
            unknown: Unknown::default(),
        }
    }

    fn as_json(document: &Document) -> Value {
        serde_json::from_slice(&document.to_bytes().unwrap()).unwrap()
    }

    fn parse(record: &Value) -> Result<Document, String> {
        Document::parse(record.to_string().as_bytes())
    }

    #[test]
    fn every_field_that_is_written_is_known() {
        let mut all = full();
        // As one on this host alone.
        assert_eq!(as_json(&all)[FORMAT_FIELD], Value::Null);
        for backend in &mut all.config.backends {
            backend.place = Some("a boot:1:2".to_owned());
        }
        all.config.mode = Mode::R2;
        all.config.corpus = Some(crate::CorpusId {
            digest: crate::CorpusDigest(1 << 100),
            len: 3,
            first: Version::new(1, 2, 3),
            path: None,
        });
        let record = as_json(&all);
        let names = |value: &Value| -> Vec<String> {
            let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            names.sort_unstable();
            names
        };
        let sorted = |names: &[&str]| {
            let mut names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&record), sorted(&FIELDS));
        assert_eq!(record[FORMAT_FIELD], FORMAT_SPREAD);
        assert_eq!(names(&record["backends"][0]), sorted(&BACKEND_FIELDS));
        assert_eq!(parse(&record), Ok(all));
    }

    #[test]
    fn what_a_newer_release_has_added_is_kept_through_changes_of_one_life() {
        let mut record = as_json(&full());
        record["resize"] = serde_json::json!({"to": 5});
        record["backends"][1]["host"] = "b".into();
        record["format"] = FORMAT.into();
        let document = parse(&record).unwrap();
        let flushed = config().flushed(Version::new(8, 8, 8)).unwrap();
        let next = as_json(&Document::after(Some(&document), &flushed));
        assert_eq!(next["resize"], record["resize"]);
        assert_eq!(next["backends"][1]["host"], "b");
        assert_eq!(next["backends"][0]["host"], Value::Null);
        assert_eq!(next["config_id"], 2);
        assert_eq!(next["incarnations"], record["incarnations"]);
        // Whoever starts the cell anew makes it what it knows.
        let other_life = CellConfig {
            life: 8,
            ..config()
        };
        let next = as_json(&Document::after(Some(&document), &other_life));
        assert_eq!(next["resize"], Value::Null);
        assert_eq!(next["backends"][1]["host"], Value::Null);
    }

    #[test]
    fn a_record_of_a_newer_format_is_refused_with_what_to_do() {
        for format in [
            Value::from(FORMAT + 1),
            Value::from("next"),
            Value::from(-1),
        ] {
            let mut record = as_json(&full());
            record["format"] = format;
            // Whatever else it means there.
            record["mode"] = "R=5".into();
            let said = parse(&record).unwrap_err();
            for text in ["a newer release", "run that one here"] {
                assert!(said.contains(text), "{said}");
            }
        }
    }
}
