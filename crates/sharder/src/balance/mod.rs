//! The balancer: reports in, a proposal out.
//!
//! ```text
//!  reports ─► LoadTable ─► estimates ─┐
//!  members ───────────────────────────┼─► Draft ─► 1 dead ─► 2 drain ─► 3 unstored ─► 4 restore
//!  assignment in force ───────────────┤       ─► 5 redundancy ─► 6 merge ─► 7 moves ─► 8 split
//!                                     │       ─► 9 isolate ─► Plan
//!  history (cooling, no return) ──────┘
//! ```
//!
//! A phase is a function of the draft and of nothing else; after each the key
//! space is tiled, which is checked. Splits and isolated keys come last: what
//! they cut can move in the next round, when the cut is known everywhere and
//! its parts have been measured.

mod dead;
mod draft;
mod drain;
mod exchange;
mod history;
mod isolate;
mod merge;
mod moves;
mod overload;
mod plan;
#[cfg(test)]
mod properties;
mod redundancy;
mod refusals;
mod restore;
mod split;
mod takers;
mod unstored;

pub use plan::{
    Action, Change, Churn, Metric, Note, Obstacles, Overloaded, Plan, Reason, ServerLoad,
};

use crate::assignment::{Assignment, AssignmentError, check_shape};
use crate::config::{BalanceConfig, ConfigError, Freeze};
use crate::load::{Heard, LoadTable};
use crate::report::ServerReport;
use crate::server::{Member, MemberState, ServerId};
use draft::{Draft, DraftSlice};
use history::History;
use refusals::Refusals;
use std::collections::BTreeSet;
use std::time::Duration;

/// One step of the algorithm.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Draft<'_>),
    /// Whether it runs during deployments, too: without it something is not served,
    /// or cannot be changed.
    forced: bool,
}

/// All of them, in order.
pub(crate) const PHASES: [Phase; 9] = [
    Phase {
        name: "dead",
        run: dead::run,
        forced: true,
    },
    Phase {
        name: "drain",
        run: drain::run,
        forced: false,
    },
    Phase {
        name: "unstored",
        run: unstored::run,
        forced: true,
    },
    Phase {
        name: "restore",
        run: restore::run,
        forced: true,
    },
    Phase {
        name: "redundancy",
        run: redundancy::run,
        forced: false,
    },
    Phase {
        name: "merge",
        run: merge::run,
        forced: false,
    },
    Phase {
        name: "moves",
        run: moves::run,
        forced: false,
    },
    Phase {
        name: "split",
        run: split::run,
        forced: false,
    },
    Phase {
        name: "isolate",
        run: isolate::run,
        forced: false,
    },
];

/// Proposes assignments for one corpus.
///
/// Call [`Balancer::step`] about once a second with the reports that came in.
/// If its plan has a next assignment, publish it by compare-and-swap, then
/// [`Balancer::commit`] it; if somebody else was first, [`Balancer::adopt`]
/// theirs. A plan that is not committed is as if it had never been made, but
/// for the reports that it has read.
#[derive(Clone, Debug)]
pub struct Balancer {
    config: BalanceConfig,
    assignment: Assignment,
    table: LoadTable,
    history: History,
    /// As of the last step.
    serving: BTreeSet<ServerId>,
    draining: BTreeSet<ServerId>,
    refusals: Refusals,
    started: Duration,
    now: Duration,
}

