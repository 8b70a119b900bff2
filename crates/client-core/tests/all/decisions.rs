//! Runs the decision tables in `tests/all/decisions/`.

use trefoil_client_core::mode::Mode;
use trefoil_client_core::mutate::{Mutate, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::quorum::{
    AckDecision, AckState, CasDecision, CasState, Vote, VoteDecision, decide_acks, decide_cas,
    decide_votes,
};
use trefoil_client_core::retry::Limits;
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Outcome, Rejection};

/// Calls `decide(quorum, inputs)` for every case of a table and compares.
fn run(table: &str, decide: impl Fn(usize, &[&str]) -> String) {
    let mut count = 0;
    for (number, line) in table.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (case, expected) = line.split_once("=>").expect("a case has a decision");
        let (quorum, inputs) = case.split_once(':').expect("a case has a quorum");
        let inputs: Vec<&str> = inputs.split_whitespace().collect();
        let decision = decide(quorum.parse().unwrap(), &inputs);
        assert_eq!(decision, expected.trim(), "line {}: {line}", number + 1);
        count += 1;
    }
    assert!(count > 20);
}

fn version(text: &str) -> Version {
    Version::new(text.parse().unwrap(), 0, 0)
}

fn number(version: Version) -> u64 {
    version.time_ns
}

#[test]
fn votes() {
    run(include_str!("decisions/votes.txt"), |quorum, inputs| {
        let votes: Vec<Vote> = inputs
            .iter()
            .map(|text| match text.split_once('@') {
                Some(("-", epoch)) => Vote::Absent {
                    epoch: epoch.parse().unwrap(),
                },
                Some((present, epoch)) => Vote::Present {
                    version: version(present),
                    epoch: epoch.parse().unwrap(),
                },
                None if *text == "?" => Vote::Open,
                None if *text == "x" => Vote::None,
                None => panic!("unknown vote {text}"),
            })
            .collect();
        match decide_votes(&votes, quorum) {
            VoteDecision::Open => "open".to_owned(),
            VoteDecision::Absent => "absent".to_owned(),
            VoteDecision::Inquorate => "inquorate".to_owned(),
            VoteDecision::Present { version, members } => {
                let members: Vec<String> = (0..8)
                    .filter(|replica| members & 1 << replica != 0)
                    .map(|replica| replica.to_string())
                    .collect();
                format!("present {} from {}", number(version), members.join(","))
            }
        }
    });
}

#[test]
fn acks() {
    run(include_str!("decisions/acks.txt"), |quorum, inputs| {
        let acks: Vec<AckState> = inputs
            .iter()
            .map(|text| match *text {
                "?" => AckState::Open,
                "no" => AckState::Rejected(Rejection::NoMemory),
                "lost" => AckState::Lost,
                "down" => AckState::Down,
                _ => match (text.strip_prefix("ok@"), text.strip_prefix('<')) {
                    (Some(epoch), _) => AckState::Applied {
                        epoch: epoch.parse().unwrap(),
                    },
                    (_, Some(bound)) => AckState::Superseded {
                        bound: version(bound),
                    },
                    _ => panic!("unknown answer {text}"),
                },
            })
            .collect();
        match decide_acks(&acks, quorum) {
            AckDecision::Open => "open".to_owned(),
            AckDecision::Stored => "stored".to_owned(),
            AckDecision::AskAgain { epoch } => format!("again {epoch}"),
            AckDecision::Superseded { bound } => format!("superseded {}", number(bound)),
            AckDecision::Rejected(_) => "rejected".to_owned(),
            AckDecision::Unreachable => "unreachable".to_owned(),
        }
    });
}

