//! How people write servers and cells.
//!
//! | written | means |
//! |---|---|
//! | `host:port`, `[v6]:port` | a server |
//! | `trefoil://host:port[,host:port…]` | any of these servers; they know the rest of the cell |
//! | `unix:/path`, `/path`, `./path` | a server's socket, or a directory that holds a cell |
//! | `etcd://host:port[,host:port…]/path` | a cell whose configuration is in etcd ([`crate::EtcdAddress`]) |

use crate::etcd_address::EtcdAddress;
use crate::owner::{OwnerError, check_found};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest path of a Unix socket, in bytes (Linux: 108 with the final zero).
pub const SOCKET_PATH_LEN_MAX: usize = 107;

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RpcAddress {
    /// A name or an IP address without brackets, and a port.
    Tcp {
        /// Name or IP address.
        host: String,
        /// Never 0 in a configuration.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// How a user names a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellAddress {
    /// Servers, any of which knows the configuration.
    Servers(Vec<RpcAddress>),
    /// A socket or a directory; [`CellAddress::locate`] finds out.
    Path(PathBuf),
    /// etcd, which knows the configuration.
    Etcd(EtcdAddress),
}

/// Where a cell's configuration is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellLocation {
    /// From any of these servers.
    Servers(Vec<RpcAddress>),
    /// From the server at this socket.
    Socket {
        /// Where it really is.
        address: RpcAddress,
        /// The socket's owner's user id.
        owner: u32,
    },
    /// From this directory.
    Directory(PathBuf),
    /// From etcd.
    Etcd(EtcdAddress),
}

/// Why a text is no address, or an address leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Nothing was written.
    #[error("the address is empty: write host:port, unix:/path or a cell's directory")]
    Empty,
    /// No port.
    #[error("the address \"{0}\" has no port: write {0}:7411")]
    PortMissing(String),
    /// No number from 1 to 65535.
    #[error(
        "the address \"{address}\" has the port \"{port}\": a port is a number from 1 to 65535"
    )]
    Port {
        /// As written.
        address: String,
        /// The part behind the last colon.
        port: String,
    },
    /// Not a host.
    #[error(
        "the address \"{0}\" has no valid host: write a name, an IPv4 address or [an IPv6 address] before the port"
    )]
    Host(String),
    /// A path too long for a socket.
    #[error(
        "the socket path {path} is {len} bytes long, the system allows {SOCKET_PATH_LEN_MAX}: use a shorter directory"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// No address of a cell in etcd.
    #[error("\"{address}\" is no cell in etcd: {reason}; write etcd://host:port[,host:port…]/path")]
    Etcd {
        /// As written.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A scheme that nobody knows.
    #[error("\"{0}\": unknown scheme: write trefoil://host:port, host:port, unix:/path or a path")]
    Scheme(String),
    /// Nothing at the path.
    #[error("there is nothing at {0}: is the cell up?")]
    NothingThere(PathBuf),
    /// Neither socket nor directory.
    #[error("{0} is neither a socket nor a cell's directory")]
    NotACell(PathBuf),
    /// Somebody else's, or not to be inspected.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

impl AddressError {
    /// Whether the text is no address, whatever stands at it.
    pub fn is_malformed(&self) -> bool {
        !matches!(
            self,
            AddressError::NothingThere(_) | AddressError::NotACell(_) | AddressError::Owner(_)
        )
    }
}

impl RpcAddress {
    /// A Unix socket at `path`, if the system can bind a path of that length.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self, AddressError> {
        let path = path.into();
        let len = path.as_os_str().len();
        if len == 0 {
            return Err(AddressError::Empty);
        }
        if len > SOCKET_PATH_LEN_MAX {
            return Err(AddressError::PathTooLong { path, len });
        }
        Ok(RpcAddress::Unix(path))
    }

    /// Whether it cannot be reached from another machine.
    pub fn is_local(&self) -> bool {
        match self {
            RpcAddress::Unix(_) => true,
            RpcAddress::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl FromStr for RpcAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return RpcAddress::unix(path.strip_prefix("//").unwrap_or(path));
        }
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        let bare_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        let Some((host, port)) = text.rsplit_once(':').filter(|_| !bare_v6) else {
            let host = if bare_v6 {
                format!("[{text}]")
            } else {
                text.to_owned()
            };
            return Err(AddressError::PortMissing(host));
        };
        if host.starts_with('[') && !host.ends_with(']') {
            return Err(AddressError::PortMissing(text.to_owned()));
        }
        let port = port
            .parse()
            .ok()
            .filter(|&port: &u16| port != 0)
            .ok_or_else(|| AddressError::Port {
                address: text.to_owned(),
                port: port.to_owned(),
            })?;
        let host = parse_host(host).ok_or_else(|| AddressError::Host(text.to_owned()))?;
        Ok(RpcAddress::Tcp { host, port })
    }
}

fn parse_host(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?;
        inner.parse::<std::net::Ipv6Addr>().ok()?;
        return Some(inner.to_owned());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (!text.is_empty() && text.len() <= 253 && text.bytes().all(plain)).then(|| text.to_owned())
}

