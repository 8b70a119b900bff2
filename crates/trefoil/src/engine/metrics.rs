//! An engine's counters for Prometheus, in the OpenMetrics format.

use super::Service;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use trefoil_softnic::Count;

/// What is served at `/metrics`: each thread that reads is one `engine`, by its number;
/// those that let clients in and map backends are `set-up`.
pub(super) fn text(service: &Arc<Service>, cell: &str) -> Result<String, std::fmt::Error> {
    let engine = service.engine();
    let mut counted: BTreeMap<&str, Vec<(String, Count)>> = BTreeMap::new();
    let set_up = engine.counted_by_set_up();
    for count in set_up.of_set_up().filter(|count| count.name != "pid") {
        let of = counted.entry(count.name).or_default();
        of.push(("set-up".to_owned(), count));
    }
    for (number, own) in engine.counted_by_engine().enumerate() {
        for count in own.of_engine() {
            let of = counted.entry(count.name).or_default();
            of.push((number.to_string(), count));
        }
    }
    let mut text = String::new();
    // Within a label's quotes.
    let cell: String = cell.chars().flat_map(char::escape_default).collect();
    for (name, by_engine) in &counted {
        let Some((_, first)) = by_engine.first() else {
            continue;
        };
        let (kind, ending) = match first.is_gauge {
            true => ("gauge", ""),
            false => ("counter", "_total"),
        };
        // Prometheus' names say "total" once.
        let name = name.trim_end_matches("_total");
        writeln!(text, "# HELP trefoil_engine_{name} {}", first.meaning)?;
        writeln!(text, "# TYPE trefoil_engine_{name} {kind}")?;
        for (engine, Count { value, .. }) in by_engine {
            writeln!(
                text,
                "trefoil_engine_{name}{ending}{{cell=\"{cell}\",engine=\"{engine}\"}} {value}"
            )?;
        }
    }
    text.push_str("# EOF\n");
    Ok(text)
}
