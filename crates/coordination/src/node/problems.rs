//! What somebody should see to, and how. Decided from what is known anyway;
//! nothing here changes anything.

use super::status::MemberStatus;
use serde::Serialize;
use std::time::Duration;
use trefoil_sharder::{Freeze, Metric, Note, Overloaded, Plan};

/// What somebody should see to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// One of [`PROBLEM_KINDS`].
    pub kind: &'static str,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// The store is away, behind, or refuses.
const STORE: &str = "store";
/// Nobody leads, or the one who does has just begun.
const LEADER: &str = "leader";
/// The switch for deployments is on.
const FROZEN: &str = "frozen";
/// Load or bytes for which there is no place.
const NO_PLACE: &str = "no-place";
/// Values or copies that a server cannot store.
const NOT_STORED: &str = "not-stored";
/// Slices with fewer servers than they should have.
const TOO_FEW: &str = "too-few-copies";
/// A server that is not heard, or has not reported.
const SILENT: &str = "silent";
/// Values were lost a short while ago.
const LOSS: &str = "loss";
/// What is kept of a database may be old.
const STALE: &str = "stale";

/// Every kind of a problem.
pub const PROBLEM_KINDS: [&str; 9] = [
    STORE, LEADER, FROZEN, NO_PLACE, NOT_STORED, TOO_FEW, SILENT, LOSS, STALE,
];

/// For so long a loss is something to see to.
const LOSS_SHOWN: Duration = Duration::from_secs(600);
/// With everything well it is some tenths of a second.
const STALENESS_MAX: Duration = Duration::from_secs(10);

/// What the problems are found in.
pub(super) struct Seen<'a> {
    /// Why the map stays as it is, if the store is the reason.
    pub(super) store: Option<&'a str>,
    /// The same, if it is that of the one who leads.
    pub(super) leader: Option<&'a str>,
    pub(super) freeze: Freeze,
    pub(super) lease: Duration,
    pub(super) members: &'a [MemberStatus],
    /// Of the last round, of the one who leads.
    pub(super) plan: Option<&'a Plan>,
}

/// All problems, in the order of their kinds.
pub(super) fn problems(seen: &Seen<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |kind, what: String, advice: &str| {
        let advice = advice.to_owned();
        found.push(Problem { kind, what, advice });
    };
    if let Some(reason) = seen.store {
        add(
            STORE,
            format!("the map stays as it is: {reason}"),
            "requests go on; nothing moves, and nobody dead is replaced. See that the store \
             answers; if it was restored from an old copy: `trefoil assigner begin-incarnation`",
        );
    }
    if let Some(reason) = seen.leader {
        add(
            LEADER,
            format!("the map stays as it is: {reason}"),
            "it ends by itself within a lease; if not, see that an assigner is up and reaches \
             the store",
        );
    }
    match seen.freeze {
        Freeze::Off => {}
        freeze => {
            let what = match freeze {
                Freeze::All => "frozen: nothing is changed, not even for dead servers",
                _ => "frozen: only slices of dead servers are placed",
            };
            add(
                FROZEN,
                what.to_owned(),
                "`trefoil assigner thaw`, once the deployment is over",
            );
        }
    }
    for overloaded in seen.plan.iter().flat_map(|plan| &plan.overloaded) {
        add(NO_PLACE, overloaded.to_string(), room_for(overloaded));
    }
    for note in seen.plan.iter().flat_map(|plan| &plan.notes) {
        if let Some((kind, advice)) = of_note(note) {
            add(kind, note.to_string(), advice);
        }
    }
    for member in seen.members {
        of_member(member, seen.lease, &mut add);
    }
    found
}

fn room_for(overloaded: &Overloaded) -> &'static str {
    match overloaded {
        Overloaded::Cluster {
            metric: Metric::Cpu,
            ..
        } => "add servers, or shed load",
        Overloaded::Cluster {
            metric: Metric::Bytes,
            ..
        } => "add servers, or give each more memory (Builder::memory)",
        Overloaded::Server { .. } => {
            "add servers, or let single keys have more replicas (--corpus NAME:MIN..MAX)"
        }
        Overloaded::Key { .. } => "allow more replicas (--corpus NAME:MIN..MAX), or divide the key",
    }
}

/// Those notes that somebody should see to.
fn of_note(note: &Note) -> Option<(&'static str, &'static str)> {
    Some(match note {
        Note::CannotStore { .. } => (
            NOT_STORED,
            "add a server with room, or give those more memory; if another release cannot read \
             the values: roll it back, or finish the rollout",
        ),
        Note::StillTooFew { .. } => (
            TOO_FEW,
            "add servers: each copy needs a server of its own with room for it",
        ),
        Note::Indivisible { .. } => (
            NO_PLACE,
            "allow more replicas (--corpus NAME:MIN..MAX), or divide the key",
        ),
        Note::TooManySlices { .. } => (NO_PLACE, "add servers, or divide the corpus"),
        Note::Silent { .. } => (
            SILENT,
            "see whether its process hangs: it is alive enough to keep its lease",
        ),
        Note::Ahead { .. } => (
            STORE,
            "two stores are in use, or one was restored from an old copy: see docs/linked.md, \
             `Assigners with wrong flags, and stores that forget`",
        ),
        Note::Freeze { .. }
        | Note::Waiting { .. }
        | Note::Report(_)
        | Note::Stranger(_)
        | Note::StillDraining { .. }
        | Note::StillAbove { .. } => return None,
    })
}

