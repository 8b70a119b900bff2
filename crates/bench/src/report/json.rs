//! Results for scripts.

use std::path::Path;

use serde::Serialize;

use super::ReportError;

/// Writes a result as indented JSON with a final line end.
pub fn write_json(path: &Path, result: &impl Serialize) -> Result<(), ReportError> {
    let mut text = serde_json::to_string_pretty(result).map_err(|source| ReportError::Json {
        path: path.display().to_string(),
        source,
    })?;
    text.push('\n');
    std::fs::write(path, text).map_err(|source| ReportError::Write {
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reads_back_and_ends_with_a_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        write_json(&path, &[("objects", 1000)]).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.ends_with("]\n"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json[0][1], 1000);
        assert!(write_json(Path::new("/nowhere/x.json"), &1).is_err());
    }
}
