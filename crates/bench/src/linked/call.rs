//! Calls as bytes: the callers' side of the contract, without marshalling.
//!
//! Requests are marshalled in advance and answers are left as they come. What a
//! caller does with an answer is the same whatever form of the service gave it,
//! and on one machine it would take the servers' CPU.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use address_book_contract::frame::{self, DONE, Frame, Refusal};
use address_book_contract::{MESSAGE_LEN_MAX, endpoint};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use trefoil_router::Redirect;

const INPUT_LEN: usize = 16 << 10;

/// How requests are carried, to all forms alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/2 and all that stands on it.
    Grpc,
    /// Length, number, method, message.
    Frames,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Lookup,
    Change,
}

impl Method {
    fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Method::Lookup => "/addressbook.v1.AddressBooks/Lookup",
            Method::Change => "/addressbook.v1.AddressBooks/Change",
        })
    }

    fn tag(self) -> u8 {
        match self {
            Method::Lookup => frame::LOOKUP,
            Method::Change => frame::CHANGE,
        }
    }
}

/// A connection to one server.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    Grpc(Grpc<Channel>),
    Frames(Rc<FrameCaller>),
}

impl Caller {
    /// To the server's gRPC address.
    pub(super) async fn grpc(address: &str) -> Result<Self, tonic::transport::Error> {
        let channel = endpoint(address)?.connect().await?;
        let grpc = Grpc::new(channel)
            .max_decoding_message_size(MESSAGE_LEN_MAX)
            .max_encoding_message_size(MESSAGE_LEN_MAX);
        Ok(Caller::Grpc(grpc))
    }

    /// To the address where it takes frames. To be called in a `LocalSet`.
    pub(super) async fn frames(address: &str) -> io::Result<Self> {
        Ok(Caller::Frames(Rc::new(FrameCaller::open(address).await?)))
    }

    pub(super) async fn call(&mut self, method: Method, message: Bytes) -> Result<Bytes, Status> {
        let grpc = match self {
            Caller::Grpc(grpc) => grpc,
            Caller::Frames(caller) => return caller.call(method, &message).await,
        };
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let answer = grpc.unary(Request::new(message), method.path(), AsBytes);
        Ok(answer.await?.into_inner())
    }
}

/// Who waits for an answer; nothing once the connection has ended.
type Waiting = Rc<RefCell<Option<HashMap<u32, oneshot::Sender<Frame>>>>>;

/// A connection that carries frames.
#[derive(Debug)]
pub(super) struct FrameCaller {
    next: Cell<u32>,
    waiting: Waiting,
    requests: mpsc::UnboundedSender<BytesMut>,
}

impl FrameCaller {
    async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let waiting: Waiting = Rc::new(RefCell::new(Some(HashMap::new())));
        let (requests, queue) = mpsc::unbounded_channel();
        tokio::task::spawn_local(send(write, queue));
        tokio::task::spawn_local(receive(read, Rc::clone(&waiting)));
        Ok(FrameCaller {
            next: Cell::new(0),
            waiting,
            requests,
        })
    }

    async fn call(&self, method: Method, message: &[u8]) -> Result<Bytes, Status> {
        let gone = || Status::unavailable("the connection has ended");
        let number = self.next.replace(self.next.get().wrapping_add(1));
        let (tell, told) = oneshot::channel();
        match &mut *self.waiting.borrow_mut() {
            Some(waiting) => waiting.insert(number, tell),
            None => return Err(gone()),
        };
        let request = frame::wrap_bytes(number, method.tag(), message);
        self.requests.send(request).map_err(|_| gone())?;
        let answer = told.await.map_err(|_| gone())?;
        if answer.tag == DONE {
            return Ok(answer.body);
        }
        let refusal = Refusal::decode(answer.body)
            .map_err(|error| Status::internal(format!("a refusal that is none: {error}")))?;
        Err(match refusal.address {
            Some(address) => Redirect {
                to: None,
                address: Some(address),
                version: None,
                assignment: None,
            }
            .status(),
            None => Status::new(Code::from(i32::from(answer.tag)), refusal.message),
        })
    }
}

/// Sends what is queued, together what is queued together.
async fn send(mut write: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<BytesMut>) {
    while let Some(mut bytes) = queue.recv().await {
        while let Ok(more) = queue.try_recv() {
            bytes.unsplit(more);
        }
        if write.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Hands out answers until the connection ends; those who wait then hear of it,
/// and whoever calls later.
async fn receive(mut read: OwnedReadHalf, waiting: Waiting) {
    let mut input = BytesMut::new();
    'connection: while let Ok(1..) = read.read_buf(&mut input).await {
        loop {
            let answer = match frame::take(&mut input) {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => break 'connection,
            };
            let mut waiting = waiting.borrow_mut();
            let waits = waiting.as_mut().and_then(|w| w.remove(&answer.number));
            // Nobody waits any more after a time-out.
            let _ = waits.map(|waits| waits.send(answer));
        }
        input.reserve(INPUT_LEN);
    }
    *waiting.borrow_mut() = None;
}

#[derive(Debug, Clone, Copy, Default)]
struct AsBytes;

impl Codec for AsBytes {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = AsBytes;
    type Decoder = AsBytes;

    fn encoder(&mut self) -> Self::Encoder {
        AsBytes
    }

    fn decoder(&mut self) -> Self::Decoder {
        AsBytes
    }
}

impl Encoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let len = buf.remaining();
        Ok(Some(buf.copy_to_bytes(len)))
    }
}
