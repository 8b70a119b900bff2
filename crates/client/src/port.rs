//! The carriers of this release as one type of port: shared memory in place, an engine
//! where that is chosen, calls beside it.

use crate::rpc::RpcPort;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::port::{
    Closed, Completion, OutOfWindow, Port, Progress, Refreshed, SendError, Token,
};
use trefoil_fabric::shm::Connection;
use trefoil_fabric::{Agreement, RegionView};
use trefoil_layout::message::Request;
use trefoil_layout::{KeyHash, Pointer, TopologyId};
use trefoil_region::WordBuffer;
use trefoil_softnic::EnginePort;

/// See the module.
#[expect(clippy::large_enum_variant, reason = "the usual one is found in place")]
pub(crate) enum ClientPort {
    Shm(Connection),
    Engine(Box<EnginePort>),
    Rpc(Box<RpcPort>),
}

macro_rules! each {
    ($port:expr, $each:ident => $body:expr) => {
        match $port {
            ClientPort::Shm($each) => $body,
            ClientPort::Engine($each) => $body,
            ClientPort::Rpc($each) => $body,
        }
    };
}

impl Port for ClientPort {
    #[inline(always)]
    fn view(&self) -> Option<&Arc<RegionView>> {
        match self {
            ClientPort::Shm(connection) => Some(connection.view()),
            ClientPort::Engine(_) | ClientPort::Rpc(_) => None,
        }
    }

    fn agreement(&self) -> Option<&Agreement> {
        match self {
            ClientPort::Shm(connection) => Some(connection.agreement()),
            ClientPort::Engine(port) => port.agreement(),
            ClientPort::Rpc(_) => None,
        }
    }

    fn config_id(&self) -> Option<u32> {
        match self {
            ClientPort::Shm(connection) => Some(connection.config_id()),
            ClientPort::Engine(port) => port.config_id(),
            ClientPort::Rpc(_) => None,
        }
    }

    fn is_indirect(&self) -> bool {
        matches!(self, ClientPort::Engine(_))
    }

    #[inline(always)]
    fn has_scans(&self) -> bool {
        match self {
            ClientPort::Engine(port) => port.has_scans(),
            ClientPort::Shm(_) | ClientPort::Rpc(_) => false,
        }
    }

    #[inline(always)]
    fn has_messages(&self) -> bool {
        each!(self, port => port.has_messages())
    }

    fn refresh(&mut self) -> Refreshed {
        match self {
            ClientPort::Shm(connection) => connection.refresh(),
            ClientPort::Engine(port) => port.refresh(),
            ClientPort::Rpc(_) => Refreshed::Unchanged,
        }
    }

    #[inline(always)]
    fn submit_index(&mut self, token: Token, place: usize, hash: KeyHash) -> Progress<IndexVote> {
        each!(self, port => port.submit_index(token, place, hash))
    }

    #[inline(always)]
    fn submit_data(
        &mut self,
        token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        each!(self, port => port.submit_data(token, pointer, into))
    }

    fn backlog_ns(&self) -> u64 {
        each!(self, port => port.backlog_ns())
    }

    fn answer_ns(&self) -> u64 {
        each!(self, port => port.answer_ns())
    }

    fn prefers_votes(&self) -> bool {
        each!(self, port => port.prefers_votes())
    }

    fn submit_scan(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        each!(self, port => port.submit_scan(token, place, hash, is_use))
    }

    fn submit_vote(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        each!(self, port => port.submit_vote(token, place, hash, is_use))
    }

    #[inline]
    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        each!(self, port => port.send(token, under, request))
    }

    fn ask(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
        until_ns: u64,
    ) -> Result<(), SendError> {
        each!(self, port => port.ask(token, under, request, until_ns))
    }

    fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        each!(self, port => port.touch(partition, batch));
    }

    fn touch_key(&mut self, place: usize, hash: KeyHash) {
        each!(self, port => port.touch_key(place, hash));
    }

    fn flush_touches(&mut self) {
        each!(self, port => port.flush_touches());
    }

    fn others_have_moved(&mut self) -> bool {
        each!(self, port => port.others_have_moved())
    }

    fn len_under_way(&self) -> u64 {
        each!(self, port => port.len_under_way())
    }

    fn give_up(&mut self) {
        each!(self, port => port.give_up());
    }

    #[inline]
    fn poll(&mut self, on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        match self {
            ClientPort::Shm(connection) => Port::poll(connection, on),
            ClientPort::Engine(port) => port.poll(on),
            ClientPort::Rpc(port) => port.poll(on),
        }
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        each!(self, port => port.is_ready())
    }

    fn arm(&self) {
        each!(self, port => port.arm());
    }

    fn disarm(&self) {
        each!(self, port => port.disarm());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        each!(self, port => port.descriptor())
    }
}
