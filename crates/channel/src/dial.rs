//! Connections out.

use crate::local;
use crate::security::Security;
use crate::standing::{Believed, Shown};
use crate::wire::Wire;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use trefoil_socket_owner::Users;
use trefoil_tls::{Connected, Tls};

type Failed = Box<dyn Error + Send + Sync>;

/// So often a connection is asked whether it still gets through, in use or not. A firewall
/// or a translated address may forget it, and the kernel goes on trying for a quarter of an
/// hour.
const PING_EVERY: Duration = Duration::from_secs(4);
/// One that does not answer for so long is made anew.
const PING_PATIENCE: Duration = Duration::from_secs(4);

/// The server has a certificate that is believed, and none for this corpus.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate of {host} is not for corpus \"{corpus}\": issue the server one with \
     `trefoil cell certs issue --role backend --corpus {corpus}`"
)]
struct OtherCorpus {
    host: String,
    corpus: String,
}

impl Security {
    /// A channel to `host:port`, as `endpoint` sets it up. It connects when first
    /// used, and again whenever it has to, each time with the certificates of the
    /// moment. With certificates the server's has to name `corpus`, if one is given; without
    /// them nothing is sent before the kernel has said whose server it is.
    ///
    /// # Errors
    /// It is no address, or one that may not be dialled without protection.
    pub fn channel(
        &self,
        address: &str,
        corpus: Option<&str>,
        endpoint: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        Ok(match self.target(address, corpus, endpoint)? {
            (target, None) => target.connect_lazy(),
            (target, Some(dial)) => target.connect_with_connector_lazy(dial),
        })
    }

    /// Likewise, and connects at once.
    ///
    /// # Errors
    /// The same, or there is no connection.
    pub async fn connect(
        &self,
        address: &str,
        corpus: Option<&str>,
        endpoint: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let connected = match self.target(address, corpus, endpoint)? {
            (target, None) => target.connect().await,
            (target, Some(dial)) => target.connect_with_connector(dial).await,
        };
        connected.map_err(|error| with_causes(error.to_string(), error.source()))
    }

    /// The connection alone, to a server that is believed.
    #[cfg(test)]
    pub(crate) async fn dial(
        &self,
        address: &str,
        corpus: Option<&str>,
    ) -> Result<Dialled, Failed> {
        let (_, dial) = self.target(address, corpus, |endpoint| endpoint)?;
        dial.ok_or("everybody is believed")?.connect().await
    }

    fn target(
        &self,
        address: &str,
        corpus: Option<&str>,
        endpoint: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<(Endpoint, Option<Dial>), String> {
        let (host, port) = split(address)?;
        self.check_dial(&host, address)
            .map_err(|error| error.to_string())?;
        let target = Endpoint::from_shared(format!("http://{address}"));
        let target = target
            .map_err(|error| error.to_string())?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_PATIENCE)
            .keep_alive_while_idle(true);
        let target = endpoint(target);
        let dial = match self {
            Security::Plaintext => None,
            Security::Loopback => Some(Belief::Users(Users::default())),
            Security::Users(users) => Some(Belief::Users(users.clone())),
            Security::Certificates(tls) => Some(Belief::Certificates {
                tls: tls.clone(),
                corpus: corpus.map(str::to_owned),
            }),
        };
        let dial = dial.map(|belief| Dial { belief, host, port });
        Ok((target, dial))
    }
}

/// A call's failure for people: what the server said, or why it was not reached.
pub fn failure_text(status: &tonic::Status) -> String {
    with_causes(status.message().to_owned(), status.source())
}

