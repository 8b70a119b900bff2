//! Starting a linklet.

use crate::driver::{self, Join};
use crate::error::StartError;
use crate::event::{Listener, events, tell};
use crate::life::Life;
use crate::lifetime::{Expires, Lifetimes};
use crate::linklet::{Inner, Linklet};
use crate::loader::Loader;
use crate::marshal::Marshal;
use crate::peers::STREAM_WINDOW;
use crate::spill::{self, Spill};
use crate::store::{Store, StoreOptions};
use crate::sweep;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tonic::transport::Server;
use trefoil_channel::Security;
use trefoil_coordination::{JoinOptions, LocalCoordinator, ServerInfo, Session};
use trefoil_layout::hash::KeyHasher;
use trefoil_linklet_core::{Config, Replication, TooFew};
use trefoil_sharder::Capacity;

/// How long a load may take, unless something else is said.
const LOAD_WITHIN: Duration = Duration::from_secs(10);

/// How a linklet is to be. Made by [`Linklet::builder`].
pub struct Builder<V> {
    corpus: String,
    marshaller: Box<dyn Marshal<V>>,
    loader: Option<Arc<dyn Loader<V>>>,
    load_within: Duration,
    listeners: Vec<Arc<dyn Listener>>,
    notices: bool,
    expires: Option<Box<Expires<V>>>,
    idle: Option<Duration>,
    stale_max: Option<Duration>,
    memory: u64,
    advertised: Option<String>,
    spill: Option<(PathBuf, u64)>,
    cpu: f64,
    hasher: KeyHasher,
    config: Config,
    patience: Duration,
    report_every: Duration,
    security: Security,
    /// Of the link to the assigner, if it is another.
    assigner_security: Option<Security>,
}

/// Which assigner a linklet joins.
#[derive(Clone, Debug)]
pub enum Assigner {
    /// At `host:port[,host:port…]`.
    At(String),
    /// In this process.
    Local(LocalCoordinator),
}

impl From<&str> for Assigner {
    fn from(address: &str) -> Self {
        Assigner::At(address.to_owned())
    }
}

impl From<String> for Assigner {
    fn from(address: String) -> Self {
        Assigner::At(address)
    }
}

impl From<LocalCoordinator> for Assigner {
    fn from(local: LocalCoordinator) -> Self {
        Assigner::Local(local)
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// A linklet of a corpus whose values this marshaller moves. Everything
    /// else has a default: no loader, no replicas, 256 MiB.
    pub fn builder(corpus: impl Into<String>, marshaller: impl Marshal<V>) -> Builder<V> {
        let cpu = std::thread::available_parallelism().map_or(1, usize::from);
        Builder {
            corpus: corpus.into(),
            marshaller: Box::new(marshaller),
            loader: None,
            load_within: LOAD_WITHIN,
            listeners: Vec::new(),
            notices: false,
            expires: None,
            idle: None,
            stale_max: None,
            memory: 256 << 20,
            advertised: None,
            spill: None,
            cpu: cpu as f64,
            hasher: KeyHasher::default(),
            config: Config::default(),
            patience: Duration::from_secs(5),
            report_every: Duration::from_secs(1),
            security: Security::default(),
            assigner_security: None,
        }
    }
}

impl<V: Send + Sync + 'static> Builder<V> {
    /// Loads what is not in memory. Without a loader the objects live only
    /// here, and what is evicted is lost, and reported; with strong replication
    /// nothing is evicted then, and what there is no room for is refused
    /// ([`Error::NoRoom`](crate::Error::NoRoom)). [`Builder::spill`] is the other choice.
    #[must_use]
    pub fn loader(mut self, loader: impl Loader<V>) -> Self {
        self.loader = Some(Arc::new(loader));
        self
    }

    /// How long a load may take, however often it is begun anew because a change came
    /// between; 10 s unless something else is said. Then the loader's future is dropped, and
    /// who asked, and everybody who waits for the same load, is told
    /// [`Error::LoadOverran`](crate::Error::LoadOverran), and the next call loads again, unless
    /// a value that had been read is stored all the same, a moment after the time was up. A
    /// caller who waits for another one's load waits for no longer than this;
    /// one whose leader goes away loads itself, and has the time anew.
    ///
    /// A loader that blocks its thread instead of waiting cannot be stopped by it.
    #[must_use]
    pub fn load_within(mut self, limit: Duration) -> Self {
        self.load_within = limit;
        self
    }

