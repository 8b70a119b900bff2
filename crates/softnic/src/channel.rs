//! TLS on a socket, or nothing: bytes in and out that never wait.
//!
//! What stands in here is bounded by rustls: one record that is not whole, and 64 KiB of
//! what the socket has not taken.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use trefoil_tls::Caller;

/// Times that something is received in a row before it is looked at.
const READS_MAX: usize = 16;
/// What rustls receives at a time: less is all that there was.
const RECEIVED_LEN: usize = 4096;
/// More than what one such piece can bring out of it: the rest of a record, and small ones.
const PLAIN_LEN_MAX: usize = 32 << 10;

/// Why nothing goes over the socket any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other end has closed it, or it is lost.
    Closed,
    /// What came is no TLS, or the other end's certificate is not believed, or ours.
    Tls(rustls::Error),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Channel(Option<Box<Connection>>);

impl From<ClientConnection> for Channel {
    fn from(session: ClientConnection) -> Self {
        Channel(Some(Box::new(session.into())))
    }
}

impl From<ServerConnection> for Channel {
    fn from(session: ServerConnection) -> Self {
        Channel(Some(Box::new(session.into())))
    }
}

impl Channel {
    /// Who is at the other end, on an engine's side after the handshake.
    pub(crate) fn caller(&self) -> Option<Caller> {
        match self.0.as_deref()? {
            Connection::Server(session) => Caller::of_session(session),
            Connection::Client(_) => None,
        }
    }

    /// Bytes that both ends and nobody else draw from the TLS session; `None` if there is
    /// none that has been agreed on.
    pub(crate) fn export<const LEN: usize>(&self, label: &[u8]) -> Option<[u8; LEN]> {
        let tls = self.0.as_ref()?;
        tls.export_keying_material([0; LEN], label, None).ok()
    }

    /// Whether the socket still has to take something.
    pub(crate) fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Receives what is there, or some of it; `None` if nothing is. With TLS there has to be
    /// room for 32 KiB.
    pub(crate) fn receive(
        &mut self,
        socket: impl AsFd,
        into: &mut [u8],
    ) -> Result<Option<usize>, Broken> {
        let mut socket = Socket(socket.as_fd());
        let Some(tls) = &mut self.0 else {
            return match socket.read(into) {
                Ok(0) => Err(Broken::Closed),
                Ok(count) => Ok(Some(count)),
                Err(error) => nothing_or_broken(&error),
            };
        };
        // At once, every time: rustls receives nothing more while it holds much.
        let mut taken = 0;
        let mut is_over = take(tls, into, &mut taken);
        for _ in 0..READS_MAX {
            if is_over || into.len() - taken < PLAIN_LEN_MAX {
                break;
            }
            let received = match tls.read_tls(&mut socket) {
                Ok(count) => count,
                Err(error) => match nothing_or_broken(&error) {
                    Err(broken) if taken == 0 => return Err(broken),
                    _ => break,
                },
            };
            let state = tls.process_new_packets();
            // An answer in the handshake, or why there is none.
            let flushed = flush(tls, socket.0);
            state.map_err(Broken::Tls)?;
            flushed?;
            is_over = take(tls, into, &mut taken);
            if received < RECEIVED_LEN {
                break;
            }
        }
        match taken {
            0 if is_over => Err(Broken::Closed),
            0 => Ok(None),
            _ => Ok(Some(taken)),
        }
    }

    /// Takes as many of the bytes as there is room for.
    pub(crate) fn send(&mut self, socket: impl AsFd, bytes: &[u8]) -> Result<usize, Broken> {
        let Some(tls) = &mut self.0 else {
            return match Socket(socket.as_fd()).write(bytes) {
                Ok(count) => Ok(count),
                Err(error) => nothing_or_broken(&error).map(|_| 0),
            };
        };
        let mut count = 0;
        // What was taken before goes first.
        while flush(tls, socket.as_fd())? && count < bytes.len() {
            match tls.writer().write(&bytes[count..]) {
                Ok(0) | Err(_) => break,
                Ok(taken) => count += taken,
            }
        }
        Ok(count)
    }

