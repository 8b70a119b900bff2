//! Connecting to a backend's socket.

use super::channel::Channel;
use super::connection::Connection;
use super::policy::UserPolicy;
use super::socket;
use crate::agreement::Agreement;
use crate::clock::monotonic_ns;
use crate::region_view::RegionView;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_layout::control::{self, ControlError};
use trefoil_layout::hello::{Granted, Hello, HelloError, REPLY_LEN, Reply, Status};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::ring;
use trefoil_ordered::marks;
use trefoil_region::{Mapping, MappingError};

/// What a client may choose.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Whose servers to believe: in a directory that others may write to,
    /// anybody could have put a socket there.
    pub servers: UserPolicy,
    /// For the whole greeting.
    pub timeout: Duration,
    /// Whether to ask for message rings.
    pub rings: bool,
    /// Whether this reader has every vote judged by the view it maps, which looks at the
    /// marks of a backend with a queue. Who reads buckets by itself does not, and gets none of
    /// such a backend's memory.
    pub looks_at_marks: bool,
    /// How long a wait spins (and yields) before it sleeps. Longer than one
    /// wake-up of a server on another core, which takes a virtual machine 50 to
    /// 150 us, so that its answer is usually caught: it would cost a second
    /// wake-up, of this side.
    pub spin: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            servers: UserPolicy::SameUser,
            timeout: Duration::from_secs(2),
            rings: true,
            looks_at_marks: true,
            spin: Duration::from_micros(200),
        }
    }
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No such file.
    #[error("there is no socket {path}: is the backend running?")]
    NotFound {
        /// Where.
        path: PathBuf,
    },
    /// A socket file that its server has left behind.
    #[error("nobody listens on {path}: the backend has stopped")]
    NobodyListens {
        /// Where.
        path: PathBuf,
    },
    /// Somebody else's socket file.
    #[error("{path} is not accessible to this user: it belongs to another user's backend")]
    Permission {
        /// Where.
        path: PathBuf,
    },
    /// Somebody else's server.
    #[error("the process that listens on {path} belongs to another user, it is not believed")]
    ForeignServer {
        /// Where.
        path: PathBuf,
    },
    /// The server refuses this user.
    #[error("the backend at {path} does not serve this user")]
    NotAllowed {
        /// Where.
        path: PathBuf,
    },
    /// Longer than a socket address can be.
    #[error("the socket path {path} is longer than the system allows (107 bytes)")]
    PathTooLong {
        /// Where.
        path: PathBuf,
    },
    /// Too slow.
    #[error("the backend at {path} did not answer within {timeout:?}")]
    Timeout {
        /// Where.
        path: PathBuf,
        /// How long it was given.
        timeout: Duration,
    },
    /// The server hung up.
    #[error("the backend at {path} closed the connection during the greeting")]
    HungUp {
        /// Where.
        path: PathBuf,
    },
    /// Another release, or not Trefoil at all.
    #[error("{path}: {source}")]
    Hello {
        /// Where.
        path: PathBuf,
        /// What was wrong.
        source: HelloError,
    },
    /// Regions of another layout.
    #[error(
        "the backend uses layout version {found}, this client understands {LAYOUT_VERSION}: run the same release on both sides"
    )]
    Layout {
        /// The backend's.
        found: u8,
    },
    /// Another cell, or another backend's socket.
    #[error("the process at {path} does not serve backend {backend}")]
    NoSuchBackend {
        /// Where.
        path: PathBuf,
        /// Which was asked for.
        backend: u32,
    },
    /// Its memory does not show what it has acknowledged.
    #[error("the backend at {path} has a queue, and this reader looks at no marks")]
    MarksNeeded {
        /// Where.
        path: PathBuf,
    },
    /// It was not started with one.
    #[error("the backend at {path} has no queue (`--queue`)")]
    NoQueue {
        /// Where.
        path: PathBuf,
    },
    /// Others have all of its places.
    #[error("the queue of the backend at {path} has as many clients as it takes")]
    NoLane {
        /// Where.
        path: PathBuf,
    },
    /// The server ran out of something, or its queue takes nobody now.
    #[error(
        "the backend at {path} could not prepare shared memory for this client, or its queue takes no client now"
    )]
    Unavailable {
        /// Where.
        path: PathBuf,
    },
    /// Control region of another kind.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// What was handed over contradicts what was announced.
    #[error("the backend at {path} handed over something else than it announced: {what}")]
    Inconsistent {
        /// Where.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// It could not be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// Anything else that the system reports.
    #[error("cannot connect to {path}: {source}")]
    System {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Connection {
    /// Connects to backend number `backend` of the process that listens at `path`.
    pub fn connect(
        path: &Path,
        backend: u32,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let (socket, granted, descriptors) = greet(path, backend, options)?;
        let parts = Parts::map(path, options, socket, &granted, descriptors)?;
        Ok(parts.establish(&granted))
    }
}

/// A connection to a process that is to take another one's place, made before it has.
pub struct Early {
    granted: Granted,
    parts: Parts,
}

impl Early {
    /// Connects to who is to take the place of the one at `path`. `None`: nobody listens
    /// there to do so.
    pub fn greet(
        path: &Path,
        backend: u32,
        options: &ConnectOptions,
    ) -> Result<Option<Self>, ConnectError> {
        let path = &successor_path(path);
        let (socket, granted, descriptors) = match greet(path, backend, options) {
            Err(ConnectError::NotFound { .. } | ConnectError::NobodyListens { .. }) => {
                return Ok(None);
            }
            greeted => greeted?,
        };
        let parts = Parts::map(path, options, socket, &granted, descriptors)?;
        Ok(Some(Early { granted, parts }))
    }

    /// Whether its lease runs: it has taken the place.
    pub fn serves(&self) -> bool {
        control::lease_end_ns(&self.parts.control.words()) > monotonic_ns()
    }

    /// The connection, for who serves.
    pub fn begin(self) -> Connection {
        let mut topology = self.granted.topology;
        let mut connection = self.parts.establish(&self.granted);
        // Greeted before it served, it could not say under which.
        topology.config_id = connection.config_id();
        connection.serves(topology);
        connection
    }
}

impl std::fmt::Debug for Early {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Early")
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}

/// Where a process listens that is to take the place of the one at `path`.
pub fn successor_path(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".next");
    path.into()
}

/// What the backend grants, and the descriptors of its memory: control, index, data, and
/// rings if they were asked for.
pub(super) fn greet(
    path: &Path,
    backend: u32,
    options: &ConnectOptions,
) -> Result<(OwnedFd, Granted, Vec<OwnedFd>), ConnectError> {
    let hello = Hello {
        backend,
        wants_rings: options.rings,
        knows_marks: false,
        wants_lane: false,
    };
    match greet_by(path, &hello, options) {
        // An older server would not know the wish.
        Err(ConnectError::MarksNeeded { .. }) if options.looks_at_marks => {
            let knows_marks = true;
            let hello = Hello {
                knows_marks,
                ..hello
            };
            greet_by(path, &hello, options)
        }
        greeted => greeted,
    }
}

/// The same by this hello.
pub(super) fn greet_by(
    path: &Path,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<(OwnedFd, Granted, Vec<OwnedFd>), ConnectError> {
    let socket = open(path, options)?;
    if !options.servers.trusts_server(&socket) {
        return Err(ConnectError::ForeignServer { path: path.into() });
    }
    // A server that refuses at once has already closed; its reply says why.
    let _ = socket::send_with(&socket, &hello.encode(), &[]);
    let mut bytes = [0; REPLY_LEN];
    let mut descriptors = Vec::new();
    let complete = socket::receive_with(&socket, &mut bytes, &mut descriptors)
        .map_err(|e| system(path, options, e))?;
    if !complete {
        return Err(ConnectError::HungUp { path: path.into() });
    }
    let granted = judge(path, hello.backend, &bytes)?;
    Ok((socket, granted, descriptors))
}

fn open(path: &Path, options: &ConnectOptions) -> Result<OwnedFd, ConnectError> {
    let fail = |e| system(path, options, e);
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(fail)?;
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, direction, Some(options.timeout)).map_err(fail)?;
    }
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(fail)?;
    Ok(socket)
}

