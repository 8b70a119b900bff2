//! `trefoil doctor` of a cell that a scenario runs, as an operator calls it.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::{ScenarioError, ScenarioOptions};

/// What the doctor says, of which this needs little.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Diagnosis {
    /// All clean: every replica of every key was read, and nothing is wrong.
    pub is_clean: bool,
    /// Seconds that it took.
    pub took_s: f64,
    /// Of all replicas, in MiB.
    pub read_mib: f64,
    /// Keys of which all replicas agree.
    pub clean_keys: u64,
    /// What is wrong, if anything is.
    pub findings: Vec<String>,
}

#[derive(Deserialize)]
struct Said {
    clean: bool,
    took_ms: u64,
    bytes_read: u64,
    keys: Keys,
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Keys {
    clean: u64,
}

#[derive(Deserialize)]
struct Finding {
    kind: String,
    what: String,
}

/// Has everything read, as fast as it goes.
pub(super) fn doctor(options: &ScenarioOptions, address: &str) -> Result<Diagnosis, ScenarioError> {
    let failed = |why: String| ScenarioError::Course(format!("trefoil doctor: {why}"));
    let mut command = Command::new(&options.program);
    command
        .args(["doctor", "--json", "--rate", "0", "--cell", address])
        .stdin(Stdio::null());
    // Exit code 1: there are findings. Those are on its standard output, too.
    let output = command
        .output()
        .map_err(|error| failed(error.to_string()))?;
    diagnosis(&output.stdout).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        failed(format!("{}: {}", output.status, said.trim()))
    })
}

fn diagnosis(json: &[u8]) -> Option<Diagnosis> {
    let said: Said = serde_json::from_slice(json).ok()?;
    let finding = |finding: Finding| format!("{}: {}", finding.kind, finding.what);
    Some(Diagnosis {
        is_clean: said.clean,
        took_s: said.took_ms as f64 / 1e3,
        read_mib: said.bytes_read as f64 / (1 << 20) as f64,
        clean_keys: said.keys.clean,
        findings: said.findings.into_iter().map(finding).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_doctor_says_is_read() {
        let said = br#"{"clean":false,"took_ms":1500,"bytes_read":2097152,"mode":"R=3.2",
            "keys":{"clean":7,"dirty":1},"findings":[{"kind":"dirty","what":"1 key","advice":"-"}]}"#;
        let found = diagnosis(said).unwrap();
        assert_eq!((found.took_s, found.read_mib), (1.5, 2.0));
        assert_eq!((found.is_clean, found.clean_keys), (false, 7));
        assert_eq!(found.findings, ["dirty: 1 key"]);
        assert_eq!(diagnosis(b"trefoil: no cell"), None);
    }
}
