//! A lookup under way, of whatever mode.

use super::Op;
use crate::slow::Order;
use trefoil_client_core::cas::Looked;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Failure, Get, GetStep, Plan, Strategy};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::retry::{Limits, RetryCounts};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::op::LookupAnswer;
use trefoil_layout::{KeyHash, Version};

/// A machine of one of the modes.
#[derive(Debug)]
pub(crate) enum GetMachine {
    One(Get<1>),
    Two(Get<2>),
    Three(Get<3>),
}

macro_rules! each {
    ($machine:expr, $get:ident => $body:expr) => {
        match $machine {
            GetMachine::One($get) => $body,
            GetMachine::Two($get) => $body,
            GetMachine::Three($get) => $body,
        }
    };
}

/// Who is asked, and how: as many strategies as the mode has copies are used.
pub(crate) struct AnyPlan {
    pub(crate) preferred: usize,
    /// Nanoseconds since the Unix epoch.
    pub(crate) now_unix_ns: u64,
    /// The latest time that a version names which was seen: a wall clock may be behind.
    pub(crate) known_ns: u64,
    /// For whoever writes on the strength of what is found: the version of a CAS that
    /// looks, or zero.
    pub(crate) careful: Option<Version>,
    /// Of those that are waited for.
    pub(crate) order: Option<Order>,
    pub(crate) strategies: [Strategy; REPLICAS_MAX],
}

impl AnyPlan {
    pub(crate) fn of<const N: usize>(&self) -> Plan<N> {
        let mut plan = Plan::frugal(self.preferred);
        plan.strategies.copy_from_slice(&self.strategies[..N]);
        suit(&mut plan, self.order);
        match self.careful {
            Some(own) => plan.careful(self.now_unix_ns, own),
            None => plan.at(self.now_unix_ns.max(self.known_ns)),
        }
    }
}

/// Whether one of those that are asked takes its time, and is worth an order.
#[inline(always)]
pub(crate) fn waits(strategies: &[Strategy]) -> bool {
    let waits = |strategy: &Strategy| {
        matches!(
            strategy,
            Strategy::Scar | Strategy::Vote | Strategy::VoteThenRead | Strategy::Message
        )
    };
    strategies.iter().any(waits)
}

/// Sets who is asked first, how many are, and when one more, by how they are looked up.
#[inline]
pub(crate) fn suit<const N: usize>(plan: &mut Plan<N>, order: Option<Order>) {
    if plan.strategies.contains(&Strategy::Rpc) {
        // Over a network all are asked at once.
        plan.fan_out = N;
    }
    if let Some(order) = order {
        plan.hedge_after_ns = order.hedge_after_ns;
        plan.preferred = order.first.unwrap_or(plan.preferred) % N;
        if order.asks_all {
            plan.fan_out = N;
        }
    }
    if order.is_some_and(|order| order.leaves_out_data) {
        leave_out_data(plan);
    }
}

/// Of two replicas that are asked by way of engines only the first sends the data along:
/// the other's vote is enough, and its copy would cost as much again on the wire. The third,
/// which is asked when these are late, sends them again.
#[inline]
fn leave_out_data<const N: usize>(plan: &mut Plan<N>) {
    if N == 3 {
        let second = (plan.preferred + 1) % N;
        let is_brought = plan.strategies[plan.preferred] == Strategy::Scar;
        match plan.strategies[second] {
            Strategy::Scar => plan.strategies[second] = Strategy::Vote,
            // Of the first the data come along anyway.
            Strategy::VoteThenRead if is_brought => plan.strategies[second] = Strategy::Vote,
            _ => {}
        }
    }
}

impl From<Get<1>> for GetMachine {
    fn from(get: Get<1>) -> Self {
        GetMachine::One(get)
    }
}

impl From<Get<2>> for GetMachine {
    fn from(get: Get<2>) -> Self {
        GetMachine::Two(get)
    }
}

impl From<Get<3>> for GetMachine {
    fn from(get: Get<3>) -> Self {
        GetMachine::Three(get)
    }
}