fn of_member(
    member: &MemberStatus,
    lease: Duration,
    add: &mut impl FnMut(&'static str, String, &str),
) {
    let who = format!("server {} at {}", member.id, member.address);
    let heard = member.heard_ms.map(Duration::from_millis);
    if let Some(heard) = heard.filter(|heard| *heard > lease / 2) {
        add(
            SILENT,
            format!("{who} was last heard {:.1} s ago", heard.as_secs_f64()),
            "at the end of its lease its slices are given to others; see whether its process, \
             or the network to it, hangs",
        );
    }
    let Some(vitals) = &member.vitals else { return };
    if vitals.slices_short > 0 {
        add(
            TOO_FEW,
            format!(
                "{who} owns {} slices with fewer servers than the mode needs",
                vitals.slices_short
            ),
            "another death may lose values: it ends by itself once they are copied; if not, add \
             servers",
        );
    }
    if let Some(loss) = &vitals.last_loss
        && Duration::from_millis(loss.ago_ms) < LOSS_SHOWN
    {
        add(
            LOSS,
            format!(
                "{who} has lost values {:.0} s ago: {}",
                loss.ago_ms as f64 / 1e3,
                loss.what
            ),
            "its log and Listener::state_loss name ranges and keys; more copies would have kept \
             them (Builder::replication)",
        );
    }
    let staleness = vitals.staleness_ms.map(Duration::from_millis);
    if let Some(staleness) = staleness.filter(|staleness| *staleness > STALENESS_MAX) {
        add(
            STALE,
            format!(
                "what {who} keeps may be {:.1} s behind its database",
                staleness.as_secs_f64()
            ),
            "see that the relay is up and connected (its /readyz), and reaches the database",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vitals::{LastLoss, Vitals};
    use trefoil_sharder::{AssignmentVersion, Churn, ServerId};

    fn member(heard_ms: u64, vitals: Vitals) -> MemberStatus {
        MemberStatus {
            id: 7,
            address: "h:1".to_owned(),
            heard_ms: Some(heard_ms),
            vitals: Some(vitals),
            ..MemberStatus::default()
        }
    }

    fn kinds(seen: &Seen<'_>) -> Vec<&'static str> {
        let found = problems(seen);
        assert!(found.iter().all(|problem| !problem.advice.is_empty()));
        found.iter().map(|problem| problem.kind).collect()
    }

    #[test]
    fn each_kind_is_found_and_nothing_else() {
        let well = Seen {
            store: None,
            leader: None,
            freeze: Freeze::Off,
            lease: Duration::from_secs(2),
            members: &[],
            plan: None,
        };
        let members = [member(
            400,
            Vitals {
                staleness_ms: Some(300),
                last_loss: Some(LastLoss {
                    ago_ms: LOSS_SHOWN.as_millis() as u64,
                    what: "long ago".to_owned(),
                }),
                ..Vitals::default()
            },
        )];
        let of = |members: &[MemberStatus]| kinds(&Seen { members, ..well });
        assert_eq!(of(&members), [""; 0]);
        assert_eq!(of(&[member(1_500, Vitals::default())]), [SILENT]);
        let with = |change: fn(&mut Vitals)| {
            let mut vitals = Vitals::default();
            change(&mut vitals);
            of(&[member(0, vitals)])
        };
        assert_eq!(with(|v| v.slices_short = 1), [TOO_FEW]);
        assert_eq!(with(|v| v.staleness_ms = Some(11_000)), [STALE]);
        let loss = |v: &mut Vitals| v.last_loss = Some(LastLoss::default());
        assert_eq!(with(loss), [LOSS]);
        let held = Seen {
            store: Some("away"),
            leader: Some("nobody leads"),
            freeze: Freeze::OnlyDead,
            ..well
        };
        assert_eq!(kinds(&held), [STORE, LEADER, FROZEN]);
        let plan = Plan {
            base: AssignmentVersion::first_of(1),
            next: None,
            changes: Vec::new(),
            churn: Churn::default(),
            overloaded: vec![Overloaded::Cluster {
                metric: Metric::Bytes,
                needed: 2.0,
                capacity: 1.0,
            }],
            notes: vec![
                Note::CannotStore {
                    servers: vec![ServerId(7)],
                },
                Note::StillDraining {
                    server: ServerId(7),
                    slices: 3,
                },
            ],
            loads: Vec::new(),
        };
        let planned = Seen {
            plan: Some(&plan),
            ..well
        };
        assert_eq!(kinds(&planned), [NO_PLACE, NOT_STORED]);
    }
}
