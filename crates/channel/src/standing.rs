//! Connections that stand: they end when the certificate that was shown at their
//! beginning ends, or is revoked. A stream of values or of the map is one call that
//! lasts as long as its connection, so to judge calls is not enough.

use std::fmt;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use trefoil_tls::{Certificate, Tls};

/// Between two looks at the certificate of one connection.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What was shown at a connection's beginning.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) serial: String,
    pub(crate) ends_s: i64,
}

impl Shown {
    pub(crate) fn of(certificate: &Certificate) -> Self {
        Shown {
            name: certificate.name.clone(),
            serial: certificate.serial.clone(),
            ends_s: certificate.ends_s,
        }
    }

    /// How long it is valid still.
    fn left(&self, now: SystemTime) -> Duration {
        let ends_s = Duration::from_secs(self.ends_s.max(0) as u64);
        match SystemTime::UNIX_EPOCH.checked_add(ends_s) {
            Some(ends) => ends.duration_since(now).unwrap_or_default(),
            None => Duration::MAX,
        }
    }

    /// Why it is not believed any more.
    pub(crate) fn judge(&self, tls: &Tls, now: SystemTime) -> Result<(), String> {
        if self.left(now).is_zero() {
            return Err(format!("the certificate of \"{}\" has ended", self.name));
        }
        match tls.has_revoked(&self.serial) {
            true => Err(format!(
                "the certificate of \"{}\" has been revoked",
                self.name
            )),
            false => Ok(()),
        }
    }
}

/// Watches over one connection.
struct Standing {
    tls: Tls,
    shown: Shown,
    next: Pin<Box<Sleep>>,
    over: Option<String>,
}

impl Standing {
    fn new(tls: Tls, shown: Shown) -> Self {
        let pause = LOOK_PERIOD.min(shown.left(SystemTime::now()));
        Standing {
            tls,
            shown,
            next: Box::pin(sleep(pause)),
            over: None,
        }
    }

    /// An error once the connection has to end; until then the task of the context is
    /// woken for the next look.
    fn poll(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.over.is_none() && self.next.as_mut().poll(context).is_ready() {
            let now = SystemTime::now();
            match self.shown.judge(&self.tls, now) {
                Ok(()) => {
                    // A moment more than is left: then it has ended.
                    let left = self.shown.left(now);
                    let left = left.saturating_add(Duration::from_millis(1));
                    let next = Instant::now() + LOOK_PERIOD.min(left);
                    self.next.as_mut().reset(next);
                }
                Err(why) => {
                    tracing::info!("a connection is ended: {why}");
                    self.over = Some(why);
                }
            }
        }
        self.check()
    }

    /// Whether it has to end, by the last look.
    fn check(&self) -> io::Result<()> {
        match &self.over {
            Some(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why.clone())),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Standing").field(&self.shown).finish()
    }
}

/// A connection, for as long as the certificate of its other end is believed: then it
/// breaks, for who reads as for who writes.
#[derive(Debug)]
pub(crate) struct Believed<S> {
    stream: S,
    standing: Standing,
}

impl<S> Believed<S> {
    pub(crate) fn new(stream: S, tls: Tls, shown: Shown) -> Self {
        Believed {
            stream,
            standing: Standing::new(tls, shown),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Believed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.standing.poll(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Believed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.standing.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.standing.check()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.standing.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