    /// Sends what was taken; whether that was all of it.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> Result<bool, Broken> {
        match &mut self.0 {
            None => Ok(true),
            Some(tls) => flush(tls, socket.as_fd()),
        }
    }
}

/// Takes out what was received, as far as there is room behind the first `taken` bytes.
/// Whether nothing more will come.
fn take(tls: &mut Connection, into: &mut [u8], taken: &mut usize) -> bool {
    while *taken < into.len() {
        match tls.reader().read(&mut into[*taken..]) {
            Ok(0) => return true,
            Ok(count) => *taken += count,
            Err(error) => return nothing_or_broken(&error).is_err(),
        }
    }
    false
}

fn flush(tls: &mut Connection, socket: BorrowedFd<'_>) -> Result<bool, Broken> {
    while tls.wants_write() {
        match tls.write_tls(&mut Socket(socket)) {
            Ok(_) => {}
            Err(error) => return nothing_or_broken(&error).map(|_| false),
        }
    }
    Ok(true)
}

fn nothing_or_broken(error: &io::Error) -> Result<Option<usize>, Broken> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(Broken::Closed),
    }
}

/// A socket that is never waited for.
struct Socket<'a>(BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = recv(self.0, into, RecvFlags::DONTWAIT);
        received.map(|(count, _)| count).map_err(Errno::into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(self.0, bytes, flags).map_err(Errno::into)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::ring::{default_provider, sign::any_supported_type};
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::version::TLS13;
    use rustls::{
        ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
        SupportedProtocolVersion,
    };
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

    /// Believes whatever it is shown.
    #[derive(Debug)]
    struct Everybody;

    impl ServerCertVerifier for Everybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            unreachable!("TLS 1.3 only")
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }

    /// Two ends, of which neither has said anything.
    fn ends() -> (Channel, Channel) {
        let key =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
                .unwrap();
        let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
        let key = any_supported_type(&key.into()).unwrap();
        // Nobody reads the certificate.
        let key = CertifiedKey::new(vec![CertificateDer::from(vec![0; 8])], key);
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Everybody))
            .with_no_client_auth();
        let name = ServerName::try_from("engine").unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        let server = ServerConnection::new(Arc::new(server)).unwrap();
        (client.into(), server.into())
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn much_that_was_sent_before_anything_is_received_comes_whole() {
        let (near, far) = sockets();
        let (mut client, mut server) = ends();
        let mut room = vec![0; 64 << 10];
        let is_agreed = |channel: &Channel| channel.export::<16>(b"test").is_some();
        while !is_agreed(&client) || !is_agreed(&server) {
            client.flush(&near).unwrap();
            assert_eq!(server.receive(&far, &mut room).unwrap(), None);
            assert_eq!(client.receive(&near, &mut room).unwrap(), None);
        }
        let sent: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut sent_len, mut received) = (0, Vec::new());
        while received.len() < sent.len() {
            // As much as the sockets take, and only then the other end looks.
            loop {
                match server.send(&far, &sent[sent_len..]).unwrap() {
                    0 => break,
                    count => sent_len += count,
                }
            }
            if let Some(count) = client.receive(&near, &mut room).unwrap() {
                received.extend_from_slice(&room[..count]);
            }
        }
        assert!(received == sent, "something else has come");
        // What was said at the end comes, too, and then the end.
        assert_eq!(server.send(&far, b"bye").unwrap(), 3);
        drop((server, far));
        received.clear();
        let end = loop {
            match client.receive(&near, &mut room) {
                Ok(Some(count)) => received.extend_from_slice(&room[..count]),
                Ok(None) => {}
                Err(end) => break end,
            }
        };
        assert_eq!(received, b"bye");
        assert!(matches!(end, Broken::Closed), "{end:?}");
    }
}
