//! Calls as a port: gRPC to one backend, for one client.

use super::bell::Bell;
use super::queue::RoomWatch;
use super::{CallAnswer, CallPlan, Ends, Purpose, Rpc, certainly_not_sent, is_of_the_way};
use crate::cell::Shared;
use crate::reaches::Reaches;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use trefoil_cell::CellConfig;
use trefoil_client_core::outcome::SendFailure;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::RegionView;
use trefoil_fabric::port::{Closed, Completion, OutOfWindow, Port, Progress, SendError, Token};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::op::ItemUse;
use trefoil_layout::{KeyHash, Pointer, TopologyId};
use trefoil_region::{ForkMark, WordBuffer};
use trefoil_rpc::{failure_text, v1};

/// Touched items of one call: so many reads share its cost, some 0.1 us each.
const TOUCH_COUNT: usize = 512;

/// Answers that have come and were not polled yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    answers: Mutex<VecDeque<(Token, CallAnswer)>>,
    count: AtomicUsize,
    bell: Arc<Bell>,
}

impl Inbox {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Inbox {
            answers: Mutex::default(),
            count: AtomicUsize::new(0),
            bell,
        }
    }

    pub(crate) fn put(&self, token: Token, answer: CallAnswer) {
        self.lock().push_back((token, answer));
        self.count.fetch_add(1, Ordering::SeqCst);
        self.bell.ring();
    }

    fn take(&self) -> Option<(Token, CallAnswer)> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let answer = self.lock().pop_front();
        if answer.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        answer
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Token, CallAnswer)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct RpcPort {
    backend: u32,
    config: Arc<CellConfig>,
    rpc: Arc<Rpc>,
    reaches: Arc<Reaches>,
    inbox: Arc<Inbox>,
    room: Arc<RoomWatch>,
    /// Says to the calls that the backend is given up.
    given_up: watch::Sender<bool>,
    /// Calls that it had answered to this process when that was asked last.
    answered: u64,
    touches: Vec<v1::PartitionTouches>,
    touch_count: usize,
    process: ForkMark,
}

impl RpcPort {
    pub(crate) fn new(
        backend: u32,
        config: Arc<CellConfig>,
        shared: &Shared,
        bell: Arc<Bell>,
    ) -> Self {
        RpcPort {
            backend,
            config,
            rpc: Arc::clone(&shared.rpc),
            reaches: Arc::clone(&shared.reaches),
            room: Arc::new(RoomWatch::new(Arc::clone(&bell))),
            inbox: Arc::new(Inbox::new(bell)),
            given_up: watch::Sender::new(false),
            answered: shared.rpc.account.answered(backend),
            touches: Vec::new(),
            touch_count: 0,
            process: ForkMark::new(),
        }
    }
}

impl Port for RpcPort {
    fn view(&self) -> Option<&Arc<RegionView>> {
        None
    }

    fn has_messages(&self) -> bool {
        true
    }

    fn submit_index(&mut self, _: Token, _: usize, _: KeyHash) -> Progress<IndexVote> {
        Progress::Refused
    }

    fn submit_data(
        &mut self,
        _: Token,
        _: Pointer,
        _: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        Progress::Refused
    }

    fn answer_ns(&self) -> u64 {
        0
    }

    fn backlog_ns(&self) -> u64 {
        0
    }

