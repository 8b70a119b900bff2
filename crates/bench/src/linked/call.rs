//! Calls as bytes: the callers' side of the contract, without marshalling.
//!
//! Requests are marshalled in advance and answers are left as they come. What a
//! caller does with an answer is the same whatever form of the service gave it,
//! and on one machine it would take the servers' CPU.

use address_book_contract::{MESSAGE_LEN_MAX, endpoint};
use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

pub(super) const LOOKUP: &str = "/addressbook.v1.AddressBooks/Lookup";
pub(super) const CHANGE: &str = "/addressbook.v1.AddressBooks/Change";

/// A connection to one server.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    grpc: Grpc<Channel>,
}

impl Caller {
    pub(super) async fn connect(address: &str) -> Result<Self, tonic::transport::Error> {
        let channel = endpoint(address)?.connect().await?;
        let grpc = Grpc::new(channel)
            .max_decoding_message_size(MESSAGE_LEN_MAX)
            .max_encoding_message_size(MESSAGE_LEN_MAX);
        Ok(Caller { grpc })
    }

    pub(super) async fn call(
        &mut self,
        path: &'static str,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        self.grpc
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let answer = self
            .grpc
            .unary(Request::new(message), path, AsBytes)
            .await?;
        Ok(answer.into_inner())
    }
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