fn with_causes(mut text: String, mut source: Option<&(dyn Error + 'static)>) -> String {
    while let Some(error) = source {
        let more = error.to_string();
        // A library's layer, which says nothing.
        if more != "transport error" && !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// A name or an address without brackets, and a port.
pub(crate) fn split(address: &str) -> Result<(String, u16), String> {
    let bad = || format!("\"{address}\" is no host:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let port = port.parse().map_err(|_| bad())?;
    Ok((bare.unwrap_or(host).to_owned(), port))
}

/// A connection to a server that is believed.
pub(crate) type Dialled = Wire<Connected<TcpStream>>;

/// Which servers are.
#[derive(Clone)]
enum Belief {
    /// Those of these users of this host.
    Users(Users),
    /// Those with a certificate, for this corpus if one is given.
    Certificates { tls: Tls, corpus: Option<String> },
}

#[derive(Clone)]
struct Dial {
    belief: Belief,
    host: String,
    port: u16,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Dialled>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move { dial.connect().await.map(TokioIo::new) })
    }
}

impl Dial {
    async fn connect(self) -> Result<Dialled, Failed> {
        let Dial { belief, host, port } = self;
        let (tls, corpus) = match belief {
            Belief::Users(users) => {
                let addresses = tokio::net::lookup_host((host.as_str(), port)).await?;
                let judge = |local, remote| local::judge_server(users.clone(), local, remote);
                return first_believed(addresses, judge).await.map(Wire::Plain);
            }
            Belief::Certificates { tls, corpus } => (tls, corpus),
        };
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        let stream = trefoil_tls::connect(&tls, &host, stream).await?;
        let certificate = stream.certificate();
        let certificate = certificate.ok_or("the server's certificate cannot be read")?;
        if let Some(corpus) = corpus
            && !certificate.corpora.has(&corpus)
        {
            return Err(OtherCorpus { host, corpus }.into());
        }
        let shown = Shown::of(&certificate);
        shown.judge(&tls, SystemTime::now())?;
        Ok(Wire::Encrypted(Box::new(Believed::new(stream, tls, shown))))
    }
}

/// A connection to the first of these addresses whose server is believed: whoever has taken
/// the port at another address of the same name keeps nobody from it.
async fn first_believed<F: Future<Output = Result<(), String>>>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    judge: impl Fn(SocketAddr, SocketAddr) -> F,
) -> Result<TcpStream, Failed> {
    let mut refusals = Vec::new();
    for address in addresses {
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => {
                refusals.push(format!("{address}: {error}"));
                continue;
            }
        };
        stream.set_nodelay(true)?;
        match judge(stream.local_addr()?, stream.peer_addr()?).await {
            Ok(()) => return Ok(stream),
            Err(why) => refusals.push(why),
        }
    }
    match refusals.is_empty() {
        true => Err("the name has no address".into()),
        false => Err(refusals.join("; ").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn another_users_port_at_one_address_keeps_nobody_from_the_next() {
        let [taken, own] = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let [taken_at, own_at] = [&taken, &own].map(|one| one.local_addr().unwrap());
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed_at = closed.local_addr().unwrap();
        drop(closed);
        let judge = |_, remote| async move {
            match remote == own_at {
                true => Ok(()),
                false => Err(format!("refused: {remote}")),
            }
        };
        let found = first_believed([closed_at, taken_at, own_at], judge).await;
        assert_eq!(found.unwrap().peer_addr().unwrap(), own_at);
        let error = first_believed([closed_at, taken_at], judge)
            .await
            .unwrap_err();
        for named in [closed_at, taken_at] {
            assert!(error.to_string().contains(&named.to_string()), "{error}");
        }
        assert!(first_believed([], judge).await.is_err());
    }

    #[test]
    fn addresses_are_taken_apart() {
        for (address, host, port) in [
            ("a.example:1", "a.example", 1),
            ("10.0.0.1:65535", "10.0.0.1", 65_535),
            ("[::1]:2", "::1", 2),
        ] {
            assert_eq!(split(address), Ok((host.to_owned(), port)));
        }
        for address in ["", "a", "a:", "a:b", "a:70000"] {
            assert!(split(address).is_err(), "{address}");
        }
    }
}