    /// Hears of slices gained and lost, and of lost values.
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn Listener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Tells listeners of every object that leaves because of memory or its end
    /// ([`Listener::evicted`]). Unless something else is said they are not told:
    /// a cache that is full evicts as often as it loads.
    #[must_use]
    pub fn notices(mut self, notices: bool) -> Self {
        self.notices = notices;
        self
    }

    /// When objects end, by what is in them; `None` for those that do not. From
    /// then on an object counts as absent, and soon it is taken out everywhere.
    /// That is no loss. A change that had begun before is carried out, and the
    /// object is there until that is settled; one that looked at the object before
    /// and would begin afterwards is an [`Error::Conflict`](crate::Error::Conflict).
    ///
    /// The end has to follow from the object alone, for every server that has a
    /// copy asks for it. Every change of the object may change it. Servers go by
    /// their own clocks: set them alike. One whose clock is behind by a second and
    /// that takes over from a dead owner serves an object a second longer.
    ///
    /// The closure runs at every change, **under the lock of the key's part**: it
    /// has to be short, and may not ask the linklet for anything. If it panics the
    /// object does not end.
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// # use trefoil_linklet::{Builder, Linklet, Marshal};
    /// struct Session { user: u64, last_seen: SystemTime }
    /// # fn example(marshal: impl Marshal<Session>) -> Builder<Session> {
    /// Linklet::builder("sessions", marshal)
    ///     .expires(|_key, session: &Session| Some(session.last_seen + Duration::from_secs(1_800)))
    /// # }
    /// ```
    #[must_use]
    pub fn expires(
        mut self,
        expires: impl Fn(&[u8], &V) -> Option<SystemTime> + Send + Sync + 'static,
    ) -> Self {
        self.expires = Some(Box::new(expires));
        self
    }

    /// Takes objects out that nobody has read or changed for this long. Unless it
    /// is said, they are kept. Not before that time, and a moment later, as a rule
    /// within a second or two; who uses the object in that moment keeps it.
    ///
    /// Only the owner knows of all uses, so copies answer nothing where this is
    /// said, also not [`read_copy`](Linklet::read_copy): callers are redirected
    /// to the owner. A server that becomes the owner, by a move or after a death,
    /// takes its objects for used at that moment.
    ///
    /// With [`Replication::Strong`] nobody is told that an idle object is gone
    /// before all copies have confirmed that. Who asks for it in that time waits,
    /// and is told [`Error::Unsettled`](crate::Error::Unsettled) if a replica does
    /// not answer. With [`Replication::Eventual`] the death of the owner may bring
    /// an object back for this long that had just been taken out.
    ///
    /// All servers of a corpus say the same.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use trefoil_linklet::{Builder, Linklet, PlainMarshal};
    /// let sessions: Builder<String> = Linklet::builder("sessions", PlainMarshal)
    ///     .idle(Duration::from_secs(1_800));
    /// ```
    #[must_use]
    pub fn idle(mut self, unused: Duration) -> Self {
        self.idle = Some(unused);
        self
    }

    /// A bound on how old what is served may be, for a linklet that a relay keeps
    /// fresh ([`sink`](Linklet::sink)). An object of which it is not known that it
    /// contained, within this time, everything that had been acknowledged by the
    /// database, is not served: the relay is away or behind, or has told nothing yet.
    /// [`staleness`](Linklet::staleness) is what is compared.
    ///
    /// [`read_or_load`](Linklet::read_or_load) and
    /// [`get_or_load`](Linklet::get_or_load) load it anew, for this caller and those
    /// who wait for the same load, and keep nothing: while the relay is away the
    /// database answers every read. What a load brings is as fresh as a read of the
    /// database that begins with it. If the database cannot be read either, the
    /// loader's error says so ([`Error::Load`](crate::Error::Load)).
    ///
    /// [`read`](Linklet::read), [`read_copy`](Linklet::read_copy) and
    /// [`get`](Linklet::get), which load nothing, refuse it with
    /// [`Error::Stale`](crate::Error::Stale); so do [`update`](Linklet::update),
    /// [`upsert`](Linklet::upsert), [`update_async`](Linklet::update_async) and
    /// [`each_owned`](Linklet::each_owned), whatever they would find. What looks at no
    /// object, `insert`, `remove` and `commit`, is carried out.
    ///
    /// Choose several times the relay's heartbeat (100 ms). Unless it is said, what is
    /// kept is served however long ago the relay was heard.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use trefoil_linklet::{Builder, Linklet, PlainMarshal};
    /// let books: Builder<String> = Linklet::builder("books", PlainMarshal)
    ///     .stale_max(Duration::from_secs(5));
    /// ```
    #[must_use]
    pub fn stale_max(mut self, max: Duration) -> Self {
        self.stale_max = Some(max);
        self
    }

