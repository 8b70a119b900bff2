//! `cell certs`.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use trefoil_tls::Role;

#[derive(Subcommand, Debug)]
pub(crate) enum CertsCommand {
    /// Make a private authority in a directory
    Init(InitArgs),
    /// Issue a certificate with a role
    Issue(IssueArgs),
    /// Issue certificates anew, with the same names and roles and new keys
    Renew(RenewArgs),
    /// Show the authority and what it has issued
    List {
        #[command(flatten)]
        dir: AuthorityDir,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
}

/// Where the authority is.
#[derive(Args, Debug)]
pub(crate) struct AuthorityDir {
    /// Directory of the authority: its key, its certificate, and what it has issued
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub dir: AuthorityDir,
    /// Its name, for people
    #[arg(long, value_name = "NAME", default_value = "trefoil")]
    pub name: String,
    /// How long it is valid
    #[arg(long, value_name = "N", default_value_t = 3650)]
    pub days: u32,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct IssueArgs {
    #[command(flatten)]
    pub dir: AuthorityDir,
    /// Name of the server or client; its files are put into DIR/NAME
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// client (reads and writes), backend (serves) or admin (flushes, limits, reloads, too)
    #[arg(long, value_name = "ROLE")]
    pub role: Role,
    /// Names and addresses by which clients reach it; needed for a backend
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Corpora of a linked store that it is for, once for each; '*' for all, as an assigner's is
    #[arg(long, value_name = "NAME")]
    pub corpus: Vec<String>,
    /// How long it is valid
    #[arg(long, value_name = "N", default_value_t = 90)]
    pub days: u32,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub dir: AuthorityDir,
    /// Which ones
    #[arg(
        value_name = "NAME",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub names: Vec<String>,
    /// All that the authority has issued
    #[arg(long)]
    pub all: bool,
    /// How long they are valid
    #[arg(long, value_name = "N", default_value_t = 90)]
    pub days: u32,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}