fn system(path: &Path, options: &ConnectOptions, errno: Errno) -> ConnectError {
    let path = path.to_path_buf();
    match errno {
        Errno::NOENT | Errno::NOTDIR => ConnectError::NotFound { path },
        Errno::CONNREFUSED => ConnectError::NobodyListens { path },
        Errno::ACCESS | Errno::PERM => ConnectError::Permission { path },
        Errno::NAMETOOLONG => ConnectError::PathTooLong { path },
        Errno::AGAIN | Errno::TIMEDOUT => ConnectError::Timeout {
            path,
            timeout: options.timeout,
        },
        Errno::CONNRESET | Errno::PIPE => ConnectError::HungUp { path },
        errno => ConnectError::System {
            path,
            source: errno.into(),
        },
    }
}

fn judge(path: &Path, backend: u32, bytes: &[u8; REPLY_LEN]) -> Result<Granted, ConnectError> {
    let path = path.to_path_buf();
    match Reply::parse(bytes) {
        Ok(Reply::Granted(granted)) if granted.backend == backend => Ok(granted),
        Ok(Reply::Granted(_) | Reply::Refused(Status::NoSuchBackend)) => {
            Err(ConnectError::NoSuchBackend { path, backend })
        }
        Ok(Reply::Refused(Status::MarksNeeded)) => Err(ConnectError::MarksNeeded { path }),
        Ok(Reply::Refused(Status::NoQueue)) => Err(ConnectError::NoQueue { path }),
        Ok(Reply::Refused(Status::NoLane)) => Err(ConnectError::NoLane { path }),
        Ok(Reply::OtherLayout(found)) => Err(ConnectError::Layout { found }),
        Ok(Reply::Refused(Status::NotAllowed)) => Err(ConnectError::NotAllowed { path }),
        Ok(Reply::Refused(Status::Malformed | Status::Protocol)) => Err(ConnectError::Hello {
            path,
            source: HelloError::Malformed,
        }),
        Ok(Reply::Refused(_)) => Err(ConnectError::Unavailable { path }),
        Err(source) => Err(ConnectError::Hello { path, source }),
    }
}

