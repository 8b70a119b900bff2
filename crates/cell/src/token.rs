//! What tells a server over TCP that a client is its own user's.
//!
//! Over TCP, loopback too, the kernel does not say whose process is at the other
//! end. So a server draws a token at every start and leaves it in a file that only
//! its user can read; clients of that user find it by the address they connect to.
//! Over Unix sockets the kernel does say, and no token is needed.
//!
//! A token is worth nothing once its server has ended: whoever takes the port then
//! learns nothing that opens another door. The file's name carries the whole
//! address, so that a token is not shown to somebody else's server at the same port
//! of another address.

use crate::address::RpcAddress;
use crate::runtime_dir::{self, RuntimeDirError, runtime_dir};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq as _;
use trefoil_rpc::Credentials;

/// Names a file with a token for servers that are not found by themselves.
pub const TOKEN_FILE_VARIABLE: &str = "TREFOIL_TOKEN_FILE";

/// What [`use_token_file`] was given.
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Has this process show the token in `path` to all servers, as if the environment named
/// that file; for those who were given it by an option. The first call counts.
pub fn use_token_file(path: &Path) {
    let _ = CHOSEN.set(path.to_owned());
}

/// The file that was chosen, or that the environment names.
fn named_file() -> Option<PathBuf> {
    let chosen = CHOSEN.get().cloned();
    chosen.or_else(|| std::env::var_os(TOKEN_FILE_VARIABLE).map(PathBuf::from))
}

/// Lengths of a token, in bytes.
const LEN_MIN: usize = 32;
const LEN_MAX: usize = 256;
/// What every token file has to be, and how to make one.
const REQUIREMENTS: &str = "it has to be a file of the user who runs this, with mode 0600, that \
    holds 32 to 256 visible ASCII characters on one line: \
    (umask 077; openssl rand -hex 32 > FILE) makes one";
/// How long a client believes what it has read: a server that was started anew has
/// another token.
const FRESH: Duration = Duration::from_millis(50);

/// A secret, as text. Never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// A token of 32 random bytes.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Token(digits.into())
    }

    /// A token that somebody chose: 32 to 256 visible ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end_matches(['\n', '\r']);
        let is_token =
            (LEN_MIN..=LEN_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        is_token.then(|| Token(text.into()))
    }

    /// Whether `presented` is this token, in a time that does not depend on where
    /// the two differ.
    pub fn is(&self, presented: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(presented).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a token cannot be had or left.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// No private directory.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The file.
    #[error("cannot {what} the token file {path}: {source}; {REQUIREMENTS}")]
    File {
        /// Which step.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others may read or replace it.
    #[error(
        "the token file {path} has mode {mode:04o} and belongs to user {owner}, and this process \
         runs as user {user}; {REQUIREMENTS}"
    )]
    NotPrivate {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
    },
    /// Something else stands in it.
    #[error("the token file {0} holds something else than a token; {REQUIREMENTS}")]
    Malformed(PathBuf),
}

/// A server's token, left for its user's clients; taken away when dropped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    /// Device and inode: a successor's file is not removed.
    identity: (u64, u64),
}

