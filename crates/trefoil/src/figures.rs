//! Figures for people, and tables of them.

use bytesize::ByteSize;

/// A rate for people: three digits are enough.
pub(crate) fn rate(per_s: f64) -> String {
    match per_s {
        rate if rate >= 1e9 => format!("{:.2} G", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k", rate / 1e3),
        rate if rate >= 100.0 || rate == 0.0 => format!("{rate:.0}"),
        rate => format!("{rate:.1}"),
    }
}

/// Bytes for people.
pub(crate) fn bytes(bytes: f64) -> String {
    ByteSize::b(bytes as u64).to_string()
}

/// A row with its cells in their columns.
pub(crate) fn aligned(columns: &[(&str, i8)], row: &[String]) -> String {
    let is_short = row.len() < columns.len();
    let cells = row
        .iter()
        .zip(columns)
        .enumerate()
        .map(|(place, (text, (_, width)))| {
            let size = usize::from(width.unsigned_abs());
            match *width < 0 || is_short && place + 1 == row.len() {
                true => format!("{text:<size$}"),
                false => format!("{text:>size$}"),
            }
        });
    let line: Vec<String> = cells.collect();
    line.join("  ").trim_end().to_owned()
}
