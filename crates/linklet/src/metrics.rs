//! What a linklet is like at the moment, as Prometheus reads it.
//!
//! An application has its own endpoint for that already; it appends this to it.

use crate::linklet::Linklet;
use std::fmt::{Display, Write as _};
use trefoil_coordination::BootInstant;

/// Stands before every name.
const PREFIX: &str = "trefoil_linklet";

/// Lines of one corpus.
struct Page {
    text: String,
    corpus: String,
}

impl Page {
    fn new(corpus: &str) -> Self {
        let mut escaped = String::new();
        for letter in corpus.chars() {
            match letter {
                '\\' => escaped.push_str("\\\\"),
                '"' => escaped.push_str("\\\""),
                '\n' => escaped.push_str("\\n"),
                letter => escaped.push(letter),
            }
        }
        Page {
            text: String::new(),
            corpus: escaped,
        }
    }

    fn put(&mut self, name: &str, kind: &str, value: impl Display) {
        let corpus = &self.corpus;
        // Nothing can fail that is written into a string.
        let _ = writeln!(self.text, "# TYPE {PREFIX}_{name} {kind}");
        let _ = writeln!(self.text, "{PREFIX}_{name}{{corpus=\"{corpus}\"}} {value}");
    }

    fn gauge(&mut self, name: &str, value: impl Display) {
        self.put(name, "gauge", value);
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Counters and gauges in Prometheus' text format, with the corpus as their
    /// label. What is not known is left out: `staleness_seconds` while nothing
    /// tells of the database's changes, the lease while there is no membership.
    ///
    /// Alert on `slices_short` (slices that this server owns and that have fewer
    /// servers than the mode of replication needs), on increases of
    /// `commits_thin_total`, `commits_refused_total`, `commits_indeterminate_total`,
    /// `copies_refused_total` and `moves_refused_total`, and on `staleness_seconds`.
    pub fn metrics(&self) -> String {
        let inner = self.inner();
        let stats = self.stats();
        let mut page = Page::new(self.corpus());
        for (name, value) in stats.counters() {
            page.put(&format!("{name}_total"), "counter", value);
        }
        page.gauge("entries", stats.entries);
        page.gauge("bytes", stats.bytes);
        page.gauge("bytes_max", stats.bytes_max);
        page.gauge("loading", stats.loading);
        let wanted = inner.config.servers_wanted();
        page.gauge("copies_min", wanted);
        if let Some(staleness) = self.staleness() {
            page.gauge("staleness_seconds", staleness.as_secs_f64());
        }
        let life = inner.life().as_ref().map(|life| {
            let lease = life.session.lease_end();
            (lease, life.core().unconfirmed_bytes())
        });
        page.gauge("member", u8::from(life.is_some()));
        if let Some((lease, unconfirmed)) = life {
            let left = lease.saturating_duration_since(BootInstant::now());
            page.gauge("lease_seconds", left.as_secs_f64());
            page.gauge("unconfirmed_bytes", unconfirmed);
        }
        if let (Some(me), Some(view)) = (self.server_id(), self.view()) {
            let view = view.borrow();
            let mine = view.assignment.slices().iter();
            let mine = mine.filter(|slice| slice.servers.first() == Some(&me));
            let (owned, short) = mine.fold((0_u64, 0_u64), |(owned, short), slice| {
                let alive = slice.servers.iter();
                let alive = alive.filter(|id| view.servers.contains_key(id)).count();
                (owned + 1, short + u64::from(alive < wanted))
            });
            page.gauge("slices_owned", owned);
            page.gauge("slices_short", short);
        }
        page.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let mut page = Page::new("a\"b\\c\nd");
        page.gauge("bytes", 7);
        let lines: Vec<&str> = page.text.lines().collect();
        assert_eq!(lines[0], "# TYPE trefoil_linklet_bytes gauge");
        let expected = r#"trefoil_linklet_bytes{corpus="a\"b\\c\nd"} 7"#;
        assert_eq!(lines[1..], [expected]);
    }
}