    /// Bytes that keys and values may take, as [`Marshal::weigh`] counts them.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// The address at which the other servers reach this one's port, where it is not the one
    /// that [`listen`](Builder::listen) listens at: a container that listens at `0.0.0.0`
    /// advertises its pod's address or a name of its own. With port 0 it is the port that was
    /// listened at. [`join`](Builder::join) is given its address, and does not look at this.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertised = Some(address.into());
        self
    }

    /// Keeps values for which there is no memory in files of this directory, up to so many
    /// bytes of disk, instead of evicting them; with strong copies and no loader, instead of
    /// refusing what is new. Unless it is said, nothing goes to disk.
    ///
    /// The values that were not used for longest go, copies for other servers among them, and
    /// come back when somebody asks for them. Their keys stay in memory, with some 200 bytes
    /// each: that, and the disk, is what bounds the number of values. Who reads one of them
    /// waits for the disk; who reads what is in memory does not. A value is marshalled when it
    /// goes, and unmarshalled when it comes back.
    ///
    /// It is more memory, and nothing else: **no value outlives the process**. What a server's
    /// death loses, it loses with or without a spill, and what `replication` promises is not
    /// changed. The files have no names, so nobody else can open them, and the kernel frees
    /// them when the process ends, however that is (`df` counts them, `du` does not see them).
    /// They are not encrypted.
    ///
    /// * **The disk is full**, or the bound is reached, or writing fails: what makes room is
    ///   evicted, or what is new is refused, as without a spill, until it works again. Of the
    ///   bound a thirty-second is kept for compaction, and files may be a quarter empty. See
    ///   [`Stats::spill_full`](crate::Stats) and `spill_write_failures`.
    /// * **A value cannot be read back** (the disk fails, or has other bytes than were
    ///   written): with a loader it is loaded again. Without one whoever asked for it is told
    ///   [`Error::Unreadable`](crate::Error::Unreadable), and the loss is reported
    ///   ([`StateLossReason::SpillUnreadable`](crate::StateLossReason)).
    /// * **A value cannot be marshalled**: it stays in memory, and is evicted if it has to be.
    ///
    /// Choose a local disk (flash), for moves and copies read from it under the lock of the
    /// protocol. No directory is made; one that is missing or cannot be written is an error of
    /// [`join`](Builder::join) and [`listen`](Builder::listen). Servers of a corpus need not
    /// agree.
    ///
    /// ```
    /// # use trefoil_linklet::{Builder, Linklet, PlainMarshal, Replication};
    /// let sessions: Builder<String> = Linklet::builder("sessions", PlainMarshal)
    ///     .replication(Replication::Strong)
    ///     .memory(1 << 30)
    ///     .spill("/var/tmp", 16 << 30);
    /// ```
    #[must_use]
    pub fn spill(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.spill = Some((directory.into(), bytes));
        self
    }

    /// CPU-seconds per second (cores) that the server may spend.
    #[must_use]
    pub fn cpu(mut self, cores: f64) -> Self {
        self.cpu = cores;
        self
    }

    /// Copies, and what they are worth. All servers of a corpus use the same.
    /// The assigner is asked for as many replicas as that needs: one with
    /// [`Replication::None`], two with [`Replication::Eventual`], and those of
    /// [`copies`](Builder::copies) with [`Replication::Strong`].
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.config.replication = replication;
        self
    }

    /// With [`Replication::Strong`]: servers, the owner counted, that have a
    /// commit before it is acknowledged; 2 unless something else is said. With 1
    /// a death loses commits.
    #[must_use]
    pub fn copies(mut self, min: usize) -> Self {
        self.config.copies_min = min;
        self
    }

    /// With [`Replication::Strong`]: what becomes of commits while fewer servers
    /// than [`copies`](Builder::copies) can have the key. Unless something else
    /// is said they wait, and are refused with
    /// [`Error::TooFewCopies`](crate::Error::TooFewCopies).
    /// [`TooFew::Acknowledge`] takes them, says so in the log and counts them
    /// in [`Stats::commits_thin`](crate::Stats).
    #[must_use]
    pub fn too_few(mut self, what: TooFew) -> Self {
        self.config.too_few = what;
        self
    }

    /// Every limit of the protocol.
    #[must_use]
    pub fn protocol(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Bytes a second spent on moving values (pulled ones not counted).
    #[must_use]
    pub fn move_bytes_per_second(mut self, bytes: u64) -> Self {
        self.config.bytes_per_second = bytes;
        self
    }

    /// Hashes keys to points. All servers and callers of a corpus use the
    /// same.
    #[must_use]
    pub fn hasher(mut self, hasher: KeyHasher) -> Self {
        self.hasher = hasher;
        self
    }

    /// How long a request waits for a key that is being moved here; and, from
    /// when a strong commit has begun, how long it waits for its replicas.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How often load is reported.
    #[must_use]
    pub fn report_every(mut self, every: Duration) -> Self {
        self.report_every = every;
        self
    }

    /// What protects the connections to the assigner and to the other servers;
    /// unless something else is said they are plain and end at this host, and at its
    /// own user and root ([`Security::users`] names others).
    ///
    /// An application that mounts [`Linklet::service`] serves what comes in by
    /// [`Security::incoming`], which keeps strangers away from its own services, too.
    /// Behind another listener frames are refused with certificates. Without them,
    /// behind one of tonic's over TCP, it is asked with each stream who has opened it,
    /// and the application's own services answer whom they like.
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// What protects the link to the assigner alone, where it is something else than
    /// [`security`](Builder::security), which goes for the other servers then.
    #[must_use]
    pub fn assigner_security(mut self, security: Security) -> Self {
        self.assigner_security = Some(security);
        self
    }

    /// Allows everything to cross a network in the clear, to the assigner and to the
    /// other servers: both links. For one of the two say
    /// [`Security::Plaintext`] to [`assigner_security`](Builder::assigner_security) or to
    /// [`security`](Builder::security).
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.security = match (self.security, insecure) {
            (encrypted @ Security::Certificates(_), _) => encrypted,
            (_, true) => Security::Plaintext,
            (Security::Plaintext, false) => Security::Loopback,
            (kept @ (Security::Loopback | Security::Users(_)), false) => kept,
        };
        self
    }

    /// Joins, advertising the address of a tonic server in which the
    /// application mounts [`Linklet::service`]. To be called in a tokio
    /// runtime.
    pub async fn join(
        self,
        assigner: impl Into<Assigner>,
        address: impl Into<String>,
    ) -> Result<Linklet<V>, StartError> {
        let address: String = address.into();
        // The others would be told to send everything there.
        self.security.check_address(&address)?;
        check_advertised(&address)?;
        let spill_bytes = self.spill.as_ref().map_or(0, |&(_, bytes)| bytes);
        let spill = match self.spill {
            Some((directory, bytes)) => match Spill::open(&directory, bytes) {
                Ok(spill) => Some(spill),
                Err(source) => return Err(StartError::Spill { directory, source }),
            },
            None => None,
        };
        let info = ServerInfo {
            copies_min: self.config.servers_wanted(),
            ..ServerInfo::new(
                address,
                Capacity {
                    cpu: self.cpu,
                    bytes: self.memory.saturating_add(spill_bytes),
                },
            )
        };
        let security = self.security.clone();
        let to_assigner = self.assigner_security.unwrap_or_else(|| security.clone());
        let join = joiner(assigner.into(), self.corpus.clone(), to_assigner);
        self.config.validate()?;
        let session = join(info.clone()).await?;
        let (events, heard) = events();
        let lifetimes = Lifetimes::new(self.expires, self.idle);
        let sweeps = lifetimes.any();
        let store = Arc::new(Store::new(StoreOptions {
            memory: self.memory,
            hasher: self.hasher,
            replication: self.config.replication,
            marshaller: self.marshaller,
            has_loader: self.loader.is_some(),
            lifetimes,
            events,
            notices: self.notices,
            stale_max: self.stale_max,
            spill,
        }));
        let life = Life::new(
            Arc::clone(&store),
            session.clone(),
            security.clone(),
            self.config.clone(),
        )?;
        let writes = store.spill.is_some().then(|| Arc::clone(&store));
        let inner = Arc::new(Inner::new(
            self.corpus,
            store,
            self.config,
            (self.loader, self.load_within),
            security,
            life,
        ));
        let weak = Arc::downgrade(&inner);
        let mut tasks = vec![
            tokio::spawn(driver::drive(weak.clone(), session, join, info)).abort_handle(),
            tokio::spawn(driver::report(weak.clone(), self.report_every)).abort_handle(),
        ];
        if sweeps {
            tasks.push(tokio::spawn(sweep::sweep(weak)).abort_handle());
        }
        if let Some(store) = writes {
            tasks.push(tokio::spawn(spill::write(store)).abort_handle());
        }
        // Ends by itself, when everything has been told.
        tokio::spawn(tell(heard, self.listeners));
        Ok(Linklet::new(inner, tasks, self.patience))
    }

    /// Joins with a port of its own: `listen` may have port 0. For servers
    /// that do not speak gRPC to their callers. The others are told that address, or
    /// the one of [`advertise`](Builder::advertise).
    pub async fn listen(
        self,
        assigner: impl Into<Assigner>,
        listen: SocketAddr,
    ) -> Result<Linklet<V>, StartError> {
        self.security.check_listen(listen)?;
        let security = self.security.clone();
        let failed = |source| StartError::Listen {
            address: listen.to_string(),
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let address = match &self.advertised {
            None => bound.to_string(),
            Some(said) => match said.strip_suffix(":0") {
                Some(host) => format!("{host}:{}", bound.port()),
                None => said.clone(),
            },
        };
        let mut linklet = self.join(assigner, address).await?;
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW)
            .add_service(linklet.service().into_server())
            .serve_with_incoming(security.incoming(listener));
        let task = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the port for the other servers has failed");
            }
        });
        linklet.keep(task.abort_handle());
        Ok(linklet)
    }
}