impl Balancer {
    /// Goes on from the assignment in force. `now` is any monotonic clock of
    /// the caller, here and below.
    pub fn new(
        config: BalanceConfig,
        assignment: Assignment,
        now: Duration,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Balancer {
            config,
            table: LoadTable::new(&assignment, now),
            history: History::starting(now),
            assignment,
            serving: BTreeSet::new(),
            draining: BTreeSet::new(),
            refusals: Refusals::default(),
            started: now,
            now,
        })
    }

    /// The assignment that it goes by.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// The thresholds.
    pub fn config(&self) -> &BalanceConfig {
        &self.config
    }

    /// Other thresholds (the switch for deployments is one of them).
    pub fn configure(&mut self, config: BalanceConfig) -> Result<(), ConfigError> {
        config.validate()?;
        self.config = config;
        Ok(())
    }

    /// Reads the reports and proposes what to do. The same calls in the same
    /// order give the same proposals.
    pub fn step(
        &mut self,
        now: Duration,
        members: &[Member],
        reports: &[ServerReport],
    ) -> Result<Plan, StepError> {
        let members = check_members(members)?;
        // A clock that went backwards stands still.
        self.meet(now, &members);
        let now = self.now;
        let is_member = |id: ServerId| {
            members
                .binary_search_by_key(&id, |member| member.id)
                .is_ok()
        };

        let mut notes = Vec::new();
        let ahead = self.listen(reports, &mut notes, is_member);
        self.table.settle(now, &self.config);
        self.table.retain(is_member);
        self.refusals.prune(now, is_member);
        self.history.prune(
            now,
            self.config.cooldown.max(self.config.replica_hold),
            is_member,
        );

        let reporting = |id: ServerId| {
            self.table
                .silence(id, now)
                .is_some_and(|silence| silence <= self.config.stale_after)
        };
        for member in members.iter().filter(|member| !reporting(member.id)) {
            notes.push(Note::Silent {
                server: member.id,
                for_: self.table.silence(member.id, now),
            });
        }
        if self.config.freeze != Freeze::Off {
            notes.push(Note::Freeze {
                freeze: self.config.freeze,
                dead: self.dead(is_member),
            });
        }
        if ahead || self.config.freeze == Freeze::All {
            return Ok(self.nothing(notes));
        }
        let waiting = self.waiting(&members, now);
        let forced_only = self.config.freeze == Freeze::OnlyDead || !waiting.is_empty();
        if !waiting.is_empty() {
            notes.push(Note::Waiting { servers: waiting });
        }

        let servers = members
            .iter()
            .map(|member| (*member, reporting(member.id)))
            .collect();
        let mut draft = Draft::new(
            &self.config,
            &self.history,
            now,
            servers,
            self.draft_slices(),
        );
        draft.evidence = self.table.evidence();
        draft.rescale();
        draft.refusals = self.refusals.clone();
        draft.refused = self.refusals.current(reporting);
        let before: Vec<f64> = (0..draft.servers.len()).map(|s| draft.load(s)).collect();
        for phase in PHASES.iter().filter(|phase| phase.forced || !forced_only) {
            (phase.run)(&mut draft);
            check_shape(&draft.assigned()).map_err(|error| StepError::Broken {
                phase: phase.name,
                error,
            })?;
        }
        draft.rescale();
        notes.append(&mut draft.notes);
        let loads = draft
            .active()
            .map(|server| ServerLoad {
                server: draft.servers[server].member.id,
                before: before[server],
                after: draft.load(server),
            })
            .collect();
        let overloaded = overload::find(&draft);
        let slices = draft.assigned();
        let next = if slices == self.assignment.slices() {
            None
        } else {
            let version = self.assignment.version().next();
            let next = Assignment::new(version, slices).map_err(|error| StepError::Broken {
                phase: "all",
                error,
            })?;
            Some(next)
        };
        Ok(Plan {
            base: self.assignment.version(),
            changes: if next.is_some() {
                std::mem::take(&mut draft.changes)
            } else {
                Vec::new()
            },
            churn: draft.churn,
            next,
            overloaded,
            notes,
            loads,
        })
    }

    /// Learns who is there, for somebody who only watches; a step does this by
    /// itself.
    pub fn meet(&mut self, now: Duration, members: &[Member]) {
        self.now = self.now.max(now);
        let of = |state| {
            members
                .iter()
                .filter(move |member| member.state == state)
                .map(|member| member.id)
        };
        let serving: BTreeSet<ServerId> = of(MemberState::Serving).collect();
        if serving != self.serving {
            self.history
                .shorten(self.now + self.config.no_return_after_change);
            self.serving = serving;
        }
        self.draining = of(MemberState::Draining).collect();
    }

    /// Moves nothing of its own accord before every server with slices was
    /// heard (or `stale_after` has passed): for somebody who has only watched
    /// until now. A new balancer begins like this.
    pub fn look_first(&mut self, now: Duration) {
        self.started = self.now.max(now);
    }

    /// Says that the plan's assignment is in force. Does nothing if the plan
    /// was made from another one than the current.
    pub fn commit(&mut self, plan: &Plan, now: Duration) {
        if plan.base == self.assignment.version()
            && let Some(next) = &plan.next
        {
            self.adopt(next.clone(), now);
        }
    }

    /// Goes over to a newer assignment, whoever made it; refuses others.
    pub fn adopt(&mut self, next: Assignment, now: Duration) -> bool {
        if next.version() <= self.assignment.version() {
            return false;
        }
        self.now = self.now.max(now);
        self.history.record(
            &self.assignment,
            &next,
            self.now,
            self.config.no_return,
            |server| self.draining.contains(&server),
        );
        self.table.adopt(&next);
        self.assignment = next;
        true
    }

    /// Takes the reports in; whether one shows that a newer assignment exists.
    fn listen(
        &mut self,
        reports: &[ServerReport],
        notes: &mut Vec<Note>,
        is_member: impl Fn(ServerId) -> bool,
    ) -> bool {
        let mut ahead = false;
        for report in reports {
            if !is_member(report.server) {
                notes.push(Note::Stranger(report.server));
                continue;
            }
            if let Err(error) = report.validate() {
                notes.push(Note::Report(error));
                continue;
            }
            match self.table.hear(report, self.now) {
                Heard::New => {
                    let until = self.now + self.config.no_return;
                    self.refusals.hear(report, &self.assignment, until);
                }
                Heard::Repeated => {}
                Heard::Ahead(version) => {
                    ahead = true;
                    notes.push(Note::Ahead {
                        server: report.server,
                        version,
                    });
                }
            }
        }
        ahead
    }

    /// Who has slices and was never heard, while that may still change.
    fn waiting(&self, members: &[Member], now: Duration) -> Vec<ServerId> {
        if now.saturating_sub(self.started) >= self.config.stale_after {
            return Vec::new();
        }
        let serving: BTreeSet<ServerId> = self
            .assignment
            .slices()
            .iter()
            .flat_map(|assigned| assigned.servers.iter().copied())
            .collect();
        members
            .iter()
            .map(|member| member.id)
            .filter(|&id| serving.contains(&id) && self.table.silence(id, now).is_none())
            .collect()
    }

    fn dead(&self, is_member: impl Fn(ServerId) -> bool) -> Vec<ServerId> {
        let dead: BTreeSet<ServerId> = self
            .assignment
            .slices()
            .iter()
            .flat_map(|assigned| assigned.servers.iter().copied())
            .filter(|&id| !is_member(id))
            .collect();
        dead.into_iter().collect()
    }

    fn draft_slices(&self) -> Vec<DraftSlice> {
        self.assignment
            .slices()
            .iter()
            .zip(self.table.estimates())
            .map(|(assigned, estimate)| DraftSlice {
                slice: assigned.slice,
                servers: assigned.servers.clone(),
                estimate: estimate.clone(),
                touched: false,
            })
            .collect()
    }

    fn nothing(&self, notes: Vec<Note>) -> Plan {
        Plan {
            base: self.assignment.version(),
            next: None,
            changes: Vec::new(),
            churn: Churn::default(),
            overloaded: Vec::new(),
            notes,
            loads: Vec::new(),
        }
    }
}

/// The members in the order of their ids, if they make sense.
fn check_members(members: &[Member]) -> Result<Vec<Member>, StepError> {
    let mut members = members.to_vec();
    members.sort_by_key(|member| member.id);
    for pair in members.windows(2) {
        if pair[0].id == pair[1].id {
            return Err(StepError::Twice(pair[0].id));
        }
    }
    for member in &members {
        let cpu = member.capacity.cpu;
        if !(cpu > 0.0 && cpu.is_finite()) || member.capacity.bytes == 0 {
            return Err(StepError::Capacity(member.id));
        }
    }
    Ok(members)
}

/// Why no proposal could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Two members have one id.
    #[error("{0} is listed twice among the members: each life of a process needs its own id")]
    Twice(ServerId),
    /// A member with no capacity.
    #[error("{0} has no capacity: both CPU and memory have to be above 0")]
    Capacity(ServerId),
    /// A phase broke an invariant. Nothing is proposed; what is in force stays.
    #[error("phase {phase} has broken the assignment, which stays as it was: {error}")]
    Broken {
        /// Which.
        phase: &'static str,
        /// How.
        error: AssignmentError,
    },
}
