//! Logs go to stderr. `RUST_LOG` chooses what: a level, or levels by target,
//! like `info,trefoil_gateway=debug` (default: info).

use std::io::IsTerminal as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging for a server process.
pub(crate) fn start() {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let (filter, error) = filter(&wanted);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second start, in tests of one process, keeps the first.
    let _ = tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .try_init();
    if let Some(error) = error {
        tracing::warn!(%error, "RUST_LOG is not understood: logging at info");
    }
}

/// What a text asks for; what is wrong with it.
fn filter(wanted: &str) -> (Targets, Option<String>) {
    let default = || Targets::new().with_default(LevelFilter::INFO);
    if wanted.trim().is_empty() {
        return (default(), None);
    }
    match wanted.parse() {
        Ok(filter) => (filter, None),
        Err(error) => (default(), Some(format!("{wanted:?}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_are_chosen_by_target() {
        let (filter, error) = filter("info,trefoil_gateway=debug,h2=off");
        assert_eq!(error, None);
        assert!(filter.would_enable("trefoil_backend", &Level::INFO));
        assert!(!filter.would_enable("trefoil_backend", &Level::DEBUG));
        assert!(filter.would_enable("trefoil_gateway::server", &Level::DEBUG));
        assert!(!filter.would_enable("h2::codec", &Level::ERROR));
    }

    #[test]
    fn nothing_and_nonsense_mean_info() {
        for (text, is_error) in [("", false), (" ", false), ("a=b=c", true), ("x=loud", true)] {
            let (filter, error) = filter(text);
            assert_eq!(error.is_some(), is_error, "{text:?}");
            assert!(filter.would_enable("trefoil", &Level::INFO), "{text:?}");
            assert!(!filter.would_enable("trefoil", &Level::DEBUG), "{text:?}");
        }
    }
}
