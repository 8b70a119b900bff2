//! SET, fill, ERASE, CAS: carries out the steps of `client-core`'s machines.

use crate::client::{Client, check_key};
use crate::error::{Mutated, OpError};
use crate::get::{Lookup, pause};
use crate::rpc::CallAnswer;
use crate::time;
use crate::wait::{AllOutstanding, Event, Outstanding};
use std::time::Duration;
use trefoil_cell::Cohort;
use trefoil_client_core::cas::{Cas, CasStep};
use trefoil_client_core::get::MissReason;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_client_core::mutate::{Mutate, MutateKind, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::Limits;
use trefoil_fabric::SendError;
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX};
use trefoil_layout::message::Request;
use trefoil_layout::op::{Action, Expected, Mutation, Rejection};
use trefoil_layout::{KeyHash, Version};

/// How long a full request ring is waited for.
const FULL_PATIENCE_NS: u64 = 20_000_000;

/// A version taken at a miss: what a fill stores under.
#[derive(Clone, Copy, Debug)]
pub struct FillTicket(Version);

impl FillTicket {
    pub(crate) fn new(version: Version) -> Self {
        FillTicket(version)
    }
}

/// What a value is stored with.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetOptions {
    /// Expires after; `None` never. Whole milliseconds, at least one.
    pub ttl: Option<Duration>,
    /// Expires at this time, in milliseconds since the Unix epoch; goes before
    /// `ttl`. A time in the past is stored, and expired at once.
    pub expiry_ms: Option<u64>,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// A CAS unique of the caller's.
    pub unique: Option<u64>,
}

/// One message to one replica: when and what.
struct Outgoing<'a> {
    action: Action,
    entry: DataEntry<'a>,
}

