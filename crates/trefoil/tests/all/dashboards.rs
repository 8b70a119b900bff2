//! The dashboard and the alert rules, against the metrics that really exist:
//! every name, label and label value in them is looked for in what a server
//! answers. A panel that shows nothing looks like a quiet system.

use crate::support::{Cell, PROGRAM, free_port, repository, run, text};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use trefoil_ports::EtcdProcess;

/// Added by Prometheus itself.
const BUILT_IN: [&str; 1] = ["up"];
const BUILT_IN_LABELS: [&str; 2] = ["job", "instance"];
const KEYWORDS: [&str; 11] = [
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "bool",
    "inf",
    "nan",
];

/// Values of labels by metric and label.
pub(crate) type Series = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

#[test]
fn everything_that_is_asked_for_exists() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    let listen = format!("127.0.0.1:{}", free_port());
    let socket = dir.path().join("serve.sock").display().to_string();
    let mut options = vec!["serve", "--listen", &listen, "--socket", &socket];
    options.extend(["--metrics", &metrics, "--memcached", "127.0.0.1:0"]);
    let engine = format!("127.0.0.1:{}", free_port());
    options.extend(["--memory", "64MiB", "--engine", &engine]);
    // Some of what is shown exists where there are certificates.
    let authority = dir.path().join("authority").display().to_string();
    let certs = format!("{authority}/server");
    let at = ["--dir", &authority];
    let issue = [
        "issue",
        "--name",
        "server",
        "--role",
        "backend",
        "--host",
        "127.0.0.1",
    ];
    for command in [&["init"][..], &issue] {
        let output = run(&[&["cell", "certs"], command, &at].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    options.extend(["--certs", &certs]);
    let _cell = Cell::start(&options);
    let series = scrape(port);
    assert!(series.len() > 30, "{series:?}");

    let dashboard = dashboard_expressions("trefoil.json");
    let alerts = alert_expressions("alerts.yml");
    assert!(dashboard.len() > 40 && alerts.len() >= 10);
    let mut complaints = Vec::new();
    for expression in &dashboard {
        complaints.extend(complain(expression, &series));
    }
    // Alerts are about controllers, too.
    let mut all = series.clone();
    all.extend(of_a_controller(dir.path()));
    for expression in &alerts {
        complaints.extend(complain(expression, &all));
    }
    assert!(complaints.is_empty(), "{complaints:#?}");

    // And the dashboard shows all there is.
    let shown: BTreeSet<String> = dashboard.iter().flat_map(|e| names(e)).collect();
    let hidden: Vec<&String> = series
        .keys()
        .filter(|name| !shown.contains(*name))
        .collect();
    assert!(hidden.is_empty(), "no panel shows {hidden:?}");
}

#[test]
fn mistakes_are_found() {
    let mut series = Series::new();
    let labels = series.entry("reads_total".into()).or_default();
    labels
        .entry("kind".into())
        .or_default()
        .extend(["hit".into(), "miss".into()]);
    let fine = r#"sum by (kind, instance) (rate(reads_total{kind=~"hit|miss",cell=~"$cell"}[5m] offset 1d)) > 3e2 and up{job="x"} == 0"#;
    let without_cell = fine.replace(r#",cell=~"$cell""#, "");
    assert_eq!(complain(&without_cell, &series), [""; 0]);
    for (wrong, by) in [
        ("rate(read_total[5m])", "read_total"),
        (r#"reads_total{kind="hits"}"#, "hits"),
        (r#"reads_total{sort="hit"}"#, "sort"),
        (r#"reads_total{kind!~"hit|mist"}"#, "mist"),
        ("sum by (sort) (reads_total)", "sort"),
        (
            "histogram_quantile(0.99, sum(rate(reads_bucket[1m])))",
            "reads_bucket",
        ),
        (fine, "cell"),
    ] {
        let found = complain(wrong, &series);
        assert!(
            found.len() == 1 && found[0].contains(by),
            "{wrong}: {found:?}"
        );
    }
}

/// What a controller of a cell over etcd answers.
fn of_a_controller(dir: &Path) -> Series {
    let etcd = EtcdProcess::start(&dir.join("etcd"), None).unwrap();
    let store = format!("etcd://{}/cell", etcd.host());
    let more = ["--store", &store, "--mode", "R=1", "--memory", "32MiB"];
    let _cell = Cell::up(&dir.join("cell"), &more);
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    let mut controller = Command::new(PROGRAM)
        .args(["cell", "controller", "--store", &store])
        .args(["--metrics", &metrics])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(controller.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("ready "), "{line}");
    let series = scrape(port);
    controller.kill().unwrap();
    controller.wait().unwrap();
    assert!(series.len() > 5, "{series:?}");
    series
}

/// What a server answers.
fn scrape(port: u16) -> Series {
    scrape_at(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Likewise, wherever it is.
pub(crate) fn scrape_at(address: SocketAddr) -> Series {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    series_of(body)
}

/// What a page has.
pub(crate) fn series_of(body: &str) -> Series {
    let mut series = Series::new();
    for line in body.lines().filter(|line| line.starts_with("trefoil_")) {
        let end = line.find(['{', ' ']).unwrap();
        let labels = series.entry(line[..end].to_owned()).or_default();
        let selector = line[end..]
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'));
        for (name, _, value) in selector.map_or(Vec::new(), |(selector, _)| matchers(selector)) {
            labels.entry(name).or_default().insert(value);
        }
    }
    series
}

/// Expressions of all panels and variables.
pub(crate) fn dashboard_expressions(file: &str) -> Vec<String> {
    fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("expr" | "definition", serde_json::Value::String(text)) => {
                            // The metric of a variable's `label_values(metric, label)`.
                            let list = text.strip_prefix("label_values(");
                            let metric = list.and_then(|list| list.split(',').next());
                            found.push(metric.unwrap_or(text).to_owned());
                        }
                        _ => collect(value, found),
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|v| collect(v, found)),
            _ => {}
        }
    }
    let text = std::fs::read_to_string(repository().join("dashboards").join(file)).unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut found);
    found
}

/// Expressions of all rules: behind `expr:`, or in the lines that are indented
/// further.
pub(crate) fn alert_expressions(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("dashboards").join(file)).unwrap();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.trim_start().strip_prefix("expr:") else {
            continue;
        };
        let mut expression = first.trim().trim_start_matches(">-").to_owned();
        while let Some(more) = lines.next_if(|more| indent(more) > indent(line)) {
            expression.push(' ');
            expression.push_str(more.trim());
        }
        found.push(expression);
    }
    let count = text
        .lines()
        .filter(|line| line.contains("- alert:"))
        .count();
    assert_eq!(found.len(), count);
    found
}

/// `name="value"` and its like: name, operator, value.
fn matchers(selector: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut rest = selector;
    while let Some((name, after)) = rest.split_once('"') {
        let (value, after) = after.split_once('"').expect("a label's value ends");
        let name = name.trim_start_matches([',', ' ']);
        let end = name.find(['=', '!']).expect("a label has a value");
        let operator = name[end..].trim();
        found.push((
            name[..end].trim().to_owned(),
            operator.to_owned(),
            value.to_owned(),
        ));
        rest = after;
    }
    found
}

/// One part of an expression that names something.
#[derive(Debug)]
enum Part {
    Metric(String),
    /// Of the metric before.
    Selector(String),
    /// Labels of a `by` or `without`.
    Labels(Vec<String>),
}

fn parts(expression: &str) -> Vec<Part> {
    let mut found = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let until = |end: char| rest.find(end).expect("brackets are closed");
        if first == '{' {
            let end = until('}');
            found.push(Part::Selector(rest[1..end].to_owned()));
            rest = &rest[end + 1..];
        } else if first == '[' {
            rest = &rest[until(']') + 1..];
        } else if first.is_ascii_alphanumeric() || matches!(first, '_' | ':' | '$') {
            let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '$' | '.');
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, after) = (&rest[..end], rest[end..].trim_start());
            rest = after;
            if matches!(word, "by" | "without") {
                let (list, after) = after[1..].split_once(')').expect("labels are listed");
                let labels = list.split(',').map(|label| label.trim().to_owned());
                found.push(Part::Labels(labels.collect()));
                rest = after;
            } else if !first.is_ascii_digit()
                && !after.starts_with('(')
                && !KEYWORDS.contains(&word)
                && !after.starts_with("by ")
                && !after.starts_with("without ")
            {
                found.push(Part::Metric(word.to_owned()));
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
        rest = rest.trim_start();
    }
    found
}

