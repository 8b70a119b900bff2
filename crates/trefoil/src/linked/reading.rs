//! What all assigners say at one moment.

use super::document::Node;
use crate::args::AssignerAddressArgs;
use crate::failure::Failure;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// See the module.
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) unix_ms: u64,
    /// Where each was asked, and what it said, or why it said nothing.
    pub(super) assigners: Vec<(String, Result<Node, String>)>,
}

impl Reading {
    /// Asks every assigner; those that do not answer are part of the reading.
    ///
    /// # Errors
    /// The address is none, or nobody answers there.
    pub(super) async fn take(address: &AssignerAddressArgs) -> Result<Reading, Failure> {
        let client = crate::assigner::client(address).await?;
        let mut assigners = Vec::new();
        for (host, result) in client.status().await {
            let node = match result {
                Ok(text) => serde_json::from_str(&text)
                    .map_err(|error| format!("{host} answers no document: {error}")),
                Err(error) => Err(error.to_string()),
            };
            assigners.push((host, node));
        }
        if assigners.iter().all(|(_, node)| node.is_err()) {
            let reasons = assigners.iter().filter_map(|(_, node)| node.as_ref().err());
            let reasons: Vec<&str> = reasons.map(String::as_str).collect();
            return Err(Failure::Failed(format!(
                "{}. Is `trefoil assigner` running there? Its address is --assigner, or \
                 TREFOIL_ASSIGNER",
                reasons.join("; ")
            )));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Reading {
            at: Instant::now(),
            unix_ms: now.unwrap_or(Duration::ZERO).as_millis() as u64,
            assigners,
        })
    }

    /// Those that have answered.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        let nodes = self.assigners.iter();
        nodes.filter_map(|(_, node)| node.as_ref().ok())
    }
}
