//! What a store outside of one process holds of a cell, as JSON.

use super::ConfigStoreError;
use crate::config::CellConfig;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Incarnations of each backend, by its number, in the life of the configuration
/// beside which they stand. There and not in a place of their own: if that were
/// lost, a backend that has lost its memory would take itself for one that has
/// nothing to forget, and its votes would count.
pub type Incarnations = BTreeMap<u32, u32>;

/// A configuration and what stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) config: CellConfig,
    pub(super) incarnations: Incarnations,
    /// A name of the write that this came with, where its writer may have to find out
    /// whether it has written.
    pub(super) change: Option<String>,
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
        let config: CellConfig = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        config.validate().map_err(|e| e.to_string())?;
        let beside: Beside = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Ok(Document {
            config,
            incarnations: beside.incarnations,
            change: beside.change,
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
