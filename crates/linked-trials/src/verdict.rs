//! What was found beside what is wanted.

use serde::Serialize;

/// One line of a verdict.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) found: String,
    pub(crate) wanted: String,
    pub(crate) holds: bool,
}

/// All of them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Verdict(pub(crate) Vec<Finding>);

impl Verdict {
    /// Something is to be so many.
    pub(crate) fn exactly(&mut self, what: &str, found: u64, wanted: u64) {
        self.add(what, found, wanted, found == wanted);
    }

    /// At least so many: otherwise nothing was shown.
    pub(crate) fn at_least(&mut self, what: &str, found: u64, least: u64) {
        self.add(what, found, format!("at least {least}"), found >= least);
    }

    /// At most so much.
    pub(crate) fn at_most(&mut self, what: &str, found: f64, most: f64, unit: &str) {
        let (shown, limit) = (format!("{found:.2}{unit}"), format!("at most {most}{unit}"));
        self.add(what, shown, limit, found <= most);
    }

    pub(crate) fn add(
        &mut self,
        what: &str,
        found: impl ToString,
        wanted: impl ToString,
        holds: bool,
    ) {
        self.0.push(Finding {
            what: what.to_owned(),
            found: found.to_string(),
            wanted: wanted.to_string(),
            holds,
        });
    }

    pub(crate) fn holds(&self) -> bool {
        self.0.iter().all(|finding| finding.holds)
    }

    /// A table, and the verdict in its last line.
    pub(crate) fn tell(&self) {
        let width = |of: fn(&Finding) -> &String| {
            let widths = self.0.iter().map(|finding| of(finding).chars().count());
            widths.max().unwrap_or(0)
        };
        let (what, found) = (
            width(|finding| &finding.what),
            width(|finding| &finding.found),
        );
        println!();
        for finding in &self.0 {
            let mark = if finding.holds { "" } else { "   NOT SO" };
            println!(
                "{:what$}  {:>found$}  wanted: {}{mark}",
                finding.what, finding.found, finding.wanted
            );
        }
        let broken: Vec<&str> = (self.0.iter())
            .filter(|finding| !finding.holds)
            .map(|finding| finding.what.as_str())
            .collect();
        match broken.is_empty() {
            true => println!("verdict: everything holds"),
            false => println!("verdict: does not hold: {}", broken.join("; ")),
        }
    }
}
