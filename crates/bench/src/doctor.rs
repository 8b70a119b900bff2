//! `trefoil doctor` of a cell that is measured or broken here, as an operator calls it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

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
    pub findings: Vec<Finding>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name, as in docs/operations.md.
    pub kind: String,
    /// How a backend differs, of dirty keys.
    pub how: Option<String>,
    /// Keys that it is about.
    pub keys: Option<u64>,
    /// For people.
    pub what: String,
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

/// Why there is no diagnosis.
#[derive(Debug, thiserror::Error)]
#[error("trefoil doctor: {0}")]
pub struct DoctorError(String);

/// Has everything read, as fast as it goes.
pub fn doctor(program: &Path, address: &str) -> Result<Diagnosis, DoctorError> {
    let mut command = Command::new(program);
    command
        .args(["doctor", "--json", "--rate", "0", "--cell", address])
        .stdin(Stdio::null());
    // Exit code 1: there are findings. Those are on its standard output, too.
    let output = command.output();
    let output = output.map_err(|error| DoctorError(error.to_string()))?;
    diagnosis(&output.stdout).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        DoctorError(format!("{}: {}", output.status, said.trim()))
    })
}

fn diagnosis(json: &[u8]) -> Option<Diagnosis> {
    let said: Said = serde_json::from_slice(json).ok()?;
    Some(Diagnosis {
        is_clean: said.clean,
        took_s: said.took_ms as f64 / 1e3,
        read_mib: said.bytes_read as f64 / f64::from(1 << 20),
        clean_keys: said.keys.clean,
        findings: said.findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_doctor_says_is_read() {
        let said = br#"{"clean":false,"took_ms":1500,"bytes_read":2097152,"mode":"R=3.2",
            "keys":{"clean":7,"dirty":1},
            "findings":[{"kind":"dirty","how":"lacks","keys":1,"what":"1 key","do":"-"}]}"#;
        let found = diagnosis(said).unwrap();
        assert_eq!((found.took_s, found.read_mib), (1.5, 2.0));
        assert_eq!((found.is_clean, found.clean_keys), (false, 7));
        let finding = &found.findings[0];
        assert_eq!(
            (finding.kind.as_str(), finding.how.as_deref()),
            ("dirty", Some("lacks"))
        );
        assert_eq!(diagnosis(b"trefoil: no cell"), None);
    }
}