impl TokenFile {
    /// Leaves `token` for those who connect to `address`. What a server that was
    /// killed has left there is replaced.
    pub fn leave(address: SocketAddr, token: &Token) -> Result<Self, TokenError> {
        let path = runtime_dir()?.join(file_name(address));
        let fail = |what, source: io::Error| TokenError::File {
            what,
            path: path.clone(),
            source,
        };
        let next = path.with_extension(format!("next-{}", std::process::id()));
        let _ = std::fs::remove_file(&next);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&next, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| fail("create", e.into()))?;
        let mut file = File::from(fd);
        file.write_all(token.0.as_bytes())
            .and_then(|()| file.write_all(b"\n"))
            .map_err(|e| fail("write", e))?;
        std::fs::rename(&next, &path).map_err(|e| fail("name", e))?;
        let metadata = file.metadata().map_err(|e| fail("inspect", e))?;
        Ok(TokenFile {
            identity: (metadata.dev(), metadata.ino()),
            path,
        })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Reads a token that only this user can have put there.
pub fn read_token(path: &Path) -> Result<Token, TokenError> {
    let fail = |what, source: io::Error| TokenError::File {
        what,
        path: path.to_owned(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| fail("open", e.into()))?;
    let file = File::from(fd);
    let metadata = file.metadata().map_err(|e| fail("inspect", e))?;
    if !metadata.is_file() {
        return Err(TokenError::Malformed(path.to_owned()));
    }
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let user = rustix::process::geteuid().as_raw();
    if owner != user || mode & 0o077 != 0 {
        return Err(TokenError::NotPrivate {
            path: path.to_owned(),
            mode,
            owner,
            user,
        });
    }
    let mut text = String::new();
    file.take(LEN_MAX as u64 + 3)
        .read_to_string(&mut text)
        .map_err(|e| fail("read", e))?;
    Token::parse(&text).ok_or_else(|| TokenError::Malformed(path.to_owned()))
}

/// Why the token file that the environment names cannot be used, if it names one.
pub fn named_token_problem() -> Option<TokenError> {
    read_token(&named_file()?).err()
}

fn file_name(address: SocketAddr) -> String {
    format!("rpc-{}-{}.token", address.ip(), address.port())
}

/// The addresses whose servers a connection to `address` may reach: its own, and
/// those that listen everywhere. A server on all addresses of IPv4 is not reached
/// over IPv6: another user may listen there, who must not be shown the token.
fn reached_by(address: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let port = address.port();
    let everywhere_v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let everywhere_v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    [
        Some(address),
        address.is_ipv4().then_some(everywhere_v4),
        Some(everywhere_v6),
    ]
    .into_iter()
    .flatten()
}

/// The token of this user's server at a loopback address, if there is one.
fn find(address: SocketAddr) -> Option<Token> {
    if !address.ip().is_loopback() {
        return None;
    }
    let directories = runtime_dir::runtime_dirs();
    directories
        .iter()
        .filter(|directory| runtime_dir::check(directory).is_ok())
        .flat_map(|directory| reached_by(address).map(move |at| directory.join(file_name(at))))
        .find_map(|path| read_token(&path).ok())
}

/// The address that a name stands for: `localhost` is whichever loopback address
/// this user has a server at, so that a token goes nowhere else.
pub(crate) fn settled(address: &RpcAddress) -> RpcAddress {
    match address {
        RpcAddress::Tcp { host, port } if host == "localhost" => {
            let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            let ours = loopback
                .into_iter()
                .find(|ip| find(SocketAddr::new(*ip, *port)).is_some());
            let host = ours.unwrap_or(loopback[0]).to_string();
            RpcAddress::Tcp { host, port: *port }
        }
        other => other.clone(),
    }
}

/// What a client shows to the server at `address`: nothing over a Unix socket.
pub fn credentials(address: &RpcAddress) -> Credentials {
    let RpcAddress::Tcp { host, port } = settled(address) else {
        return Credentials::none();
    };
    let address = host.parse().ok().map(|ip| SocketAddr::new(ip, port));
    let known: Mutex<Option<(Instant, Option<Arc<str>>)>> = Mutex::new(None);
    Credentials::from_source(Arc::new(move || {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, token)) = &*known
            && read_at.elapsed() < FRESH
        {
            return token.clone();
        }
        let token = match named_file() {
            Some(path) => read_token(&path).ok(),
            None => address.and_then(find),
        };
        let token = token.map(|token| Arc::from(token.0));
        *known = Some((Instant::now(), token.clone()));
        token
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn tokens_are_compared_whole_and_never_shown() {
        let token = Token::of_bytes([7; 32]);
        let text = "07".repeat(32);
        assert!(token.is(text.as_bytes()));
        assert!(!token.is(&text.as_bytes()[1..]));
        assert!(!token.is(b""));
        assert!(!token.is("08".repeat(32).as_bytes()));
        assert!(!format!("{token:?}").contains("07"));
        assert_eq!(Token::parse(&format!("{text}\n")), Some(token));
        let long = "x".repeat(LEN_MAX + 1);
        for bad in ["", "short", &"a b".repeat(20), &"ä".repeat(40), &long] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        std::fs::write(&path, "0".repeat(64)).unwrap();
        for (mode, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_token(&path).is_ok(), is_fine, "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "too short").unwrap();
        assert!(matches!(read_token(&path), Err(TokenError::Malformed(_))));
    }

    #[test]
    fn a_token_is_found_by_the_address_and_goes_with_its_server() {
        let port = 1;
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let token = Token::of_bytes([9; 32]);
        let left = TokenFile::leave(at("127.0.0.77"), &token).unwrap();
        assert_eq!(find(at("127.0.0.77")), Some(token.clone()));
        assert_eq!(
            find(at("127.0.0.78")),
            None,
            "another address, another server"
        );
        // A successor replaces it, and keeps its own when the first one goes.
        let next = Token::of_bytes([10; 32]);
        let _successor = TokenFile::leave(at("127.0.0.77"), &next).unwrap();
        drop(left);
        assert_eq!(find(at("127.0.0.77")), Some(next));
        assert_eq!(find(at("192.0.2.1")), None);
    }
}