impl fmt::Display for RpcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RpcAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            RpcAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            RpcAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl TryFrom<String> for RpcAddress {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<RpcAddress> for String {
    fn from(address: RpcAddress) -> String {
        address.to_string()
    }
}

impl FromStr for CellAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("etcd://") {
            return text.parse().map(CellAddress::Etcd);
        }
        if let Some(list) = text.strip_prefix("trefoil://") {
            let servers: Result<Vec<RpcAddress>, _> = list
                .trim_end_matches('/')
                .split(',')
                .map(str::parse)
                .collect();
            return servers.map(CellAddress::Servers);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(AddressError::Empty),
                path => Ok(CellAddress::Path(path.into())),
            };
        }
        if text.contains("://") {
            return Err(AddressError::Scheme(text.to_owned()));
        }
        if text.contains('/') || matches!(text, "." | "..") {
            return Ok(CellAddress::Path(text.into()));
        }
        match text.parse() {
            Ok(server) => Ok(CellAddress::Servers(vec![server])),
            // A directory's bare name, where a host would lack its port.
            Err(AddressError::PortMissing(_)) if Path::new(text).is_dir() => {
                Ok(CellAddress::Path(text.into()))
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for CellAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CellAddress::Path(path) => write!(f, "unix:{}", path.display()),
            CellAddress::Etcd(address) => address.fmt(f),
            CellAddress::Servers(servers) => {
                f.write_str("trefoil://")?;
                for (index, server) in servers.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{server}")?;
                }
                Ok(())
            }
        }
    }
}

impl CellAddress {
    /// Finds out what a path is. Does not connect to anything.
    pub fn locate(&self) -> Result<CellLocation, AddressError> {
        let path = match self {
            CellAddress::Servers(servers) => return Ok(CellLocation::Servers(servers.clone())),
            CellAddress::Etcd(address) => return Ok(CellLocation::Etcd(address.clone())),
            CellAddress::Path(path) => path,
        };
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(AddressError::NothingThere(path.clone()));
            }
            Err(source) => {
                let path = path.clone();
                return Err(OwnerError::Inspect { path, source }.into());
            }
        };
        if metadata.file_type().is_socket() {
            let found = check_found(path)?;
            Ok(CellLocation::Socket {
                address: RpcAddress::unix(found.path)?,
                owner: found.owner,
            })
        } else if metadata.is_dir() {
            Ok(CellLocation::Directory(path.clone()))
        } else {
            Err(AddressError::NotACell(path.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_back_as_written() {
        for text in [
            "127.0.0.1:7411",
            "[::1]:80",
            "a-b.example:65535",
            "unix:/run/t.sock",
        ] {
            let address: RpcAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(
            "unix:///run/t".parse::<RpcAddress>().unwrap().to_string(),
            "unix:/run/t"
        );
    }

    #[test]
    fn local_and_other_addresses_are_told_apart() {
        for (text, local) in [
            ("127.0.0.1:1", true),
            ("127.3.2.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/x", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("localhost.example:1", false),
        ] {
            assert_eq!(
                text.parse::<RpcAddress>().unwrap().is_local(),
                local,
                "{text}"
            );
        }
    }

    #[test]
    fn mistakes_are_named() {
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_LEN_MAX));
        for (text, hint) in [
            ("", "empty"),
            ("trefoil://", "empty"),
            ("trefoil://a:1,", "empty"),
            ("host", "has no port: write host:7411"),
            ("::1", "write [::1]:7411"),
            ("host:", "from 1 to 65535"),
            ("host:0", "from 1 to 65535"),
            ("host:65536", "from 1 to 65535"),
            ("host:+1x", "from 1 to 65535"),
            (":80", "host"),
            ("a b:80", "host"),
            ("[zz]:80", "host"),
            ("etcd://h:2379", "etcd: the cell's path is missing"),
            ("http://h:80", "unknown scheme"),
            ("unix:", "empty"),
        ] {
            let error = text.parse::<CellAddress>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text:?}: {error}");
        }
        let error = long.parse::<RpcAddress>().unwrap_err().to_string();
        assert!(error.contains("shorter directory"), "{error}");
    }

    #[test]
    fn cells_come_back_as_written() {
        for text in [
            "trefoil://a:1,b:2,[::1]:3",
            "unix:/run/cell",
            "unix:./cell",
            "etcd://a:1,b:2/cells/mail",
        ] {
            let address: CellAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(
            "h:1".parse::<CellAddress>().unwrap().to_string(),
            "trefoil://h:1"
        );
        assert_eq!(
            "/run/cell".parse::<CellAddress>().unwrap(),
            CellAddress::Path("/run/cell".into())
        );
    }

    #[test]
    fn paths_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let locate = |path: &Path| CellAddress::Path(path.to_owned()).locate();
        assert!(matches!(locate(dir.path()), Ok(CellLocation::Directory(_))));
        let socket = dir.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        // By a link: what is connected to is what was looked at.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let real = RpcAddress::unix(socket.canonicalize().unwrap()).unwrap();
        let owner = rustix::process::geteuid().as_raw();
        for path in [&socket, &link] {
            let location = CellLocation::Socket {
                address: real.clone(),
                owner,
            };
            assert_eq!(locate(path).unwrap(), location);
        }
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(locate(&file), Err(AddressError::NotACell(_))));
        let missing = locate(&dir.path().join("no")).unwrap_err().to_string();
        assert!(missing.contains("is the cell up?"), "{missing}");
    }
}
