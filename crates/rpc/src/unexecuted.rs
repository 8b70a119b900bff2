//! Calls that have certainly changed nothing: refused before anything was executed, or never
//! taken in. Whoever may send a mutation once only may send it again.

use std::error::Error;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Says so in a server's answer.
const MARK: &str = "trefoil-not-executed";

/// What a server says that ends. Releases before the mark said it in the same words, at the
/// same place: before anything was executed.
const ENDS: &str = "the server is shutting down";

/// The refusal of a server that ends, before it has executed anything.
pub fn not_executed() -> Status {
    let mut status = Status::new(Code::Unavailable, ENDS);
    let metadata = status.metadata_mut();
    metadata.insert(MARK, MetadataValue::from_static("1"));
    status
}

/// Whether the server has executed nothing of a call that ended so: it says so itself, its
/// connection had closed before the call was sent, or it has said by HTTP/2 that it has not
/// taken it in (RFC 9113, sections 6.8 and 8.7).
pub fn was_not_executed(status: &Status) -> bool {
    let is_said = status.code() == Code::Unavailable && status.message() == ENDS;
    if status.metadata().contains_key(MARK) || is_said && status.source().is_none() {
        return true;
    }
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && error.is_canceled()
        {
            return true;
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return is_not_taken_in(error);
        }
        source = error.source();
    }
    false
}

/// A stream that the other end's last word (GOAWAY) does not include, or that it has refused.
fn is_not_taken_in(error: &h2::Error) -> bool {
    let is_in_order = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_in_order || is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_says_so_has_not_executed() {
        assert!(was_not_executed(&not_executed()));
        // By a release before the mark.
        assert!(was_not_executed(&Status::unavailable(ENDS)));
        assert!(!was_not_executed(&Status::unavailable("it ends")));
        let from = |reason: h2::Reason| Status::from_error(Box::new(h2::Error::from(reason)));
        // Of this side's own making.
        assert!(!was_not_executed(&from(h2::Reason::REFUSED_STREAM)));
        assert!(!was_not_executed(&from(h2::Reason::NO_ERROR)));
    }
    /// What a client hears of a stream that its server resets so.
    async fn reset_by(reason: h2::Reason) -> h2::Error {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut server = h2::server::handshake(there).await.unwrap();
            while let Some(Ok((_, mut answer))) = server.accept().await {
                answer.send_reset(reason);
            }
        });
        let (mut client, connection) = h2::client::handshake(here).await.unwrap();
        tokio::spawn(connection);
        let request = hyper::Request::get("http://server/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        answer.await.unwrap_err()
    }

    #[test]
    fn a_stream_that_its_server_has_refused_was_not_taken_in() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            assert!(is_not_taken_in(&reset_by(h2::Reason::REFUSED_STREAM).await));
            assert!(!is_not_taken_in(&reset_by(h2::Reason::CANCEL).await));
            assert!(!is_not_taken_in(&reset_by(h2::Reason::NO_ERROR).await));
        });
    }
}
