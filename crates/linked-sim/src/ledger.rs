//! The store that two assigners share: the real one, and the members beside it, under the
//! same terms.

use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::coordination::{
    CandidateId, EmbeddedStore, LeaseTerms, Reply, Request, StoreError,
};
use trefoil_sharder::mutants::{self, Mutant};
use trefoil_sharder::{AssignmentVersion, MemberState, ServerId};

/// What a candidate asks of the store.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// The assigner's.
    Request(u64, Request),
    /// Who is a member; and leases may be as long as its own.
    Roll {
        election: u64,
        term: u64,
        own: Duration,
    },
    /// A member is written down, who has asked at this time on its clock.
    Put {
        election: u64,
        term: u64,
        server: ServerId,
        state: MemberState,
        sent: Duration,
    },
    /// A member is struck off, or has left.
    Remove {
        election: u64,
        term: u64,
        server: ServerId,
    },
    /// No lease is longer any more.
    Shorten {
        election: u64,
        term: u64,
        lease: Duration,
    },
}

impl Ask {
    /// What comes of it where no answer does, after a time. The rest is asked once more by
    /// whoever waits for it.
    pub(crate) fn unanswered(&self) -> Option<Answer> {
        match *self {
            Ask::Put {
                election,
                server,
                state,
                sent,
                ..
            } => Some(Answer::Put {
                election,
                server,
                state,
                sent,
                done: false,
            }),
            Ask::Remove {
                election, server, ..
            } => Some(Answer::Removed {
                election,
                server,
                done: false,
            }),
            Ask::Request(..) | Ask::Roll { .. } | Ask::Shorten { .. } => None,
        }
    }
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Request(u64, Result<Reply, StoreError>),
    Roll(u64, Option<Roll>),
    Put {
        election: u64,
        server: ServerId,
        state: MemberState,
        sent: Duration,
        done: bool,
    },
    Removed {
        election: u64,
        server: ServerId,
        done: bool,
    },
    Lease(u64, Option<Duration>),
}

/// What a new leader hears of the store.
#[derive(Clone, Debug)]
pub(crate) struct Roll {
    pub(crate) members: BTreeMap<ServerId, MemberState>,
    /// No lease in force is longer.
    pub(crate) lease: Option<Duration>,
    pub(crate) version: Option<AssignmentVersion>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) store: EmbeddedStore,
    pub(crate) roll: BTreeMap<ServerId, MemberState>,
    lease: Option<Duration>,
    leader: Option<Leader>,
    /// Elections that ended with another leader or term than before.
    pub(crate) elections: u64,
    /// What was refused because its asker led no longer.
    pub(crate) refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Leader {
    candidate: CandidateId,
    term: u64,
    until: Duration,
}

/// What came of a request: the answer, and what it has changed.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) answer: Answer,
    pub(crate) struck_off: Option<ServerId>,
    /// Somebody who does not lead has changed something.
    pub(crate) usurped: Option<String>,
}

impl Ledger {
    fn leads(&self, now: Duration, candidate: CandidateId, term: u64) -> bool {
        self.leader.is_some_and(|leader| {
            (leader.candidate, leader.term) == (candidate, term) && now < leader.until
        })
    }

    /// Whether anybody leads.
    pub(crate) fn is_led(&self, now: Duration) -> bool {
        self.leader.is_some_and(|leader| now < leader.until)
    }

    /// As the store of `sharder` does it for maps.
    fn allows(&mut self, now: Duration, candidate: CandidateId, term: u64) -> bool {
        let broken =
            mutants::is(Mutant::FormerTermTaken) || mutants::is(Mutant::FormerLeaderPublishes);
        let allowed = broken || self.leads(now, candidate, term);
        self.refused += u64::from(!allowed);
        allowed
    }

    pub(crate) fn take(&mut self, now: Duration, candidate: CandidateId, ask: Ask) -> Done {
        let mut struck_off = None;
        let mut changed_in = None;
        let answer = match ask {
            Ask::Request(id, request) => {
                let swaps_in = match &request {
                    Request::Swap { term, .. } => Some(*term),
                    _ => None,
                };
                let lease = match &request {
                    Request::Campaign { lease, .. } => *lease,
                    _ => Duration::ZERO,
                };
                let result = self.store.request(now, request);
                match &result {
                    Ok(Reply::Elected { term }) => self.elected(now, candidate, *term, lease),
                    Ok(Reply::Swapped(_)) => changed_in = swaps_in,
                    Err(StoreError::NotLeader { .. }) => self.refused += 1,
                    _ => {}
                }
                Answer::Request(id, result)
            }
            Ask::Roll {
                election,
                term,
                own,
            } => {
                let roll = self.allows(now, candidate, term).then(|| Roll {
                    members: self.roll.clone(),
                    lease: self.lease,
                    version: self.store.version(),
                });
                if roll.is_some() {
                    let recorded = LeaseTerms::new(own, Duration::ZERO, self.lease).recorded();
                    self.lease = Some(recorded);
                    changed_in = Some(term);
                }
                Answer::Roll(election, roll)
            }
            Ask::Put {
                election,
                term,
                server,
                state,
                sent,
            } => {
                let done = self.allows(now, candidate, term);
                if done {
                    self.roll.insert(server, state);
                    changed_in = Some(term);
                }
                Answer::Put {
                    election,
                    server,
                    state,
                    sent,
                    done,
                }
            }
            Ask::Remove {
                election,
                term,
                server,
            } => {
                let done = self.allows(now, candidate, term);
                if done {
                    struck_off = self.roll.remove(&server).map(|_| server);
                    changed_in = Some(term);
                }
                Answer::Removed {
                    election,
                    server,
                    done,
                }
            }
            Ask::Shorten {
                election,
                term,
                lease,
            } => {
                let done = self.allows(now, candidate, term);
                if done {
                    self.lease = Some(lease);
                    changed_in = Some(term);
                }
                Answer::Lease(election, done.then_some(lease))
            }
        };
        let usurped = changed_in
            .filter(|&term| !self.leads(now, candidate, term))
            .map(|term| {
                let leader = self.leader.filter(|leader| now < leader.until);
                format!("{candidate} of term {term} has published, the leader is {leader:?}")
            });
        Done {
            answer,
            struck_off,
            usurped,
        }
    }

    fn elected(&mut self, now: Duration, candidate: CandidateId, term: u64, lease: Duration) {
        let before = self.leader.map(|leader| leader.term);
        self.elections += u64::from(before != Some(term));
        let until = now + lease;
        let until = match self.leader {
            Some(leader) if leader.term == term => leader.until.max(until),
            _ => until,
        };
        self.leader = Some(Leader {
            candidate,
            term,
            until,
        });
    }
}