impl GetMachine {
    pub(crate) fn new(
        mode: Mode,
        plan: &AnyPlan,
        hash: KeyHash,
        limits: Limits,
        now_ns: u64,
    ) -> Self {
        match mode {
            Mode::R1 => GetMachine::One(Get::new(&plan.of(), hash, limits, now_ns)),
            Mode::R2Immutable => GetMachine::Two(Get::new(&plan.of(), hash, limits, now_ns)),
            Mode::R32 => GetMachine::Three(Get::new(&plan.of(), hash, limits, now_ns)),
        }
    }

    /// Begins anew with a plan for the same key and mode.
    pub(crate) fn restart(&mut self, plan: &AnyPlan, hash: KeyHash, now_ns: u64) {
        each!(self, get => get.restart(&plan.of(), hash, now_ns));
    }

    /// Ends no sooner than `deadline_ns`.
    pub(crate) fn extend(&mut self, deadline_ns: u64) {
        each!(self, get => get.extend(deadline_ns));
    }

    /// What a CAS's look has found.
    pub(crate) fn looked(&self) -> Looked {
        each!(self, get => get.looked())
    }

    /// What its miss has found expired or flushed.
    pub(crate) fn dead_version(&self) -> Version {
        each!(self, get => get.dead_version())
    }

    /// Whether replicas were seen to differ.
    pub(crate) fn is_dirty(&self) -> bool {
        each!(self, get => get.is_dirty())
    }

    /// What a replica that has voted holds.
    pub(crate) fn voted(&self, replica: usize) -> Option<Option<Version>> {
        each!(self, get => match replica < get.copies() {
            true => get.voted(replica),
            false => None,
        })
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> GetStep {
        each!(self, get => get.poll(now_ns))
    }

    pub(crate) fn handle_index(&mut self, replica: usize, vote: IndexVote) {
        each!(self, get => get.handle_index(replica, vote));
    }

    pub(crate) fn handle_data(&mut self, replica: usize, bytes: &[u8], check: &DataCheck<'_>) {
        each!(self, get => get.handle_data(replica, bytes, check));
    }

    pub(crate) fn handle_scan(
        &mut self,
        replica: usize,
        vote: IndexVote,
        bytes: &[u8],
        check: &DataCheck<'_>,
    ) {
        each!(self, get => get.handle_scar(replica, vote, bytes, check));
    }

    pub(crate) fn handle_answer(
        &mut self,
        replica: usize,
        answer: &LookupAnswer<'_>,
        check: &DataCheck<'_>,
    ) {
        each!(self, get => get.handle_answer(replica, answer, check));
    }

    pub(crate) fn handle_out_of_window(&mut self, replica: usize) {
        each!(self, get => get.handle_out_of_window(replica));
    }

    pub(crate) fn handle_refreshed(&mut self, replica: usize) {
        each!(self, get => get.handle_refreshed(replica));
    }

    pub(crate) fn handle_reconnected(&mut self, replica: usize) {
        each!(self, get => get.handle_reconnected(replica));
    }

    pub(crate) fn handle_late(&mut self, replica: usize) {
        each!(self, get => get.handle_late(replica));
    }

    pub(crate) fn handle_late_again(&mut self, replica: usize, strategy: Strategy) {
        each!(self, get => get.handle_late_again(replica, strategy));
    }

    pub(crate) fn handle_failure(&mut self, replica: usize, failure: Failure) {
        each!(self, get => get.handle_failure(replica, failure));
    }

    pub(crate) fn handle_refused(&mut self, replica: usize) {
        each!(self, get => get.handle_refused(replica));
    }

    pub(crate) fn lost(&mut self, replica: usize) {
        self.handle_failure(replica, Failure::Connection);
    }

    pub(crate) fn retries(&self) -> RetryCounts {
        each!(self, get => get.retries())
    }

    pub(crate) fn touched_slot(&self, replica: usize) -> Option<u32> {
        each!(self, get => match replica < get.copies() {
            true => get.touched_slot(replica),
            false => None,
        })
    }
}

/// Copies of the machine's mode.
trait Copies {
    fn copies(&self) -> usize;
}

impl<const N: usize> Copies for Get<N> {
    fn copies(&self) -> usize {
        N
    }
}

impl Op {
    /// The lookup that runs now, the operation's own or a CAS's look.
    pub(crate) fn lookup(&mut self) -> Option<&mut GetMachine> {
        match &mut self.machine {
            super::Machine::Get(get) => Some(get),
            super::Machine::Cas { look, .. } => look.as_mut(),
            _ => None,
        }
    }
}