/// What a backend has handed over, mapped and looked at.
pub(super) struct Parts {
    control: Mapping,
    index: Mapping,
    data: Mapping,
    marks: Option<Mapping>,
    shape: control::ControlShape,
    channel: Option<Channel>,
}

impl Parts {
    pub(super) fn map(
        path: &Path,
        options: &ConnectOptions,
        socket: OwnedFd,
        granted: &Granted,
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Self, ConnectError> {
        let inconsistent = |what| ConnectError::Inconsistent {
            path: path.to_path_buf(),
            what,
        };
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            descriptors
                .next()
                .ok_or_else(|| inconsistent("a descriptor is missing"))
        };
        let control = Mapping::shared_reader(next()?, granted.control_len)?;
        let index = Mapping::shared_reader(next()?, granted.index_len)?;
        let data = Mapping::shared_reader(next()?, granted.data_len)?;
        if control.len() < control::CONTROL_LEN as u64 {
            return Err(inconsistent("the control region is too short"));
        }
        let shape = control::shape(&control.words())?;
        if shape.incarnation != granted.incarnation
            || shape.partition_count != usize::from(granted.partition_count)
        {
            return Err(inconsistent("the control region is of another incarnation"));
        }
        let marks = match granted.marks_len {
            0 => None,
            len => {
                let marks = Mapping::shared_reader(next()?, len.into())?;
                if u64::from(len) < marks::OBJECT_LEN || !marks::is_initialised(&marks.words()) {
                    return Err(inconsistent("the marks are of another version"));
                }
                Some(marks)
            }
        };
        let channel = match granted.rings {
            None => None,
            Some(geometry) => {
                let rings = Mapping::reader_writer(next()?, geometry.object_len())?;
                if !ring::is_initialised(&rings.words()) {
                    return Err(inconsistent("the message rings are not initialised"));
                }
                let socket = UnixStream::from(socket);
                Some(Channel::new(rings, geometry, socket, options.spin))
            }
        };
        Ok(Parts {
            control,
            index,
            data,
            marks,
            shape,
            channel,
        })
    }

    /// What both sides go by, under this topology.
    fn agreement(&self, granted: &Granted) -> Agreement {
        Agreement {
            backend: granted.backend,
            incarnation: granted.incarnation,
            hasher: granted.hasher,
            partition_count: self.shape.partition_count,
            sub_count: self.shape.sub_count(),
            layout_version: granted.layout_version,
            topology: granted.topology,
        }
    }

    pub(super) fn establish(self, granted: &Granted) -> Connection {
        let agreement = self.agreement(granted);
        let mut view = RegionView::new(agreement, self.control, self.index, self.data);
        view.set_marks(self.marks);
        Connection::from_parts(view, self.channel)
    }
}
