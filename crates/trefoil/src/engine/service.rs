//! An engine in this process: who may come in, where it tells of itself, and who watches
//! that nobody stays in who may not.

use crate::failure::Failure;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};
use trefoil_backend::take_port;
use trefoil_cell::{EngineNotice, Token, TokenFile, engine_beside, read_token};
use trefoil_softnic::engine::Admits;
use trefoil_softnic::{CellPlaces, Engine, EngineError, EngineOptions, Who};
use trefoil_tls::{Right, Tls, TokenRights};

/// Between two looks at the files that say who may read: whoever is revoked reads for so
/// long at most, and a request's time.
const LOOK: Duration = Duration::from_millis(25);
/// How often certificates are asked whether they have ended.
const EXPIRY_LOOK: Duration = Duration::from_secs(1);

/// How an engine is started.
pub(crate) struct Setup {
    pub(crate) listen: SocketAddr,
    /// With it everybody speaks TLS, and shows a certificate.
    pub(crate) tls: Option<Tls>,
    /// Without TLS: what everybody shows. One is drawn, if there is none.
    pub(crate) token_file: Option<PathBuf>,
    /// What those may do who show it.
    pub(crate) token_right: Right,
    /// Other machines may reach it without TLS.
    pub(crate) is_plain: bool,
    pub(crate) options: EngineOptions,
}

/// An engine that runs until it is dropped.
pub(crate) struct Service {
    engine: Arc<Engine>,
    /// Where this user's clients look for the token.
    _left: Option<TokenFile>,
}

/// Who may do what with the engine.
pub(crate) struct Admission {
    tls: Option<Tls>,
    /// What those show who may come in without TLS; `None` lets nobody in.
    shown: RwLock<Option<Token>>,
    /// What these may do.
    shown_right: Right,
    /// Others who may, each by a token of their own.
    listed: Option<TokenRights>,
}

impl Admission {
    /// Whether somebody has that right, as far as nothing but a list of rights limits it, or that
    /// they show another token than the servers'.
    pub(crate) fn allows(&self, who: &Who, right: Right) -> bool {
        match (who, &self.tls) {
            (Who::Certificate(caller), Some(tls)) => {
                let is_valid = !caller.left(SystemTime::now()).is_zero();
                // Every role reads.
                let is_in = !caller.roles.is_empty() && is_valid && !tls.is_revoked(caller);
                is_in && tls.right_of(caller).is_none_or(|has| has >= right)
            }
            (Who::Token(token), None) => {
                let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
                let Some(shown) = &*shown else {
                    return false;
                };
                let listed = || self.listed.as_ref()?.of(token);
                shown.is(token) && self.shown_right >= right
                    || listed().is_some_and(|(_, has)| has >= right)
            }
            (Who::Token(_), Some(_)) | (Who::Certificate(_), None) => false,
        }
    }

    /// How often files that limit rights have changed; not the token's.
    fn changes(&self) -> (u64, u64) {
        let of_tls = self.tls.as_ref().map_or(0, |tls| {
            tls.revocation_changes().wrapping_add(tls.rights_changes())
        });
        (of_tls, self.listed.as_ref().map_or(0, TokenRights::changes))
    }
}

impl Service {
    /// Starts one for the backends that `places` names; see [`Engine::start`].
    pub(crate) fn start(
        setup: Setup,
        mut places: impl FnMut(bool) -> CellPlaces + Send + 'static,
    ) -> Result<Service, Failure> {
        Service::start_by(
            setup,
            move |listener, (tls, admission), options, address| {
                let known = Arc::clone(&admission);
                let admits: Admits = Arc::new(move |who| known.allows(who, Right::Read));
                let writes: Admits = Arc::new(move |who| admission.allows(who, Right::Write));
                let mut notices = HashMap::new();
                let told = move |may_be_old| {
                    let places = places(may_be_old);
                    tell(&mut notices, &places, address);
                    places
                };
                Engine::start(listener, (tls, admits, writes), told, options)
            },
        )
    }

