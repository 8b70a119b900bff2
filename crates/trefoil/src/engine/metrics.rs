//! An engine's counters for Prometheus, in the OpenMetrics format.

use super::Service;
use std::fmt::Write as _;
use std::sync::Arc;

/// Of these, the value now counts; the others only grow.
const GAUGES: [&str; 3] = ["sessions_open", "backends_mapped", "uptime_ms"];

/// What is served at `/metrics`.
pub(super) fn text(service: &Arc<Service>, cell: &str) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    // Within a label's quotes.
    let cell: String = cell.chars().flat_map(char::escape_default).collect();
    for (name, what, value) in service.engine().counters().described() {
        if name == "pid" {
            continue;
        }
        let (kind, ending) = match GAUGES.contains(&name) {
            true => ("gauge", ""),
            false => ("counter", "_total"),
        };
        // Prometheus' names say "total" once.
        let name = name.trim_end_matches("_total");
        writeln!(text, "# HELP trefoil_engine_{name} {what}")?;
        writeln!(text, "# TYPE trefoil_engine_{name} {kind}")?;
        writeln!(
            text,
            "trefoil_engine_{name}{ending}{{cell=\"{cell}\"}} {value}"
        )?;
    }
    text.push_str("# EOF\n");
    Ok(text)
}