impl Client {
    /// Stores a value, above whatever is there. On success a quorum holds it.
    pub fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let version = self.versions.next();
        self.store(MutateKind::Set, version, key, value, options)
    }

    /// Stores a value that was computed after a miss, unless something newer
    /// than the miss is there.
    pub fn fill(
        &mut self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        self.store(MutateKind::Fill, ticket.0, key, value, options)
    }

    /// Removes a value; its version is remembered, so that older mutations
    /// that arrive late do not bring it back.
    pub fn erase(&mut self, key: &[u8]) -> Result<Mutated, OpError> {
        let version = self.versions.next();
        let outgoing = Outgoing {
            action: Action::Erase,
            entry: DataEntry {
                key,
                ..DataEntry::default()
            },
        };
        self.mutate(MutateKind::Erase, version, &outgoing)
    }

    /// Stores a value iff exactly `expected` is there.
    pub fn cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        check_key(key)?;
        let limit = self.config.value_len_max;
        if value.len() as u64 > limit {
            return Err(OpError::Failed(too_long(value.len(), limit)));
        }
        if let Expected::Version(version) = expected {
            self.observe_sanely(version);
        }
        let version = self.versions.next();
        let entry = entry(key, value, options)?;
        let limits = self.limits(time::monotonic_ns());
        self.run_cas(
            Cas::new(self.mode, expected, version, limits),
            &Outgoing {
                action: Action::Cas(expected),
                entry,
            },
            limits,
        )
    }

    fn store(
        &mut self,
        kind: MutateKind,
        version: Version,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let limit = self.config.value_len_max;
        if value.len() as u64 > limit {
            return Err(OpError::Failed(too_long(value.len(), limit)));
        }
        let entry = entry(key, value, options)?;
        self.mutate(
            kind,
            version,
            &Outgoing {
                action: Action::Set,
                entry,
            },
        )
    }

    fn mutate(
        &mut self,
        kind: MutateKind,
        version: Version,
        outgoing: &Outgoing<'_>,
    ) -> Result<Mutated, OpError> {
        check_key(outgoing.entry.key)?;
        self.operation += 1;
        let hash = self.hash(outgoing.entry.key);
        let mut cohort = self.cohort(hash);
        let mut now = time::monotonic_ns();
        let mut machine = Mutate::new(self.mode, kind, version, self.limits(now));
        let mut sent = [Version::ZERO; REPLICAS_MAX];
        let mut outstanding = AllOutstanding::default();
        let mut reason = None;
        let outcome = loop {
            match machine.poll(now) {
                MutateStep::Send { replica, version } => {
                    sent[replica] = version;
                    match self.send(outgoing, hash, version, cohort, replica) {
                        Ok(waiting) => outstanding[replica] = waiting,
                        Err(why) => {
                            reason = Some(why);
                            machine.handle_failure(replica, version, SendFailure::NotSent);
                        }
                    }
                    continue;
                }
                MutateStep::Nominate { above } => {
                    self.versions.observe(above);
                    machine.handle_version(self.versions.next());
                }
                MutateStep::Refresh { replica } => {
                    self.refresh_config();
                    let fresh = self.cohort(hash);
                    if fresh == cohort {
                        machine.handle_refreshed(replica);
                    } else {
                        cohort = fresh;
                        outstanding = AllOutstanding::default();
                        self.operation += 1;
                        machine.restart(self.mode);
                    }
                }
                MutateStep::Reconnect { replica } => {
                    self.links[cohort.as_slice()[replica] as usize].reconnect(now);
                    machine.handle_reconnected(replica);
                }
                MutateStep::Pause { ns } => pause(ns),
                MutateStep::Wait { until_ns } => {
                    if let Some((replica, event)) =
                        self.next_event(cohort, &mut outstanding, until_ns)
                    {
                        match event {
                            Event::Ack(ack) => machine.handle_ack(replica, sent[replica], ack),
                            other => {
                                let (failure, why) = lost(other);
                                reason = Some(why);
                                machine.handle_failure(replica, sent[replica], failure);
                            }
                        }
                        // The clock decides nothing that an answer did not.
                        continue;
                    }
                }
                MutateStep::Done(outcome) => break outcome,
            }
            now = time::monotonic_ns();
        };
        if machine.retries().total() > 0 {
            self.counters.mutation_retries.merge(&machine.retries());
        }
        self.conclude_mutation(outcome, reason)
    }

    fn run_cas(
        &mut self,
        mut machine: Cas,
        outgoing: &Outgoing<'_>,
        limits: Limits,
    ) -> Result<Mutated, OpError> {
        self.operation += 1;
        let hash = self.hash(outgoing.entry.key);
        let mut cohort = self.cohort(hash);
        let mut now = time::monotonic_ns();
        let mut outstanding = AllOutstanding::default();
        let mut reason = None;
        let outcome = loop {
            let version = machine.version();
            match machine.poll(now) {
                CasStep::Send { replica } => {
                    match self.send(outgoing, hash, version, cohort, replica) {
                        Ok(waiting) => outstanding[replica] = waiting,
                        Err(why) => {
                            reason = Some(why);
                            machine.handle_failure(replica, SendFailure::NotSent);
                        }
                    }
                }
                CasStep::Install { replica } => {
                    let install = Outgoing {
                        action: Action::Set,
                        entry: outgoing.entry,
                    };
                    // Whether it arrives changes nothing of the outcome.
                    let _ = self.send(&install, hash, version, cohort, replica);
                }
                CasStep::Withdraw { replica } => {
                    let withdrawal = Outgoing {
                        action: Action::Erase,
                        entry: DataEntry {
                            key: outgoing.entry.key,
                            ..DataEntry::default()
                        },
                    };
                    match self.send(&withdrawal, hash, version, cohort, replica) {
                        Ok(waiting) => outstanding[replica] = waiting,
                        Err(_) => machine.handle_failure(replica, SendFailure::NotSent),
                    }
                }
                CasStep::Pause { ns } => pause(ns),
                CasStep::Look => {
                    let agreed = self.agreed(outgoing.entry.key, limits);
                    // Reading may have learned of another configuration.
                    cohort = self.cohort(hash);
                    outstanding = AllOutstanding::default();
                    self.operation += 1;
                    self.observe_sanely(machine.bound());
                    machine.handle_agreed(agreed, self.versions.next());
                    now = time::monotonic_ns();
                }
                CasStep::Wait { until_ns } => {
                    match self.next_event(cohort, &mut outstanding, until_ns) {
                        Some((replica, Event::Ack(ack))) => machine.handle_ack(replica, ack),
                        Some((replica, other)) => {
                            let (failure, why) = lost(other);
                            reason = Some(why);
                            machine.handle_failure(replica, failure);
                        }
                        None => {}
                    }
                    now = time::monotonic_ns();
                }
                CasStep::Done(outcome) => break outcome,
            }
        };
        self.counters.mutation_retries.merge(&machine.retries());
        // The next attempt has to lie above whatever refused this one.
        self.observe_sanely(machine.bound());
        self.conclude_mutation(outcome, reason)
    }

    /// What a quorum agrees on, in the words of a CAS.
    fn agreed(&mut self, key: &[u8], limits: Limits) -> Option<Expected> {
        match self.peek_within(key, limits) {
            Ok(Lookup::Hit(hit)) => Some(Expected::Version(hit.version)),
            Ok(Lookup::Miss(miss)) if miss.reason != MissReason::Inquorate => {
                Some(Expected::Absent)
            }
            _ => None,
        }
    }

    /// Sends to one replica by ring, or by RPC where rings do not go. An error
    /// means that it was certainly not sent.
    fn send(
        &mut self,
        outgoing: &Outgoing<'_>,
        hash: KeyHash,
        version: Version,
        cohort: Cohort,
        replica: usize,
    ) -> Result<Outstanding, String> {
        let number = cohort.as_slice()[replica];
        let now = time::coarse_ns();
        let link = &mut self.links[number as usize];
        let by_rpc = match link.strategy(self.options.carrier, now) {
            trefoil_client_core::get::Strategy::Down => {
                return Err(format!("cannot reach backend {number}"));
            }
            strategy => strategy == trefoil_client_core::get::Strategy::Rpc,
        };
        if let Some(connection) = link.shared() {
            let partition = connection.partition(hash);
            link.mutated(partition);
        }
        let mutation = Mutation {
            action: outgoing.action,
            version,
            entry: outgoing.entry,
        };
        if !by_rpc && let Some((connection, _)) = link.shared_and_bytes() {
            let request = Request::Mutate(mutation);
            let mut full_until = None;
            loop {
                match connection.send(&request) {
                    Ok(id) => return Ok(Outstanding::Ring(id)),
                    Err(SendError::Full) => {
                        let now = time::monotonic_ns();
                        if now > *full_until.get_or_insert(now + FULL_PATIENCE_NS) {
                            return Err(format!("backend {number} does not keep up"));
                        }
                        // Answers to earlier operations may be what blocks it.
                        if connection.poll(|_, _| {}).is_err() {
                            link.set_down(now);
                            return Err(format!("backend {number} has closed the connection"));
                        }
                        std::thread::yield_now();
                    }
                    Err(SendError::TooLarge | SendError::NoMessages) => break,
                    Err(SendError::Closed) => {
                        link.set_down(now);
                        return Err(format!("backend {number} has closed the connection"));
                    }
                }
            }
        }
        let mut client = self.shared.rpc.backend(&self.config, number)?;
        let request = trefoil_rpc::encode_mutation(number, self.config.config_id, &mutation);
        let call =
            async move { CallAnswer::Mutate(client.mutate(request).await.map(|r| r.into_inner())) };
        self.shared
            .rpc
            .start(&self.done.0, self.operation, replica, call)?;
        Ok(Outstanding::Call)
    }

    fn conclude_mutation(
        &mut self,
        outcome: MutationOutcome,
        reason: Option<String>,
    ) -> Result<Mutated, OpError> {
        let why = |cause: String| match reason {
            Some(reason) => format!("{cause}: {reason}"),
            None => cause,
        };
        match outcome {
            MutationOutcome::Stored { version } => Ok(Mutated::Stored { version }),
            MutationOutcome::Superseded { bound } => Ok(Mutated::Superseded { bound }),
            MutationOutcome::Exists { present } => Ok(Mutated::Exists { present }),
            MutationOutcome::Rejected(rejection) => {
                self.counters.failed += 1;
                Err(OpError::Rejected(rejection))
            }
            MutationOutcome::Indeterminate => {
                self.counters.indeterminate += 1;
                Err(OpError::Indeterminate(why(
                    "no quorum answered before deadline and retries ended".into(),
                )))
            }
            MutationOutcome::Failed { cause } => {
                self.counters.failed += 1;
                Err(OpError::Failed(why(cause.to_string())))
            }
        }
    }
}

fn entry<'a>(
    key: &'a [u8],
    value: &'a [u8],
    options: SetOptions,
) -> Result<DataEntry<'a>, OpError> {
    let expiry_ms = match (options.expiry_ms, options.ttl) {
        (Some(at), _) => Some(at)
            .filter(|at| *at <= EXPIRY_MS_MAX)
            .ok_or(OpError::Rejected(Rejection::BadItem))?,
        (None, None) => 0,
        (None, Some(ttl)) => {
            let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
            (time::unix_ns() / 1_000_000)
                .checked_add(ttl_ms)
                .filter(|at| *at <= EXPIRY_MS_MAX)
                .ok_or(OpError::Rejected(Rejection::BadItem))?
        }
    };
    Ok(DataEntry {
        expiry_ms,
        client_flags: options.client_flags,
        item_flags: options.item_flags,
        unique: options.unique,
        key,
        value,
    })
}

fn lost(event: Event) -> (SendFailure, String) {
    match event {
        Event::Gone(failure, why) => (failure, why),
        _ => (
            SendFailure::Lost,
            "the backend answered something else".into(),
        ),
    }
}

fn too_long(len: usize, limit: u64) -> String {
    format!("the value has {len} bytes, the cell's limit is {limit}")
}
