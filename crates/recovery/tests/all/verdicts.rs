//! The decision table of a key that differs, as text.

use trefoil_layout::Version;
use trefoil_recovery::scan::{Verdict, decide};
use trefoil_store::KeyState;

const CASES: &str = include_str!("verdicts.txt");

/// Of versions whose time is above this one nobody says that they are at rest.
const AT_REST_NS: u64 = 100;

fn version(number: &str) -> Version {
    Version::new(number.parse().unwrap(), 0, 0)
}

fn state(text: &str) -> KeyState {
    let (known, epoch) = text.split_once('@').unwrap();
    let kind = known.chars().next().unwrap();
    let (bound, flushed) = known.split_once('f').unwrap_or((known, "0"));
    let flushed = match version(flushed) {
        Version::ZERO => Version::ZERO,
        flushed => Version::of_flush(flushed.time_ns),
    };
    let bound = match bound {
        "" => flushed,
        bound => version(bound.trim_start_matches(['-', 'x'])),
    };
    KeyState {
        held: kind.is_ascii_digit().then_some(bound),
        bound,
        is_erased: kind == 'x',
        flushed,
        epoch: epoch.parse().unwrap(),
    }
}

fn told(verdict: Verdict) -> String {
    match verdict {
        Verdict::Clean => "clean".to_owned(),
        Verdict::Install { from, to, version } => {
            format!("install {} from {from} to {to}", version.time_ns)
        }
        Verdict::Renew {
            pair: [one, other],
            third,
            version,
            above,
        } => {
            let (version, above) = (version.time_ns, above.time_ns);
            format!("renew {version} at {one},{other} then {third} above {above}")
        }
        Verdict::Erase { at, held, version } => {
            format!("erase {} at {at}, {}", held.time_ns, version.time_ns)
        }
        Verdict::Evict { held } => {
            let held = held.map(|held| held.map_or("-".into(), |v| v.time_ns.to_string()));
            format!("evict {}", held.join(" "))
        }
        Verdict::Full => "full".to_owned(),
        Verdict::Young => "young".to_owned(),
        Verdict::Apart => "apart".to_owned(),
    }
}

/// Verdicts that are not what the table says, with their lines.
pub(crate) fn deviations() -> Vec<String> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in CASES.lines() {
        let line = line.split('#').next().unwrap().trim();
        let Some((states, wanted)) = line.split_once("=>") else {
            assert_eq!(line, "");
            continue;
        };
        let (states, full) = states.split_once("full:").unwrap_or((states, ""));
        let known: Vec<KeyState> = states.split_whitespace().map(state).collect();
        let mut is_full = [false; 3];
        for replica in full.split(',').filter(|number| !number.trim().is_empty()) {
            is_full[replica.trim().parse::<usize>().unwrap()] = true;
        }
        let verdict = told(decide(known.try_into().unwrap(), is_full, AT_REST_NS));
        if verdict != wanted.trim() {
            wrong.push(format!("{line}: {verdict}"));
        }
        count += 1;
    }
    assert!(count > 35, "{count}");
    wrong
}

#[test]
fn every_case_is_as_the_table_says() {
    assert_eq!(deviations(), [""; 0]);
}