/// Metrics that an expression reads.
pub(crate) fn names(expression: &str) -> Vec<String> {
    let metric = |part| match part {
        Part::Metric(name) => Some(name),
        _ => None,
    };
    parts(expression).into_iter().filter_map(metric).collect()
}

/// What an expression asks for that does not exist.
pub(crate) fn complain(expression: &str, series: &Series) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut labels: Option<&BTreeMap<String, BTreeSet<String>>> = None;
    let mut known: BTreeSet<&str> = BUILT_IN_LABELS.into();
    for part in parts(expression) {
        if let Part::Metric(name) = part {
            labels = series.get(&name);
            known.extend(
                labels
                    .iter()
                    .flat_map(|labels| labels.keys().map(String::as_str)),
            );
            if labels.is_none() && !BUILT_IN.contains(&name.as_str()) {
                complaints.push(format!("no metric {name}: {expression}"));
            }
        } else if let (Part::Selector(selector), Some(labels)) = (&part, labels) {
            for (label, operator, value) in matchers(selector) {
                if BUILT_IN_LABELS.contains(&label.as_str()) {
                    continue;
                }
                let Some(values) = labels.get(&label) else {
                    complaints.push(format!("no label {label}: {expression}"));
                    continue;
                };
                let wanted = match operator.ends_with('~') {
                    true => value.split('|').collect(),
                    false => vec![value.as_str()],
                };
                for wanted in wanted.iter().filter(|wanted| !wanted.starts_with('$')) {
                    if !values.contains(*wanted) {
                        complaints.push(format!("{label} is never {wanted}: {expression}"));
                    }
                }
            }
        }
    }
    for part in parts(expression) {
        if let Part::Labels(list) = part {
            for label in list.iter().filter(|label| !known.contains(label.as_str())) {
                if complaints.is_empty() {
                    complaints.push(format!("no label {label}: {expression}"));
                }
            }
        }
    }
    complaints
}
