//! `assigner` and `relay`: the processes of the linked store; `linked`: what looks
//! at it.

use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug, Clone)]
pub(crate) struct RelayArgs {
    /// postgres://user:password@host:port/database, or key=value pairs, with sslmode, sslrootcert, sslcert and sslkey as for libpq; better in the environment than on the command line
    #[arg(
        long,
        env = "TREFOIL_POSTGRES",
        hide_env_values = true,
        value_name = "URL",
        required_unless_present = "print_sql"
    )]
    pub postgres: Option<String>,
    /// The publication to follow
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "notify",
        conflicts_with = "notify"
    )]
    pub publication: Option<String>,
    /// Without logical replication: the channel that triggers notify; every interruption is a gap
    #[arg(
        long,
        value_name = "CHANNEL",
        conflicts_with_all = ["slot", "temporary", "refreshes", "linger", "restart_is_gap"]
    )]
    pub notify: Option<String>,
    /// With --notify: print the triggers and functions that the database needs, and end; the tables' owner runs them, and again when a --map changes
    #[arg(long, requires = "notify", conflicts_with = "publication")]
    pub print_sql: bool,
    /// Replication slot, in which the database remembers where the relay is
    #[arg(long, value_name = "NAME", default_value = "trefoil")]
    pub slot: String,
    /// Use a slot that ends with the connection: every start is a gap
    #[arg(long, conflicts_with = "slot")]
    pub temporary: bool,
    /// Which keys a row concerns, for example contact=contact/{id}; once for each table and kind of key
    #[arg(long = "map", value_name = "TABLE=TEMPLATE", required = true)]
    pub maps: Vec<String>,
    /// Send these columns with the keys of a table instead of only invalidating them
    #[arg(long = "refresh", value_name = "TABLE=COLUMN[,COLUMN…]")]
    pub refreshes: Vec<String>,
    /// Where subscribers come in
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7431")]
    pub listen: SocketAddr,
    /// How often to write a heartbeat into the database's log
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub heartbeat: Duration,
    /// Memory for the last changes, for subscribers who are behind or away
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: ByteSize,
    /// How long the database keeps changes after they were told, in case that the relay is killed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub linger: Duration,
    /// Count a restart of the database as a gap (for sessions with synchronous_commit = off)
    #[arg(long)]
    pub restart_is_gap: bool,
    /// Serve with TLS, by the certificates in a directory (ca.pem, cert.pem, key.pem; role backend)
    #[arg(long, value_name = "DIR", env = "TREFOIL_CERTS")]
    pub certs: Option<PathBuf>,
    /// With --certs: the corpus for which subscribers' certificates have to be
    #[arg(long, value_name = "NAME", requires = "certs", default_value = "")]
    pub corpus: String,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Users of this host besides this one and root who may subscribe without certificates, and drain, also with certificates: names or numbers
    #[arg(
        long,
        value_name = "USER",
        value_delimiter = ',',
        conflicts_with = "insecure"
    )]
    pub allow_user: Vec<String>,
    /// Address at which metrics, readiness and drain are served, or off
    #[arg(long, value_name = "HOST:PORT|off", default_value = "off")]
    pub metrics: String,
    /// What may be reached from other machines without TLS: metrics
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub plaintext: Vec<LinkedPlaintext>,
}

/// What the linked store's processes serve without TLS, of what could be reached.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkedPlaintext {
    Metrics,
}

#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AssignerArgs {
    /// Address of the service
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7421")]
    pub listen: SocketAddr,
    /// Address that others are told [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// embedded (forgets with the process), embedded:FILE, or etcd://host:port[,host:port…]/prefix for several assigners (certificates and passwords for etcd by TREFOIL_ETCD_CA and the others, as for cells)
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub store: String,
    /// A corpus, and how many replicas its slices have; without any, every corpus that is asked for, with one
    #[arg(long, value_name = "NAME[:MIN..MAX]")]
    pub corpus: Vec<String>,
    /// How long a server is taken for alive after it was last heard
    #[arg(long, value_name = "DURATION", default_value = "2500ms", value_parser = humantime::parse_duration)]
    pub lease: Duration,
    /// Serve with TLS, by the certificates in a directory (ca.pem, cert.pem, key.pem; role backend, --corpus '*')
    #[arg(long, value_name = "DIR", env = "TREFOIL_CERTS")]
    pub certs: Option<PathBuf>,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Users of this host besides this one and root who may come in without certificates, and drain, also with certificates: names or numbers
    #[arg(
        long,
        value_name = "USER",
        value_delimiter = ',',
        conflicts_with = "insecure"
    )]
    pub allow_user: Vec<String>,
    /// Address at which metrics, readiness and drain are served, or off
    #[arg(long, value_name = "HOST:PORT|off", default_value = "off")]
    pub metrics: String,
    /// What may be reached from other machines without TLS: metrics
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub plaintext: Vec<LinkedPlaintext>,
    #[command(subcommand)]
    pub action: Option<AssignerAction>,
}

/// Where the assigners are.
#[derive(Args, Debug, Clone)]
pub(crate) struct AssignerAddressArgs {
    /// host:port[,host:port…], or the store in which they are found: etcd://host:port[,host:port…]/prefix
    #[arg(
        long,
        env = "TREFOIL_ASSIGNER",
        value_name = "ADDR",
        default_value = "127.0.0.1:7421"
    )]
    pub assigner: String,
    /// Connect with TLS, by the certificates in a directory (role admin for what changes something)
    #[arg(long, value_name = "DIR", env = "TREFOIL_CERTS")]
    pub certs: Option<PathBuf>,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Users of this host besides this one and root who may run the assigner without certificates: names or numbers
    #[arg(
        long,
        value_name = "USER",
        value_delimiter = ',',
        conflicts_with = "insecure"
    )]
    pub allow_user: Vec<String>,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum AssignerAction {
    /// Show corpora, servers, loads, the last moves, and what does not fit
    Status {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Machine-readable: a list with a document for each assigner
        #[arg(long)]
        json: bool,
    },
    /// Move nothing, as during a deployment; slices of dead servers still find new ones
    Freeze {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Only this corpus
        #[arg(long, value_name = "NAME")]
        corpus: Option<String>,
        /// Change nothing at all, not even for dead servers
        #[arg(long)]
        all: bool,
    },
    /// End a freeze
    Thaw {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Only this corpus
        #[arg(long, value_name = "NAME")]
        corpus: Option<String>,
    },
    /// Go on from what the store has although servers know something newer: for a store that was restored from an old copy
    BeginIncarnation {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Which corpus
        #[arg(long, value_name = "NAME")]
        corpus: String,
    },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum LinkedCommand {
    /// Show slices, owners, loads, moves, losses and staleness, and what to do about what is not well
    Status {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// Watch the same, with rates
    Top(LinkedTopArgs),
    /// Have a process give everything away, and wait until nothing is left: before it is stopped
    Drain(LinkedDrainArgs),
}

#[derive(Args, Debug, Clone)]
pub(crate) struct LinkedTopArgs {
    #[command(flatten)]
    pub address: AssignerAddressArgs,
    /// Print one snapshot as text and end
    #[arg(long)]
    pub once: bool,
    /// Print an object for each interval
    #[arg(long)]
    pub json: bool,
    /// Between two readings
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct LinkedDrainArgs {
    /// Where the process serves its metrics; it takes this from its own host, user and root only
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9413")]
    pub at: SocketAddr,
    /// Give up after so long [default: wait for as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}