impl<V> std::fmt::Debug for Builder<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("corpus", &self.corpus)
            .field("memory", &self.memory)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Every server would take itself for each of the others, and push the others out.
fn check_advertised(address: &str) -> Result<(), StartError> {
    match address.parse::<SocketAddr>() {
        Ok(parsed) if parsed.ip().is_unspecified() => Err(StartError::Unspecified {
            address: address.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn joiner(assigner: Assigner, corpus: String, security: Security) -> Join {
    Arc::new(move |info| {
        let (assigner, corpus) = (assigner.clone(), corpus.clone());
        let options = JoinOptions {
            security: security.clone(),
            ..JoinOptions::default()
        };
        Box::pin(async move {
            match assigner {
                Assigner::At(address) => Session::join_with(&address, &corpus, info, options).await,
                Assigner::Local(local) => local.join_with(&corpus, info, options).await,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainMarshal;

    #[test]
    fn what_was_said_of_users_and_certificates_outlasts_that_nothing_is_insecure() {
        let builder = |security| -> Builder<String> {
            Linklet::builder("mail", PlainMarshal).security(security)
        };
        let kept = builder(Security::users([33])).insecure(false).security;
        assert!(kept.local_users().let_in(33), "{kept:?}");
        let protected = builder(Security::Plaintext).insecure(false).security;
        assert!(matches!(protected, Security::Loopback), "{protected:?}");
        let open = builder(Security::users([33])).insecure(true).security;
        assert!(matches!(open, Security::Plaintext), "{open:?}");
    }
}