/// The whole machine: what a SET's caller is told.
#[test]
fn outcomes() {
    run(include_str!("decisions/outcomes.txt"), |quorum, inputs| {
        let mode = if quorum == 1 { Mode::R1 } else { Mode::R32 };
        let limits = Limits {
            deadline_ns: 1_000,
            retries_max: 1,
        };
        let mut set = Mutate::new(mode, version("5"), limits);
        let mut inputs = inputs.iter();
        let mut now = 0;
        loop {
            match set.poll(now) {
                MutateStep::Send {
                    replica, version, ..
                } => {
                    let Some(text) = inputs.next() else {
                        continue;
                    };
                    let outcome = match (*text, text.strip_prefix('<')) {
                        ("ok", _) => Outcome::Applied,
                        ("ahead", _) => Outcome::Rejected(Rejection::ClockAhead),
                        ("full", _) => Outcome::Rejected(Rejection::NoMemory),
                        ("bad", _) => Outcome::Rejected(Rejection::BadItem),
                        (_, Some(bound)) => Outcome::Superseded {
                            bound: self::version(bound),
                        },
                        ("?", _) => continue,
                        ("lost", _) => {
                            set.handle_failure(replica, version, SendFailure::Lost);
                            continue;
                        }
                        ("down", _) => {
                            set.handle_failure(replica, version, SendFailure::NotSent);
                            continue;
                        }
                        _ => panic!("unknown answer {text}"),
                    };
                    set.handle_ack(replica, version, Ack { epoch: 1, outcome });
                }
                MutateStep::Nominate { above } => {
                    set.handle_version(Version::new(above.time_ns + 1, 0, 0));
                }
                MutateStep::Evict { .. } => panic!("a SET evicts nothing"),
                MutateStep::Refresh { replica } => set.handle_refreshed(replica),
                MutateStep::Reconnect { replica } => set.handle_reconnected(replica),
                MutateStep::Pause { .. } => {}
                MutateStep::Wait { until_ns } => now = until_ns,
                MutateStep::Done(outcome) => {
                    return match outcome {
                        MutationOutcome::Stored { version } => {
                            format!("stored {}", number(version))
                        }
                        MutationOutcome::Superseded { bound } => {
                            format!("superseded {}", number(bound))
                        }
                        MutationOutcome::Indeterminate => "indeterminate".to_owned(),
                        MutationOutcome::Rejected(Rejection::ClockAhead) => "ahead".to_owned(),
                        MutationOutcome::Rejected(Rejection::NoMemory) => "full".to_owned(),
                        MutationOutcome::Rejected(Rejection::BadItem) => "bad".to_owned(),
                        MutationOutcome::Failed { .. } => "failed".to_owned(),
                        other => format!("{other:?}"),
                    };
                }
            }
        }
    });
}

#[test]
fn cas() {
    run(include_str!("decisions/cas.txt"), |quorum, inputs| {
        let states: Vec<CasState> = inputs
            .iter()
            .map(|text| match *text {
                "." => CasState::Unsent,
                "?" => CasState::Open,
                "rej" => CasState::Rejected(Rejection::NoMemory),
                "lost" => CasState::Lost,
                "down" => CasState::Down,
                "later" => CasState::PutOff,
                "no-" => CasState::Refused { present: None },
                _ => match (text.strip_prefix("ok@"), text.strip_prefix("no")) {
                    (Some(epoch), _) => CasState::Applied {
                        epoch: epoch.parse().unwrap(),
                    },
                    (_, Some(present)) => CasState::Refused {
                        present: Some(version(present)),
                    },
                    _ => panic!("unknown answer {text}"),
                },
            })
            .collect();
        match decide_cas(&states, quorum) {
            CasDecision::Open => "open".to_owned(),
            CasDecision::Ask(replica) => format!("ask {replica}"),
            CasDecision::Later => "later".to_owned(),
            CasDecision::Stored => "stored".to_owned(),
            CasDecision::Exists { present } => match present {
                Some(version) => format!("exists {}", number(version)),
                None => "exists -".to_owned(),
            },
            CasDecision::Rejected(_) => "rejected".to_owned(),
            CasDecision::Unreached => "unreached".to_owned(),
            CasDecision::Indeterminate => "indeterminate".to_owned(),
        }
    });
}