    fn prefers_votes(&self) -> bool {
        false
    }

    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        self.call(token, under, request, u64::MAX)
    }

    fn ask(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
        until_ns: u64,
    ) -> Result<(), SendError> {
        self.call(token, under, request, until_ns)
    }

    /// Collected; a call takes many.
    #[cold]
    fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        self.touch_count += batch.slots.len() + batch.names.len();
        self.touches.push(v1::PartitionTouches {
            partition: partition as u32,
            window_id: batch.window_id,
            slots: batch.slots.to_vec(),
            names: batch.names.to_vec(),
        });
        if self.touch_count >= TOUCH_COUNT {
            self.flush_touches();
        }
    }

    /// While earlier reports are under way it is lost: a backend that does not keep
    /// up is not helped by more of them.
    fn flush_touches(&mut self) {
        if self.touches.is_empty() {
            return;
        }
        self.touch_count = 0;
        let request = v1::TouchRequest {
            backend: self.backend,
            partitions: std::mem::take(&mut self.touches),
            life: self.config.life,
        };
        self.rpc.report(&self.config, request);
    }

    fn others_have_moved(&mut self) -> bool {
        let answered = self.rpc.account.answered(self.backend);
        std::mem::replace(&mut self.answered, answered) != answered
    }

    fn len_under_way(&self) -> u64 {
        self.rpc.account.len_under_way(self.backend)
    }

    fn give_up(&mut self) {
        self.given_up.send_replace(true);
    }

    fn poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        self.room.clear();
        let mut count = 0;
        while let Some((token, answer)) = self.inbox.take() {
            count += 1;
            self.heard(&answer);
            deliver(token, &answer, &mut on);
        }
        Ok(count)
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.inbox.count.load(Ordering::SeqCst) > 0 || self.room.has_room()
    }

    /// Its client arms the bell.
    fn arm(&self) {}

    fn disarm(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl RpcPort {
    /// A question's place is free from `until_ns` on.
    fn call(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
        until_ns: u64,
    ) -> Result<(), SendError> {
        let backend = self.backend;
        let mut client = self
            .rpc
            .backend(&self.config, backend)
            .map_err(|_| SendError::Closed)?;
        let TopologyId { life, config_id } = under;
        let plan = |len, purpose| CallPlan {
            backend,
            len,
            purpose,
        };
        let (rpc, inbox, room) = (&self.rpc, &self.inbox, &self.room);
        let ends = |until_ns| Ends {
            given_up: self.given_up.subscribe(),
            until_ns,
        };
        match request {
            Request::Mutate(mutation) => {
                let len = mutation.entry.key.len() + mutation.entry.value.len();
                let plan = plan(len, Purpose::Mutation);
                let place = rpc.enter(&plan, room)?;
                let request = trefoil_rpc::encode_mutation(backend, under, mutation);
                let call = async move {
                    CallAnswer::Mutate(client.mutate(request).await.map(|r| r.into_inner()))
                };
                rpc.start(
                    inbox,
                    token,
                    place,
                    ends(u64::MAX),
                    |status| CallAnswer::Mutate(Err(status)),
                    call,
                )
            }
            Request::Lookup { key } => {
                let place = rpc.enter(&plan(key.len(), Purpose::Question), room)?;
                let request = v1::LookupRequest {
                    backend,
                    life,
                    config_id,
                    key: key.to_vec().into(),
                    layout_version: LAYOUT_VERSION.into(),
                    takes_plain: true,
                };
                let hasher = self.config.hash;
                let call = async move {
                    let answer = client.lookup(request).await;
                    CallAnswer::Lookup(answer.map(|response| {
                        let mut response = response.into_inner();
                        trefoil_rpc::settle_answer(&mut response, &hasher);
                        response
                    }))
                };
                rpc.start(
                    inbox,
                    token,
                    place,
                    ends(until_ns),
                    |status| CallAnswer::Lookup(Err(status)),
                    call,
                )
            }
            Request::Use { key } => {
                let place = rpc.enter(&plan(key.len(), Purpose::Question), room)?;
                let request = v1::UseRequest {
                    backend,
                    life,
                    config_id,
                    key: key.to_vec().into(),
                };
                let call = async move {
                    CallAnswer::Use(client.r#use(request).await.map(|r| r.into_inner()))
                };
                rpc.start(
                    inbox,
                    token,
                    place,
                    ends(until_ns),
                    |status| CallAnswer::Use(Err(status)),
                    call,
                )
            }
            Request::Touch { .. } | Request::Ping => Err(SendError::NoMessages),
        }
    }

    /// Whether the backend is there, by what came of a call to it.
    fn heard(&self, answer: &CallAnswer) {
        match answer.failure() {
            Some(status) if is_of_the_way(status) => {
                self.reaches.unreached(self.backend, &failure_text(status));
            }
            _ if answer.is_heard() => self.reaches.answered(self.backend),
            // It has only taken too long.
            _ => {}
        }
    }
}

impl Drop for RpcPort {
    fn drop(&mut self) {
        // In a forked child a lock may be held by a thread that is not there.
        if !self.process.is_child() {
            self.rpc.account.leave(self.backend, &self.room);
        }
    }
}

fn deliver(token: Token, answer: &CallAnswer, on: &mut impl FnMut(Completion<'_>)) {
    let broken = |on: &mut dyn FnMut(Completion<'_>), error: &dyn std::fmt::Display| {
        let why = error.to_string();
        on(Completion::NoAnswer(token, SendFailure::Lost, &why));
    };
    match answer {
        CallAnswer::Lookup(Ok(response)) => match trefoil_rpc::decode_lookup_answer(response) {
            Ok(answer) => {
                on(Completion::Stamp(token, response.stamp));
                on(Completion::Answer(token, Answer::Lookup(answer)));
            }
            Err(error) => broken(on, &error),
        },
        CallAnswer::Mutate(Ok(response)) => match trefoil_rpc::decode_ack(response) {
            Ok(ack) => on(Completion::Answer(token, Answer::Ack(ack))),
            Err(error) => broken(on, &error),
        },
        CallAnswer::Use(Ok(response)) => {
            let found = response.found.and_then(decode_use);
            on(Completion::Answer(token, Answer::Use(found)));
        }
        CallAnswer::Lookup(Err(status))
        | CallAnswer::Mutate(Err(status))
        | CallAnswer::Use(Err(status)) => {
            let failure = match status {
                // It ends. Who takes its place, if somebody does, takes this, too.
                _ if trefoil_rpc::was_not_executed(status) => SendFailure::Moving,
                _ if certainly_not_sent(status) => SendFailure::NotSent,
                _ => SendFailure::Lost,
            };
            on(Completion::NoAnswer(token, failure, &failure_text(status)));
        }
        CallAnswer::Expired => on(Completion::Expired(token)),
    }
}

fn decode_use(found: v1::ItemUse) -> Option<ItemUse> {
    Some(ItemUse {
        version: trefoil_rpc::decode_version(found.version?),
        hit_before: found.hit_before,
        last_use_s: found.last_use_s,
    })
}
