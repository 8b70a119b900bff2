//! The contract's second way in: frames over TCP, see
//! [`frame`](address_book_contract::frame).

use address_book_contract::frame::{self, CHANGE, DONE, Frame, LOOKUP, Refusal};
use address_book_contract::server::AddressBooks;
use bytes::BytesMut;
use prost::Message;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tonic::{Request, Status};
use trefoil_router::Redirect;

const INPUT_LEN: usize = 16 << 10;
/// Requests of one connection that are being worked on; more wait in its socket.
const AT_ONCE_MAX: usize = 256;
/// After the system had no descriptor for a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves connections for as long as the process lives.
pub(crate) async fn serve<T: AddressBooks>(listener: TcpListener, handler: Arc<T>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let handler = Arc::clone(&handler);
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, handler).await {
                        eprintln!("address-book: the connection of {peer} ends: {error}");
                    }
                });
            }
            Err(error) => {
                eprintln!("address-book: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn converse<T: AddressBooks>(stream: TcpStream, handler: Arc<T>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut requests, answers) = stream.into_split();
    let answers = Arc::new(Mutex::new(answers));
    let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
    let mut input = BytesMut::with_capacity(INPUT_LEN);
    loop {
        while let Some(request) = frame::take(&mut input).map_err(io::Error::other)? {
            // Never closed.
            let place = Arc::clone(&places).acquire_owned().await;
            let (handler, answers) = (Arc::clone(&handler), Arc::clone(&answers));
            tokio::spawn(async move {
                let answer = answer(&*handler, request).await;
                // The caller may have gone; its connection's reader sees that.
                let _ = send(&answers, &answer).await;
                drop(place);
            });
        }
        input.reserve(INPUT_LEN);
        if requests.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

async fn send(answers: &Mutex<OwnedWriteHalf>, answer: &[u8]) -> io::Result<()> {
    answers.lock().await.write_all(answer).await
}

async fn answer<T: AddressBooks>(handler: &T, request: Frame) -> BytesMut {
    let number = request.number;
    execute(handler, request).await.unwrap_or_else(|status| {
        let refusal = Refusal {
            address: Redirect::of(&status).and_then(|redirect| redirect.address),
            message: status.message().to_owned(),
        };
        frame::wrap(number, status.code() as u8, &refusal)
    })
}

async fn execute<T: AddressBooks>(handler: &T, request: Frame) -> Result<BytesMut, Status> {
    let Frame { number, tag, body } = request;
    match tag {
        LOOKUP => {
            let answer = handler.lookup(Request::new(read(body)?)).await?;
            Ok(frame::wrap(number, DONE, answer.get_ref()))
        }
        CHANGE => {
            let answer = handler.change(Request::new(read(body)?)).await?;
            Ok(frame::wrap(number, DONE, answer.get_ref()))
        }
        other => Err(Status::unimplemented(format!(
            "no method has the tag {other}"
        ))),
    }
}

fn read<M: Message + Default>(body: bytes::Bytes) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::invalid_argument(error.to_string()))
}
