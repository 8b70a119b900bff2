//! Text tables whose columns line up, and figures as a person reads them.

use std::fmt;

/// A table with a title. The first column is text, the others are figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with its heads.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(|&head| head.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells beyond the heads are dropped, missing ones stay empty.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) -> &mut Self {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| lines().map(|line| line[i].chars().count()).max())
            .map(|width| width.unwrap_or(0))
            .collect();
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for (number, line) in lines().enumerate() {
            let mut text = String::new();
            for (i, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                text += &match i {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", text.trim_end())?;
            if number == 0 {
                let gaps = 2 * widths.len().saturating_sub(1);
                writeln!(f, "{}", "─".repeat(widths.iter().sum::<usize>() + gaps))?;
            }
        }
        Ok(())
    }
}

/// A time in the unit that suits it.
pub fn nanoseconds(ns: u64) -> String {
    let ns_float = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", three_digits(ns_float / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(ns_float / 1e6)),
        _ => format!("{} s", three_digits(ns_float / 1e9)),
    }
}

/// Operations per second.
pub fn rate(per_s: f64) -> String {
    match per_s {
        x if x >= 1e6 => format!("{} M/s", three_digits(x / 1e6)),
        x if x >= 1e3 => format!("{} k/s", three_digits(x / 1e3)),
        x => format!("{}/s", three_digits(x)),
    }
}

/// A length in binary units.
pub fn bytes(len: u64) -> String {
    let len_float = len as f64;
    match len {
        0..1024 => format!("{len} B"),
        1024..1_048_576 => format!("{} KiB", three_digits(len_float / 1024.0)),
        1_048_576..1_073_741_824 => format!("{} MiB", three_digits(len_float / 1_048_576.0)),
        _ => format!("{} GiB", three_digits(len_float / 1_073_741_824.0)),
    }
}

/// How many times as much.
pub fn ratio(times: f64) -> String {
    if times.is_finite() {
        format!("{}×", three_digits(times))
    } else {
        "–".to_owned()
    }
}

fn three_digits(number: f64) -> String {
    match number.abs() {
        x if x >= 99.95 => format!("{number:.0}"),
        x if x >= 9.995 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("GET", &["system", "p50", "p99"]);
        table.row(["trefoil", "0.61 µs", "1 µs"]);
        table.row(["memcached", "13 µs"]);
        assert_eq!(
            table.to_string(),
            "GET\n\
             system         p50   p99\n\
             ────────────────────────\n\
             trefoil    0.61 µs  1 µs\n\
             memcached    13 µs\n"
        );
    }

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(nanoseconds(612), "612 ns");
        assert_eq!(nanoseconds(1_234), "1.23 µs");
        assert_eq!(nanoseconds(45_600_000), "45.6 ms");
        assert_eq!(nanoseconds(2_000_000_000), "2.00 s");
        assert_eq!(rate(1_234_567.0), "1.23 M/s");
        assert_eq!(rate(999.9), "1000/s");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 30), "1.00 GiB");
        assert_eq!(ratio(24.04), "24.0×");
        assert_eq!(ratio(f64::INFINITY), "–");
    }
}