    /// Starts one by `start`, which is told at which address it listens.
    pub(crate) fn start_by(
        setup: Setup,
        start: impl FnOnce(
            TcpListener,
            (Option<Tls>, Arc<Admission>),
            EngineOptions,
            SocketAddr,
        ) -> Result<Engine, EngineError>,
    ) -> Result<Service, Failure> {
        let Setup { listen, tls, .. } = &setup;
        let is_trusted = setup.is_plain && setup.token_file.is_some();
        check_reach(*listen, tls.is_some(), is_trusted)?;
        let (token, listed) = match (tls, &setup.token_file) {
            (Some(_), _) => (None, None),
            (None, Some(path)) => {
                let listed = TokenRights::beside(path).map_err(Failure::of)?;
                (Some(read_token(path).map_err(Failure::of)?), Some(listed))
            }
            (None, None) => (Some(drawn_token()?), None),
        };
        let (listener, address) = take_port(*listen).map_err(Failure::of)?;
        let left = match (&token, &setup.token_file) {
            (Some(token), None) => Some(TokenFile::leave(address, token).map_err(Failure::of)?),
            _ => None,
        };
        let admission = Arc::new(Admission {
            tls: tls.clone(),
            shown: RwLock::new(token),
            shown_right: setup.token_right,
            listed,
        });
        let (tls, options) = (tls.clone(), setup.options);
        // Whatever changes while it starts is looked at.
        let changes = admission.changes();
        let engine = start(listener, (tls, Arc::clone(&admission)), options, address);
        let engine = Arc::new(engine.map_err(Failure::of)?);
        let watch = Watch {
            engine: Arc::downgrade(&engine),
            admission,
            changes,
            token_file: setup.token_file.filter(|_| setup.tls.is_none()),
        };
        std::thread::Builder::new()
            .name("trefoil-admits".to_owned())
            .spawn(move || watch.run())
            .map_err(|error| Failure::doing("cannot start a thread", error))?;
        Ok(Service {
            engine,
            _left: left,
        })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Whether an engine may listen there: beyond this host with certificates, or with a token
/// on a network that is said to be trusted.
pub(crate) fn check_reach(
    listen: SocketAddr,
    has_certs: bool,
    is_trusted: bool,
) -> Result<(), Failure> {
    match listen.ip().is_loopback() || has_certs || is_trusted {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "an engine at {listen} is reachable from other machines: give it a backend's \
             certificate (--certs DIR), or listen on 127.0.0.1, or, if the network is trusted, \
             pass --plaintext and --token-file FILE"
        ))),
    }
}

/// 32 bytes of the system's.
fn drawn_token() -> Result<Token, Failure> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Failure::doing("cannot draw a token", e))?;
    Ok(Token::of_bytes(bytes))
}

/// Leaves word beside the sockets of this host's backends, and takes away what is not so
/// any more. Another engine's word stays.
fn tell(notices: &mut HashMap<PathBuf, EngineNotice>, places: &CellPlaces, address: SocketAddr) {
    notices.retain(|socket, notice| {
        notice.stands() && places.backends.iter().any(|place| place.socket == *socket)
    });
    for place in &places.backends {
        let socket = &place.socket;
        let is_here = socket.parent().is_some_and(Path::is_dir);
        if !is_here || notices.contains_key(socket) {
            continue;
        }
        // A dead one's address is taken by the next; two that live share as it comes.
        match engine_beside(socket) {
            Some(other) if other != address && answers(other) => continue,
            _ => {}
        }
        match EngineNotice::leave(socket, address) {
            Ok(notice) => {
                notices.insert(socket.clone(), notice);
            }
            Err(error) => {
                let socket = socket.display();
                tracing::warn!("clients cannot be told of this engine, beside {socket}: {error}");
            }
        }
    }
}

/// Whether somebody listens there.
fn answers(address: SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok()
}

/// Sees to it that the engine asks again who may read when that has changed.
struct Watch {
    engine: Weak<Engine>,
    admission: Arc<Admission>,
    /// Of these files, when everybody was judged last.
    changes: (u64, u64),
    token_file: Option<PathBuf>,
}

impl Watch {
    fn run(mut self) {
        let mut stamp = self.token_file.as_deref().map(stamp_of);
        let mut asked_at = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            let mut must_judge = false;
            let now = self.admission.changes();
            must_judge |= std::mem::replace(&mut self.changes, now) != now;
            if self.admission.tls.is_some() && asked_at.elapsed() >= EXPIRY_LOOK {
                asked_at = Instant::now();
                must_judge = true;
            }
            if let Some(path) = &self.token_file {
                let now = Some(stamp_of(path));
                if stamp != now && self.take_token(path, now == Some(None)) {
                    stamp = now;
                    must_judge = true;
                }
            }
            let Some(engine) = self.engine.upgrade() else {
                return;
            };
            if must_judge {
                engine.judge_again();
            }
        }
    }

    /// Takes what the file says now; one that is being written is looked at again.
    fn take_token(&self, path: &Path, is_away: bool) -> bool {
        let token = match (is_away, read_token(path)) {
            (true, _) => None,
            (false, Ok(token)) => Some(token),
            (false, Err(_)) => return false,
        };
        let path = path.display();
        match token {
            Some(_) => tracing::info!("{path}: another token lets clients in"),
            None => tracing::warn!("{path}: the token is gone: nobody may read"),
        }
        let shown = &self.admission.shown;
        *shown.write().unwrap_or_else(PoisonError::into_inner) = token;
        true
    }
}

/// Tells whether a file was replaced or written to; `None` if it is not there.
fn stamp_of(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((
        metadata.ino(),
        metadata.len(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ))
}
