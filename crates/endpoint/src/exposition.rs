//! In which of Prometheus' two formats metrics are answered: OpenMetrics where
//! the scraper asks for it, the older text format elsewhere.

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Content type and body for a request with this `Accept` header.
pub fn exposition(accept: &str, open_metrics: String) -> (&'static str, String) {
    if accept.contains("application/openmetrics-text") {
        (OPEN_METRICS, open_metrics)
    } else {
        (TEXT, text_of(&open_metrics))
    }
}

/// The older format describes samples by their own names, where OpenMetrics
/// leaves `_total` out, and knows neither units nor an end.
fn text_of(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    // Comes before the type, which decides on the name.
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            text += &format!("# HELP {name}{ending} {help}\n# TYPE {name}{ending} {kind}\n");
            help = "";
        } else if !line.starts_with('#') {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "\
# HELP reads Reads that found something.
# TYPE reads counter
reads_total{cell=\"a\"} 3
# HELP seconds_wait Waits.
# TYPE seconds_wait histogram
# UNIT seconds_wait seconds
seconds_wait_sum 0.5
seconds_wait_count 1
seconds_wait_bucket{le=\"+Inf\"} 1
# EOF
";

    #[test]
    fn a_scraper_gets_what_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let (kind, body) = exposition(prometheus, OPEN.to_owned());
        assert_eq!((kind, body.as_str()), (OPEN_METRICS, OPEN));
        for accept in ["", "text/plain", "*/*"] {
            let (kind, body) = exposition(accept, OPEN.to_owned());
            assert_eq!(kind, TEXT);
            assert_eq!(
                body,
                "\
# HELP reads_total Reads that found something.
# TYPE reads_total counter
reads_total{cell=\"a\"} 3
# HELP seconds_wait Waits.
# TYPE seconds_wait histogram
seconds_wait_sum 0.5
seconds_wait_count 1
seconds_wait_bucket{le=\"+Inf\"} 1
"
            );
        }
    }
}
